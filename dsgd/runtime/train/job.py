"""The input and output of training: rows of a rank, job, history, result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from dsgd.errors import InvalidParameterError
from dsgd.local import AbstractLocalOptimizer, AbstractRows, AbstractState, Deviance, SGDState, split
from dsgd.runtime.checkpoints.checkpoint import AUTO, Checkpoint, SavedState
from dsgd.runtime.stragglers import Straggler
from dsgd.sync import AbstractStrategy, check_combination
from dsgd.types import AnyArray, FloatMatrix, FloatVector

__all__ = ["Divergence", "EpochRecord", "TrainData", "TrainJob", "TrainResult", "Validation", "best_of"]


class Validation(Protocol):
    """Validation rows, and how a model is scored on them; rank 0 is given it, see `TrainJob.validates`.

    Attributes
    ----------
    n_rows, n_entries : int
        Rows, and entries of them, that scoring a model reads.
    """

    n_rows: int
    n_entries: int

    def score(self, params: FloatVector, statistics: Mapping[str, AnyArray]) -> float:
        """Return the score of a model, the larger the better.

        Parameters
        ----------
        params : array, shape (n_params,)
            The model that training would return.
        statistics : mapping of str to array
            Its state besides the parameters; empty with a linear model.
        """
        ...


@dataclass(frozen=True)
class TrainData:
    """The rows of one rank.

    Parameters
    ----------
    shard : AbstractRows
        Rows to train on; may be empty.
    validation : AbstractRows or None, default None
        Rows held out for early stopping.
    check : callable or None, default None
        Called after an epoch in which a prediction was not finite: raises if that is due to values of the rows, which
        were then not read before training.
    """

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
    """What to train and when to stop; the same on every rank.

    Parameters
    ----------
    optimizer : AbstractLocalOptimizer
        The local optimiser, with its objective.
    strategy : AbstractStrategy
        When ranks exchange, and what.
    initial : array, shape (n_params,)
        The model to start from.
    max_iter : int
        Epochs at most.
    tol : float or None
        Stop when the objective of every output (or the validation score) has failed to improve by `tol` in
        `n_iter_no_change` epochs in a row.
    n_iter_no_change : int
        See `tol`.
    early_stopping : bool
        Whether the validation score decides, and not the objective.
    scoring : {"accuracy", "r2"} or Deviance
        The validation score of rows that ranks hold out; D2 of a deviance.
    validates : bool, default False
        Whether rank 0 is given a `Validation`, which scores the model after every epoch in place of rows held out.
    restore_best : bool, default False
        Whether training returns the model of the epoch with the best validation score.
    t_start : float, default 1.0
        Value of the step counter to start from, for ``partial_fit``.
    average_start : array, shape (n_params,), or None
        Averaged model so far, for ``partial_fit`` with averaging.
    n_averaged : int, default 0
        Steps that `average_start` is the mean of, per rank.
    checkpoint : Checkpoint or None, default None
        Where and how often rank 0 writes the state of training.
    resume_from : str or None, default None
        Path or URL of checkpoints to resume from; "auto" is that of `checkpoint`, if there are any.
    seed : int, default 0
        Seed of the random numbers of compressors.
    epochs_before : int, default 0
        Epochs of the trainings that this one continues, whose state rank 0 is given; see
        `dsgd.runtime.train.partial_fit`.
    leaves : mapping or None, default None
        The configuration under which this training leaves its state for the next one; None if it leaves nothing.
    source : mapping
        Plain values that identify how the rows were made; a checkpoint of another source is refused.

    Raises
    ------
    IncompatiblePartsError
        The strategy and the optimiser do not go together.
    InvalidParameterError
        `resume_from` is "auto" without a `checkpoint`.
    """

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
        if self.resume_from == AUTO and self.checkpoint is None:
            raise InvalidParameterError(
                "resume_from='auto' resumes from the folder of the checkpoints: set checkpoint=... as well."
            )

    @property
    def holds_out(self) -> bool:
        """Whether ranks hold rows out, and score the model on them after every epoch."""
        return self.early_stopping and not self.validates


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
        Mean squared distance of the ranks' models, before the last synchronisation of the epoch, from the one that all
        had after it (their mean, where models are averaged), (1/P) sum_r ||w_r - w||^2; nan where gradients are
        exchanged, nothing was synchronised or models stay apart.
    validation_score : float
        Score on the validation rows; nan if there are none.
    """

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
    """Of a fit that ended above the objective that it began at, on the rows of rank 0.

    Parameters
    ----------
    begin, end : float
        The objective before the first step, and after the last one.
    is_useless : bool
        Whether the model is worse than none: of a classifier, whether it is right no more often than the largest class,
        and its loss does not fall.
    """

    begin: float
    end: float
    is_useless: bool


@dataclass(frozen=True)
class TrainResult:
    """The result of training; equal on every rank, except `divergence` and `left`.

    Parameters
    ----------
    params : array, shape (n_params,)
        The model, averaged over ranks as the strategy says; with `TrainJob.restore_best` that of the best epoch, as are
        `averaged`, `n_averaged` and `statistics`.
    averaged : array, shape (n_params,), or None
        Mean of the iterates, if the optimiser averages.
    n_averaged : int
        Steps of a rank that `averaged` is the mean of; the largest over ranks.
    n_iter : int
        Epochs run.
    n_steps : int
        Rows visited, summed over ranks.
    t : float
        Value of the step counter from which training continues: one more than the steps of a rank so far, the mean over
        ranks if each steps by rows of its own; with `Hogwild`, one more than those of all ranks.
    converged : bool
        Whether the stopping rule ended training, and not `max_iter`.
    history : list of EpochRecord
        One record per epoch.
    note : str, default ""
        A note for the user about the checkpoint that training resumed from.
    stragglers : list of Straggler
        The ranks that were slow.
    statistics : mapping of str to array
        State of the model besides its parameters; empty with a linear model.
    periods : list of dict
        The periods of a strategy that finds its period; see `dsgd.sync.AbstractAdaptation.history`.
    of_ranks : array, shape (size, n_params), or None
        The model of each rank before they were combined, where the strategy keeps them.
    divergence : Divergence or None
        On rank 0, by what the objective of its rows has risen, if it has.
    left : SavedState or None
        On rank 0, the state from which the next training continues, if requested.
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
