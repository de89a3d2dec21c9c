"""Rounds that run inside one compiled kernel, or on a clock that is not real.

In both, every round is a plain weighted mean, and the rank loop hands over consecutive rounds; the last round of an
epoch is an ordinary one. Models, bytes and messages are those of ordinary rounds, to the bit.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, ClassVar, Final

import numpy as np

from dsgd.collectives import allreduce_cost
from dsgd.comm.base import Repeats
from dsgd.comm.memory.segment import Window
from dsgd.kernels import rounds as kernels
from dsgd.local import SGD, Shard
from dsgd.local.base import AbstractRows
from dsgd.local.sgd import SGDState
from dsgd.runtime.rank import Rank
from dsgd.runtime.train.job import TrainJob
from dsgd.runtime.train.visits import MOST_ENTRIES_PER_CALL, entries_per_call
from dsgd.sync import AbstractStrategy, Cut
from dsgd.types import FloatVector

#: How long a call of the kernel lasts, about.
CALL_S: Final = 0.05
_MAX_GROWTH: Final = 4
_N_SAMPLES: Final = 256

# What a timed round costs beyond another one, five clock reads, and the share of a round that this may take.
_TIMING_COST_S: Final = 1.5e-7
_TIMING_SHARE: Final = 0.01
_MAX_STRIDE: Final = 64


def is_plain(strategy: AbstractStrategy[Any]) -> bool:
    """Return whether every round of a strategy is local steps and a plain weighted mean of models."""
    return strategy.fuses and not strategy.overlap and strategy.compressor is None and strategy.period.is_always_due


def takes_plain_steps(job: TrainJob) -> bool:
    """Return whether all rounds of a job are steps of `dsgd.kernels.sgd.run_rows` and plain means."""
    optimizer = job.optimizer
    if not isinstance(optimizer, SGD) or type(optimizer).bind is not SGD.bind:
        return False
    return optimizer.steps_in_fused_rounds and is_plain(job.strategy)


def window_for(rank: Rank, strategy: AbstractStrategy[Any], vector: FloatVector) -> Window | None:
    """Return the memory through which rounds of a strategy can be fused, or None; the same on every rank."""
    window = rank.group.transport.window
    if window is None or not is_plain(strategy) or vector.nbytes > window.slot_bytes:
        return None
    # Other algorithms add in another order, which two ranks do not have.
    algorithm = rank.group.algorithm_for(vector.shape[0], vector.itemsize)
    has_order = rank.size > 2 or algorithm == "hierarchical"
    return window if algorithm == "recursive_doubling" or not has_order else None


class FusedRounds:
    """Runs rounds of one rank inside a kernel, since Python costs more than steps and sums where averages are frequent.

    Where ranks see each other's memory and have a core each rounds go to `dsgd.kernels.rounds`. A call lasts about
    `CALL_S`, as rank 0 measures it, and all ranks return after the same round to read abort flags and do all other
    work.

    - `vector`, shape (n_params,) or (n_params + 1,): what is averaged, in the memory of the model; see
      `TrainState.vector`.
    """

    #: Most entries of rows of a rank in a round: in longer ones a stop would have to wait.
    most_entries: ClassVar[float] = MOST_ENTRIES_PER_CALL

    def __init__(
        self,
        rank: Rank,
        window: Window,
        optimizer: SGD,
        params: FloatVector,
        vector: FloatVector,
        shard: Shard,
        state: SGDState,
        rows_per_call: int,
    ) -> None:
        self._rank = rank
        self._window = window
        self._n_rounds = 1
        self._stride = 1
        self._places = np.zeros(kernels.N_PLACES, dtype=np.int64)
        self._places[kernels.RANK] = rank.number
        self._places[kernels.STRETCH] = rows_per_call
        self._places[kernels.SLOT] = window.slot_bytes
        self._places[kernels.BED] = window.bed
        self._samples = np.zeros((_N_SAMPLES, 4))
        core = 1 << (rank.size.bit_length() - 1)
        self._steps = optimizer.arguments(params, shard, state), vector
        self._sums = (
            window.outgoing,
            window.incoming,
            window.bells,
            window.abort_word,
            self._places,
            np.zeros(kernels.N_STAMPS + 2),
            np.zeros((core if rank.size > 2 else 1, vector.shape[0]), vector.dtype),
            self._samples,
        )
        length = vector.shape[0], vector.itemsize
        self._cost = allreduce_cost(rank.number, rank.size, *length, rank.group.algorithm_for(*length))
        # No rounds: the kernel is loaded or compiled now, and not while a peer waits.
        kernels.run_rounds(*self._steps, 1, 0.0, *self._sums)

    def run(self, number: int, stop: int, cut: Cut, weight: float) -> int:
        """Run rounds of an epoch until rank 0 calls for a break."""
        ledger, places, window = self._rank.ledger, self._places, self._window
        n_rounds = self._n_rounds if self._rank.number == 0 else stop - number
        places[kernels.PUBLISHED] = window.published
        places[kernels.NUMBER] = number
        places[kernels.STOP] = stop
        places[kernels.LAST] = min(number + n_rounds, stop)
        places[kernels.STRIDE] = self._stride
        places[kernels.BEGIN] = cut.starts[self._rank.number]
        # Not the first: it finds the caches as Python left them.
        places[kernels.NEXT_TIMED] = number + self._stride // 2
        begin = idle_since = settled_at = time.monotonic()
        settled, published = number, -1
        code = kernels.LATE
        while code != kernels.DONE:
            code = kernels.run_rounds(*self._steps, cut.rounds, weight, *self._sums)
            window.published = int(places[kernels.PUBLISHED])
            if code in (kernels.DONE, kernels.FULL):
                reached, now = int(places[kernels.NUMBER]), time.monotonic()
                n_samples = int(places[kernels.N_SAMPLES])
                last = int(places[kernels.NEXT_TIMED]) - settled
                offsets = np.arange(last - n_samples * self._stride, last, self._stride)
                cost, samples = self._cost, self._samples[:n_samples]
                ledger.add_rounds(reached - settled, cost.n_bytes, cost.messages, now - settled_at, offsets, samples)
                settled, settled_at = reached, now
                places[kernels.N_SAMPLES] = 0
            elif code == kernels.LATE:
                if published != window.published:
                    published, idle_since = window.published, time.monotonic()
                window.wait(int(places[kernels.LATE_RANK]), idle_since, self._rank.group.transport.deadline_s)
            else:
                window.refuse(code, int(places[kernels.LATE_RANK]))
        round_s = max(settled_at - begin, 1e-9) / max(settled - number, 1)
        self._stride = min(int(_TIMING_COST_S / (_TIMING_SHARE * round_s)) + 1, _MAX_STRIDE)
        # A call that the end of an epoch cut short must not make the next one short.
        self._n_rounds = max(1, min(int(CALL_S / round_s), _MAX_GROWTH * self._n_rounds))
        return settled


# Between two calls ranks look whether the job has stopped.
_MOST_ROUNDS: Final = 256


class OffloadedRounds:
    """Hands rounds of one rank to a wire that runs collectives as a whole (`dsgd.comm.base`).

    The last rank to come does the work of all, round by round, and adds up the models: a step of a simulated rank takes
    a microsecond, and its thread and the rank loop a hundred. The seconds of each round are those of ordinary ones.
    """

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
