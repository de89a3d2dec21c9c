"""The factor of pooled rates, with which few steps get as far in an epoch as those of one rank.

What is missing the strategy says (`dsgd.sync.AbstractStrategy.lag`), what rows bear the optimiser
(`dsgd.local.SGD.pooled_factor`). Ranks that step on their own have one factor for all of training; where all take the
same step, or a server takes it, each step has its own, since rates that have fallen bear a higher one.

Cost: one pass over the rows and one number from each rank, before the first step, and only where something is missing.

Source: the linear scaling rule, Goyal et al. 2017, section 2.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from dsgd.errors import InvalidDataError
from dsgd.local import SGD, AbstractRows, Shard
from dsgd.runtime.rank import Rank
from dsgd.runtime.train.job import TrainJob
from dsgd.sync import AbstractStrategy
from dsgd.types import FloatMatrix

#: Least share of the way to the minimum that the model must be able to go along other rows than the longest.
_LEAST_MOVE: Final = 1e-2
#: In as many epochs at least: a fit of one may go on.
_MANY_EPOCHS: Final = 100


def missing_factor(strategy: AbstractStrategy[Any], optimizer: object, n_ranks: int) -> float:
    """Return the factor that rates lack: 1 where the strategy does not pool them, or they fall like 1 / t."""
    # At rates c / t an epoch gets equally far with any number of steps; and the step of a rule is not as long as the
    # gradient.
    if strategy.rates != "pooled" or not isinstance(optimizer, SGD) or optimizer.rule is not None:
        return 1.0
    if n_ranks < 1 or optimizer.rate_power >= 1.0:
        return 1.0
    return max(1.0, strategy.lag(n_ranks, optimizer.rate_power))


def _check_curvatures(told: FloatMatrix, reduction: object, max_iter: int) -> None:
    """Raise on all ranks if steps that suit the longest row would not move the model of the others.

    - `told`, shape (size, 2): of each rank the largest curvature of a row, and the sum of those of its other rows.
    """
    number = int(told[:, 0].argmax())
    largest, others = told[number, 0], told[:, 1].sum() + np.delete(told[:, 0], number).sum()
    # What all epochs together move the model by is at most their number times this ratio, as a share of the whole way.
    if np.isfinite(largest) and (others == 0.0 or max(max_iter, _MANY_EPOCHS) * others > _LEAST_MOVE * largest):
        return
    raise InvalidDataError(
        f"{reduction!r} takes steps of 1 / (3 L) with L the largest curvature of a row, which is {largest:.3g}; those "
        f"of all other rows add up to {others:.3g}, so that they would not move the model. Look for outliers in X, "
        f"scale it with RobustScaler, or set the length of steps: {type(reduction).__name__}(step=...)."
    )


@dataclass(frozen=True)
class PooledRates:
    """By how much the rates of a run are higher than those of the schedule."""

    missing: float = 1.0
    mean_square: float = 0.0
    length: float | None = None

    @classmethod
    def begin(cls, rank: Rank, job: TrainJob, rows: AbstractRows, counts: list[int], share: float) -> PooledRates:
        """Return those of a run; called by all ranks."""
        optimizer = job.optimizer
        if isinstance(optimizer, SGD) and optimizer.reduction is not None and isinstance(rows, Shard):
            told = rank.group.roll_call(np.array(optimizer.reduction.curvature(rows, optimizer.objective)))
            if optimizer.reduction.step is None:
                _check_curvatures(told, optimizer.reduction, job.max_iter)
            return cls(length=optimizer.reduction.length(float(told[:, 0].max())))
        missing = missing_factor(job.strategy, job.optimizer, int(np.count_nonzero(counts)))
        if missing == 1.0 or not isinstance(rows, Shard):
            return cls()
        assert isinstance(optimizer, SGD)  # others miss nothing
        square = np.array([share * optimizer.mean_square(rows)])
        rank.group.allreduce(square)
        return cls(missing, float(square[0]))

    def factor(self, optimizer: object, t: float = 1.0) -> float:
        """Return the factor of the rate of step t, counted as the schedule counts."""
        if self.length is not None:
            return self.length
        if self.missing == 1.0:
            return 1.0
        assert isinstance(optimizer, SGD)
        return optimizer.pooled_factor(self.missing, self.mean_square, t)
