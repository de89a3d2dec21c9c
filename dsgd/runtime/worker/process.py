"""The process while ranks run: freed memory is kept, and Dask's profiler and event-loop checks are slowed down.

Dask starts its workers with a C library that returns memory to the system as soon as it is freed
(``MALLOC_TRIM_THRESHOLD_``). A rank allocates arrays of the same few sizes again and again, and so pays for new pages
each time: a twentieth of the time of a kernel SVM, and half of that in which half a million rows are put in order. Only
glibc has these thresholds, and adapts them by itself unless one is set. They apply to the whole process, so users are
counted: the lowest limit of all applies, and the last one restores them. What is kept is at most a share of the memory
of the worker. Source: mallopt(3) and malloc_trim(3) of the Linux man-pages.

A worker samples the threads of its tasks a hundred times a second, and worker, nanny and scheduler measure the delay of
their event loops fifty times a second. If ranks use all cores, each of these interrupts a rank, and the other ranks
wait for it: a twentieth of the time of a kernel SVM on two workers and two cores. A worker is slowed from the start of
its member of a gang to its end: many workers on few cores also wait for each other while they meet. A scheduler and its
nannies are, while the job runs, if they live in the process of the client. Jobs may share a timer, so it is counted how
many want it slow.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from dsgd.runtime.dask_internals import timers_of

if TYPE_CHECKING:
    from distributed.core import Server
    from tornado.ioloop import PeriodicCallback


# Parameters of mallopt: how much may be free at the end of a heap, and from which size on memory has pages of its own.
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_VARIABLES: Final = {_TRIM_THRESHOLD: "MALLOC_TRIM_THRESHOLD_", _MMAP_THRESHOLD: "MALLOC_MMAP_THRESHOLD_"}
_DEFAULT_BYTES: Final = 128 * 1024

# The most that glibc takes for the second one: half of the heap of a thread.
_KEPT: Final = {_TRIM_THRESHOLD: 2**30, _MMAP_THRESHOLD: 2**25}

#: The share of the memory of a worker that may be kept, although it is free.
KEPT_SHARE: Final = 1 / 16
_lock: Final = threading.Lock()
_users: Final[list[int]] = []  # the limits of all callers inside `keep_freed_memory`


@contextlib.contextmanager
def keep_freed_memory(memory_limit: int | None = None) -> Iterator[None]:
    """Let the process keep freed memory in a ``with`` block, as it would without the setting of the environment."""
    libc = _libc()
    if libc is None or not any(name in os.environ for name in _VARIABLES.values()):
        yield
        return
    most = int(KEPT_SHARE * memory_limit) if memory_limit else max(_KEPT.values())
    with _lock:
        _users.append(most)
        _set(libc, _kept_bytes())
    try:
        yield
    finally:
        with _lock:
            _users.remove(most)
            if _users:
                _set(libc, _kept_bytes())
            else:
                _set(libc, {parameter: _stated_bytes(name) for parameter, name in _VARIABLES.items()})
                libc.malloc_trim(0)


def _kept_bytes() -> dict[int, int]:
    """Return the thresholds that keep no more than the user with the lowest limit may."""
    return {parameter: min(n_bytes, *_users) for parameter, n_bytes in _KEPT.items()}


def _stated_bytes(name: str) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() else _DEFAULT_BYTES


def _set(libc: Any, thresholds: dict[int, int]) -> None:
    for parameter, n_bytes in thresholds.items():
        libc.mallopt(parameter, n_bytes)


@cache
def _libc() -> Any | None:
    """Return the C library of this process if it has these thresholds."""
    library = ctypes.CDLL(None)
    return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None


_NAMES: Final = ("profile", "tick")
_SLOW_MS: Final = 500.0  # well below the three seconds from which on Dask calls an event loop unresponsive

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
