"""Seconds of each line of a script, and which fits and predictions it did by which solver.

Method: the interpreter tells of every line of the script's own file (`sys.settrace`). The seconds of a line are those
until the next line of the same call, so they include what the line calls. A fit or a prediction counts for the line
that the main thread is at, whichever thread does it. What other processes do is not seen.

Cost: a callback for each call of a Python function, and two for each line of the script that runs.
"""

from __future__ import annotations

import linecache
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from dsgd.accel.calls import Call


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
