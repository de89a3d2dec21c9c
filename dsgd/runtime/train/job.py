"""The input and output of training: rows of a rank, job, history, result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from dsgd.local import AbstractLocalOptimizer, AbstractState
from dsgd.local.base import AbstractRows
from dsgd.local.objective import Deviance
from dsgd.local.sgd import SGDState
from dsgd.local.shard import split
from dsgd.runtime.checkpoints.checkpoint import Checkpoint, SavedState
from dsgd.runtime.progress import Straggler
from dsgd.sync import AbstractStrategy, check_combination
from dsgd.types import AnyArray, FloatMatrix, FloatVector


class Validation(Protocol):
    """Validation rows, and how a model is scored on them; rank 0 is given it, see `TrainJob.validates`."""

    n_rows: int
    n_entries: int

    def score(self, params: FloatVector, statistics: Mapping[str, AnyArray]) -> float:
        """Return the score of a model, the larger the better."""
        ...


@dataclass(frozen=True)
class TrainData:
    """The rows of one rank."""

    shard: AbstractRows
    validation: AbstractRows | None = None
    check: Callable[[], object] | None = None

    def check_predictions(self, state: AbstractState) -> None:
        """Raise if a prediction was not finite because values of the rows are not."""
        if self.check is not None and isinstance(state, SGDState) and not state.is_finite:
            self.check()

    @property
    def n_rows(self) -> int:
        """Rows to train on."""
        return self.shard.n_rows

    @property
    def nbytes(self) -> int:
        """Bytes that an epoch of training reads."""
        return self.shard.nbytes

    def cut(self, n: int) -> list[TrainData]:
        """Return the rows of n ranks that are threads of one process: views, of consecutive rows."""
        held_out = self.validation
        return [
            TrainData(
                self.shard.rows(*split(self.shard.n_rows, n, k)),
                held_out and held_out.rows(*split(held_out.n_rows, n, k)),
            )
            for k in range(n)
        ]


@dataclass(frozen=True)
class TrainJob:
    """What to train and when to stop; the same on every rank."""

    optimizer: AbstractLocalOptimizer[Any, Any]
    strategy: AbstractStrategy[Any]
    initial: FloatVector
    max_iter: int
    tol: float | None
    n_iter_no_change: int
    early_stopping: bool = False
    scoring: Literal["accuracy", "r2"] | Deviance = "accuracy"
    validates: bool = False
    restore_best: bool = False
    t_start: float = 1.0
    average_start: FloatVector | None = None
    n_averaged: int = 0
    checkpoint: Checkpoint | None = None
    resume_from: str | None = None
    seed: int = 0
    epochs_before: int = 0
    leaves: Mapping[str, Any] | None = None
    source: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_combination(self.strategy, self.optimizer.steps)

    @property
    def holds_out(self) -> bool:
        """Whether ranks hold rows out, and score the model on them after every epoch."""
        return self.early_stopping and not self.validates


@dataclass(frozen=True)
class EpochRecord:
    """One line of the training history."""

    epoch: int
    seconds: float
    train_loss: float
    dispersion: float
    validation_score: float


def best_of(history: Sequence[EpochRecord]) -> EpochRecord | None:
    """Return the first epoch with the best validation score; None if no epoch has one that is a number."""
    scored = [record for record in history if record.validation_score == record.validation_score]
    return max(scored, key=lambda record: record.validation_score, default=None)


@dataclass(frozen=True)
class Divergence:
    """Of a fit that ended above the objective that it began at, on the rows of rank 0."""

    begin: float
    end: float
    is_useless: bool


@dataclass(frozen=True)
class TrainResult:
    """The result of training; equal on every rank, except `divergence` and `left`.

    - `params`, shape (n_params,): the model, averaged over ranks as the strategy says; with `TrainJob.restore_best`
      that of the best epoch, as are `averaged`, `n_averaged` and `statistics`.
    - `of_ranks`, shape (size, n_params): the model of each rank before they were combined, where the strategy keeps
      them.
    """

    params: FloatVector
    averaged: FloatVector | None
    n_averaged: int
    n_iter: int
    n_steps: int
    t: float
    converged: bool
    history: list[EpochRecord] = field(default_factory=list)
    note: str = ""
    stragglers: list[Straggler] = field(default_factory=list)
    statistics: Mapping[str, AnyArray] = field(default_factory=dict)
    periods: list[dict[str, Any]] = field(default_factory=list)
    of_ranks: FloatMatrix | None = None
    divergence: Divergence | None = None
    left: SavedState | None = None
