"""Fits as runs of Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsgd.callbacks.tracker import METRICS, AbstractTracker, library

__all__ = ["WandbCallback"]


class WandbCallback(AbstractTracker):
    """Logs a fit to Weights & Biases: to the run that is open, or to one of its own, which ends with the fit.

    Metrics have the ``epoch`` as their axis, so a run of the user may log at steps of its own. A run of its own is
    marked as failed if the fit raises.

    Parameters
    ----------
    **options : object
        For ``wandb.init`` of runs of its own, such as ``project="svm"`` or ``mode="offline"``.

    Raises
    ------
    MissingPackageError
        wandb is not installed.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options
        library("wandb", "WandbCallback")

    def open(self, name: str, parameters: Mapping[str, Any]) -> Any:
        """Return the run and whether it is ours."""
        wandb = library("wandb", "WandbCallback")
        run, is_ours = wandb.run, wandb.run is None
        if run is None:
            # Beside those of other fits of this process.
            run = wandb.init(**{"reinit": "create_new", "job_type": name, **self.options})
        run.config.update(dict(parameters), allow_val_change=True)
        run.define_metric("epoch")
        for metric in METRICS:
            run.define_metric(metric, step_metric="epoch")
        return run, is_ours

    def log(self, run: Any, metrics: Mapping[str, float], step: int) -> None:
        """Log metrics of a step."""
        run[0].log({**metrics, "epoch": step})

    def close(self, run: Any, error: BaseException | None) -> None:
        """Finish a run of our own."""
        if run[1]:
            run[0].finish(exit_code=0 if error is None else 1)
