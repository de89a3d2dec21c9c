"""When ranks talk, and what they say: one file per strategy."""

from dsgd.sync.anytime import AnytimeSGD
from dsgd.sync.averaging import weighted_mean
from dsgd.sync.base import AbstractStrategy, Exchange, NoState
from dsgd.sync.epoch_averaging import EpochAveraging
from dsgd.sync.local_sgd import LocalSGD
from dsgd.sync.minibatch import MinibatchSGD
from dsgd.sync.one_shot import OneShotAveraging
from dsgd.sync.period import AbstractPeriod, EveryBatch, EveryEpoch, EveryRows, Once, RoundClock
from dsgd.sync.resolve import resolve

__all__ = [
    "AbstractPeriod",
    "AbstractStrategy",
    "AnytimeSGD",
    "EpochAveraging",
    "EveryBatch",
    "EveryEpoch",
    "EveryRows",
    "Exchange",
    "LocalSGD",
    "MinibatchSGD",
    "NoState",
    "Once",
    "OneShotAveraging",
    "RoundClock",
    "resolve",
    "weighted_mean",
]
