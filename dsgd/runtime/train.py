"""The rank loop: the one place where local steps, synchronisation and the ledger meet.

Threads, Dask workers and any other gang run this same program. An epoch is cut into the same number of rounds on
every rank; in each round a rank works on its slice of rows and then, if the strategy says so, synchronises. Where the
strategy finds its period while it trains, what is left of an epoch is cut anew (`dsgd.runtime.adaptation`). At the
end of an epoch one short control message is summed over the ranks: losses, row counts, the non-finite flag, replica
dispersion, validation sums, where the time of each rank went, and whether anybody wants training to end. All ranks read
the same sums and so take the same decision to stop; none can be left waiting for a round that a peer does not begin.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from dsgd.errors import GangTimeoutError, InvalidDataError
from dsgd.ledger import COMPUTE
from dsgd.local import SGD, AbstractRows, AbstractState, Evaluation, Residency, SGDState, Shard, is_finite
from dsgd.runtime.account import ProgressAccount
from dsgd.runtime.adaptation import Adaptation
from dsgd.runtime.anytime import AnytimeRounds
from dsgd.runtime.deadlines import Deadlines
from dsgd.runtime.fused import FusedRounds, window_for
from dsgd.runtime.hogwild import shared_walk
from dsgd.runtime.keeping import StateKeeping
from dsgd.runtime.rank import Rank
from dsgd.runtime.serving import begin_servers
from dsgd.runtime.stragglers import Straggler, StragglerWatch, straggler_text
from dsgd.runtime.train_job import EpochRecord, TrainData, TrainJob, TrainResult
from dsgd.runtime.train_state import TrainState
from dsgd.sync import (
    AbstractAdaptation,
    AbstractLocalTerm,
    AnytimeSGD,
    Cut,
    EveryRows,
    Hogwild,
    LocalSteps,
    MinibatchSGD,
    RoundClock,
    carry_over,
)
from dsgd.sync.averaging import weighted_mean
from dsgd.sync.base import AbstractUnderWay
from dsgd.sync.buckets import buckets_for
from dsgd.sync.delayed import DelayedMean
from dsgd.sync.server import AbstractServerStrategy
from dsgd.types import FloatVector

__all__ = ["EpochRecord", "TrainData", "TrainJob", "TrainResult", "entries_per_call", "train"]

# A kernel call should end within about a second, so that the abort flag is read; a core does some 3e8 entries a second.
_MOST_ENTRIES_PER_CALL: Final = 100_000_000
# Most end much sooner, so that of rows in a file little is in memory. A call visits every weight once: it must be long
# beside that. Rows in memory are cut in the same places, so that both give the same model to the bit.
_ENTRIES_PER_CALL: Final = 2_000_000
_ENTRIES_PER_WEIGHT: Final = 8


def train(rank: Rank, data: TrainData, job: TrainJob) -> TrainResult:
    """Train on this rank's rows together with the other ranks; a rank program.

    Parameters
    ----------
    rank : Rank
        This member of the gang.
    data : TrainData
        Its rows.
    job : TrainJob
        What to do.

    Returns
    -------
    TrainResult
        The same on every rank.

    Raises
    ------
    InvalidDataError
        The model left the range of floating-point numbers.
    """
    trainer = _Trainer(rank, data, job)
    try:
        return trainer.run()
    except GangTimeoutError as error:
        if text := trainer.deadlines.explain():
            error.add_note(text)
        raise
    finally:
        for beside in (trainer.delayed, trainer.buckets):
            if beside is not None:
                beside.close()


def entries_per_call(n_params: int) -> int:
    """Return the entries of rows that one call of a kernel walks over, for a model of this length."""
    return min(_MOST_ENTRIES_PER_CALL, max(_ENTRIES_PER_CALL, _ENTRIES_PER_WEIGHT * n_params))


class _Trainer:
    """The loop with its buffers, which are made once and reused in every round.

    What changes from round to round is `at`, the state; `params` and `state` are its model and its optimiser.
    """

    def __init__(self, rank: Rank, data: TrainData, job: TrainJob) -> None:
        self.rank, self.data, self.job = rank, data, job
        rank.group.seed = job.seed
        self.ledger = rank.ledger
        self.deadlines = Deadlines(rank.group.transport, measures_edges=job.checkpoint is None)
        self.clock = rank.ledger.clock
        self.exchanged_at = self.clock()
        self.watch = StragglerWatch(rank.number, rank.size, rank.ledger, self.clock)
        self.shard = data.shard
        self.params: FloatVector = np.array(job.initial)
        if isinstance(job.strategy, Hogwild):
            self.params = rank.group.share(self.params)
        self.gradient = np.zeros_like(self.params)
        self.before_sync = np.zeros_like(self.params)
        self.state: AbstractState = job.optimizer.init(self.shard)
        self.state.t = job.t_start
        if job.average_start is not None and self.state.averaged is not None:
            self.state.averaged[:] = job.average_start
            self.state.n_averaged = job.n_averaged
        n_outputs = job.optimizer.n_outputs
        entries_per_row = self.shard.entries(0, self.shard.n_rows) // max(1, self.shard.n_rows) + 16
        entries = entries_per_call(self.params.size)
        self.rows_per_call = max(1, entries // (entries_per_row * n_outputs))
        self.walk: Callable[[int, int], object] = job.optimizer.bind(self.params, self.shard, self.state)
        if isinstance(job.strategy, Hogwild) and isinstance(job.optimizer, SGD):
            assert isinstance(self.shard, Shard)
            assert isinstance(self.state, SGDState)
            self.walk = shared_walk(rank.group, job.optimizer, self.params, self.shard, self.state)
        self.residency: Residency | None = None
        if isinstance(self.shard, Shard) and self.shard.mapping is not None:
            self.residency = Residency(self.shard)
        if self.residency is not None:
            self.walk = self.residency.bound(self.walk)
        if rank.is_virtual:
            self.walk = self._charged(self.walk)
        if isinstance(job.strategy, AbstractLocalTerm) and rank.size > 1:
            steps, stretch = job.optimizer.steps, job.strategy.stretch
            if stretch is not None:
                self.rows_per_call = min(self.rows_per_call, stretch if steps.by_row else steps.rows)
            self.walk = self._corrected(self.walk, job.strategy)
        self.anytime: AnytimeRounds | None = None
        if isinstance(job.strategy, AnytimeSGD) and rank.size > 1:
            parts = self.walk, self.params, self.shard, self.state
            self.anytime = AnytimeRounds(rank, job.strategy, *parts, job.t_start, self.rows_per_call)
        self.rows = self._set_up()
        self.n_total = sum(self.rows)
        self.weight = self.shard.n_rows / self.n_total if self.n_total else 1.0 / rank.size
        # A rank that is alone has nobody to average with: it walks each epoch in one go.
        alone = rank.size == 1 and job.strategy.exchanges == "model" and not job.strategy.n_servers
        self.period = job.strategy.period
        cut = Cut.whole(self.rows, 1 if alone else self.period.rounds_per_epoch(self.rows))
        self.at = TrainState(self.params, self.state, cut)
        self.adaptation: Adaptation | None = None
        if isinstance(job.strategy, AbstractAdaptation) and rank.size > 1:
            self.adaptation = Adaptation(rank, job.strategy, self.shard, self.rows, job.optimizer, job.max_iter)
        self.n_rounds = 0  # of the epoch so far; not all strategies can plan them
        overlaps = job.strategy.overlap and job.strategy.exchanges == "model" and cut.rounds > 1
        self.delayed = DelayedMean(rank.group, self.params, self.weight) if overlaps else None
        self.buckets = buckets_for(rank.group, job.strategy)
        # Long rounds gain nothing by it, and are cut into several calls; rows in a file wait for the disk in any case.
        longest = max(self.rows) * (self.params.size + 16 * n_outputs)
        self.least_fused = longest / entries if self.fused is not None and self.residency is None else math.inf

    def run(self) -> TrainResult:
        at, job = self.at, self.job
        keeping, note = self._recall()
        resumed = note is not None
        account = ProgressAccount(
            self.rank.number, self.rows, self.ledger, job.max_iter, type(job.strategy).__name__, at.elapsed_s
        )
        ended = at.stop_rule.stopped
        while at.epoch < job.max_iter and not ended:
            if at.begins_epoch:
                self.state.start_epoch()
            to_look = keeping.stride
            while at.round < at.cut.rounds:
                # With an exchange under way there is no state that could be kept.
                # Nor where ranks do not wait for each other: a look would make them do so.
                aside = self.delayed is not None or job.strategy.talks == "by post"
                n = min(at.cut.rounds - at.round, at.ahead, sys.maxsize if aside else to_look)
                self._run_rounds(at.epoch, at.round, at.round + n)
                at.round, at.ahead, to_look = at.round + n, at.ahead - n, to_look - n
                if self.adaptation is not None and not at.ahead:
                    self.adaptation.decide(at)
                if resumed and self.rank.number == 0:
                    epoch, number = at.epoch + 1, at.position[1]
                    text = f"training goes on in epoch {epoch}, round {number} done"
                    self.rank.publish(
                        {"phase": "resumed", "resumed_epoch": epoch, "resumed_round": number, "text": text}
                    )
                resumed = False
                if not to_look and at.round < at.cut.rounds:
                    self._keep(keeping)
                    to_look = keeping.stride
            ended = self._end_epoch(keeping, account)
        averaged, n_averaged = self._collect(early=at.epoch < job.max_iter)
        self._settle(is_last=True)
        return TrainResult(
            self.params,
            averaged,
            n_averaged,
            n_iter=len(at.history),
            n_steps=at.n_steps,
            t=self._step_counter(),
            converged=at.stop_rule.stopped,
            history=at.history,
            note=note or "",
            stragglers=[self.watch.found[number] for number in sorted(self.watch.found)],
            statistics=self.state.statistics(),
            periods=[] if self.adaptation is None else self.adaptation.history(at),
        )

    def _step_counter(self) -> float:
        """Return the value of the step counter for training to go on from."""
        strategy = self.job.strategy
        if isinstance(strategy, AbstractServerStrategy) and strategy.exchanges == "gradient":
            return self.job.t_start + strategy.served(self.params, self.at.strategy)[1]
        if strategy.exchanges == "gradient" or not self.job.optimizer.steps.by_row:
            return self.state.t
        # Threads that share a model count the steps of all.
        n_counters = 1 if isinstance(strategy, Hogwild) else self.rank.size
        return self.job.t_start + self.at.n_steps / n_counters

    def _recall(self) -> tuple[StateKeeping, str | None]:
        """Return what keeps the state, after it has brought back what was kept before."""
        self.ledger.begin_round("setup")
        self.at.strategy = self.job.strategy.init(self.rank.group, self.params, self.weight)
        keeping = StateKeeping(self.rank, self.job, self.shard, self.rows)
        note = keeping.recall(self.at)
        if isinstance(self.job.strategy, AbstractServerStrategy) and self.rank.number == 0:
            begin_servers(self.rank, self.job.strategy, self.at, self.shard)
        if self.adaptation is not None:
            self.adaptation.begin(self.at, keeping)
        self.ledger.end_round()
        return keeping, note

    def _keep(self, keeping: StateKeeping) -> None:
        self.deadlines.expect("edge")
        # In the middle of an epoch: the round before was an ordinary one.
        clock = RoundClock(self.at.epoch, self.at.round - 1, self.at.cut.rounds, is_last=False)
        self.ledger.begin_round("keep")
        keeping.look(self.at, same_model=self._ends_equal(clock))
        self.ledger.end_round()

    def _ends_equal(self, clock: RoundClock) -> bool:
        """Return whether all ranks have the same model after a round."""
        strategy = self.job.strategy
        return strategy.ends_equal and (strategy.exchanges == "gradient" or self.period.is_due(clock))

    def _set_up(self) -> list[int]:
        """Load the kernels and meet the other ranks; return the rows of each."""
        # On no rows: a rank that has yet to compile must not keep its peers waiting in the first round.
        self.ledger.begin_round("setup")
        self.fused: FusedRounds | None = None
        optimizer, shard, state = self.job.optimizer, self.shard, self.state
        if isinstance(optimizer, SGD) and isinstance(shard, Shard) and isinstance(state, SGDState):
            window = window_for(self.rank, self.job.strategy, self.params) if optimizer.rule is None else None
            if window is not None:
                self.fused = FusedRounds(self.rank, window, optimizer, self.params, shard, state)
        if self.job.strategy.exchanges == "model":
            self.walk(0, 0)
        else:
            self.job.optimizer.gradient(self.params, self.shard, 0, 0, self.gradient, self.state)
        rows = self.rank.group.allgather(np.array([self.shard.n_rows], dtype=np.int64))
        self.ledger.end_round()
        return [int(n) for n in rows.ravel()]

    def _run_rounds(self, epoch: int, first: int, stop: int) -> None:
        """Run the rounds first..stop of an epoch; nothing else happens between them."""
        at, number = self.at, first
        self.deadlines.expect("edge")
        if self.anytime is not None:
            # An epoch of them is one round here: only the ranks together find out when it is over.
            self.n_rounds += self.anytime.run_epoch(self.n_total, self.before_sync, self.deadlines)
            self.exchanged_at = self.clock()
            return
        self.n_rounds += stop - first
        # The last of an epoch is always an ordinary round: it notes how far the models were apart. So is that in which
        # ranks decide.
        fused_until = stop - 1 if stop - first == at.ahead else min(stop, at.cut.rounds - 1)
        while self.fused is not None and self.least_fused <= at.cut.rounds and number < fused_until:
            self.rank.check()
            begin, before = self.clock(), number
            number = self.fused.run(number, fused_until, at.cut, self.weight)
            self.deadlines.add(self.clock() - begin, number - before)
            self.deadlines.expect("round")
        while number < stop:
            last = number
            while last < stop - 1 and not self.period.is_due(self._clock_at(epoch, last)):
                last += 1
            self._round(epoch, number, last, decides=last + 1 - first == at.ahead)
            number = last + 1
            self.deadlines.expect("round")

    def _clock_at(self, epoch: int, number: int) -> RoundClock:
        rounds = self.at.cut.rounds
        is_last = number == rounds - 1 and epoch == self.job.max_iter - 1
        return RoundClock(epoch, number, rounds, is_last)

    def _round(self, epoch: int, first: int, number: int, *, decides: bool = False) -> None:
        """Run the rounds first..number, the last included, of which only the last may be due, and may decide."""
        strategy, ledger = self.job.strategy, self.ledger
        clock = self._clock_at(epoch, number)
        ends_epoch, due = clock.ends_epoch, self.period.is_due(clock)
        start, stop = self.at.cut.span(self.rank.number, self.shard.n_rows, first, number)
        adaptation = self.adaptation if decides else None
        if adaptation is not None:
            adaptation.note(self.at)
        ledger.begin_round("sync" if due else "local")
        begin = ledger.clock() if ledger.timing else 0.0
        self.rank.check()
        if strategy.exchanges == "model":
            if self.delayed is not None:
                self.delayed.start()
            for low in range(start, stop, self.rows_per_call):
                self.walk(low, min(stop, low + self.rows_per_call))
                self.rank.check()
            if ledger.timing:
                ledger.charge(COMPUTE, ledger.clock() - begin)
            if self.delayed is not None:
                self.delayed.finish(self.params)
            if ends_epoch and due:
                self.before_sync[:] = self.params
            if self.delayed is not None and not ends_epoch:
                self.delayed.hold(self.params)
            elif due:
                if adaptation is not None:
                    adaptation.observe(self.at)
                strategy.sync(self.rank.group, self.params, self.weight, self.at.strategy)
                carry_over(strategy.momentum, self.rank.group, self.state.memory().values(), self.weight)
        else:
            if isinstance(strategy, MinibatchSGD):
                # By the step counter, which goes on from one call of partial_fit to the next.
                self.state.rate_factor = strategy.rate_factor(self.state.t / clock.rounds)
            self._gradient_round(number, start, stop, begin)
        if ledger.timing and due:
            self.deadlines.add(ledger.clock() - begin)
        ledger.end_round()
        if ends_epoch and due:
            self.exchanged_at = self.clock()

    def _gradient_round(self, number: int, start: int, stop: int, begin: float) -> None:
        # Ranks contribute their own mean, weighted by their rows of this round, so that the sum is the mean over all.
        ledger, n_local, optimizer = self.ledger, stop - start, self.job.optimizer
        cut = self.at.cut
        spans = (cut.span(rank, n, number, number) for rank, n in enumerate(self.rows))
        n_round = sum(high - low for low, high in spans)
        weight = n_local / n_round if n_round else 0.0
        if self.buckets is not None:
            self.buckets.begin(self.gradient, n_local, weight)
            self.state.on_gradient = self.buckets.ready
        optimizer.gradient(self.params, self.shard, start, stop, self.gradient, self.state)
        if self.residency is not None:
            self.residency.at(stop)
        if n_local and self.buckets is None:
            self.gradient /= n_local
        self._charge(self.shard, start, stop)
        if ledger.timing:
            ledger.charge(COMPUTE, ledger.clock() - begin)
        if self.buckets is not None:
            self.buckets.finish()
        elif optimizer.steps.may_overflow and self._has_overflowed():
            # No rank takes this step, and nothing that is not finite comes into what a compressor remembers.
            self.gradient.fill(np.nan)
        else:
            self.job.strategy.sync(self.rank.group, self.gradient, weight, self.at.strategy)
        if self.job.strategy.n_servers:
            # A server has taken the step, and this is its model.
            self.params[:] = self.gradient
            return
        begin = ledger.clock() if ledger.timing else 0.0
        optimizer.step(self.params, self.gradient, n_round, self.state)
        self.rank.worked(params=self.params.size)
        if ledger.timing:
            ledger.charge(COMPUTE, ledger.clock() - begin)

    def _has_overflowed(self) -> bool:
        """Return whether the gradient of any rank is not finite."""
        flag = np.array([float(not is_finite(self.gradient))])
        self.rank.group.allreduce(flag)
        return bool(flag[0])

    def _end_epoch(self, keeping: StateKeeping, account: ProgressAccount) -> bool:
        """Sum the control message of an epoch over the ranks and take in what it says; return whether training ends."""
        at, job = self.at, self.job
        is_last = at.epoch == job.max_iter - 1
        clock = self._clock_at(at.epoch, at.cut.rounds - 1)
        measured = job.strategy.exchanges == "model" and self._ends_equal(clock)
        dispersion = self._distance_from_mean() if measured else np.nan
        self._settle(is_last=False)
        validation = self._evaluate_validation().as_vector()
        broken = not is_finite(self.params)
        head = np.array([self.state.loss_sum, self.state.n_seen, broken, dispersion, self.rank.enough.is_set()])
        wishes = keeping.wishes() if keeping.is_on else np.zeros(0)
        parts = [head, validation, self.watch.message(self.state.n_seen), account.message(), wishes]
        message = np.concatenate(parts)
        self._sum_over_ranks(message)
        head, validation, paces, spent, wishes = np.split(message, np.cumsum([len(part) for part in parts[:-1]]))
        loss_sum, n_seen, n_broken, dispersion, n_enough = head
        if n_broken:
            raise InvalidDataError(
                f"Floating-point under-/overflow occurred at epoch #{at.epoch + 1}. "
                "Scaling input data with StandardScaler or MinMaxScaler might help; so might a smaller eta0."
            )
        n_terms = max(1.0, n_seen) * job.optimizer.n_outputs
        held_out = Evaluation.from_vector(validation)
        score = held_out.accuracy if job.scoring == "accuracy" else held_out.r2
        record = EpochRecord(
            epoch=at.epoch + 1,
            seconds=keeping.elapsed_s,
            train_loss=float(loss_sum / n_terms),
            dispersion=float(dispersion / self.rank.size),
            validation_score=score if job.early_stopping else float("nan"),
        )
        self._tell_of(self.watch.update(paces, self.n_rounds))
        self.n_rounds = 0
        at.history.append(record)
        at.epoch, at.round, at.n_steps = at.epoch + 1, 0, at.n_steps + int(n_seen)
        if self.adaptation is not None:
            self.adaptation.cut_epoch(at)
        ends = at.stop_rule.update(record, job, self.state) or is_last or n_enough > 0
        if keeping.is_on:
            self.ledger.begin_round("keep")
            same = self._ends_equal(clock)
            if isinstance(job.strategy, AbstractUnderWay):
                job.strategy.settle(self.rank.group, self.params, at.strategy)
            keeping.end_epoch(at, wishes, is_last=ends, same_model=same)
            self.ledger.end_round()
        account.update(spent, n_seen)
        if self.rank.number == 0:
            every = self.period.n if isinstance(self.period, EveryRows) else None
            every = every if self.adaptation is None else self.adaptation.every
            if event := account.event(record, every, last=ends):
                self.rank.publish(event.as_mapping())
        return bool(ends)

    def _tell_of(self, stragglers: list[Straggler]) -> None:
        for event in map(vars, stragglers) if self.rank.number == 0 else ():
            self.rank.publish({"phase": "straggler", **event, "text": straggler_text(event)})

    def _distance_from_mean(self) -> float:
        """Return the squared distance of this rank's model from the mean; nothing of its size is allocated."""
        self.before_sync -= self.params
        np.square(self.before_sync, out=self.before_sync)
        return float(np.sum(self.before_sync, dtype=np.float64))

    def _evaluate_validation(self) -> Evaluation:
        held_out = self.data.validation if self.job.early_stopping else None
        if held_out is None:
            return Evaluation()
        averaged = self.state.averaged
        params = self.params if averaged is None or not self.state.n_averaged else averaged
        found = self.job.optimizer.evaluate(params, held_out, self.state)
        self._charge(held_out, 0, held_out.n_rows)
        return found

    def _corrected(
        self, walk: Callable[[int, int], object], term: AbstractLocalTerm[Any]
    ) -> Callable[[int, int], None]:
        """Return `walk`, which applies the local term of the strategy too."""
        state = self.state

        def walk_and_correct(start: int, stop: int) -> None:
            t_start, loss_sum = state.t, state.loss_sum
            walk(start, stop)
            if stop > start:
                rate_sum = self.job.optimizer.rate_sum(t_start, state)
                steps = LocalSteps(rate_sum, state.loss_sum - loss_sum, stop - start)
                term.correct(self.params, steps, self.at.strategy)

        return walk_and_correct

    def _charged(self, walk: Callable[[int, int], object]) -> Callable[[int, int], None]:
        """Return `walk`, which moves a virtual clock too."""

        def walk_and_charge(start: int, stop: int) -> None:
            walk(start, stop)
            self._charge(self.shard, start, stop)

        return walk_and_charge

    def _charge(self, shard: AbstractRows, start: int, stop: int) -> None:
        """Charge a rank with a virtual clock for a kernel that has visited rows start..stop, and the model once."""
        if self.rank.is_virtual and stop > start:
            entries = shard.entries(start, stop) * self.job.optimizer.n_outputs
            self.rank.worked(rows=stop - start, entries=entries, params=self.params.size)

    def _settle(self, *, is_last: bool) -> None:
        """Average what of the statistics of a model is averaged: what batches have shown a rank, and no gradient."""
        statistics = self.job.optimizer.settle(self.params, self.shard, self.state, is_last=is_last)
        if statistics is not None and self.rank.size > 1:
            self.ledger.begin_round("settle")
            weighted_mean(self.rank.group, statistics, self.weight)
            self.ledger.end_round()

    def _sum_over_ranks(self, message: FloatVector) -> None:
        self.deadlines.expect("edge")
        self.ledger.begin_round("control")
        self.rank.group.allreduce(message)
        self.ledger.end_round()
        now = self.clock()
        self.deadlines.add(now - self.exchanged_at)
        self.exchanged_at = now

    def _collect(self, *, early: bool) -> tuple[FloatVector | None, int]:
        """Bring the models together at the end: what a strategy left apart, and the averaged iterates."""
        strategy = self.job.strategy
        if strategy.exchanges == "model" and early:
            # Training ended before the last round that was planned: a strategy that waits for it has yet to average.
            rounds = self.at.cut.rounds
            clock = RoundClock(0, rounds - 1, rounds, is_last=False)
            if not self.period.is_due(clock):
                self.ledger.begin_round("sync")
                strategy.sync(self.rank.group, self.params, self.weight, self.at.strategy)
                self.ledger.end_round()
        if not strategy.ends_equal:
            self.ledger.begin_round("collect")
            strategy.collect(self.rank.group, self.params, self.weight, self.at.strategy)
            self.ledger.end_round()
        if self.state.averaged is None:
            return None, 0
        n_averaged = self.state.n_averaged
        averaged = self.state.averaged if n_averaged else self.params.copy()
        self.ledger.begin_round("collect")
        counts = self.rank.group.allgather(np.array([n_averaged])).ravel()
        weighted_mean(self.rank.group, averaged, n_averaged / counts.sum() if counts.any() else self.weight)
        self.ledger.end_round()
        return averaged, int(counts.max())
