"""When ranks talk, and what they say: one file per strategy."""

from dsgd.sync.anytime import AnytimeSGD
from dsgd.sync.averaging import weighted_mean
from dsgd.sync.base import AbstractLocalTerm, AbstractStrategy, Exchange, LocalSteps, NoState
from dsgd.sync.combine import check_combination
from dsgd.sync.epoch_averaging import EpochAveraging
from dsgd.sync.local_sgd import LocalSGD
from dsgd.sync.minibatch import MinibatchSGD
from dsgd.sync.momentum import MomentumPolicy, carry_over
from dsgd.sync.one_shot import OneShotAveraging
from dsgd.sync.period import AbstractPeriod, EveryBatch, EveryEpoch, EveryRows, Once, RoundClock
from dsgd.sync.resolve import resolve

__all__ = [
    "AbstractLocalTerm",
    "AbstractPeriod",
    "AbstractStrategy",
    "AnytimeSGD",
    "EpochAveraging",
    "EveryBatch",
    "EveryEpoch",
    "EveryRows",
    "Exchange",
    "LocalSGD",
    "LocalSteps",
    "MinibatchSGD",
    "MomentumPolicy",
    "NoState",
    "Once",
    "OneShotAveraging",
    "RoundClock",
    "carry_over",
    "check_combination",
    "resolve",
    "weighted_mean",
]
