"""A live progress line per fit, on a terminal or in a notebook."""

from __future__ import annotations

import importlib.util
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from dsgd.progress.event import Notice, ProgressEvent

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress, TaskID

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
