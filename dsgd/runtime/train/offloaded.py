"""Rounds that the wire runs for all ranks, on a clock that is not real.

Problem: of a thousand simulated ranks each takes a step of a microsecond in a round, and its thread and the rank loop a
hundred.

Where the wire runs collectives as a whole (`dsgd.comm.offload`) and every round is a plain weighted mean, the rank loop
hands consecutive rounds to it: what each rank does in a round, and how long that would take. The last rank to come does
the work of all, round by round, and adds up the models; the seconds of each round are those of ordinary ones, as are
models, bytes and messages, to the bit. The last round of an epoch is always an ordinary one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from dsgd.collectives import allreduce_cost
from dsgd.comm.offload import Repeats
from dsgd.local import AbstractRows
from dsgd.runtime.rank import Rank
from dsgd.runtime.train.visits import entries_per_call
from dsgd.sync import Cut
from dsgd.types import FloatVector

# Between two calls ranks look whether the job has stopped.
_MOST_ROUNDS: Final = 256


class OffloadedRounds:
    """Hands rounds of one rank to the wire."""

    def __init__(
        self,
        rank: Rank,
        walk: Callable[[int, int], object],
        vector: FloatVector,
        shard: AbstractRows,
        n_outputs: int,
    ) -> None:
        self._rank, self._walk, self._vector, self._shard = rank, walk, vector, shard
        self._n_outputs = n_outputs
        # Half of it: a round may have a row more than another.
        self.most_entries = entries_per_call(vector.size) / 2
        n, itemsize = vector.shape[0], vector.itemsize
        self._cost = allreduce_cost(rank.number, rank.size, n, itemsize, rank.group.algorithm_for(n, itemsize))

    def run(self, number: int, stop: int, cut: Cut, weight: float) -> int:
        """Run rounds of an epoch, all up to `stop` or some of them."""
        n_rounds, number_of, n_rows = min(stop - number, _MOST_ROUNDS), self._rank.number, self._shard.n_rows
        spans = [cut.span(number_of, n_rows, k, k) for k in range(number, number + n_rounds)]
        n_params = self._vector.size
        work = [
            (high - low, self._shard.entries(low, high) * self._n_outputs, n_params) if high > low else (0, 0, 0)
            for low, high in spans
        ]
        factor, vector, check, walk = float(weight), self._vector, self._rank.check, self._walk

        def step(k: int) -> None:
            check()
            low, high = spans[k]
            if high > low:
                walk(low, high)
            if factor == 0.0:
                # 0 * inf is not 0: an empty rank must not be able to spoil the mean.
                vector.fill(0.0)
            elif factor != 1.0:
                np.multiply(vector, factor, out=vector)

        repeats = Repeats(np.array(work, dtype=np.int64), np.zeros((n_rounds, 4)))
        self._rank.group.allreduce_rounds(vector, step, repeats)
        self._rank.ledger.add_timed_rounds(self._cost.n_bytes, self._cost.messages, repeats.seconds)
        return number + n_rounds
