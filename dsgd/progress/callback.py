"""The protocol of progress callbacks, and calling several of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from dsgd.progress.event import Notice, ProgressEvent, read_event

__all__ = ["Audience", "Callback", "StopTraining"]


class StopTraining(Exception):  # noqa: N818 - a wish, not an error
    """Raised by a callback to end training after the current epoch, keeping the model so far.

    All ranks stop after the same epoch; ``fit`` returns as if `max_iter` had been reached there, and a checkpoint can
    be gone on from. Anything else that a callback raises stops the ranks at once and comes out of ``fit``.
    """


@runtime_checkable
class Callback(Protocol):
    """The protocol of callbacks for `set_callbacks`, besides those of scikit-learn.

    All methods are called in the thread that has called ``fit``. With several fits at a time in threads of their own,
    one callback may hear from each of them: `estimator` says which.
    """

    def on_begin(self, estimator: Any) -> None:
        """Hear that a fit begins.

        Parameters
        ----------
        estimator : estimator
            Not fitted yet.
        """
        ...

    def on_event(self, estimator: Any, event: ProgressEvent | Notice) -> None:
        """Hear how far it is, at most five times a second.

        Parameters
        ----------
        estimator : estimator
            As at the beginning.
        event : ProgressEvent or Notice
            What is told. `StopTraining` ends training early; any other error stops it and comes out of ``fit``.
        """
        ...

    def on_end(self, estimator: Any, error: BaseException | None) -> None:
        """Hear that the fit is over.

        Parameters
        ----------
        estimator : estimator
            Fitted, unless there was an error.
        error : exception or None
            What ``fit`` is about to raise.
        """
        ...


class Audience:
    """The callbacks of one fit.

    Parameters
    ----------
    estimator : estimator
        What is fitted.
    callbacks : sequence of Callback
        Who is told, in this order.
    """

    def __init__(self, estimator: Any, callbacks: Sequence[Callback]) -> None:
        self._estimator = estimator
        self._callbacks = list(callbacks)
        self._begun: list[Callback] = []

    def begin(self) -> None:
        """Tell that the fit begins."""
        for callback in self._callbacks:
            # Noted before it is called: one that fails half-way is still told of the end.
            self._begun.append(callback)
            callback.on_begin(self._estimator)

    def tell(self, event: Mapping[str, Any]) -> None:
        """Pass on what rank 0 has published.

        Raises
        ------
        StopTraining
            Some callback wants the end; all of them have heard the event.
        Exception
            Whatever else the first one raises.
        """
        record = read_event(event)
        wish: StopTraining | None = None
        for callback in self._callbacks:
            try:
                callback.on_event(self._estimator, record)
            except StopTraining as stop:
                wish = stop
        if wish is not None:
            raise wish

    def end(self, error: BaseException | None) -> None:
        """Tell all that were told of the beginning; the first error among them is raised when all have heard.

        Parameters
        ----------
        error : exception or None
            What the fit raises. It goes before anything that a callback raises now.
        """
        problem: Exception | None = None
        for callback in reversed(self._begun):
            try:
                callback.on_end(self._estimator, error)
            except Exception as raised:
                problem = problem or raised
        self._begun.clear()
        if problem is not None and error is None:
            raise problem
        if problem is not None and error is not None:
            error.add_note(f"then a callback raised {type(problem).__name__}: {problem}")
