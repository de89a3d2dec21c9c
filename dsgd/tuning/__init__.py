"""Tuning: which period, strategy, compressor and step size reach a target soonest on this machine."""

from dsgd.tuning.result import Trial, TuningResult
from dsgd.tuning.search import tune
from dsgd.tuning.space import Candidate, StepSize

__all__ = ["Candidate", "StepSize", "Trial", "TuningResult", "tune"]
