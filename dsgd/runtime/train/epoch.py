"""The end of an epoch: a short message summed over the ranks, the decisions that follow from it, and the model.

The message holds losses, the objective of every output, row counts, the non-finite flag, replica dispersion, validation
sums, wishes to keep the state, and whether anybody wants training to end. All ranks read the same sums and so take the
same decision to stop; none can be left waiting for a round that a peer does not begin. With them each rank says where
its time went, which rank 0 alone hears (`dsgd.collectives.algorithms.trees`).

Cost: two messages a rank, whatever the number of ranks; they are control, and no part of what a method costs.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple

import numpy as np

from dsgd.errors import InvalidDataError, InvalidParameterError
from dsgd.kernels.losses import PERCEPTRON
from dsgd.ledger import PHASES, WAIT, WIRE, RankLedger
from dsgd.local import SGD, Objective, Shard
from dsgd.local.base import Evaluation
from dsgd.local.objective import Deviance
from dsgd.local.sgd import SGDState, is_finite
from dsgd.progress import ProgressEvent
from dsgd.runtime.progress import Straggler, StragglerWatch, straggler_text
from dsgd.runtime.train.job import Divergence, EpochRecord, Validation, best_of
from dsgd.runtime.train.rounds import Rounds, Run
from dsgd.runtime.train.snapshots import SnapshotSchedule
from dsgd.runtime.train.state import BestModel, settle_suffix
from dsgd.runtime.train.visits import charge_visit
from dsgd.sync import EveryRows, RoundClock
from dsgd.sync.averaging import weighted_mean
from dsgd.types import FloatMatrix, FloatVector

_PERIOD_S: Final = 0.2


class ProgressAccount:
    """The account of a rank of where its time went and, on rank 0, that of all ranks.

    With the control message of an epoch every rank sends rank 0 the seconds of its phases. Rank 0 makes an event of two
    of them when the last one is 0.2 s old, so that a fit of very short epochs pays for a few additions in each.
    """

    def __init__(
        self,
        rows: Sequence[int],
        ledger: RankLedger,
        max_iter: int,
        strategy: str,
        begin_s: float = 0.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._size, self._longest = len(rows), max(rows, default=0)
        self._ledger, self._max_iter, self._strategy, self._clock = ledger, max_iter, strategy, clock
        # Of one line, until rank 0 has heard of all.
        self._spent: FloatMatrix = np.zeros((1, len(PHASES)))
        self._told: FloatMatrix = self._spent
        self._told_at, self._told_seconds = clock(), begin_s
        self._n_rows = 0.0
        self._rounds = ledger.rounds

    @property
    def is_due(self) -> bool:
        """Whether the last event is so old that there should be another one."""
        return self._clock() - self._told_at >= _PERIOD_S

    def own(self) -> FloatVector:
        """Return the seconds of this rank so far, shape (5,), by phase."""
        return np.array(self._ledger.totals_s())

    def update(self, spent: FloatMatrix | None, n_seen: float) -> None:
        """Take in the seconds of all ranks after an epoch of `n_seen` rows.

        - `spent`, shape (size, 5): what `own` of each rank is, where it is known: on rank 0. Kept until the
          next call.
        """
        if spent is not None:
            self._spent = spent
        self._n_rows += float(n_seen)

    def event(self, record: EpochRecord, period: int | None, *, last: bool) -> ProgressEvent | None:
        """Return what rank 0 tells after an epoch; None while the last event is not old enough."""
        now, rounds = self._clock(), self._ledger.rounds - self._rounds
        self._rounds = self._ledger.rounds
        if not (last or self.is_due):
            return None
        if period is None and rounds:
            period = -(-self._longest // rounds)
        spent = (self._spent - self._told).sum(axis=0)
        total = float(spent.sum())
        event = ProgressEvent(
            epoch=record.epoch,
            max_iter=self._max_iter,
            train_loss=record.train_loss,
            seconds=record.seconds,
            rows_per_s=self._n_rows / max(record.seconds - self._told_seconds, 1e-9),
            comm_share=float(spent[WIRE] + spent[WAIT]) / total if total > 0.0 else 0.0,
            period=period if self._size > 1 else None,
            strategy=self._strategy,
            validation_score=None if np.isnan(record.validation_score) else record.validation_score,
            **{f"{name}_s": tuple(self._spent[:, phase].tolist()) for phase, name in enumerate(PHASES)},
        )
        self._told, self._n_rows = self._spent, 0.0
        self._told_at, self._told_seconds = now, record.seconds
        return event


def gather_models(run: Run) -> FloatMatrix:
    """Return the models of all ranks as they are, shape (size, n_params); called by all of them at the end."""
    with run.rank.ledger.round("collect"):
        return run.rank.group.allgather(run.at.params)


def bring_together(run: Run, params: FloatVector, *, to_look: bool = False) -> tuple[FloatVector | None, int]:
    """Turn the model of each rank into the one that training returns if it ends now; all call it, between epochs.

    That is done at the end, and on copies whenever the model is scored: a score that decides whether training ends must
    be that of the model it would return.
    """
    at, group, ledger, strategy = run.at, run.rank.group, run.rank.ledger, run.job.strategy
    dual, vector = None, params
    if at.dual is not None:
        dual = at.dual.of(params)
        dual.enter()
        vector = dual.vector
    ended_early, epoch = at.epoch < run.job.max_iter, run.job.epochs_before + at.epoch - (not to_look)
    last = RoundClock(epoch, at.cut.rounds - 1, at.cut.rounds, is_last=not ended_early)
    if strategy.exchanges == "model" and not run.period.is_due(last):
        # A period of the user's may leave an epoch without an exchange at its end, and one that waits for the last
        # round that was planned has yet to average.
        with ledger.round("look" if to_look else "sync"):
            strategy.sync(group, vector, run.weights.share, at.strategy)
    if not strategy.ends_equal:
        with ledger.round("look" if to_look else "collect"):
            strategy.collect(group, vector, run.weights.share, at.strategy)
    if dual is not None:
        dual.leave()
        params[:] = dual.params
    own = at.optimizer.averaged
    if own is None:
        return None, 0
    n_averaged = at.optimizer.n_averaged
    averaged = own.copy() if n_averaged else params.astype(np.float64)
    with ledger.round("look" if to_look else "collect"):
        with ledger.aside():
            counts = group.roll_call(np.array([n_averaged])).ravel()
        weighted_mean(group, averaged, n_averaged / counts.sum() if counts.any() else run.weights.share)
    return averaged.astype(params.dtype), int(counts.max())


def put_back(run: Run, best: BestModel) -> tuple[FloatVector | None, int]:
    """Put the model of the best epoch and its statistics in place of the last ones; called by all ranks at the end."""
    if run.job.strategy.shares_memory:
        run.rank.group.barrier()  # one model for all: nobody may still read the last one
    run.at.params[...] = best.params
    for name, vector in run.at.optimizer.statistics().items():
        vector[...] = best.statistics[name]
    return best.averaged, best.n_averaged


# A classifier of noise ends a little above its start as often as a little below, and after few epochs of long steps.
_CLEARLY = 1.1
_N_EPOCHS = 5

# By how many rows a model is judged, and by how many of very many columns.
_MOST_ROWS, _LEAST_ROWS, _MOST_ENTRIES = 8192, 512, 2**20


def divergence_of(run: Run, params: FloatVector) -> Divergence | None:
    """Return by what the objective has risen in training; None if it has not, and on other ranks than 0.

    The mean loss of the last epoch is compared with that of the first and with that of a model of zeros, which needs
    only targets. Where it is above one of them, rank 0 evaluates the first and the last model on rows from everywhere
    in its own. A classifier may be right although its scores are far too large, or its features say nothing of the
    classes: of no use is only one that is right no more often than by the largest class, and whose loss does not fall.
    """
    job, shard, history = run.job, run.data.shard, run.at.history
    optimizer: Any = job.optimizer
    state: Any = run.at.optimizer
    if run.rank.number or not history or not isinstance(shard, Shard):
        return None
    if not isinstance(optimizer, SGD) or not isinstance(state, SGDState):
        return None
    # The perceptron's loss of a model of zeros is zero, its least.
    if job.leaves is not None or not shard.n_rows or optimizer.objective.row.code == PERCEPTRON:
        return None
    entries = shard.entries(0, shard.n_rows) / shard.n_rows
    some = shard.sample(int(max(_LEAST_ROWS, min(_MOST_ROWS, _MOST_ENTRIES / max(1.0, entries)))))
    last = history[-1].train_loss
    if last <= min(history[0].train_loss, _loss_of_zeros(optimizer.objective, some.targets)):
        return None
    first, found = (optimizer.evaluate(model, some, state) for model in (job.initial, params))
    begin = first.mean_loss + _penalty(optimizer.objective, job.initial)
    end = found.mean_loss + _penalty(optimizer.objective, params)
    if end <= begin:
        return None
    is_useless = job.scoring != "accuracy" or (
        len(history) >= _N_EPOCHS
        and end > _CLEARLY * begin
        and last > 0.5 * history[0].train_loss
        and found.accuracy <= _share_of_largest(shard)
    )
    return Divergence(begin, end, is_useless)


def _share_of_largest(shard: Shard) -> float:
    """Return the share of the largest class by weight."""
    _, codes = np.unique(shard.targets, return_inverse=True)
    totals = np.bincount(codes, shard.weights)
    return float(totals.max() / totals.sum())


def _loss_of_zeros(objective: Objective, targets: FloatVector) -> float:
    """Return the mean loss of a row under a model of zeros; infinite if that is unknown."""
    loss, n = objective.row, objective.n_outputs
    if objective.is_coupled:
        return float(np.log(n))
    if n == 1:
        return float(np.mean(loss.at_zero(targets.astype(np.float64), objective.epsilon)))
    signs = loss.at_zero(np.array([1.0, -1.0]), objective.epsilon)
    return float(signs[0] + (n - 1) * signs[1])


def _penalty(objective: Objective, params: FloatVector) -> float:
    weights, share = params[: -objective.n_outputs].astype(np.float64), objective.l1_share
    norms = (1.0 - share) / 2.0 * float(np.sum(weights**2)) + share * float(np.abs(weights).sum())
    return objective.strength * norms


#: A sum of losses beyond any that means something.
ABSURD_LOSS: Final = 1e30
_NOTHING: Final = np.zeros(0)
_N_PACE: Final = 2


class _Sums(NamedTuple):
    """The parts of the message that are summed; after the exchange, their sums over the ranks."""

    head: FloatVector
    objectives: FloatVector
    validation: FloatVector
    wishes: FloatVector


class EpochEnd:
    """Ends the epochs of one rank, together with its peers."""

    def __init__(self, run: Run, snapshots: SnapshotSchedule, watch: StragglerWatch) -> None:
        self._run, self._rank, self._job, self._at = run, run.rank, run.job, run.at
        self._snapshots, self._watch = snapshots, watch
        self._scored: BestModel | None = None
        best = best_of(run.at.history)
        self._best_score = -np.inf if best is None else best.validation_score
        self._account = ProgressAccount(
            run.rows,
            run.rank.ledger,
            run.job.max_iter,
            type(run.job.strategy).__name__,
            run.at.elapsed_s,
        )

    def end(self, rounds: Rounds, n_rounds: int) -> bool:
        """End an epoch, whose rounds are all over; called by all ranks."""
        at, job = self._at, self._job
        self._run.data.check_predictions(at.optimizer)
        is_last = at.epoch == job.max_iter - 1
        same_model = self._run.ends_equal(self._run.clock_at(at.cut.rounds - 1))
        measured = job.strategy.exchanges == "model" and same_model
        if same_model and at.epoch == 0:
            self._check_ends_equal()
        dispersion = rounds.squared_distance_from_mean() if measured else np.nan
        settle_suffix(self._rank, job, at.params, at.optimizer)
        settle(self._run, is_last=False)
        self._end_exchanges()
        self._rank.ledger.end_epoch()
        self._rank.worked(epochs=1)
        sums, told = self._sum_over_ranks(self._message(dispersion))
        record = self._record(sums)
        paces, spent = (None, None) if told is None else (told[:, :_N_PACE], told[:, _N_PACE:])
        self._tell_of(self._watch.update(paces, float(sums.head[4]), n_rounds))
        n_seen = sums.head[1]
        at.history.append(record)
        if job.restore_best and record.validation_score > self._best_score:
            at.best, self._best_score = self._scored, record.validation_score
        at.epoch, at.round, at.n_steps = at.epoch + 1, 0, at.n_steps + int(n_seen)
        if self._run.adaptation is not None:
            self._run.adaptation.cut_epoch(at)
        n_enough = sums.head[-1]
        objectives = sums.objectives / max(1.0, n_seen)
        has_converged = at.stop_rule.update(objectives, record.validation_score, job, at.optimizer)
        ends = bool(has_converged or is_last or n_enough > 0)
        if self._snapshots.is_on:
            with self._rank.ledger.round("keep"):
                self._snapshots.end_epoch(at, sums.wishes, is_last=ends, same_model=same_model)
        self._account.update(spent, n_seen)
        self._publish(record, last=ends)
        return ends

    def tell(self, record: EpochRecord, n_seen: int, *, last: bool) -> None:
        """Take note of an epoch of a rank that is alone, and tell of it if it is time."""
        self._account.update(None, n_seen)
        if self._rank.is_heard and (last or self._account.is_due):
            self._account.update(self._account.own()[None], 0.0)
            self._publish(record, last=last)

    def _check_ends_equal(self) -> None:
        """Raise on all ranks if their models differ after the first epoch, though the strategy says that they do not.

        Strategies of the package are tested for it, so that only others send a number for it.
        """
        strategy, ledger = self._job.strategy, self._rank.ledger
        if self._rank.size == 1 or type(strategy).__module__.partition(".")[0] == __name__.partition(".")[0]:
            return
        self._run.deadlines.expect("edge")
        with ledger.round("control"):
            digests = self._rank.group.roll_call(np.array([zlib.crc32(self._at.params.tobytes())], np.int64))
        if len(np.unique(digests)) > 1:
            raise InvalidParameterError(
                f"{strategy!r} leaves ranks with different models at the end of an epoch: `sync` must leave the same "
                "bits on all of them, as dsgd.sync.weighted_mean does, or the class must say ends_equal = False and "
                "have a `collect` that does so at the end of training. dsgd.testing.check_strategy checks more."
            )

    def _message(self, dispersion: float) -> _Sums:
        """Return this rank's part of the sums; the score is that of the model that all ranks together have."""
        state = self._at.optimizer
        broken = not is_finite(self._at.params) or self._predicts_beyond_range()
        validation = self._validation(broken=broken)
        objectives = state.output_losses
        if not broken:
            objectives = self._job.optimizer.objective_sums(self._at.params, self._run.data.shard, state)
        return _Sums(
            np.array(
                [state.loss_sum, state.n_seen, broken, dispersion, self._watch.window_s, self._rank.enough.is_set()]
            ),
            objectives,
            validation,
            self._snapshots.wishes() if self._snapshots.is_on else _NOTHING,
        )

    def _predicts_beyond_range(self) -> bool:
        """Return whether a finite model for values has predictions, on the rows of this rank, that are not finite."""
        at, job = self._at, self._job
        state, is_single = at.optimizer, at.params.dtype == np.float32
        # Losses say when to look: those of such predictions are far beyond any that mean something. In float64 they
        # were met during the epoch, or are not there.
        were_met = isinstance(state, SGDState) and not state.is_finite
        if job.scoring != "r2" or state.loss_sum < ABSURD_LOSS or not (is_single or were_met):
            return False
        found = job.optimizer.evaluate(at.params, self._run.data.shard, state)
        largest = float(np.finfo(np.float32).max) ** 2 if is_single else np.inf
        return not found.sq_error_sum < largest

    def _sum_over_ranks(self, parts: _Sums) -> tuple[_Sums, FloatMatrix | None]:
        """Return the sums, and on rank 0 the pace of each rank and its seconds so far."""
        own = np.concatenate([self._watch.pace(self._at.optimizer.n_seen), self._account.own()])
        if self._rank.size == 1:
            return parts, own[None]
        message, ledger = np.concatenate(parts), self._rank.ledger
        self._run.deadlines.expect("edge")
        ledger.begin_round("control")
        told = self._rank.group.tally(message, own)
        ledger.end_round()
        self._run.deadlines.end_edge(ledger.clock())
        # Not np.split, which takes as long as the exchange.
        stops = list(accumulate(map(len, parts)))
        return _Sums(*(message[stop - len(part) : stop] for part, stop in zip(parts, stops, strict=True))), told

    def _record(self, sums: _Sums) -> EpochRecord:
        """Return the line of the history that the sums make."""
        loss_sum, n_seen, n_broken, dispersion, *_ = sums.head
        number = self._at.epoch + 1
        if n_broken:
            raise InvalidDataError(
                f"Floating-point under-/overflow occurred at epoch #{number}. "
                "Scaling input data with StandardScaler or MinMaxScaler might help; so might a smaller eta0."
            )
        n_terms = max(1.0, n_seen) * self._job.optimizer.n_losses
        score = float("nan")
        if self._job.validates:
            score = float(sums.validation[0])
        elif self._job.holds_out:
            held_out = Evaluation.from_vector(sums.validation)
            scoring = self._job.scoring
            if isinstance(scoring, Deviance):
                score = scoring.explained(held_out)
            else:
                score = held_out.accuracy if scoring == "accuracy" else held_out.r2
        return EpochRecord(
            epoch=number,
            seconds=self._snapshots.elapsed_s,
            train_loss=float(loss_sum / n_terms),
            dispersion=float(dispersion / self._rank.size),
            validation_score=score,
        )

    def _end_exchanges(self) -> None:
        """Finish exchanges under way: ranks wait for each other now anyway, and snapshots would lack them."""
        under_way = self._job.strategy.under_way
        if under_way is not None:
            with self._rank.ledger.round("settle"):
                under_way.settle(self._rank.group, self._at.mixing(), self._at.strategy)
                self._at.mixed()

    def _tell_of(self, stragglers: list[Straggler]) -> None:
        if self._rank.number != 0:
            return
        for event in map(vars, stragglers):
            self._rank.publish({"phase": "straggler", **event, "text": straggler_text(event)})

    def _publish(self, record: EpochRecord, *, last: bool) -> None:
        if self._rank.number != 0 or not self._rank.is_heard:
            return
        period, adaptation = self._run.period, self._run.adaptation
        every = period.n if isinstance(period, EveryRows) else None
        every = every if adaptation is None else adaptation.every
        if event := self._account.event(record, every, last=last):
            self._rank.publish(event.as_mapping())

    def _validation(self, *, broken: bool) -> FloatVector:
        """Return this rank's part of the validation: its sums over rows held out, or on rank 0 the score itself."""
        job, rank, at = self._job, self._rank, self._at
        if not (job.validates or job.holds_out):
            return _NOTHING
        # Together with ranks that hold out no rows.
        params = at.params.copy()
        averaged, n_averaged = bring_together(self._run, params, to_look=True)
        model = averaged if averaged is not None and n_averaged else params
        if job.restore_best:
            statistics = {name: vector.copy() for name, vector in at.optimizer.statistics().items()}
            self._scored = BestModel(params, averaged, n_averaged, statistics)
        if not job.validates:
            return self._evaluate_held_out(model).as_vector()
        if rank.number != 0:
            return np.zeros(1)
        if broken or not is_finite(model):
            return np.full(1, np.nan)  # ranks are about to say so, and metrics might before
        validation: Validation = rank.given
        if rank.is_virtual:
            n_entries = validation.n_entries * job.optimizer.n_outputs
            rank.worked(rows=validation.n_rows, entries=n_entries, params=job.initial.size)
        return np.array([validation.score(model, at.optimizer.statistics())])

    def _evaluate_held_out(self, model: FloatVector) -> Evaluation:
        held_out = self._run.data.validation
        if held_out is None:
            return Evaluation()
        found = self._job.optimizer.evaluate(model, held_out, self._at.optimizer)
        charge_visit(self._rank, self._job, held_out, 0, held_out.n_rows)
        return found


def settle(run: Run, *, is_last: bool) -> None:
    """Average what of the statistics of a model is averaged: what batches have shown a rank, and no gradient of a step.

    The mean gradients of a reduction are those of one model: of several, each rank keeps its own.
    """
    state, job, rows = run.at.optimizer, run.job, run.data.shard
    statistics = job.optimizer.settle(run.at.params, rows, state, is_last=is_last)
    if statistics is None:
        return
    reduces = isinstance(state, SGDState)
    if reduces:
        charge_visit(run.rank, job, rows, 0, rows.n_rows)
    if run.rank.size > 1 and (not reduces or run.ends_equal(run.clock_at(run.at.cut.rounds - 1))):
        with run.rank.ledger.round("settle"):
            weighted_mean(run.rank.group, statistics, run.weights.share)
