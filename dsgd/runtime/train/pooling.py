"""The factor of pooled rates, with which few steps get as far in an epoch as those of one rank.

What is missing the strategy says (`dsgd.sync.AbstractStrategy.lag`), what rows bear the optimiser
(`dsgd.local.SGD.pooled_factor`). Ranks that step on their own have one factor for all of training; where all take the
same step, or a server takes it, each step has its own, since rates that have fallen bear a higher one.

Cost: one pass over the rows and one number from each rank, before the first step, and only where something is missing.

Source: the linear scaling rule, Goyal et al. 2017, section 2.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dsgd.local import SGD, AbstractRows, Shard
from dsgd.runtime.rank import Rank
from dsgd.runtime.train.job import TrainJob
from dsgd.sync import AbstractStrategy

__all__ = ["PooledRates", "missing_factor"]


def missing_factor(strategy: AbstractStrategy[Any], optimizer: object, n_ranks: int) -> float:
    """Return the factor that rates lack, 1 or more; 1 where the strategy does not pool them, or they fall like 1 / t.

    Parameters
    ----------
    strategy : AbstractStrategy
        The strategy.
    optimizer : object
        Their optimiser.
    n_ranks : int
        Ranks that have rows.
    """
    # At rates c / t an epoch gets equally far with any number of steps; and the step of a rule is not as long as the
    # gradient.
    if strategy.rates != "pooled" or not isinstance(optimizer, SGD) or optimizer.rule is not None:
        return 1.0
    if n_ranks < 1 or optimizer.rate_power >= 1.0:
        return 1.0
    return max(1.0, strategy.lag(n_ranks, optimizer.rate_power))


@dataclass(frozen=True)
class PooledRates:
    """By how much the rates of a run are higher than those of the schedule.

    Parameters
    ----------
    missing : float
        The factor that rates lack; see `missing_factor`.
    mean_square : float
        Mean squared length of the rows of all ranks, where something is missing.
    length : float or None
        The length of a step, where the optimiser finds it from the rows of all ranks.
    """

    missing: float = 1.0
    mean_square: float = 0.0
    length: float | None = None

    @classmethod
    def begin(cls, rank: Rank, job: TrainJob, rows: AbstractRows, counts: list[int], share: float) -> PooledRates:
        """Return those of a run; called by all ranks.

        Parameters
        ----------
        rank : Rank
            This member of the gang.
        job : TrainJob
            The job.
        rows : AbstractRows
            The rows of this rank.
        counts : list of int
            How many each rank has.
        share : float
            This rank's share of them.
        """
        optimizer = job.optimizer
        if isinstance(optimizer, SGD) and optimizer.reduction is not None and isinstance(rows, Shard):
            largest = rank.group.roll_call(np.array([optimizer.reduction.curvature(rows, optimizer.objective)])).max()
            return cls(length=optimizer.reduction.length(float(largest)))
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
