"""The common part of callbacks for experiment trackers: from progress events to metrics.

Problem: trackers differ in how a run is opened, and agree on what it has: parameters at its beginning, metrics by step,
and a status at its end.

Method: `AbstractTracker` turns events into metrics, and a subclass says in three short methods how its tracker takes
them. A fit has one run, found by its estimator, so one callback serves fits of several threads.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final

from dsgd.errors import MissingPackageError
from dsgd.ledger import Ledger
from dsgd.progress import Notice, ProgressEvent

__all__ = ["METRICS", "AbstractTracker", "library", "metrics_of"]

# Trackers keep values of a few hundred characters; a module or a client may say more of itself.
_LONGEST_VALUE: Final = 250
# What belongs to a process, not to an experiment.
_NOT_PARAMETERS: Final = ("client", "callbacks")
# Values of a notice that are a course; others say who and where.
_OF_SOLVERS: Final = ("gap", "seconds")
#: All names that metrics have.
METRICS: Final = (
    "train_loss",
    "validation_score",
    "seconds",
    "rows_per_s",
    "comm_share",
    "wait_share",
    "period",
    "gap",
    "bytes_sent",
)


class AbstractTracker(ABC):
    """A callback that keeps a fit as a run of an experiment tracker.

    Metrics of an epoch are ``train_loss``, ``validation_score`` where there are rows for it, ``seconds``,
    ``rows_per_s``, ``comm_share`` since the event before, ``wait_share`` so far, and ``period``; at most five times a
    second. Solvers of SVMs on a cluster have ``gap`` and ``seconds``. In the end come ``bytes_sent`` and
    ``wait_share`` of all ranks. The parameters are those of ``get_params``.
    """

    def __init__(self) -> None:
        self._runs: dict[int, _Run] = {}

    @abstractmethod
    def open(self, name: str, parameters: Mapping[str, Any]) -> Any:
        """Return the run of a fit, with its parameters: that which the user has opened, or a new one.

        Parameters
        ----------
        name : str
            The class of the estimator.
        parameters : mapping of str to bool, int, float or str
            Those of the estimator.
        """

    @abstractmethod
    def log(self, run: Any, metrics: Mapping[str, float], step: int) -> None:
        """Take in the metrics of an epoch.

        Parameters
        ----------
        run : object
            What `open` returned.
        metrics : mapping of str to float
            By name.
        step : int
            The epoch, from 1; for solvers the number of the notice.
        """

    @abstractmethod
    def close(self, run: Any, error: BaseException | None) -> None:
        """End a run, unless the user has opened it.

        Parameters
        ----------
        run : object
            What `open` returned.
        error : exception or None
            What the fit raises.
        """

    def on_begin(self, estimator: Any) -> None:
        """Open a run."""
        run = self.open(type(estimator).__name__, _parameters(estimator))
        self._runs[id(estimator)] = _Run(run)

    def on_event(self, estimator: Any, event: ProgressEvent | Notice) -> None:
        """Log the metrics of an event, if it has some."""
        run, metrics = self._runs[id(estimator)], metrics_of(event)
        if metrics:
            run.step = event.epoch if isinstance(event, ProgressEvent) else run.step + 1
            self.log(run.inner, metrics, run.step)

    def on_end(self, estimator: Any, error: BaseException | None) -> None:
        """Log what all ranks have spent, and close the run."""
        # None where the tracker could not open it.
        run = self._runs.pop(id(estimator), None)
        if run is None:
            return
        ledger = getattr(estimator, "ledger_", None)
        try:
            if error is None and isinstance(ledger, Ledger):
                self.log(run.inner, _totals(ledger), run.step)
        finally:
            self.close(run.inner, error)


class _Run:
    """A run of a tracker and the last step in it."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.step = inner, 0


def metrics_of(event: ProgressEvent | Notice) -> dict[str, float]:
    """Return the metrics of an event by name; of most notices there are none.

    Parameters
    ----------
    event : ProgressEvent or Notice
        As a callback gets it.
    """
    if isinstance(event, Notice):
        return {name: float(event.values[name]) for name in _OF_SOLVERS if name in event.values}
    spent = [event.compute_s, event.encode_s, event.wire_s, event.wait_s, event.control_s]
    metrics = {
        "train_loss": event.train_loss,
        "validation_score": event.validation_score,
        "seconds": event.seconds,
        "rows_per_s": event.rows_per_s,
        "comm_share": event.comm_share,
        "wait_share": _share(sum(event.wait_s), sum(map(sum, spent))),
        "period": event.period,
    }
    return {name: float(value) for name, value in metrics.items() if value is not None}


def library(name: str, what: str, package: str | None = None) -> Any:
    """Return a module of a library that is not among the dependencies.

    Parameters
    ----------
    name : str
        The module.
    what : str
        Who needs it.
    package : str or None, default None
        What pip calls it, if not by the name of the module.

    Raises
    ------
    MissingPackageError
        It is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingPackageError(f"{what} needs {package or name}: pip install {package or name}") from error


def _parameters(estimator: Any) -> dict[str, Any]:
    """Return the parameters of an estimator as trackers take them."""
    given = estimator.get_params(deep=False).items()
    return {name: _plain(value) for name, value in given if name not in _NOT_PARAMETERS}


def _plain(value: Any) -> Any:
    return value if isinstance(value, bool | int | float) else str(value)[:_LONGEST_VALUE]


def _totals(ledger: Ledger) -> dict[str, float]:
    totals = ledger.totals()
    spent = sum(totals[f"{name}_s"] for name in ("compute", "encode", "wire", "wait", "control"))
    return {"bytes_sent": float(totals["bytes_sent"]), "wait_share": _share(totals["wait_s"], spent)}


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0.0 else 0.0
