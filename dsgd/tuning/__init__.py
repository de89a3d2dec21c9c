"""Tuning: the period, strategy, compressor and step size that reach a target soonest."""

from dsgd.tuning.result import Trial, TuningResult
from dsgd.tuning.search import tune
from dsgd.tuning.space import Candidate, StepSize

__all__ = ["Candidate", "StepSize", "Trial", "TuningResult", "tune"]
