"""The set-up of training on one rank, and its rounds: local steps or a gradient, then the exchange that may be due.

Kernels are loaded in the set-up, and ranks meet only then: one that has yet to compile must not keep its peers waiting
in the first round. A round is an ordinary one, one of many inside a kernel (`dsgd.runtime.train.fused`), or one that
lasts a fixed time (`dsgd.runtime.train.visits`). Where an exchange runs beside the steps of the next round, or beside
the backward pass that makes a gradient, it is begun and ended here.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np

from dsgd.comm.deadlines import Deadlines
from dsgd.errors import InvalidDataError
from dsgd.kernels.rows import squared_distances
from dsgd.ledger import COMPUTE
from dsgd.local import SGD, AbstractState, Shard
from dsgd.local.base import AbstractRows
from dsgd.local.sgd import Dual, SGDState, add_to_suffix, is_finite, is_in_suffix
from dsgd.runtime.rank import Rank
from dsgd.runtime.train.adaptation import Adaptation, EpochWeights, PooledRates
from dsgd.runtime.train.decisions import StopRule
from dsgd.runtime.train.fused import FusedRounds, OffloadedRounds, is_plain, window_for
from dsgd.runtime.train.job import TrainData, TrainJob
from dsgd.runtime.train.state import TrainState, looks_at_suffix, suffix_share
from dsgd.runtime.train.visits import AnytimeRounds, RowVisits
from dsgd.stages import stage
from dsgd.sync import AbstractPeriod, Cut, RoundClock
from dsgd.sync.averaging import DelayedMean, beside_for
from dsgd.sync.compression import acts_alone
from dsgd.sync.minibatch import buckets_for
from dsgd.types import FloatVector


@dataclass(frozen=True)
class Run:
    """A training run as one rank has it. All that changes from round to round is in `at`."""

    rank: Rank
    job: TrainJob
    data: TrainData
    rows: list[int]
    density: float
    period: AbstractPeriod
    at: TrainState
    visits: RowVisits
    gradient: FloatVector
    fused: FusedRounds | OffloadedRounds | None
    adaptation: Adaptation | None
    deadlines: Deadlines
    weights: EpochWeights
    rates: PooledRates
    alone: bool

    def clock_at(self, number: int) -> RoundClock:
        """Return where a round of this epoch is in training."""
        epoch, rounds = self.at.epoch, self.at.cut.rounds
        is_last = number == rounds - 1 and epoch == self.job.max_iter - 1
        return RoundClock(self.job.epochs_before + epoch, number, rounds, is_last)

    def cut_epoch(self) -> None:
        """Cut the epoch that begins as its period says, which may be another way in each of them."""
        if not self.alone and self.adaptation is None:
            epoch = self.job.epochs_before + self.at.epoch
            self.at.cut = Cut.whole(self.rows, self.period.rounds_in_epoch(self.rows, epoch))

    def ends_equal(self, clock: RoundClock) -> bool:
        """Return whether all ranks have the same model after a round."""
        strategy = self.job.strategy
        return strategy.ends_equal and (strategy.exchanges == "gradient" or self.period.is_due(clock))


def begin_run(rank: Rank, data: TrainData, job: TrainJob) -> Run:
    """Make all that a run needs, and meet the other ranks; called by all of them."""
    rank.group.seed = job.seed
    deadlines = Deadlines(rank.group.transport, measures_edges=job.checkpoint is None)
    deadlines.begin_edge(rank.ledger.clock())
    state = _first_state(job, data.shard)
    dual = _dual_of(rank, job, state)
    rank.group.n_whole = 0 if dual is None else dual.n_whole
    params: FloatVector = np.array(job.initial) if dual is None else dual.params
    rank.ledger.begin_round("setup")
    if job.strategy.shares_memory:
        params = rank.group.share(params)
    visits = RowVisits(rank, job, data.shard, params, state)
    gradient = np.zeros_like(params)
    vector = params if dual is None else dual.vector
    with stage("kernels"):
        fused = _load_kernels(rank, job, data.shard, visits, params, vector, state, gradient)
    rows, density = _count_rows(rank, data, job)
    rank.ledger.end_round()

    strategy, period = job.strategy, job.strategy.period.on_rows_of(density)
    # A single rank has no peers to average with: it runs each epoch in one round, unless there is a compressor.
    alone = rank.size == 1 and strategy.exchanges == "model" and not strategy.n_servers and not acts_alone(strategy)
    cut = Cut.whole(rows, 1 if alone else period.rounds_per_epoch(rows))
    at = TrainState(params, state, cut, stop_rule=StopRule.begin(job), dual=dual)
    if strategy.local_term is not None and rank.size > 1:
        visits.add_term(strategy.local_term, at)
    adaptation: Adaptation | None = None
    if strategy.adaptation is not None and rank.size > 1:
        epochs = job.max_iter, job.epochs_before
        adaptation = Adaptation(rank, strategy.adaptation, data.shard, rows, job.optimizer, *epochs)
    weights = EpochWeights(rank, strategy, job.optimizer, rows)
    with rank.ledger.round("setup"):
        if looks := looks_at_suffix(rank, job, data.shard, params, state):
            visits.add_looks(looks, suffix_share(job))
        rates = PooledRates.begin(rank, job, data.shard, rows, weights.share)
    return Run(
        rank,
        job,
        data,
        rows,
        density,
        period,
        at,
        visits,
        gradient,
        fused,
        adaptation,
        deadlines,
        weights,
        rates,
        alone,
    )


def _count_rows(rank: Rank, data: TrainData, job: TrainJob) -> tuple[list[int], float]:
    """Return how many rows each rank has and the density of all; raise `InvalidDataError` if none can validate."""
    held_out = data.validation if job.holds_out else None
    own = [data.n_rows, data.shard.entries(0, data.n_rows), 0 if held_out is None else held_out.n_rows]
    counts = rank.group.roll_call(np.array(own[: 2 + job.holds_out], dtype=np.int64))
    rows: list[int] = counts[:, 0].tolist()
    if job.holds_out and not counts[:, 2].any():
        raise InvalidDataError(
            f"early_stopping=True, and of {sum(rows)} rows on {rank.size} rank(s) validation_fraction leaves none to "
            "validate on: it is taken of the rows of each class on each rank, and rounded. Raise validation_fraction, "
            "train on more rows or fewer ranks, or leave early_stopping at False."
        )
    places = sum(rows) * data.shard.n_features if isinstance(data.shard, Shard) else 0
    return rows, int(counts[:, 1].sum()) / places if places else 1.0


def _dual_of(rank: Rank, job: TrainJob, state: AbstractState) -> Dual | None:
    """Return the dual that ranks mix instead of models if there is an L1 penalty, or None."""
    received, strategy = state.vectors().get("received"), job.strategy
    mixes = strategy.exchanges == "model" and not strategy.shares_memory
    has_others = rank.size > 1 or strategy.n_servers or acts_alone(strategy)
    if received is None or not received.size or not mixes or not has_others:
        return None
    dual = Dual(job.initial, received, state.counters)
    # Kernels are compiled or loaded now, and not while a peer waits.
    dual.enter()
    dual.leave()
    return dual


def _first_state(job: TrainJob, shard: AbstractRows) -> AbstractState:
    """Return the state of the optimiser before the first step, or after those of ``partial_fit`` so far."""
    state: AbstractState = job.optimizer.init(shard)
    state.t = job.t_start
    # A mean of no models yet is nothing to go on with.
    if job.n_averaged and job.average_start is not None and state.averaged is not None:
        state.averaged[:] = job.average_start
        state.n_averaged = job.n_averaged
    return state


def _load_kernels(
    rank: Rank,
    job: TrainJob,
    shard: AbstractRows,
    visits: RowVisits,
    params: FloatVector,
    vector: FloatVector,
    state: AbstractState,
    gradient: FloatVector,
) -> FusedRounds | OffloadedRounds | None:
    """Load the kernels, or compile them, by a call on no rows; return what runs several rounds in one, if anything."""
    fused: FusedRounds | OffloadedRounds | None = None
    optimizer = job.optimizer
    if isinstance(optimizer, SGD) and isinstance(shard, Shard) and isinstance(state, SGDState):
        # Of a subclass the kernel would not take the steps.
        plain = optimizer.steps_in_fused_rounds and type(optimizer).bind is SGD.bind
        window = window_for(rank, job.strategy, vector) if plain else None
        if window is not None:
            fused = FusedRounds(rank, window, optimizer, params, vector, shard, state, visits.rows_per_call)
        elif plain and is_plain(job.strategy) and rank.group.offloads and vector is params:
            fused = OffloadedRounds(rank, visits.walk, params, shard, optimizer.n_outputs)
    if job.strategy.exchanges == "model":
        visits.call(0, 0)
    else:
        optimizer.gradient(params, shard, 0, 0, gradient, state)
    if isinstance(optimizer, SGD) and isinstance(shard, Shard) and isinstance(state, SGDState):
        optimizer.objective_sums(params, shard, state)  # what ends an epoch
    return fused


class Rounds:
    """Runs the rounds of one rank, with buffers that are made once."""

    def __init__(self, run: Run) -> None:
        self._run, self._rank, self._job = run, run.rank, run.job
        self._at, self._ledger, self._deadlines = run.at, run.rank.ledger, run.deadlines
        self._weights = run.weights
        self._before_sync = np.zeros_like(run.at.params)
        self._is_even, self._n_rows = len(set(run.rows)) == 1, sum(run.rows)
        self._counted_of: Cut | None = None
        self._kinds: list[tuple[Cut, int, int]] = []
        # Of the round; takes no memory until it is written to.
        self._start = np.empty_like(run.at.vector)
        strategy, cut, group = run.job.strategy, run.at.cut, run.rank.group
        self._anytime: AnytimeRounds | None = None
        if strategy.seconds is not None and run.rank.size > 1:
            parts = run.visits.call, run.at, run.data.shard, run.job.t_start, run.visits.rows_per_call
            self._anytime = AnytimeRounds(run.rank, strategy, strategy.seconds, *parts)
        overlaps = strategy.overlap and strategy.exchanges == "model" and cut.rounds > 1
        self._delayed = DelayedMean(group, run.at.vector) if overlaps else None
        self._beside = beside_for(group, strategy)
        self._buckets = buckets_for(group, strategy)
        # Rows in a file wait for the disk in any case.
        longest = max(run.rows) * (run.density * run.at.params.size + 16 * run.job.optimizer.n_outputs)
        fused = run.fused if run.visits.is_in_memory else None
        self._least_fused = math.inf if fused is None else longest / fused.most_entries

    @property
    def can_be_kept(self) -> bool:
        """Whether a snapshot can be taken between two rounds, without making other ranks wait."""
        return self._delayed is None and self._job.strategy.talks != "by mailbox"

    def close(self) -> None:
        """Let the threads of exchanges end."""
        for beside in (self._delayed, self._beside, self._buckets):
            if beside is not None:
                beside.close()

    def run(self, first: int, stop: int) -> int:
        """Run the rounds first..stop of this epoch; nothing else happens between them."""
        at, number = self._at, first
        self._deadlines.expect("edge")
        if self._anytime is not None:
            # An epoch of them is one round here: only the ranks together find out when it is over.
            n_rounds = self._anytime.run_epoch(sum(self._run.rows), self._before_sync, self._deadlines)
            self._deadlines.begin_edge(self._ledger.clock())
            return n_rounds
        # The last of an epoch is always an ordinary round: it notes how far the models were apart. So is that in which
        # ranks decide.
        fused_until = stop - 1 if stop - first == at.ahead else min(stop, at.cut.rounds - 1)
        if self._least_fused <= at.cut.rounds:
            number = self._run_fused(first, fused_until)
        while number < stop:
            last = number
            while last < stop - 1 and not self._run.period.is_due(self._run.clock_at(last)):
                last += 1
            self._run_one(number, last, decides=last + 1 - first == at.ahead)
            number = last + 1
            self._deadlines.expect("round")
        return stop - first

    def squared_distance_from_mean(self) -> float:
        """Return that of this rank's model before the last synchronisation; to be asked once after it."""
        if self._rank.size == 1:
            return 0.0
        return float(squared_distances(self._before_sync, self._at.params)[0])

    def _run_fused(self, number: int, stop: int) -> int:
        fused = self._run.fused
        assert fused is not None  # the shortest epoch that is fused is finite
        while number < stop:
            self._rank.check()
            begin, before = self._ledger.clock(), number
            number = fused.run(number, stop, self._at.cut, self._weights.weight)
            self._deadlines.add(self._ledger.clock() - begin, number - before)
            self._deadlines.expect("round")
        return number

    def _run_one(self, first: int, number: int, *, decides: bool = False) -> None:
        """Run the rounds first..number, the last included, of which only the last may be due, and may decide."""
        ledger, at = self._ledger, self._at
        clock = self._run.clock_at(number)
        due = self._run.period.is_due(clock)
        start, stop = at.cut.span(self._rank.number, self._run.data.n_rows, first, number)
        if decides and self._run.adaptation is not None:
            self._run.adaptation.note(at)
        ledger.begin_round("sync" if due else "local")
        begin = ledger.clock() if ledger.timing else 0.0
        self._rank.check()
        if self._job.strategy.exchanges == "model":
            self._begin_walk()
            self._run.visits.over(start, stop)
            self._end_walk(begin)
            self._exchange_models(clock, due=due, decides=decides)
        else:
            self._exchange_gradients(clock, start, stop, begin)
        if ledger.timing and due:
            self._deadlines.add(ledger.clock() - begin)
        ledger.end_round()
        if clock.ends_epoch and due:
            self._deadlines.begin_edge(ledger.clock())

    def _begin_walk(self) -> None:
        """Begin the exchange of the round before, where steps are taken beside it; note where the steps start."""
        if self._delayed is not None:
            self._delayed.start(self._weights.weight)
        if self._beside is not None:
            self._beside.start(self._weights.weight, self._at.strategy)
        if self._weights.scale != 1.0:
            self._start[:] = self._at.mixing()
            self._at.mixed()

    def _end_walk(self, begin: float) -> None:
        """Scale what the steps have changed, and end the exchange that ran beside them."""
        if self._weights.scale != 1.0:
            self._scale_change()
        if self._ledger.timing:
            self._ledger.charge(COMPUTE, self._ledger.clock() - begin)
        if self._delayed is not None:
            self._delayed.finish(self._at.mixing())
            self._at.mixed()
        if self._beside is not None:
            self._beside.finish()

    def _scale_change(self) -> None:
        """Multiply what local steps have changed: of ranks that count alike the rates may differ."""
        at, before = self._at, self._start
        self._rank.worked(params=at.params.size)
        vector = at.mixing()
        vector -= before
        vector *= vector.dtype.type(self._weights.scale)
        vector += before
        at.mixed()

    def _exchange_models(self, clock: RoundClock, *, due: bool, decides: bool) -> None:
        at, strategy = self._at, self._job.strategy
        if clock.ends_epoch and due:
            self._before_sync[:] = at.params
        if self._delayed is not None and not clock.ends_epoch:
            self._delayed.hold(at.mixing())
            at.mixed()
        elif due:
            if decides and self._run.adaptation is not None:
                self._run.adaptation.observe(at)
            weight = self._weights.weight
            strategy.sync(self._rank.group, at.mixing(), weight, at.strategy)
            at.mixed()
            strategy.carry_over(self._rank.group, at.optimizer.memory(), weight, at.strategy)

    def _exchange_gradients(self, clock: RoundClock, start: int, stop: int, begin: float) -> None:
        """Compute the gradient of some rows and bring home the mean over ranks, and the step along it."""
        ledger, job, at = self._ledger, self._job, self._at
        strategy, state, gradient = job.strategy, at.optimizer, self._run.gradient
        if not strategy.n_servers:
            # By the step counter, which continues from one call of partial_fit to the next.
            pooled = self._run.rates.factor(job.optimizer, state.t)
            state.rate_factor = pooled * strategy.rate_factor(state.t / clock.rounds)
        # Ranks contribute their own mean, weighted by their rows of this round, so that the sum is the mean over all.
        n_local, n_round = stop - start, self._rows_of_round(clock.round)
        # Of uneven shards those with few rows have none in some rounds: there the others must not count for more.
        n_usual = n_round if self._is_even else self._n_rows / clock.rounds
        weight = n_local / n_usual if n_round else 0.0
        if isinstance(state, SGDState) and state.reduction is not None:
            state.reduction.share = n_usual / self._n_rows
        if self._buckets is not None:
            self._buckets.begin(gradient, n_local, weight)
            state.on_gradient = self._buckets.ready
        job.optimizer.gradient(at.params, self._run.data.shard, start, stop, gradient, state)
        if n_local and self._buckets is None:
            gradient /= n_local
        self._run.visits.has_visited(start, stop)
        if ledger.timing:
            ledger.charge(COMPUTE, ledger.clock() - begin)
        if self._buckets is not None:
            self._buckets.finish()
        elif job.optimizer.steps.may_overflow and self._has_overflowed():
            # No rank takes this step, and no non-finite value enters the memory of a compressor.
            gradient.fill(np.nan)
        else:
            strategy.sync(self._rank.group, gradient, weight, at.strategy)
        self._step(n_round, clock)

    def _rows_of_round(self, number: int) -> int:
        """Return the rows of all ranks in a round."""
        cut, rows = self._at.cut, self._run.rows
        if cut is not self._counted_of:
            # Of ranks that began at one place those with as many rows have as many in each round.
            kinds = Counter(zip(rows, cut.starts, strict=True))
            self._counted_of, self._kinds = cut, [(Cut((first,), cut.rounds), n, k) for (n, first), k in kinds.items()]
        spans = ((k, *one.span(0, n, number, number)) for one, n, k in self._kinds)
        return sum(k * (high - low) for k, low, high in spans)

    def _step(self, n_rows: int, clock: RoundClock) -> None:
        """Take a step along the gradient that came home, the mean over `n_rows` rows."""
        at, ledger, gradient = self._at, self._ledger, self._run.gradient
        if self._job.strategy.n_servers:
            # A server has taken the step, and this is its model.
            at.params[:] = gradient
            return
        begin = ledger.clock() if ledger.timing else 0.0
        self._job.optimizer.step(at.params, gradient, n_rows, at.optimizer)
        self._rank.worked(params=at.params.size)
        state, share = at.optimizer, self._job.strategy.suffix
        if isinstance(state, SGDState) and state.suffix.size and is_in_suffix(clock.round, clock.rounds, share):
            add_to_suffix(at.params, state)
            self._rank.worked(params=at.params.size)
        if ledger.timing:
            ledger.charge(COMPUTE, ledger.clock() - begin)

    def _has_overflowed(self) -> bool:
        """Return whether the gradient of any rank is not finite."""
        flag = np.array([float(not is_finite(self._run.gradient))])
        with self._ledger.aside():
            self._rank.group.allreduce(flag)
        return bool(flag[0])
