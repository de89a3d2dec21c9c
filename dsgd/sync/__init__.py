"""When ranks talk, and what they say: one file per strategy."""

from dsgd.sync.anytime import AnytimeSGD
from dsgd.sync.averaging import weighted_mean
from dsgd.sync.base import AbstractStrategy, Exchange, RoundClock
from dsgd.sync.epoch_averaging import EpochAveraging
from dsgd.sync.local_sgd import LocalSGD
from dsgd.sync.minibatch import MinibatchSGD
from dsgd.sync.one_shot import OneShotAveraging
from dsgd.sync.resolve import resolve

__all__ = [
    "AbstractStrategy",
    "AnytimeSGD",
    "EpochAveraging",
    "Exchange",
    "LocalSGD",
    "MinibatchSGD",
    "OneShotAveraging",
    "RoundClock",
    "resolve",
    "weighted_mean",
]
