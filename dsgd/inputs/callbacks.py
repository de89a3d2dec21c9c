"""Callbacks of a fit, those of `dsgd.progress` and those of scikit-learn, and its history: a line for every epoch.

scikit-learn (1.9 and newer) keeps the callbacks of an estimator in ``_skl_callbacks`` and passes those of a pipeline or
a search on to the estimators inside, through ``set_callbacks``. Ours are in the same list, each in an envelope whose
scikit-learn methods do nothing, so that both kinds survive clones and searches.

Epochs are reported at most five times a second, and scikit-learn has a task for each of them: the epochs of one event
begin and end one after the other. During training there is no fitted estimator on the client, so callbacks that need
one (``ScoringMonitor``) get it at the end of the fit.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Sequence
from numbers import Real
from types import NoneType
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar

import numpy as np

from dsgd.errors import InvalidDataError, InvalidParameterError, MissingPackageError
from dsgd.inputs.rows import Rows, unpacked
from dsgd.ledger import Ledger
from dsgd.progress import Audience, Callback, Notice, PrintedLines, ProgressEvent, StopTraining
from dsgd.runtime.deployment import as_gang
from dsgd.stages import recording

if TYPE_CHECKING:
    import pandas as pd

    from dsgd.runtime.train import EpochRecord


class History(list[dict[str, Any]]):
    """Lines of a history; ``history[-1, "train_loss"]`` is an entry of a line and ``history[:, "epoch"]`` a column."""

    @classmethod
    def of(cls, records: Sequence[EpochRecord], ledger: Ledger) -> History:
        """Return the history of a fit."""
        validates = any(math.isfinite(record.validation_score) for record in records)
        spent = _spent(ledger)
        # Of epochs before a restart the ledger knows nothing.
        padded = [*[(math.nan, math.nan)] * len(records), *spent][len(spent) :]
        history = cls(line_of(vars(record), validates=validates) for record in records)
        for line, (n_bytes, seconds) in zip(history, padded, strict=True):
            line["bytes_sent"], line["communication_s"] = n_bytes, seconds
        return history

    def __getitem__(self, place: Any) -> Any:
        if not isinstance(place, tuple):
            return super().__getitem__(place)
        lines, name = super().__getitem__(place[0]), place[1]
        return lines[name] if isinstance(lines, dict) else [line[name] for line in lines]

    def to_frame(self) -> pd.DataFrame:
        """Return the history as a pandas frame, one row per epoch."""
        try:
            import pandas as pd
        except ImportError as error:
            raise MissingPackageError(
                "history_.to_frame() needs pandas, which is not installed here. Install it with: pip install pandas; "
                "or use the history as it is, a list of dictionaries."
            ) from error
        return pd.DataFrame(list(self))


def line_of(record: Any, *, validates: bool) -> dict[str, Any]:
    """Return a line of the history from the fields of an `EpochRecord`, under skorch's names."""
    line = {"epoch": record["epoch"], "train_loss": record["train_loss"], "seconds": record["seconds"]}
    if validates:
        line["valid_score"] = record["validation_score"]
    if "dispersion" in record:
        line["dispersion"] = record["dispersion"]
    return line


def _spent(ledger: Ledger) -> list[tuple[float, float]]:
    """Return the bytes of all ranks and the mean seconds of one in each epoch; servers have no epochs."""
    found = [records.epochs for records in ledger.ranks if len(records.epochs)]
    if not found:
        return []
    n_epochs = min(map(len, found))
    first, *others = (epochs[-n_epochs:] for epochs in found)
    total = sum(others, start=first)
    return [(int(n_bytes), seconds / len(found)) for n_bytes, seconds in total.tolist()]


P = ParamSpec("P")
R = TypeVar("R")
_SKLEARN_HOOKS: Final = ("setup", "on_fit_task_begin", "on_fit_task_end", "teardown")


def notifies_callbacks(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """Wrap a method that trains: run the callbacks of the estimator and its ``verbose``, and record its stages."""

    @functools.wraps(method)
    def notifying(estimator: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if not estimator._reuses_rows and isinstance(kwargs.get("X", args[0] if args else None), Rows):
            args, kwargs = _without_rows(method, estimator, args, kwargs)
        given = getattr(estimator, "_skl_callbacks", [])
        callbacks: list[Callback] = [entry.callback for entry in given if isinstance(entry, _Envelope)]
        # scikit-learn's protocol is about `fit` alone.
        theirs = len(given) > len(callbacks) and method.__name__ == "fit"
        # Where an estimator has a parameter `callbacks`, it is skorch's.
        told = [cb[1] if isinstance(cb, tuple) else cb for cb in getattr(estimator, "callbacks", None) or ()]
        callbacks += [cb if isinstance(cb, Callback) else _Skorch(cb, *args) for cb in told]
        if not isinstance(estimator.verbose, (Real, np.bool_, NoneType)):
            raise InvalidParameterError(
                f"{type(estimator).__name__}(verbose=...) must be a number. Got {estimator.verbose!r}."
            )
        if estimator.verbose:
            callbacks.append(PrintedLines())
        if theirs:
            callbacks.append(_Tasks(*args, **kwargs))

        def train(estimator: Any) -> R:
            return _told(method, Audience(estimator, callbacks), estimator, *args, **kwargs)

        with recording():
            if not callbacks:
                return method(estimator, *args, **kwargs)
            if theirs:
                from sklearn.callback import with_callbacks

                train = with_callbacks(train)  # tears them down, whatever happens
            return train(estimator)

    return notifying


def _without_rows(method: Callable[..., Any], estimator: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Return the arguments of a method with `Rows` replaced by their contents."""
    given = inspect.signature(method).bind(estimator, *args, **kwargs)
    rows, arguments = given.arguments["X"], given.arguments
    if rows.client is not None and as_gang(estimator.client).client is not rows.client:
        raise InvalidParameterError(
            f"{rows!r} are on the workers of {rows.client!r}, and this {type(estimator).__name__} trains elsewhere. "
            "Set its client to the same one."
        )
    X, y, weights = unpacked(rows, arguments.get("y"), arguments.get("sample_weight"))
    arguments.update(X=X, y=y)
    if weights is not None:
        if "sample_weight" not in given.signature.parameters:
            raise InvalidDataError(f"{type(estimator).__name__} takes no sample_weight, and {rows!r} hold some.")
        arguments["sample_weight"] = weights
    return given.args[1:], given.kwargs


def _told(
    train: Callable[Concatenate[Any, P], R], audience: Audience, estimator: Any, *args: P.args, **kwargs: P.kwargs
) -> R:
    estimator._audience = audience
    try:
        audience.begin()
        value = train(estimator, *args, **kwargs)
    except BaseException as error:
        audience.end(error)
        raise
    else:
        audience.end(None)
        return value
    finally:
        del estimator._audience


def wrap_callbacks(name: str, callbacks: tuple[Any, ...]) -> list[Any]:
    """Return callbacks as scikit-learn keeps them, ours in envelopes."""
    return [_wrapped(name, callback) for callback in callbacks]


def _wrapped(name: str, callback: Any) -> Any:
    if isinstance(callback, type) or not (
        isinstance(callback, Callback) or all(hasattr(callback, hook) for hook in _SKLEARN_HOOKS)
    ):
        raise InvalidParameterError(
            f"{name}.set_callbacks(...) takes instances with the methods of dsgd.progress.Callback (on_begin, "
            f"on_event, on_end) or of scikit-learn's FitCallback. Got {callback!r}."
        )
    if isinstance(callback, Callback):
        return _Envelope(callback)
    try:
        import sklearn.callback  # noqa: F401 - only whether it is there
    except ImportError as error:
        raise InvalidParameterError(
            f"{name}.set_callbacks({callback!r}): callbacks of scikit-learn need scikit-learn 1.9 or newer; "
            "dsgd.progress.Callback works with any."
        ) from error
    return callback


class _Envelope:
    """One of our callbacks among those of scikit-learn."""

    def __init__(self, callback: Callback) -> None:
        self.callback = callback

    def setup(self, estimator: Any, context: Any) -> None:
        """Do nothing: the audience calls our callbacks."""

    def on_fit_task_begin(self, estimator: Any, context: Any) -> None:
        """Do nothing."""

    def on_fit_task_end(self, estimator: Any, context: Any) -> None:
        """Do nothing."""

    def teardown(self, estimator: Any, context: Any) -> None:
        """Do nothing."""


class _Skorch:
    """A callback of skorch: its methods for the beginning, an epoch and the end are called if it has them."""

    def __init__(self, callback: Any, X: Any = None, y: Any = None) -> None:
        self._callback, self._rows = callback, {"X": X, "y": y}

    def on_begin(self, estimator: Any) -> None:
        """Initialise it, and begin."""
        if hasattr(self._callback, "initialize"):
            self._callback.initialize()
        self._call("on_train_begin", estimator, **self._rows)

    def on_event(self, estimator: Any, event: ProgressEvent | Notice) -> None:
        """End an epoch; a callback ends training as in skorch, by raising `KeyboardInterrupt`."""
        if isinstance(event, Notice):
            return
        try:
            self._call("on_epoch_end", estimator, dataset_train=None, dataset_valid=None)
        except KeyboardInterrupt as wish:
            raise StopTraining from wish

    def on_end(self, estimator: Any, error: BaseException | None) -> None:
        """End."""
        self._call("on_train_end", estimator, **self._rows)

    def _call(self, name: str, estimator: Any, **arguments: Any) -> None:
        method = getattr(self._callback, name, None)
        if method is not None:
            method(estimator, **arguments)


class _Tasks:
    """Reports a fit to scikit-learn's callbacks as a task, and its epochs as subtasks."""

    def __init__(self, X: Any = None, y: Any = None, *args: Any, **kwargs: Any) -> None:
        self._rows = {"X": X, "y": y}
        self._fit: Any = None
        self._n_epochs = 0

    def on_begin(self, estimator: Any) -> None:
        """Begin the task of the fit."""
        from sklearn.callback import CallbackSupportMixin

        make_context = CallbackSupportMixin._init_callback_context
        self._fit = make_context(estimator, max_subtasks=estimator._n_epochs_at_most())
        self._fit.call_on_fit_task_begin(estimator=estimator, **self._rows)

    def on_event(self, estimator: Any, event: ProgressEvent | Notice) -> None:
        """Begin and end the tasks of the epochs that ended since the last event."""
        if isinstance(event, Notice):
            return
        stop = False
        # A gang that is formed again repeats some epochs, whose tasks have ended.
        for _ in range(self._n_epochs, event.epoch):
            epoch = self._fit.subcontext(task_name="epoch")
            epoch.call_on_fit_task_begin(estimator=estimator)
            stop |= bool(epoch.call_on_fit_task_end(estimator=estimator))
        self._n_epochs = max(self._n_epochs, event.epoch)
        if stop:
            raise StopTraining

    def on_end(self, estimator: Any, error: BaseException | None) -> None:
        """End the task of the fit, if it ended well."""
        if error is None:
            self._fit.call_on_fit_task_end(estimator=estimator, reconstruction_attributes={}, **self._rows)
