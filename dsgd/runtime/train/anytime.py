"""Rounds of a fixed time: the rank loop's part of `dsgd.sync.AnytimeSGD`.

A rank visits its rows in a circle, from where it stopped; that place follows from its step counter, so snapshots need
not contain it. The rank checks the clock after every slice of rows. Slices grow to an eighth of the time at the pace so
far, so a round ends close to its time although a call of the kernel cannot be interrupted, and a slow rank still visits
at least one row.

How many rows each has visited is summed before the models are: from that number every rank has its weight, and all of
them see at the same moment that the epoch is over.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from dsgd.ledger import COMPUTE
from dsgd.local import AbstractRows
from dsgd.runtime.rank import Rank
from dsgd.runtime.train.deadlines import Deadlines
from dsgd.runtime.train.state import TrainState
from dsgd.sync import AbstractStrategy, NoState
from dsgd.types import FloatVector

_SLICES: Final = 8
MAX_GROWTH: Final = 2


class AnytimeRounds:
    """Runs the rounds of one rank."""

    def __init__(
        self,
        rank: Rank,
        strategy: AbstractStrategy[Any],
        seconds: float,
        walk: Callable[[int, int], object],
        at: TrainState,
        shard: AbstractRows,
        t_start: float,
        rows_per_call: int,
    ) -> None:
        self._rank, self._strategy, self._seconds, self._walk = rank, strategy, seconds, walk
        self._at, self._shard, self._t_start = at, shard, t_start
        self._rows_per_call = rows_per_call
        self._visited = np.zeros(1)

    def run_epoch(self, n_total: int, before_last: FloatVector, deadlines: Deadlines) -> int:
        """Run rounds until the ranks have visited as many rows as they have, and one at least."""
        ledger, group = self._rank.ledger, self._rank.group
        n_visited, n_rounds = 0.0, 0
        while n_visited < n_total or not n_rounds:
            ledger.begin_round("sync")
            begin = ledger.clock()
            n_own = self._walk_for(self._seconds)
            if ledger.timing:
                ledger.charge(COMPUTE, ledger.clock() - begin)
            self._visited[0] = n_own
            group.allreduce(self._visited)
            n_round = float(self._visited[0])
            n_visited += n_round
            if n_visited >= n_total:
                before_last[:] = self._at.params
            weight = n_own / n_round if n_round else 1.0 / group.size
            self._strategy.sync(group, self._at.mixing(), weight, NoState())
            self._at.mixed()
            deadlines.add(ledger.clock() - begin)
            deadlines.expect("round")
            ledger.end_round()
            n_rounds += 1
        return n_rounds

    def _walk_for(self, seconds: float) -> int:
        """Visit rows for some seconds, every row once at most and one row at least; returns how many."""
        clock, n_rows = self._rank.ledger.clock, self._shard.n_rows
        # Without a limit nothing is looked at, and the kernel walks all rows in one go.
        begin, done, size = clock(), 0, n_rows if seconds == math.inf else 1
        while done < n_rows:
            start = round(self._at.optimizer.t - self._t_start) % n_rows
            stop = min(start + min(size, n_rows - done, self._rows_per_call), n_rows)
            self._walk(start, stop)
            self._rank.check()
            done += stop - start
            elapsed_s = clock() - begin
            if elapsed_s >= seconds:
                break
            fitting = float(MAX_GROWTH * size)
            if elapsed_s > 0.0:
                fitting = min(fitting, done / elapsed_s * min(seconds - elapsed_s, seconds / _SLICES))
            size = max(1, int(fitting))
        return done
