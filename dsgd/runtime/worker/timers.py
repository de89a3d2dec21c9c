"""Slowing down Dask's profiler and event-loop checks while ranks use the cores.

Problem: a worker samples the threads of its tasks a hundred times a second for the profile page of the dashboard, and
worker, nanny and scheduler measure the delay of their event loops fifty times a second. If ranks use all cores, each of
these interrupts a rank, and the other ranks wait for it in the next round: a twentieth of the time of a kernel SVM on
two workers and two cores. The profile would only show waiting threads, because Dask does not know those of ranks.

A worker is slowed from the start of its member of a gang to its end: many workers on few cores also wait for each other
while they meet. A scheduler and its nannies are, while the job runs, if they live in the process of the client, as
those of a ``LocalCluster`` do. It is counted how many want a timer slow: jobs may share it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from dsgd.runtime.dask_internals import timers_of

if TYPE_CHECKING:
    from distributed.core import Server
    from tornado.ioloop import PeriodicCallback

_NAMES: Final = ("profile", "tick")
_SLOW_MS: Final = 500.0  # well below the three seconds from which on Dask calls an event loop unresponsive

_lock: Final = threading.Lock()
#: Of each timer that is slow now its period before, in milliseconds, then as many entries as others want it slow.
_before: Final[dict[PeriodicCallback, list[float]]] = {}


@contextlib.contextmanager
def slow_timers(servers: Sequence[Server]) -> Iterator[None]:
    """Let the profiles and ticks of servers come twice a second, or as seldom as they did, in a ``with`` block."""
    timers = [timer for server in servers for timer in timers_of(server, _NAMES)]
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
