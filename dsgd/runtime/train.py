"""The rank loop: the one place where local steps, synchronisation and the ledger meet.

Threads, Dask workers and any other gang run this same program. An epoch is cut into the same number of rounds on
every rank; in each round a rank works on its slice of rows and then, if the strategy says so, synchronises. At the
end of an epoch one short control message is summed over the ranks: losses, row counts, the non-finite flag, replica
dispersion and validation sums. All ranks read the same sums and so take the same decision to stop; none can be left
waiting for a round that a peer does not begin.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np

from dsgd.errors import InvalidDataError
from dsgd.ledger import COMPUTE
from dsgd.local import SGD, Evaluation, SGDState, Shard, evaluate, is_finite, split
from dsgd.runtime.rank import Rank
from dsgd.sync import AbstractStrategy, RoundClock
from dsgd.sync.averaging import weighted_mean
from dsgd.types import FloatVector

__all__ = ["EpochRecord", "TrainData", "TrainJob", "TrainResult", "train"]

# A kernel call should end within about a second, so that the abort flag is read; a core does some 3e8 entries a second.
_ENTRIES_PER_CALL: Final = 100_000_000
_PUBLISH_EVERY_S: Final = 0.2
_MIN_ETA: Final = 1e-6  # below this step size the adaptive schedule gives up, as in scikit-learn


@dataclass(frozen=True)
class TrainData:
    """The rows of one rank.

    Parameters
    ----------
    shard : Shard
        Rows to train on; may be empty.
    validation : Shard or None, default None
        Rows held out for early stopping.
    """

    shard: Shard
    validation: Shard | None = None

    @property
    def n_rows(self) -> int:
        """Rows to train on."""
        return self.shard.n_rows


@dataclass(frozen=True)
class TrainJob:
    """What to train and when to stop; the same on every rank.

    Parameters
    ----------
    optimizer : SGD
        The local optimiser with its objective.
    strategy : AbstractStrategy
        When ranks talk and what they say.
    initial : array, shape (n_params,)
        The model to start from.
    max_iter : int
        Epochs at most.
    tol : float or None
        Stop when the training loss (or the validation score) has not improved by `tol` for `n_iter_no_change` epochs.
    n_iter_no_change : int
        See `tol`.
    early_stopping : bool
        Whether the validation score decides, and not the training loss.
    scoring : {"accuracy", "r2"}
        The validation score.
    t_start : float, default 1.0
        Value of the step counter to start from, for ``partial_fit``.
    average_start : array, shape (n_params,), or None
        Averaged model so far, for ``partial_fit`` with averaging.
    n_averaged : int, default 0
        Steps that `average_start` is the mean of, per rank.
    """

    optimizer: SGD
    strategy: AbstractStrategy
    initial: FloatVector
    max_iter: int
    tol: float | None
    n_iter_no_change: int
    early_stopping: bool = False
    scoring: Literal["accuracy", "r2"] = "accuracy"
    t_start: float = 1.0
    average_start: FloatVector | None = None
    n_averaged: int = 0


@dataclass(frozen=True)
class EpochRecord:
    """One line of the training history.

    Parameters
    ----------
    epoch : int
        Counted from 1.
    seconds : float
        Since training began on rank 0; placement of the data is not in it.
    train_loss : float
        Mean loss of a row, taken as each row was visited, before its update; the penalty is not in it.
    dispersion : float
        Mean squared distance of the ranks' models from their mean before the last synchronisation of the epoch,
        (1/P) sum_r ||w_r - mean||^2; nan where gradients are exchanged or nothing was synchronised.
    validation_score : float
        Accuracy or R2 on the rows held out; nan without early stopping.
    """

    epoch: int
    seconds: float
    train_loss: float
    dispersion: float
    validation_score: float


@dataclass(frozen=True)
class TrainResult:
    """What training brings home; equal on every rank.

    Parameters
    ----------
    params : array, shape (n_params,)
        The model, averaged over ranks as the strategy says.
    averaged : array, shape (n_params,), or None
        Mean of the iterates, if the optimiser averages.
    n_averaged : int
        Steps of a rank that `averaged` is the mean of; the largest over ranks.
    n_iter : int
        Epochs run.
    n_steps : int
        Rows visited (steps taken, where gradients are exchanged), summed over ranks.
    converged : bool
        Whether the stopping rule ended training, and not `max_iter`.
    history : list of EpochRecord
        One record per epoch.
    """

    params: FloatVector
    averaged: FloatVector | None
    n_averaged: int
    n_iter: int
    n_steps: int
    converged: bool
    history: list[EpochRecord] = field(default_factory=list)


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
    return _Trainer(rank, data, job).run()


class _Trainer:
    """The loop with its buffers, which are made once and reused in every round."""

    def __init__(self, rank: Rank, data: TrainData, job: TrainJob) -> None:
        self.rank, self.data, self.job = rank, data, job
        self.ledger = rank.ledger
        self.shard = data.shard
        self.params: FloatVector = np.array(job.initial, dtype=self.shard.dtype)
        self.gradient = np.zeros_like(self.params)
        self.before_sync = np.zeros_like(self.params)
        self.state: SGDState = job.optimizer.init(self.shard)
        self.state.t = job.t_start
        if job.average_start is not None and self.state.averaged is not None:
            self.state.averaged[:] = job.average_start
            self.state.n_averaged = job.n_averaged
        entries_per_row = len(self.shard.values.ravel()) // max(1, self.shard.n_rows) + 16
        self.rows_per_call = max(1, _ENTRIES_PER_CALL // (entries_per_row * job.optimizer.objective.n_outputs))
        self.rows = self._set_up()
        self.n_total = sum(self.rows)
        self.weight = self.shard.n_rows / self.n_total if self.n_total else 1.0 / rank.size
        # A rank that is alone has nobody to average with: it walks each epoch in one go.
        alone = rank.size == 1 and job.strategy.exchanges == "model"
        self.rounds = 1 if alone else job.strategy.rounds_per_epoch(self.rows)

    def run(self) -> TrainResult:
        job = self.job
        stop_rule = _StopRule(job)
        history: list[EpochRecord] = []
        n_steps = 0
        begin = published = time.perf_counter()
        for epoch in range(job.max_iter):
            self.state.start_epoch()
            for number in range(self.rounds):
                self._round(epoch, number)
            record, seen = self._end_epoch(epoch, begin)
            history.append(record)
            n_steps += seen
            stop = stop_rule.update(record, self.state)
            now = time.perf_counter()
            last = stop or epoch == job.max_iter - 1
            if self.rank.number == 0 and (last or now - published > _PUBLISH_EVERY_S):
                published = now
                self.rank.publish({"epoch": record.epoch, "train_loss": record.train_loss, "seconds": record.seconds})
            if stop:
                break
        averaged, n_averaged = self._collect(converged=stop_rule.stopped)
        return TrainResult(
            self.params, averaged, n_averaged, len(history), n_steps, converged=stop_rule.stopped, history=history
        )

    def _set_up(self) -> list[int]:
        """Load the kernels and meet the other ranks; return the rows of each."""
        # On no rows: a rank that has yet to compile must not keep its peers waiting in the first round.
        self.ledger.begin_round("setup")
        if self.job.strategy.exchanges == "model":
            self.job.optimizer.run(self.params, self.shard, 0, 0, self.state)
        else:
            self.job.optimizer.gradient(self.params, self.shard, 0, 0, self.gradient, self.state)
        rows = self.rank.group.allgather(np.array([self.shard.n_rows], dtype=np.int64))
        self.ledger.end_round()
        return [int(n) for n in rows.ravel()]

    def _round(self, epoch: int, number: int) -> None:
        strategy, ledger = self.job.strategy, self.ledger
        ends_epoch = number == self.rounds - 1
        clock = RoundClock(epoch, number, self.rounds, is_last=ends_epoch and epoch == self.job.max_iter - 1)
        due = strategy.is_due(clock)
        start, stop = split(self.shard.n_rows, self.rounds, number)
        ledger.begin_round("sync" if due else "local")
        begin = ledger.clock() if ledger.timing else 0.0
        self.rank.check()
        if strategy.exchanges == "model":
            for low in range(start, stop, self.rows_per_call):
                self.job.optimizer.run(self.params, self.shard, low, min(stop, low + self.rows_per_call), self.state)
                self.rank.check()
            if ledger.timing:
                ledger.charge(COMPUTE, ledger.clock() - begin)
            if due:
                if ends_epoch:
                    self.before_sync[:] = self.params
                strategy.sync(self.rank.group, self.params, self.weight)
        else:
            self._gradient_round(number, start, stop, begin)
        ledger.end_round()

    def _gradient_round(self, number: int, start: int, stop: int, begin: float) -> None:
        # Ranks contribute their own mean, weighted by their rows of this round, so that the sum is the mean over all.
        ledger, n_local = self.ledger, stop - start
        self.job.optimizer.gradient(self.params, self.shard, start, stop, self.gradient, self.state)
        if n_local:
            self.gradient /= n_local
        n_round = sum(high - low for low, high in (split(n, self.rounds, number) for n in self.rows))
        if ledger.timing:
            ledger.charge(COMPUTE, ledger.clock() - begin)
        self.job.strategy.sync(self.rank.group, self.gradient, n_local / n_round if n_round else 0.0)
        begin = ledger.clock() if ledger.timing else 0.0
        self.job.optimizer.step(self.params, self.gradient, n_round, self.state)
        if ledger.timing:
            ledger.charge(COMPUTE, ledger.clock() - begin)

    def _end_epoch(self, epoch: int, begin: float) -> tuple[EpochRecord, int]:
        """Sum the control message of an epoch over the ranks; return the record and the rows visited."""
        exchanges_model = self.job.strategy.exchanges == "model"
        clock = RoundClock(epoch, self.rounds - 1, self.rounds, is_last=epoch == self.job.max_iter - 1)
        measured = exchanges_model and self.job.strategy.is_due(clock)
        dispersion = float(np.sum(np.square(self.before_sync - self.params), dtype=np.float64)) if measured else np.nan
        validation = self._evaluate_validation()
        finite = is_finite(self.params)
        head = [self.state.loss_sum, self.state.n_seen, 0.0 if finite else 1.0, dispersion]
        message = np.concatenate([head, validation.as_vector()])
        self._sum_over_ranks(message)
        loss_sum, n_seen, n_broken, dispersion = message[:4]
        if n_broken:
            raise InvalidDataError(
                f"Floating-point under-/overflow occurred at epoch #{epoch + 1}. "
                "Scaling input data with StandardScaler or MinMaxScaler might help; so might a smaller eta0."
            )
        n_terms = max(1.0, n_seen) * self.job.optimizer.objective.n_outputs
        held_out = Evaluation.from_vector(message[4:])
        score = held_out.accuracy if self.job.scoring == "accuracy" else held_out.r2
        record = EpochRecord(
            epoch=epoch + 1,
            seconds=time.perf_counter() - begin,
            train_loss=float(loss_sum / n_terms),
            dispersion=float(dispersion / self.rank.size),
            validation_score=score if self.job.early_stopping else float("nan"),
        )
        return record, int(n_seen)

    def _evaluate_validation(self) -> Evaluation:
        held_out = self.data.validation if self.job.early_stopping else None
        if held_out is None:
            return Evaluation()
        averaged = self.state.averaged
        params = self.params if averaged is None or not self.state.n_averaged else averaged
        return evaluate(params, held_out, self.job.optimizer.objective)

    def _sum_over_ranks(self, message: FloatVector) -> None:
        self.ledger.begin_round("control")
        self.rank.group.allreduce(message)
        self.ledger.end_round()

    def _collect(self, *, converged: bool) -> tuple[FloatVector | None, int]:
        """Bring the models together at the end: what a strategy left apart, and the averaged iterates."""
        strategy = self.job.strategy
        if strategy.exchanges == "model" and converged:
            # Training ended before the last round that was planned: a strategy that waits for it has yet to average.
            early = RoundClock(0, self.rounds - 1, self.rounds, is_last=False)
            if not strategy.is_due(early):
                self.ledger.begin_round("sync")
                strategy.sync(self.rank.group, self.params, self.weight)
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


class _StopRule:
    """scikit-learn's stopping rule, on numbers that are equal on every rank."""

    def __init__(self, job: TrainJob) -> None:
        self.job = job
        self.tol = -np.inf if job.tol is None else job.tol
        self.best_loss = np.inf
        self.best_score = -np.inf
        self.n_bad = 0
        self.stopped = False

    def update(self, record: EpochRecord, state: SGDState) -> bool:
        """Take in an epoch; return whether training ends. The adaptive schedule first takes smaller steps."""
        if self.job.early_stopping:
            improved = record.validation_score >= self.best_score + self.tol
            self.best_score = max(self.best_score, record.validation_score)
        else:
            improved = record.train_loss <= self.best_loss - self.tol
            self.best_loss = min(self.best_loss, record.train_loss)
        self.n_bad = 0 if improved else self.n_bad + 1
        if self.n_bad < self.job.n_iter_no_change:
            return False
        optimizer = self.job.optimizer
        if optimizer.schedule == "adaptive" and optimizer.eta0 * state.eta_scale > _MIN_ETA:
            state.eta_scale /= 5.0
            self.n_bad = 0
            return False
        self.stopped = True
        return True
