"""The protocol of progress callbacks, and calling several of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from dsgd.progress.event import Notice, ProgressEvent, read_event


class StopTraining(Exception):  # noqa: N818 - a wish, not an error
    """Raised by a callback to end training after the current epoch, keeping the model so far.

    All ranks stop after the same epoch. ``fit`` returns as if `max_iter` had been reached, and a checkpoint can be
    resumed from. Any other error of a callback stops the ranks at once, and ``fit`` raises it.
    """


@runtime_checkable
class Callback(Protocol):
    """The protocol of callbacks for `set_callbacks`, besides those of scikit-learn.

    All methods are called in the thread that called ``fit``. If several threads fit at the same time, each of them may
    call the same callback: `estimator` says which fit it is.
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
            The event. Raise `StopTraining` to end training early; any other error stops it, and ``fit`` raises it.
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
        The estimator in training.
    callbacks : sequence of Callback
        Called in this order.
    """

    def __init__(self, estimator: Any, callbacks: Sequence[Callback]) -> None:
        self._estimator = estimator
        self._callbacks = list(callbacks)
        self._begun: list[Callback] = []

    def begin(self) -> None:
        """Tell that the fit begins."""
        for callback in self._callbacks:
            # Noted before it is called: a callback that fails half-way still gets the end.
            self._begun.append(callback)
            callback.on_begin(self._estimator)

    def tell(self, event: Mapping[str, Any]) -> None:
        """Pass on what rank 0 has published.

        Raises
        ------
        StopTraining
            Some callback raised it; all of them have received the event.
        Exception
            Any other error of the first callback that raises.
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
        """Call all callbacks whose beginning was called; then raise the first error among them.

        Parameters
        ----------
        error : exception or None
            What the fit raises. It goes before anything that a callback raises now.
        """
        problem: BaseException | None = None
        for callback in reversed(self._begun):
            try:
                callback.on_end(self._estimator, error)
            except BaseException as raised:  # an interrupt too: others have runs to close
                problem = problem or raised
        self._begun.clear()
        if problem is not None and error is None:
            raise problem
        if problem is not None and error is not None:
            error.add_note(f"then a callback raised {type(problem).__name__}: {problem}")
