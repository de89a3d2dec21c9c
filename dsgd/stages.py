"""Where the seconds of a whole fit go, one stage after the other, and how many bytes each of them has touched.

A fit opens a `recording`, and code that does a part of it (checks, orders, copies, the way to the workers) says so::

    with stage("pack") as it:
        ...
        it.nbytes += shard.nbytes

At any time one stage runs, the innermost that is open; so the seconds of the stages of a process add up to those of its
recording, and what no stage claims is ``"other"``. The thread that opens a recording leads it: its seconds count. Of a
thread that works for it (`carried`) bytes count, and seconds where the leader waits for that thread. Any other thread
records nothing. Cost: two reads of the clock for each of some ten stages; outside a recording, a look at a context
variable. Source: the context meter of `distributed.metrics`, smaller.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal, Self, TypeAlias, TypeVar

T = TypeVar("T")

#: `docs/ledger.rst` says what each of them is.
StageName: TypeAlias = Literal[
    "connect",
    "check",
    "encode",
    "labels",
    "order",
    "pack",
    "hand over",
    "look",
    "plan",
    "workers",
    "fetch",
    "meet",
    "kernels",
    "train",
    "gather",
    "other",
]


@dataclass(frozen=True)
class Stage:
    """What one process has spent on one stage of a fit."""

    name: StageName
    where: str
    seconds: float
    nbytes: int


class Recording:
    """The stages of one process; `recording` opens one."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._open: list[StageName] = ["other"]
        self._seconds: dict[StageName, float] = {}
        self._nbytes: Counter[StageName] = Counter()
        self._since = clock()

    def begin(self, name: StageName) -> None:
        """Enter a stage."""
        self._charge()
        self._open.append(name)
        self._seconds.setdefault(name, 0.0)

    def end(self) -> None:
        """Leave the stage that was entered last."""
        self._charge()
        self._open.pop()

    def add(self, name: StageName, nbytes: int) -> None:
        """Add the bytes that a thread has touched."""
        with self._lock:
            self._nbytes[name] += nbytes

    def stages(self, where: str) -> list[Stage]:
        """Return the stages so far, in the order in which they began; ``"other"`` is the last."""
        self._charge()
        names = sorted({**self._seconds, **self._nbytes}, key=lambda name: name == "other")
        return [Stage(name, where, self._seconds.get(name, 0.0), self._nbytes[name]) for name in names]

    def _charge(self) -> None:
        """Count the seconds since the last call for the stage that is open."""
        now, name = self._clock(), self._open[-1]
        self._seconds[name] = self._seconds.get(name, 0.0) + now - self._since
        self._since = now


class _Aside(threading.local):
    seconds = 0.0


_aside: Final = _Aside()


def work_clock() -> float:
    """Return seconds without those that this thread has passed aside, compiling kernels; for differences alone."""
    return time.perf_counter() - _aside.seconds


def pass_aside(seconds: float) -> None:
    """Let the work clock of this thread go back by so much."""
    _aside.seconds += seconds


#: The recording that a thread works for, and whether its seconds count.
_current: Final[ContextVar[tuple[Recording | None, bool]]] = ContextVar("dsgd_recording", default=(None, False))


@contextmanager
def recording() -> Iterator[Recording]:
    """Record the stages of this thread, and of those that it carries along, in a ``with`` block."""
    found = Recording()
    token = _current.set((found, True))
    try:
        yield found
    finally:
        _current.reset(token)


def recorded(where: str) -> list[Stage]:
    """Return the stages of the recording that is open, in which this process is called `where`; none without one."""
    found, _ = _current.get()
    return [] if found is None else found.stages(where)


def carried(function: Callable[..., T], *, leads: bool = False) -> Callable[..., T]:
    """Return a function that another thread calls for the recording of this one."""
    context = Context()
    context.run(_current.set, (_current.get()[0], leads))
    return partial(context.run, function)


class stage:  # noqa: N801 - read as a verb: with stage("pack")
    """A part of a fit, in a ``with`` block."""

    __slots__ = ("_leads", "_name", "_recording", "nbytes")

    def __init__(self, name: StageName, nbytes: int = 0) -> None:
        self._name = name
        self._recording, self._leads = _current.get()
        self.nbytes = nbytes

    def __enter__(self) -> Self:
        if self._recording is not None and self._leads:
            self._recording.begin(self._name)
        return self

    def __exit__(self, *error: object) -> None:
        if self._recording is None:
            return
        if self.nbytes:
            self._recording.add(self._name, self.nbytes)
        if self._leads:
            self._recording.end()
