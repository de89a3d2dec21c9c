"""The weights of ranks in the averages of an epoch: the rank loop's part of `AbstractStrategy.weighs`.

The rates of the steps of an epoch follow from the schedule, the step counter of each rank at its start and the number
of its steps. All ranks know all of that, so that they compute the same weights without a message; only when training
resumes from a saved state do they exchange their step counters.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from dsgd.local import AbstractLocalOptimizer
from dsgd.runtime.rank import Rank
from dsgd.runtime.train.state import TrainState, share_of
from dsgd.sync import AbstractStrategy, RoundClock, mean_shares
from dsgd.types import FloatVector


class EpochWeights:
    """The weights of one rank, epoch by epoch."""

    def __init__(
        self,
        rank: Rank,
        strategy: AbstractStrategy[Any],
        optimizer: AbstractLocalOptimizer[Any, Any],
        rows: Sequence[int],
    ) -> None:
        self._rank, self._optimizer, self._rows = rank, optimizer, np.array(rows, dtype=np.int64)
        self._period, self._weighs = strategy.period, strategy.weighs
        self.share = self.weight = share_of(rank.number, rows)
        self.scale = 1.0
        # The mean over one rank is its model.
        self._n_with_rows = int(np.count_nonzero(self._rows))
        self._varies = rank.size > 1 and strategy.exchanges == "model" and self._weighs != "rows"
        self._varies = self._varies and self._n_with_rows > 0
        self._begins: FloatVector = np.zeros(rank.size)
        self._counts: FloatVector = np.zeros(rank.size)

    def begin(self, at: TrainState, *, resumed: bool) -> None:
        """Take note of the steps that ranks begin with; called by all of them once the state is taken up."""
        if not self._varies:
            return
        self._begins[:] = at.optimizer.t
        if resumed:
            counters = self._rank.group.roll_call(np.array([at.optimizer.t, float(at.optimizer.n_seen)]))
            self._begins[:] = counters[:, 0]
            if not at.begins_epoch:
                self._begins -= self._steps_so_far(at, counters[:, 1])
        self._counts[:] = 0.0

    def begin_epoch(self, at: TrainState) -> None:
        """Compute the weights of the next epoch, or of the one in which training resumes."""
        if not self._varies:
            return
        self._begins += self._counts
        self._counts = self._n_steps(at)
        number = self._rank.number
        sums = self._optimizer.planned_rates(self._begins, self._counts)
        shares = _shares(self._rows.tobytes(), sums.tobytes())
        if self._weighs == "rates":
            self.weight = float(shares[number])
        elif np.unique(shares[shares > 0.0]).size == 1:
            # To the bit, which so many times one over that number need not be.
            self.scale = self._rank.size / self._n_with_rows if self._rows[number] else 1.0
        else:
            self.scale = float(self._rank.size * shares[number])

    def _n_steps(self, at: TrainState) -> FloatVector:
        """Return how many steps each rank takes in an epoch."""
        steps = self._optimizer.steps
        if steps.by_row:
            return self._rows.astype(np.float64)
        # Rounds that end in no exchange are walked in one go with the next.
        rounds = at.cut.rounds
        clocks = (RoundClock(at.epoch, k, rounds, is_last=False) for k in range(rounds))
        ends = [0, *(clock.round + 1 for clock in clocks if clock.ends_epoch or self._period.is_due(clock))]
        found = dict.fromkeys(self._rows.tolist(), 0)
        for n in found:
            spans = (n * last // rounds - n * first // rounds for first, last in pairwise(ends))
            found[n] = sum(-(-span // steps.rows) for span in spans)
        return np.array([found[n] for n in self._rows.tolist()], dtype=np.float64)

    def _steps_so_far(self, at: TrainState, n_seen: FloatVector) -> FloatVector:
        """Return how many steps of the running epoch ranks have taken; none where they have other rows than then."""
        spans = [at.cut.span(rank, n, 0, at.round - 1)[1] for rank, n in enumerate(self._rows.tolist())]
        if n_seen.tolist() != spans:
            return np.zeros(self._rank.size)
        return np.rint(self._n_steps(at) * n_seen / np.maximum(1, self._rows))


@lru_cache(maxsize=8)
def _shares(rows: bytes, rate_sums: bytes) -> FloatVector:
    """Return `mean_shares`, not to be written to: ranks of one process all ask for the same."""
    return mean_shares(np.frombuffer(rows, np.int64), np.frombuffer(rate_sums, np.float64))
