"""What one rank computes: its packed rows, the objective, and steps on them."""

from __future__ import annotations

from dsgd.local.base import (
    OF_ROWS,
    AbstractLocalOptimizer,
    AbstractRows,
    AbstractState,
    Evaluation,
    Steps,
    new_counters,
)
from dsgd.local.custom_loss import CustomLoss, loss_row
from dsgd.local.cycles import (
    AbstractCycle,
    Cyclical,
    LearningRate,
    OneCycle,
    check_learning_rate,
    cycle_of,
    schedule_of,
)
from dsgd.local.deviance import Deviance
from dsgd.local.dual import Dual
from dsgd.local.evaluate import evaluate
from dsgd.local.features import RandomMap
from dsgd.local.halves import STORAGES, refuse_sparse
from dsgd.local.ingest import ShardBuilder, concat_blocks, make_shard
from dsgd.local.objective import Objective, n_params, pack, unpack
from dsgd.local.parse import OPTIMIZER_NAMES, parse_optimizer, parse_sampling
from dsgd.local.rules import LARS, AbstractRule, Adagrad, Adam, GradientDescent, Momentum, steps_of
from dsgd.local.sampling import Importance, resolve_sampling
from dsgd.local.sgd import SGD, is_finite
from dsgd.local.sgd_state import SGDState
from dsgd.local.shard import Residency, Shard, split
from dsgd.local.suffix import add_to_suffix, begin_suffix, end_suffix, is_in_suffix
from dsgd.local.variance import SAGA, SVRG, AbstractReduction, check_reduction

__all__ = [
    "LARS",
    "OF_ROWS",
    "OPTIMIZER_NAMES",
    "SAGA",
    "SGD",
    "STORAGES",
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
    "evaluate",
    "is_finite",
    "is_in_suffix",
    "loss_row",
    "make_shard",
    "n_params",
    "new_counters",
    "pack",
    "parse_optimizer",
    "parse_sampling",
    "refuse_sparse",
    "resolve_sampling",
    "schedule_of",
    "split",
    "steps_of",
    "unpack",
]
