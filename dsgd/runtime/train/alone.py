"""Epochs of a rank that has nobody to exchange with: steps, and the stopping rule.

Problem: an epoch of few rows takes some microseconds. A round of exchange, and sums over ranks of which there is one,
take eighty.

Method: what they would find out is done directly. Models, losses, objectives, records and the ledger are those of the
usual way, to the bit; where a number looks as if training were over, the usual way ends the epoch.
"""

from __future__ import annotations

from dsgd.ledger import COMPUTE
from dsgd.local import is_finite
from dsgd.runtime.train.epoch import ABSURD_LOSS, EpochEnd
from dsgd.runtime.train.fused import takes_plain_steps
from dsgd.runtime.train.job import EpochRecord
from dsgd.runtime.train.rounds import Rounds
from dsgd.runtime.train.run import Run
from dsgd.runtime.train.snapshots import SnapshotSchedule


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
    ended = at.epoch >= job.max_iter
    while not ended:
        state.start_epoch()
        optimizer.arrange(shard, state)
        clock = run.clock_at(0)
        is_due = run.period.is_due(clock)
        ledger.begin_round("sync" if is_due else "local")
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
        n_seen = state.n_seen
        dispersion = 0.0 if run.ends_equal(clock) else float("nan")
        loss = state.loss_sum / (max(1, n_seen) * optimizer.n_losses)
        record = EpochRecord(at.epoch + 1, snapshots.elapsed_s, loss, dispersion, float("nan"))
        at.history.append(record)
        at.epoch, at.n_steps = at.epoch + 1, at.n_steps + n_seen
        objectives = optimizer.objective_sums(at.params, shard, state) / max(1, n_seen)
        has_converged = at.stop_rule.update(objectives, record.validation_score, job, state)
        ended = has_converged or at.epoch == job.max_iter or rank.enough.is_set()
        epoch_end.tell(record, n_seen, last=ended)
    return ended
