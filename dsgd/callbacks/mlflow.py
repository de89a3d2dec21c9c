"""Fits as runs of MLflow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsgd.callbacks.tracker import AbstractTracker, library

__all__ = ["MLflowCallback"]


class MLflowCallback(AbstractTracker):
    """Logs a fit to MLflow: to the run that is active, or to one of its own, which ends with the fit.

    The tracking server and the experiment are MLflow's (``mlflow.set_tracking_uri``, ``mlflow.set_experiment``). A run
    of its own has the status ``FAILED`` if the fit raises, and ``KILLED`` where it is interrupted. An active run takes
    one fit, because MLflow refuses a parameter with a second value.

    Parameters
    ----------
    run_name : str or None, default None
        Of runs of its own; None is the class of the estimator.

    Raises
    ------
    MissingPackageError
        MLflow is not installed.
    """

    def __init__(self, run_name: str | None = None) -> None:
        super().__init__()
        self.run_name = run_name
        library("mlflow", "MLflowCallback")

    def open(self, name: str, parameters: Mapping[str, Any]) -> Any:
        """Return the identity of the run and whether it is ours."""
        mlflow = library("mlflow", "MLflowCallback")
        active = mlflow.active_run()
        run = active or mlflow.start_run(run_name=self.run_name or name)
        try:
            mlflow.log_params(dict(parameters))
        except BaseException:
            if active is None:
                mlflow.end_run("FAILED")
            raise
        return run.info.run_id, active is None

    def log(self, run: Any, metrics: Mapping[str, float], step: int) -> None:
        """Log metrics of a step."""
        library("mlflow", "MLflowCallback").log_metrics(dict(metrics), step=step, run_id=run[0])

    def close(self, run: Any, error: BaseException | None) -> None:
        """End a run of our own with its status."""
        if run[1]:
            status = "FINISHED" if error is None else "FAILED" if isinstance(error, Exception) else "KILLED"
            library("mlflow", "MLflowCallback").end_run(status)
