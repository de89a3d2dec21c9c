"""Visiting the rows of a rank: the optimiser's kernel, and everything that accompanies each visit.

That is the abort flag, which is read between two calls of a kernel; rows of a file, which are let go again; the clock
of a simulated rank; a model that threads share; and the local term of a strategy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np

from dsgd.collectives.group import Group
from dsgd.comm.deadlines import Deadlines
from dsgd.kernels.rounds import run_shared_rows
from dsgd.ledger import COMPUTE
from dsgd.local import SGD, AbstractState, Residency, Shard
from dsgd.local.base import AbstractRows
from dsgd.local.sgd import SGDState, add_to_suffix
from dsgd.runtime.rank import Rank
from dsgd.runtime.train.job import TrainJob
from dsgd.runtime.train.state import TrainState
from dsgd.sync import AbstractLocalTerm, AbstractStrategy, LocalSteps, NoState
from dsgd.types import FloatVector

#: A kernel call should end within about a second, so that the abort flag is read; a core does some 3e8 entries in one.
MOST_ENTRIES_PER_CALL: Final = 100_000_000

# Most end much sooner, so that of rows in a file little is in memory. A call visits every weight once: it must be long
# beside that. Rows in memory are cut in the same places, so that both give the same model to the bit.
_ENTRIES_PER_CALL: Final = 2_000_000
_ENTRIES_PER_WEIGHT: Final = 8


def entries_per_call(n_params: int) -> int:
    """Return the entries of rows that one call of a kernel walks over, for a model of this length."""
    return min(MOST_ENTRIES_PER_CALL, max(_ENTRIES_PER_CALL, _ENTRIES_PER_WEIGHT * n_params))


def features_of(optimizer: object) -> int:
    """Return how many random features are made of a row; 0 if its entries are learnt from as they are."""
    return optimizer.features.n_components if isinstance(optimizer, SGD) and optimizer.features is not None else 0


def charge_visit(rank: Rank, job: TrainJob, rows: AbstractRows, start: int, stop: int) -> None:
    """Charge a rank with a virtual clock for a kernel that has visited rows start..stop, and the model once."""
    if rank.is_virtual and stop > start:
        n_features = features_of(job.optimizer)
        entries = rows.entries(start, stop) if n_features == 0 else (stop - start) * n_features
        entries *= job.optimizer.n_outputs
        entries += rows.entries(start, stop) * n_features
        rank.worked(rows=stop - start, entries=entries, params=job.initial.size)


class RowVisits:
    """Takes the local steps of one rank."""

    def __init__(self, rank: Rank, job: TrainJob, shard: AbstractRows, params: FloatVector, state: AbstractState):
        self._rank, self._job, self._shard, self._params, self._state = rank, job, shard, params, state
        n_features = features_of(job.optimizer)
        entries_per_row = (n_features or shard.entries(0, shard.n_rows) // max(1, shard.n_rows)) + 16
        self.rows_per_call = max(1, entries_per_call(params.size) // (entries_per_row * job.optimizer.n_outputs))
        self._once = job.optimizer.steps.once_a_round
        self._gradient, self._part = np.zeros((2, params.size if self._once else 0), params.dtype)
        self._term: tuple[AbstractLocalTerm[Any], TrainState] | None = None
        self.walk = self.call = self._add_gradient if self._once else self._kernel()
        self._residency: Residency | None = None
        if isinstance(shard, Shard) and shard.mapping is not None:
            self._residency = Residency(shard, order=state.order if isinstance(state, SGDState) else None)
            self.call = self._residency.bound(self.call)
        if rank.is_virtual:
            self.call = self._charged(self.call)

    @property
    def is_in_memory(self) -> bool:
        """Whether the rows are in memory, and not in a file."""
        return self._residency is None

    def add_term(self, term: AbstractLocalTerm[Any], at: TrainState) -> None:
        """Apply the local term of a strategy too, whose state is that of `at`."""
        steps = self._job.optimizer.steps
        if self._once:
            self._term = term, at
            return
        if term.stretch is not None:
            self.rows_per_call = min(self.rows_per_call, term.stretch if steps.by_row else steps.rows)
        self.call = self._corrected(self.call, term, at)

    def add_looks(self, looks: int, share: float) -> None:
        """Look at the model, which threads share, so often in the last share of an epoch, for its mean over it."""
        state, call, n_rows = self._state, self.call, self._shard.n_rows
        assert isinstance(state, SGDState)
        first = n_rows - int(share * n_rows)
        self.rows_per_call = min(self.rows_per_call, max(1, int(share * n_rows) // looks))

        def call_and_look(start: int, stop: int) -> None:
            call(start, stop)
            if stop > max(start, first):
                add_to_suffix(self._params, state)
                self._rank.worked(params=self._params.size)

        self.call = call_and_look

    def over(self, start: int, stop: int) -> None:
        """Take the steps on the rows start..stop, in as many calls as it needs."""
        loss_sum = self._state.loss_sum
        for low in range(start, stop, self.rows_per_call):
            self.call(low, min(stop, low + self.rows_per_call))
            self._rank.check()
        if self._once and stop > start:
            self._step(stop - start, loss_sum)

    def has_visited(self, start: int, stop: int) -> None:
        """Take note that rows start..stop were visited without steps."""
        if self._residency is not None:
            self._residency.at(stop)
        charge_visit(self._rank, self._job, self._shard, start, stop)

    def _kernel(self) -> Callable[[int, int], object]:
        optimizer, shard, state = self._job.optimizer, self._shard, self._state
        if self._job.strategy.shares_memory and isinstance(optimizer, SGD):
            assert isinstance(shard, Shard)
            assert isinstance(state, SGDState)
            return shared_walk(self._rank.group, optimizer, self._params, shard, state)
        return optimizer.bind(self._params, shard, state)

    def _add_gradient(self, start: int, stop: int) -> None:
        """Add the gradient of some rows to that of the round; without rows the kernels are loaded."""
        self._job.optimizer.gradient(self._params, self._shard, start, stop, self._part, self._state)
        self._gradient += self._part

    def _step(self, n_rows: int, loss_sum: float) -> None:
        """Take the step of a round of so many rows, before which the losses of the epoch added up to so much."""
        optimizer, state, t_start = self._job.optimizer, self._state, self._state.t
        self._gradient /= self._gradient.dtype.type(n_rows)
        optimizer.step(self._params, self._gradient, n_rows, state)
        self._gradient.fill(0.0)
        self._rank.worked(params=self._params.size)
        if self._term is not None:
            term, at = self._term
            taken = LocalSteps(optimizer.rate_sum(t_start, state), state.loss_sum - loss_sum, n_rows)
            term.correct(at.mixing(), taken, at.strategy)
            at.mixed()

    def _charged(self, call: Callable[[int, int], object]) -> Callable[[int, int], None]:
        """Return `call`, which moves a virtual clock too."""

        def call_and_charge(start: int, stop: int) -> None:
            call(start, stop)
            charge_visit(self._rank, self._job, self._shard, start, stop)

        return call_and_charge

    def _corrected(
        self, call: Callable[[int, int], object], term: AbstractLocalTerm[Any], at: TrainState
    ) -> Callable[[int, int], None]:
        """Return `call`, which applies a local term too."""
        state, optimizer = self._state, self._job.optimizer

        def call_and_correct(start: int, stop: int) -> None:
            t_start, loss_sum = state.t, state.loss_sum
            call(start, stop)
            if stop > start:
                rate_sum = optimizer.rate_sum(t_start, state)
                steps = LocalSteps(rate_sum, state.loss_sum - loss_sum, stop - start)
                term.correct(at.mixing(), steps, at.strategy)
                at.mixed()

        return call_and_correct


_ROWS_AT_A_TIME: Final = 65_536


def shared_walk(
    group: Group, optimizer: SGD, params: FloatVector, shard: Shard, state: SGDState
) -> Callable[[int, int], None]:
    """Return what takes steps on the rows at the places start..stop; called by all ranks."""
    # A dense row has an entry in every column.
    counts = np.full(shard.n_features, float(shard.n_rows)) if not shard.is_sparse else _column_counts(shard)
    message = np.append(counts, float(shard.n_rows))
    group.allreduce(message)
    frequencies = message[:-1] / max(message[-1], 1.0)
    # Nobody asks for a column that no row has.
    frequencies[frequencies == 0.0] = 1.0
    state.t += group.rank
    rows, sparse, _, _, steps = optimizer.arguments(params, shard, state)
    factors = state.factors if optimizer.objective.is_coupled else None
    return partial(run_shared_rows, rows, sparse, params, frequencies, factors, steps, float(group.size))


def _column_counts(shard: Shard) -> FloatVector:
    """Return how many of the sparse rows have an entry in each column."""
    counts = np.zeros(shard.n_features)
    for start in range(0, shard.n_rows, _ROWS_AT_A_TIME):
        part = shard.packed(start, min(shard.n_rows, start + _ROWS_AT_A_TIME))
        assert part.indices is not None
        counts += np.bincount(part.indices, minlength=shard.n_features)
    return counts


_SLICES: Final = 8
MAX_GROWTH: Final = 2


class AnytimeRounds:
    """Runs the rounds of one rank.

    A rank visits its rows in a circle, from a place that follows from its step counter. It checks the clock after every
    slice of rows; slices grow to an eighth of the time at the pace so far, so a round ends close to its time although a
    kernel cannot be interrupted, and a slow rank still visits a row. How many rows each has visited is summed before
    the models are: from that every rank has its weight, and all see at the same moment that the epoch is over.
    """

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
