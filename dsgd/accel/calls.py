"""Calls that were taken over, or not, and why; a profile of them.

The record of fits of accelerated estimators: which solver trained each, in how many seconds, and why.

Seconds of each line of a script, and which fits and predictions it did by which solver.

Method: the interpreter tells of every line of the script's own file (`sys.settrace`). The seconds of a line are those
until the next line of the same call, so they include what the line calls. A fit or a prediction counts for the line
that the main thread is at, whichever thread does it. What other processes do is not seen.

Cost: a callback for each call of a Python function, and two for each line of the script that runs.
"""

from __future__ import annotations

import linecache
import logging
import sys
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any, Final, Literal

LOG: Final = logging.getLogger("dsgd.accel")
_MOST_CALLS: Final = 10_000


@dataclass(frozen=True)
class Call:
    """A fit of an accelerated estimator, or a prediction.

    Parameters
    ----------
    estimator : str
        Name of the class.
    shape : tuple of int
        Rows and columns.
    by : {"dsgd", "scikit-learn"}
        The solver that trained it.
    seconds : float
        Wall time of the call, without `compared_s`.
    reason : str
        Why scikit-learn trained it; empty if it did not.
    compared_s : float or None
        Wall time of the same fit with scikit-learn, if it was asked for.
    method : str
        ``"fit"``; predictions are recorded only by ``python -m dsgd.accel --profile``.
    line : int or None
        The line of the script, with ``--profile``.
    """

    estimator: str
    shape: tuple[int, int]
    by: Literal["dsgd", "scikit-learn"]
    seconds: float
    reason: str = ""
    compared_s: float | None = None
    method: str = "fit"
    line: int | None = None

    @property
    def saved_s(self) -> float | None:
        """Seconds saved, negative if lost; None without a comparison."""
        return None if self.compared_s is None else self.compared_s - self.seconds

    def __str__(self) -> str:
        rows, columns = self.shape
        text = f"{self.estimator}.{self.method} of {rows:,} x {columns:,}: {self.by} {self.seconds:.3g} s"
        if self.saved_s is not None:
            text += f", {'saved' if self.saved_s >= 0 else 'cost'} {abs(self.saved_s):.3g} s"
        return f"{text} ({self.reason})" if self.reason else text


@dataclass
class Settings:
    """The settings of `dsgd.accel.install`."""

    verbose: bool = False
    compare: bool = False
    excluded: frozenset[str] = frozenset()
    told: set[tuple[str, str]] = field(default_factory=set)
    profile: Any = None
    origin: int | None = None


SETTINGS: Final = Settings()
_calls: deque[Call] = deque(maxlen=_MOST_CALLS)
_lock: Final = threading.Lock()


def note(call: Call, *, expected: bool) -> None:
    """Record a call; print it if verbose, otherwise log the reason once if it was not expected."""
    if SETTINGS.profile is not None:
        call = replace(call, line=SETTINGS.profile.line())
    with _lock:
        _calls.append(call)
        is_news = not expected and (call.estimator, call.reason) not in SETTINGS.told
        SETTINGS.told.add((call.estimator, call.reason))
    if SETTINGS.verbose:
        sys.stderr.write(f"dsgd.accel: {call}\n")
    elif is_news:
        LOG.warning("dsgd.accel: scikit-learn trains this %s: %s", call.estimator, call.reason)


def note_refusal(estimator: str, reason: str) -> None:
    """Log, once for each reason, that scikit-learn predicts because our estimator could not be made from its own."""
    with _lock:
        is_news = (estimator, reason) not in SETTINGS.told
        SETTINGS.told.add((estimator, reason))
    if SETTINGS.verbose:
        sys.stderr.write(f"dsgd.accel: {estimator} predicts by scikit-learn ({reason})\n")
    elif is_news:
        LOG.warning("dsgd.accel: scikit-learn predicts by this %s: %s", estimator, reason)


def recorded_calls() -> list[Call]:
    """Return the last 10,000 fits since `install`."""
    with _lock:
        return list(_calls)


def clear_calls() -> None:
    """Clear the record, and forget which reasons have been logged."""
    with _lock:
        _calls.clear()
        SETTINGS.told.clear()


def table_of(calls: list[Call]) -> Any:
    """Return a rich table of fits, seconds and seconds saved (if compared), by estimator and solver."""
    from rich.table import Table
    from rich.text import Text

    calls = [call for call in calls if call.method == "fit"]
    table = Table(title=f"dsgd.accel: {len(calls):,} fits")
    for name in ("estimator", "solver"):
        table.add_column(name)
    for name in ("fits", "seconds", "saved"):
        table.add_column(name, justify="right")
    table.add_column("why")
    groups: dict[tuple[str, str, str], list[Call]] = {}
    for call in calls:
        groups.setdefault((call.estimator, call.by, call.reason), []).append(call)
    for (estimator, by, reason), found in sorted(groups.items()):
        saved = [call.saved_s for call in found if call.saved_s is not None]
        cells = f"{len(found):,}", f"{sum(call.seconds for call in found):.2f}", f"{sum(saved):.2f}" if saved else ""
        table.add_row(estimator, by, *cells, Text(reason))
    return table


class Profile:
    """The seconds of the lines of a file, from `begin` to `end`."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._seconds: dict[int, float] = defaultdict(float)

    def begin(self) -> None:
        """Begin to count in this thread."""
        sys.settrace(self._enter)

    def end(self) -> None:
        """End it."""
        sys.settrace(None)

    def line(self) -> int | None:
        """Return the line of the file that the main thread is at; None outside."""
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        while frame is not None and frame.f_code.co_filename != self.path:
            frame = frame.f_back
        return None if frame is None else frame.f_lineno

    def table(self, calls: Sequence[Call]) -> Any:
        """Return a rich table of the lines with calls, and of those that took a hundredth of the whole at least."""
        from rich.table import Table
        from rich.text import Text

        of_lines: dict[int, Counter[tuple[str, str]]] = defaultdict(Counter)
        spent: dict[tuple[int, str, str], float] = defaultdict(float)
        for call in calls:
            if call.line is not None:
                what = f"{call.estimator}.{call.method}", call.by
                of_lines[call.line][what] += 1
                spent[(call.line, *what)] += call.seconds
        table = Table(title=Text(f"dsgd.accel: {self.path}"))
        for name in ("line", "seconds"):
            table.add_column(name, justify="right")
        table.add_column("what ran where")
        table.add_column("source", no_wrap=True)
        least = 0.01 * max(self._seconds.values(), default=0.0)
        for line in sorted({*of_lines, *(line for line, seconds in self._seconds.items() if seconds >= least)}):
            ran = [
                f"{name} by {by}: {n:,} x, {spent[line, name, by]:.2f} s" for (name, by), n in of_lines[line].items()
            ]
            source = linecache.getline(self.path, line).strip()
            table.add_row(str(line), f"{self._seconds[line]:.2f}", Text("\n".join(ran)), Text(source))
        return table

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        if frame.f_code.co_filename != self.path:
            return None
        line, since = frame.f_lineno, time.perf_counter()

        def trace(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal line, since
            if event in ("line", "return"):
                now = time.perf_counter()
                self._seconds[line] += now - since
                line, since = frame.f_lineno, now
            return trace

        return trace
