"""The rank loop: epochs and rounds of local steps, synchronisation and the ledger.

Threads, Dask workers and any other gang run this same program. A run is set up once, and an epoch is cut into the same
number of rounds on every rank; in each round a rank works on its slice of rows and then, if the strategy says so,
synchronises (`dsgd.runtime.train.rounds`). If the strategy finds its period during training, the rest of an epoch is
cut into new rounds (`dsgd.runtime.train.adaptation`). At the end of an epoch ranks sum one short message and so agree
whether training ends (`dsgd.runtime.train.epoch`). From time to time they take snapshots
(`dsgd.runtime.train.snapshots`).

An epoch of few rows takes some microseconds; a round of exchange, and sums over ranks of which there is one, take
eighty. So a rank that has nobody to exchange with does directly what they would find out. Models, losses, objectives,
records and the ledger are those of the usual way, to the bit; where a number looks as if training were over, the usual
way ends the epoch.
"""

from __future__ import annotations

import contextlib
import math
import sys

from dsgd.errors import CheckpointError, DsgdError
from dsgd.ledger import COMPUTE
from dsgd.local.sgd import is_finite
from dsgd.runtime.progress import StragglerWatch
from dsgd.runtime.rank import Rank
from dsgd.runtime.train.epoch import (
    ABSURD_LOSS,
    EpochEnd,
    bring_together,
    divergence_of,
    gather_models,
    put_back,
    settle,
)
from dsgd.runtime.train.fused import takes_plain_steps
from dsgd.runtime.train.job import EpochRecord, TrainData, TrainJob, TrainResult
from dsgd.runtime.train.rounds import Rounds, Run, begin_run
from dsgd.runtime.train.serving import begin_servers
from dsgd.runtime.train.snapshots import SnapshotSchedule
from dsgd.runtime.train.state import leave, take_over
from dsgd.stages import stage
from dsgd.sync.base import check_state


def is_alone(run: Run, snapshots: SnapshotSchedule) -> bool:
    """Return whether nothing but steps and the stopping rule happens in the epochs of a run."""
    job, rank = run.job, run.rank
    if rank.size > 1 or rank.is_virtual or job.early_stopping or job.validates or snapshots.is_on:
        return False
    return takes_plain_steps(job) and run.at.begins_epoch


def run_epochs(run: Run, rounds: Rounds, epoch_end: EpochEnd, snapshots: SnapshotSchedule) -> bool:
    """Run all epochs that are left; return whether training has ended, as it has."""
    at, job, rank, shard, ledger = run.at, run.job, run.rank, run.data.shard, run.rank.ledger
    state, optimizer, visits, n_rows = at.optimizer, job.optimizer, run.visits, run.data.n_rows
    n_terms, dispersion = max(1, n_rows) * optimizer.n_losses, 0.0 if job.strategy.ends_equal else math.nan
    ended = at.epoch >= job.max_iter
    while not ended:
        state.start_epoch()
        optimizer.arrange(shard, state)
        ledger.begin_round("sync")
        begin = ledger.clock() if ledger.timing else 0.0
        rank.check()
        visits.over(0, n_rows)
        if ledger.timing:
            ledger.charge(COMPUTE, ledger.clock() - begin)
        ledger.end_round()
        run.data.check_predictions(state)
        if state.loss_sum >= ABSURD_LOSS or not is_finite(at.params):
            ended = epoch_end.end(rounds, 1)
            continue
        ledger.end_epoch()
        at.epoch, at.n_steps = at.epoch + 1, at.n_steps + n_rows
        record = EpochRecord(at.epoch, snapshots.elapsed_s, state.loss_sum / n_terms, dispersion, math.nan)
        at.history.append(record)
        objectives = optimizer.objective_sums(at.params, shard, state) / max(1, n_rows)
        has_converged = at.stop_rule.update(objectives, math.nan, job, state)
        ended = has_converged or at.epoch == job.max_iter or rank.enough.is_set()
        epoch_end.tell(record, n_rows, last=ended)
    return ended


def train(rank: Rank, data: TrainData, job: TrainJob) -> TrainResult:
    """Train on this rank's rows together with the other ranks; a rank program."""
    watch = StragglerWatch(rank.number, rank.size, rank.ledger, rank.ledger.clock)
    run = begin_run(rank, data, job)
    at = run.at
    with run.deadlines.explained(), contextlib.closing(Rounds(run)) as rounds:
        snapshots, note = _take_up_state(run)
        epoch_end = EpochEnd(run, snapshots, watch)
        resumed, ended = note is not None, at.stop_rule.stopped
        with stage("train") as it:
            if not ended and not resumed and is_alone(run, snapshots):
                ended = run_epochs(run, rounds, epoch_end, snapshots)
                it.nbytes += data.nbytes * len(at.history)
            while at.epoch < job.max_iter and not ended:
                n_rounds = _run_epoch(run, rounds, snapshots, resumed=resumed)
                ended = epoch_end.end(rounds, n_rounds)
                resumed = False
                it.nbytes += data.nbytes
        with stage("gather"):
            left = None if job.leaves is None else leave(rank, job, at, run.rows)
            of_ranks = gather_models(run) if job.strategy.keep_models else None
            averaged, n_averaged = bring_together(run, at.params)
            if (under_way := job.strategy.under_way) is not None:
                with rank.ledger.round("leave"):
                    under_way.leave(rank.group, at.vector, at.strategy)
            if at.best is not None:
                averaged, n_averaged = put_back(run, at.best)
            settle(run, is_last=True)
            divergence = divergence_of(run, averaged if averaged is not None and n_averaged else at.params)
    return TrainResult(
        at.params,
        averaged,
        n_averaged,
        n_iter=len(at.history),
        n_steps=at.n_steps,
        t=_step_counter(run),
        converged=at.stop_rule.stopped,
        history=at.history,
        note=" ".join(filter(None, (note, snapshots.note))),
        stragglers=[watch.found[number] for number in sorted(watch.found)],
        statistics=at.optimizer.statistics(),
        of_ranks=of_ranks,
        periods=[] if run.adaptation is None else run.adaptation.history(at),
        divergence=divergence,
        left=left,
    )


def _take_up_state(run: Run) -> tuple[SnapshotSchedule, str | None]:
    """Start, or resume a saved state; return the schedule of snapshots, and the note of `SnapshotSchedule.recall`."""
    rank, at, strategy = run.rank, run.at, run.job.strategy
    rank.ledger.begin_round("setup")
    at.strategy = strategy.init(rank.group, at.vector, run.weights.share)
    check_state(strategy, at.strategy)
    snapshots = SnapshotSchedule(rank, run.job, run.data, run.rows)
    try:
        note = snapshots.recall(at)
        if note is None and run.job.epochs_before:
            take_over(rank, run.job, at, run.rows)
    except DsgdError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # A file is as somebody wrote it, and its arrays may be of another training.
        raise CheckpointError(
            f"the state to go on from is not one of this training ({type(error).__name__}: {error}). Fit without "
            "resume_from, or a new model."
        ) from error
    if strategy.server is not None and rank.number == 0:
        begin_servers(rank, strategy.server, at, run.data.shard, run.rows, run.rates.mean_square, run.job.epochs_before)
    # The same for all steps: a run that resumes keeps its first factor.
    at.optimizer.rate_factor = run.rates.factor(run.job.optimizer)
    if run.adaptation is not None:
        run.adaptation.begin(at, snapshots)
    run.weights.begin(at, resumed=note is not None or run.job.epochs_before > 0)
    rank.ledger.end_round()
    return snapshots, note


def _run_epoch(run: Run, rounds: Rounds, snapshots: SnapshotSchedule, *, resumed: bool) -> int:
    """Run the rest of an epoch, checking now and then whether to take a snapshot; return the number of rounds."""
    at, n_rounds = run.at, 0
    if at.begins_epoch:
        at.optimizer.start_epoch()
        run.cut_epoch()
    if run.rank.size == 1 or run.job.strategy.seconds is None:
        # Rounds of a fixed time go round the rows, and an epoch begins where the last one ended.
        run.job.optimizer.arrange(run.data.shard, at.optimizer)
    run.weights.begin_epoch(at)
    to_look = snapshots.stride
    while at.round < at.cut.rounds:
        n = min(at.cut.rounds - at.round, at.ahead, to_look if rounds.can_be_kept else sys.maxsize)
        n_rounds += rounds.run(at.round, at.round + n)
        at.round, at.ahead, to_look = at.round + n, at.ahead - n, to_look - n
        if run.adaptation is not None and not at.ahead:
            run.adaptation.decide(at)
        if resumed:
            resumed = False
            if run.rank.number == 0:
                epoch, number = at.epoch + 1, at.position[1]
                text = f"training goes on in epoch {epoch}, round {number} done"
                run.rank.publish({"phase": "resumed", "resumed_epoch": epoch, "resumed_round": number, "text": text})
        if not to_look and at.round < at.cut.rounds:
            _keep(run, snapshots)
            to_look = snapshots.stride
    return n_rounds


def _keep(run: Run, snapshots: SnapshotSchedule) -> None:
    """Keep the state in the middle of an epoch, if it is time."""
    at = run.at
    run.deadlines.expect("edge")
    # The round before was an ordinary one.
    clock = run.clock_at(at.round - 1)
    with run.rank.ledger.round("keep"):
        snapshots.look(at, same_model=run.ends_equal(clock))


def _step_counter(run: Run) -> float:
    """Return the value of the step counter from which training continues."""
    at, job, strategy = run.at, run.job, run.job.strategy
    if strategy.server is not None and strategy.exchanges == "gradient":
        return job.t_start + int(strategy.server.served(at.params, at.strategy)[1])
    if strategy.exchanges == "gradient" or not job.optimizer.steps.by_row:
        return at.optimizer.t
    # Threads that share a model count the steps of all.
    n_counters = 1 if strategy.shares_memory else run.rank.size
    return job.t_start + at.n_steps / n_counters
