"""What one rank computes: its packed rows, the objective, and steps on them."""

from typing import TYPE_CHECKING

from dsgd.lazy import loaded_on_use

if TYPE_CHECKING:
    from dsgd.local.base import AbstractLocalOptimizer, AbstractState
    from dsgd.local.ingest import make_shard
    from dsgd.local.objective import CustomLoss, Objective
    from dsgd.local.rules import (
        LARS,
        AbstractCycle,
        AbstractRule,
        Adagrad,
        Adam,
        Cyclical,
        GradientDescent,
        Momentum,
        OneCycle,
    )
    from dsgd.local.sgd import SGD
    from dsgd.local.shard import Residency, Shard
    from dsgd.local.variance import SAGA, SVRG, AbstractReduction, Importance


__all__ = [
    "LARS",
    "SAGA",
    "SGD",
    "SVRG",
    "AbstractCycle",
    "AbstractLocalOptimizer",
    "AbstractReduction",
    "AbstractRule",
    "AbstractState",
    "Adagrad",
    "Adam",
    "CustomLoss",
    "Cyclical",
    "GradientDescent",
    "Importance",
    "Momentum",
    "Objective",
    "OneCycle",
    "Residency",
    "Shard",
    "make_shard",
]


__getattr__ = loaded_on_use(__name__)
