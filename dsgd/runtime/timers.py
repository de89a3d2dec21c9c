"""Dask's shortest timers of a worker, made slow while ranks run there.

Problem: a worker looks at the threads of its tasks a hundred times a second, for the profile page of the dashboard, and
measures fifty times how late its event loop is. Each time the system takes a core away from a rank, where ranks use
them all, and the other ranks wait for that one in the next round: a twentieth of the time of a kernel SVM on two
workers and two cores. The profile would show threads that wait: ranks run in threads that Dask does not know.

It is counted how many want it slow: several gangs may share a worker.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from distributed import Worker
    from tornado.ioloop import PeriodicCallback

__all__ = ["slow_timers"]

_NAMES: Final = ("profile", "tick")
_SLOW_MS: Final = 500.0  # well below the three seconds from which on Dask calls an event loop unresponsive

_lock: Final = threading.Lock()
#: Of each timer that is slow now its period before, in milliseconds, then as many entries as others want it slow.
_before: Final[dict[PeriodicCallback, list[float]]] = {}


@contextlib.contextmanager
def slow_timers(worker: Worker) -> Iterator[None]:
    """Let the profile and the tick of a worker come twice a second, or as seldom as they did, in a ``with`` block."""
    timers = [worker.periodic_callbacks[name] for name in _NAMES if name in worker.periodic_callbacks]
    with _lock:
        for timer in timers:
            _before.setdefault(timer, []).append(timer.callback_time)
            timer.callback_time = max(timer.callback_time, _SLOW_MS)
    try:
        yield
    finally:
        with _lock:
            for timer in timers:
                periods = _before[timer]
                if len(periods) > 1:
                    periods.pop()
                else:
                    timer.callback_time = _before.pop(timer)[0]
