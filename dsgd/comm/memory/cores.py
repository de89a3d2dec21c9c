"""Which core a thread runs on, and moving it to another one.

Problem: a thread that is woken may be put on the core of the one that woke it. Two ranks on one core that wait for each
other then run by turns, each a fraction of a millisecond, until the system balances its cores, tens of milliseconds
later; by then a short fit is over.

Method: a thread forbids itself its core for a moment, so that the system takes another one that is allowed, and allows
it again. What a user has allowed stays so.

Cost: some ten microseconds. On systems other than Linux nothing is known of cores, and nothing is done.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_getcpu: Callable[[], int] | None = getattr(ctypes.CDLL(None), "sched_getcpu", None)


def count_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def current_core() -> int:
    """Return the number of the core that this thread runs on, or -1 where the system does not tell."""
    return -1 if _getcpu is None else int(_getcpu())


def leave_core(core: int) -> bool:
    """Move this thread off a core, if another one is allowed; return whether it was moved."""
    if sys.platform != "linux":
        return False
    allowed = os.sched_getaffinity(0)
    others = allowed - {core}
    if not others or core not in allowed:
        return False
    try:
        os.sched_setaffinity(0, others)
    except OSError:  # a container may forbid it; then ranks wait for the system to part them
        return False
    os.sched_setaffinity(0, allowed)
    return True


@contextmanager
def staying(core: int) -> Iterator[None]:
    """Keep this thread, and those that it starts, on one core: to wake one on another takes three times as long."""
    allowed = os.sched_getaffinity(0) if sys.platform == "linux" else set[int]()
    if core not in allowed:
        yield
        return
    try:
        os.sched_setaffinity(0, {core})
    except OSError:  # a container may forbid it
        yield
        return
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)
