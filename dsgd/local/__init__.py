"""What one rank computes: its packed rows, the objective, and steps on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dsgd.lazy import loaded_on_use

if TYPE_CHECKING:
    from dsgd.local.base import (
        OF_ROWS,
        AbstractLocalOptimizer,
        AbstractRows,
        AbstractState,
        Evaluation,
        Steps,
        new_counters,
    )
    from dsgd.local.cycles import (
        AbstractCycle,
        Cyclical,
        LearningRate,
        OneCycle,
        check_learning_rate,
        cycle_of,
        schedule_of,
    )
    from dsgd.local.features import RandomMap
    from dsgd.local.ingest import ShardBuilder, concat_blocks, make_shard
    from dsgd.local.objective import CustomLoss, Deviance, Objective, loss_row, n_params, pack, unpack
    from dsgd.local.rules import (
        LARS,
        OPTIMIZER_NAMES,
        AbstractRule,
        Adagrad,
        Adam,
        GradientDescent,
        Momentum,
        parse_optimizer,
        parse_sampling,
        steps_of,
    )
    from dsgd.local.sgd import SGD, is_finite
    from dsgd.local.sgd_state import Dual, SGDState, add_to_suffix, begin_suffix, end_suffix, is_in_suffix
    from dsgd.local.shard import Residency, Shard, split
    from dsgd.local.variance import SAGA, SVRG, AbstractReduction, Importance, check_reduction, resolve_sampling


__all__ = [
    "LARS",
    "OF_ROWS",
    "OPTIMIZER_NAMES",
    "SAGA",
    "SGD",
    "SVRG",
    "AbstractCycle",
    "AbstractLocalOptimizer",
    "AbstractReduction",
    "AbstractRows",
    "AbstractRule",
    "AbstractState",
    "Adagrad",
    "Adam",
    "CustomLoss",
    "Cyclical",
    "Deviance",
    "Dual",
    "Evaluation",
    "GradientDescent",
    "Importance",
    "LearningRate",
    "Momentum",
    "Objective",
    "OneCycle",
    "RandomMap",
    "Residency",
    "SGDState",
    "Shard",
    "ShardBuilder",
    "Steps",
    "add_to_suffix",
    "begin_suffix",
    "check_learning_rate",
    "check_reduction",
    "concat_blocks",
    "cycle_of",
    "end_suffix",
    "is_finite",
    "is_in_suffix",
    "loss_row",
    "make_shard",
    "n_params",
    "new_counters",
    "pack",
    "parse_optimizer",
    "parse_sampling",
    "resolve_sampling",
    "schedule_of",
    "split",
    "steps_of",
    "unpack",
]

_HOMES: Final = {
    "LARS": "dsgd.local.rules",
    "OF_ROWS": "dsgd.local.base",
    "OPTIMIZER_NAMES": "dsgd.local.rules",
    "SAGA": "dsgd.local.variance",
    "SGD": "dsgd.local.sgd",
    "SVRG": "dsgd.local.variance",
    "AbstractCycle": "dsgd.local.cycles",
    "AbstractLocalOptimizer": "dsgd.local.base",
    "AbstractReduction": "dsgd.local.variance",
    "AbstractRows": "dsgd.local.base",
    "AbstractRule": "dsgd.local.rules",
    "AbstractState": "dsgd.local.base",
    "Adagrad": "dsgd.local.rules",
    "Adam": "dsgd.local.rules",
    "CustomLoss": "dsgd.local.objective",
    "Cyclical": "dsgd.local.cycles",
    "Deviance": "dsgd.local.objective",
    "Dual": "dsgd.local.sgd_state",
    "Evaluation": "dsgd.local.base",
    "GradientDescent": "dsgd.local.rules",
    "Importance": "dsgd.local.variance",
    "LearningRate": "dsgd.local.cycles",
    "Momentum": "dsgd.local.rules",
    "Objective": "dsgd.local.objective",
    "OneCycle": "dsgd.local.cycles",
    "RandomMap": "dsgd.local.features",
    "Residency": "dsgd.local.shard",
    "SGDState": "dsgd.local.sgd_state",
    "Shard": "dsgd.local.shard",
    "ShardBuilder": "dsgd.local.ingest",
    "Steps": "dsgd.local.base",
    "add_to_suffix": "dsgd.local.sgd_state",
    "begin_suffix": "dsgd.local.sgd_state",
    "check_learning_rate": "dsgd.local.cycles",
    "check_reduction": "dsgd.local.variance",
    "concat_blocks": "dsgd.local.ingest",
    "cycle_of": "dsgd.local.cycles",
    "end_suffix": "dsgd.local.sgd_state",
    "is_finite": "dsgd.local.sgd",
    "is_in_suffix": "dsgd.local.sgd_state",
    "loss_row": "dsgd.local.objective",
    "make_shard": "dsgd.local.ingest",
    "n_params": "dsgd.local.objective",
    "new_counters": "dsgd.local.base",
    "pack": "dsgd.local.objective",
    "parse_optimizer": "dsgd.local.rules",
    "parse_sampling": "dsgd.local.rules",
    "resolve_sampling": "dsgd.local.variance",
    "schedule_of": "dsgd.local.cycles",
    "split": "dsgd.local.shard",
    "steps_of": "dsgd.local.rules",
    "unpack": "dsgd.local.objective",
}

__getattr__ = loaded_on_use(__name__, _HOMES)
