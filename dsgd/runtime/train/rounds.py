"""The rounds of one rank: local steps or a gradient, then the synchronisation that may be due.

A round is an ordinary one, one of many inside a kernel (`dsgd.runtime.train.fused`), or one that lasts a fixed time
(`dsgd.runtime.train.visits`). Where an exchange runs beside the steps of the next round, or beside the backward pass
that makes a gradient, it is begun and ended here.
"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np

from dsgd.kernels.rows import squared_distances
from dsgd.ledger import COMPUTE
from dsgd.local.sgd import is_finite
from dsgd.local.sgd_state import SGDState, add_to_suffix, is_in_suffix
from dsgd.runtime.train.run import Run
from dsgd.runtime.train.visits import AnytimeRounds
from dsgd.sync import Cut, RoundClock
from dsgd.sync.averaging import DelayedMean, beside_for
from dsgd.sync.minibatch import buckets_for


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
