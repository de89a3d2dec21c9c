"""Pruning of Optuna's trials while they train."""

from __future__ import annotations

from typing import Any, Literal

from dsgd.callbacks.tracker import library
from dsgd.errors import InvalidParameterError
from dsgd.progress import Notice, ProgressEvent, StopTraining
from dsgd.validation import check_choice

__all__ = ["OptunaPruning"]


class OptunaPruning:
    """Reports the epochs of a fit to a trial of Optuna, and ends those that its pruner gives up.

    All ranks stop after the same epoch; then ``fit`` raises ``optuna.TrialPruned``, which Optuna takes as the end of
    the trial. Progress comes at most five times a second: an epoch that passes between two reports has the value of
    the next one, so that pruners find the same epochs in all trials. A trial has one fit. SVMs do not end early, and
    are never pruned.

    Parameters
    ----------
    trial : optuna.trial.Trial
        The trial. With ``validation_score`` its study maximises, with ``train_loss`` it minimises.
    metric : {"train_loss", "validation_score"}, default "train_loss"
        What is reported.

    Raises
    ------
    MissingPackageError
        Optuna is not installed.
    InvalidParameterError
        There is no such metric.
    """

    def __init__(self, trial: Any, metric: Literal["train_loss", "validation_score"] = "train_loss") -> None:
        check_choice("OptunaPruning(metric=...)", metric, ("train_loss", "validation_score"))
        library("optuna", "OptunaPruning")
        self.trial, self.metric = trial, metric
        self._epoch, self._is_pruned = 0, False

    def on_begin(self, estimator: Any) -> None:
        """Begin with the first epoch."""
        self._epoch, self._is_pruned = 0, False

    def on_event(self, estimator: Any, event: ProgressEvent | Notice) -> None:
        """Report epochs, and stop where the pruner says so."""
        if isinstance(event, Notice):
            return
        value = getattr(event, self.metric)
        if value is None:
            raise InvalidParameterError(
                f"OptunaPruning(metric={self.metric!r}): this {type(estimator).__name__} scores no rows. Set "
                "early_stopping=True, or pass X_val and y_val to fit."
            )
        # A gang that is formed again repeats some epochs.
        for epoch in range(self._epoch + 1, event.epoch + 1):
            self.trial.report(value, epoch)
        self._epoch = max(self._epoch, event.epoch)
        if self.trial.should_prune():
            self._is_pruned = True
            raise StopTraining

    def on_end(self, estimator: Any, error: BaseException | None) -> None:
        """Raise what Optuna expects of a pruned trial, now that all ranks have stopped."""
        if self._is_pruned and error is None:
            raise library("optuna", "OptunaPruning").TrialPruned(f"pruned after epoch {self._epoch}")
