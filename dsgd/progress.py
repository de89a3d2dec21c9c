"""Progress of a running fit: events that rank 0 makes, callbacks, and a live line that shows them.

Events are sent as flat mappings of plain values, from the rank to the scheduler and on to the client, where they become
one of two records. A `ProgressEvent` is a number of epochs done; at most five are sent a second, so one may cover many
epochs. A `Notice` is anything else worth a line: a place in the queue, a slow rank, a stage of a solver.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress, TaskID

__all__ = ["Audience", "Callback", "Notice", "ProgressEvent", "ProgressLine", "StopTraining", "read_event"]


@dataclass(frozen=True)
class ProgressEvent:
    """How far training is, and where its time goes.

    Parameters
    ----------
    epoch : int
        Epochs done, from 1.
    max_iter : int
        Epochs at most.
    train_loss : float
        Mean loss of a row in the last epoch; the penalty is not in it.
    seconds : float
        Since training began on rank 0.
    rows_per_s : float
        Rows that all ranks together have visited, per second since the event before.
    comm_share : float
        Share of all ranks' time that went into communication (wire and wait) since the event before, from 0 to 1;
        control is no part of it.
    period : int or None
        Rows of a rank between two synchronisations, now; None where ranks do not synchronise.
    strategy : str
        Name of the strategy.
    compute_s, encode_s, wire_s, wait_s, control_s : tuple of float, length n_ranks
        Seconds of each rank so far; see `dsgd.Ledger`.
    validation_score : float or None
        Score of the rows held out or passed for validation after the epoch; None where there are none.
    """

    epoch: int
    max_iter: int
    train_loss: float
    seconds: float
    rows_per_s: float
    comm_share: float
    period: int | None
    strategy: str
    compute_s: tuple[float, ...] = ()
    encode_s: tuple[float, ...] = ()
    wire_s: tuple[float, ...] = ()
    wait_s: tuple[float, ...] = ()
    control_s: tuple[float, ...] = ()
    validation_score: float | None = None

    @property
    def text(self) -> str:
        """The event as a line of a log."""
        parts = [f"training loss {self.train_loss:.6g}", f"{count_text(self.rows_per_s)} rows/s"]
        if len(self.compute_s) > 1:
            parts.append(f"{self.comm_share:.0%} communication")
            parts.append("no synchronisation" if self.period is None else f"period {self.period}")
        return f"epoch {self.epoch}: {', '.join(parts)}, {self.seconds:.2f} s"

    @property
    def short_text(self) -> str:
        """The event in as few columns as it needs; what matters least comes last, where a narrow terminal cuts."""
        rate = f"{count_text(self.rows_per_s)} rows/s"
        parts = [f"epoch {self.epoch}/{self.max_iter}", f"loss {self.train_loss:.5g}", rate]
        if len(self.compute_s) > 1:
            parts += [f"comm {self.comm_share:.0%}", f"period {self.period or '-'}"]
        return "  ".join(parts)

    def as_mapping(self) -> dict[str, Any]:
        """Return the fields as plain values, to be sent."""
        return dict(vars(self))


@dataclass(frozen=True)
class Notice:
    """A message of a fit, such as its place in the queue.

    Parameters
    ----------
    phase : str
        Its subject: ``"queued"``, ``"resumed"``, ``"straggler"``, or a stage of a solver.
    text : str
        The message for users.
    values : mapping
        All values of the event, by name.
    """

    phase: str
    text: str
    values: Mapping[str, Any] = field(default_factory=dict)


_FIELDS = tuple(f.name for f in fields(ProgressEvent))


def read_event(event: Mapping[str, Any]) -> ProgressEvent | Notice:
    """Return the event or notice of a published mapping.

    Parameters
    ----------
    event : mapping
        Plain values as rank 0 has published them; what is not a `ProgressEvent` is a `Notice`.
    """
    if "comm_share" in event:
        values: dict[str, Any] = {name: event[name] for name in _FIELDS if name in event}
        values |= {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        return ProgressEvent(**values)
    phase = str(event.get("phase", event.get("stage", "")))
    return Notice(phase, str(event.get("text", phase)), dict(event))


def count_text(n: float) -> str:
    """Return a count for people, ``"1.2M"``."""
    for unit in ("", "k", "M", "G"):
        if n < 999.5:
            return f"{n:.3g}{unit}"
        n /= 1000.0
    return f"{n:.3g}T"


class PrintedLines:
    """Prints a line for everything a fit tells."""

    def on_begin(self, estimator: Any) -> None:
        """Say nothing yet."""

    def on_event(self, estimator: Any, event: ProgressEvent | Notice) -> None:
        """Print a line."""
        sys.stdout.write(f"{event.text}\n")

    def on_end(self, estimator: Any, error: BaseException | None) -> None:
        """Say nothing more: the caller has the result."""


# A redraw takes about two milliseconds of one core: at this rate less than half a per cent of it.
_REDRAWS_PER_S: Final = 2

# Where nothing can be redrawn, a log say, lines follow each other.
_LOG_EVERY_S: Final = 5.0


class ProgressLine:
    """Shows a line for every fit that it listens to: epoch, loss, rows per second, share of communication, period.

    On a terminal and in a notebook the line is redrawn in place; anywhere else, and in a notebook without ipywidgets,
    a line is printed every five seconds. One instance may listen to several fits at a time.

    Parameters
    ----------
    console : rich.console.Console or None, default None
        Where it is drawn; None takes the one of rich.
    keep : bool, default True
        Whether the lines stay on the screen when the fits are over.

    Examples
    --------
    >>> from dsgd import SGDClassifier
    >>> from dsgd.progress import ProgressLine
    >>> model = SGDClassifier().set_callbacks(ProgressLine())
    """

    def __init__(self, console: Console | None = None, *, keep: bool = True) -> None:
        self.console = console
        self.keep = keep
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._display: Progress | None = None
        self._lines: dict[int, TaskID] = {}
        self._logged: dict[int, float] = {}

    def __getstate__(self) -> dict[str, Any]:
        # A console belongs to its process.
        return {"keep": self.keep}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.console, self.keep = None, state["keep"]
        self._begin()

    def on_begin(self, estimator: Any) -> None:
        """Open a line."""
        with self._lock:
            console = self._console()
            if not _redraws(console):
                self._logged[id(estimator)] = time.monotonic()
                return
            if self._display is None:
                self._display = _make_display(console, keep=self.keep)
                self._display.start()
            name = type(estimator).__name__
            self._lines[id(estimator)] = self._display.add_task(name, total=None, figures="starting")

    def on_event(self, estimator: Any, event: ProgressEvent | Notice) -> None:
        """Say on the line how far the fit is."""
        with self._lock:
            line = self._lines.get(id(estimator))
            if self._display is None or line is None:
                self._log(estimator, event)
            elif isinstance(event, ProgressEvent):
                self._display.update(line, figures=event.short_text)
            else:
                self._display.update(line, figures=event.text)

    def on_end(self, estimator: Any, error: BaseException | None) -> None:
        """Close the line."""
        with self._lock:
            self._logged.pop(id(estimator), None)
            line = self._lines.pop(id(estimator), None)
            if self._display is None or line is None:
                return
            if error is not None:
                self._display.update(line, figures=f"stopped: {type(error).__name__}")
            else:
                self._display.update(line, completed=1, total=1)
            self._display.stop_task(line)
            if not self._lines:
                self._display.stop()
                self._display = None

    def __rich__(self) -> RenderableType:
        """Return the lines as they stand, for rich to draw elsewhere."""
        return self._display.get_renderable() if self._display is not None else ""

    def _console(self) -> Console:
        if self.console is None:
            import rich

            self.console = rich.get_console()
        return self.console

    def _log(self, estimator: Any, event: ProgressEvent | Notice) -> None:
        now = time.monotonic()
        since = self._logged.get(id(estimator), now)
        if isinstance(event, Notice) or now - since >= _LOG_EVERY_S:
            self._logged[id(estimator)] = now
            text = f"{type(estimator).__name__}: {event.text}"
            self._console().print(text, markup=False, highlight=False, soft_wrap=True)


def _redraws(console: Console) -> bool:
    if console.is_jupyter:
        return importlib.util.find_spec("ipywidgets") is not None
    return console.is_terminal


def _make_display(console: Console, *, keep: bool) -> Progress:
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.table import Column

    return Progress(
        SpinnerColumn(finished_text="[green]✓[/]"),
        # No bar: most fits end long before max_iter.
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
        TextColumn("{task.fields[figures]}", markup=False, table_column=Column(no_wrap=True)),
        console=console,
        transient=not keep,
        refresh_per_second=_REDRAWS_PER_S,
        # What a cell prints comes below the line by itself.
        redirect_stdout=not console.is_jupyter,
        redirect_stderr=not console.is_jupyter,
    )


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
