"""Durations of silence, as far as this process can tell.

Problem: a scheduler that was stopped, or busy for long, finds all heartbeats old when it wakes, while newer ones are
still unread. It must not consider all workers hung because it slept itself.

Method: it reads the clock twice a second. After a longer pause all silences are counted from zero again.

Whether a worker that no rank of ours runs on is alive is asked: the heartbeats of Dask pause for as long as the wall
clock of the worker was set back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from dsgd.runtime.dask_internals import ping_worker

if TYPE_CHECKING:
    from distributed import Scheduler

# After a longer pause between two readings silence proves nothing.
_PAUSE_S: Final = 3.0
# After how long to ask a worker again that could not be reached.
_AGAIN_S: Final = 1.0


class Vigil:
    """The time since when this process has been awake without a pause."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._looked_at = self._awake_since = clock()

    def look(self) -> None:
        """Record that this process is awake; called twice a second."""
        now = self._clock()
        if now - self._looked_at > _PAUSE_S:
            self._awake_since = now
        self._looked_at = now

    def silence_s(self, heard_at: float) -> float:
        """Return the seconds awake since `heard_at`, the time of the last message of a sender."""
        self.look()
        return self._looked_at - max(heard_at, self._awake_since)


class Pings:
    """Questions to the event loops of workers, at most one to each at a time."""

    def __init__(self, scheduler: Scheduler, vigil: Vigil) -> None:
        self._scheduler, self._vigil = scheduler, vigil
        self._asked: dict[str, float] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def silence_s(self, worker: str) -> float:
        """Return for how long a worker has not answered, and ask it; one that has left is silent no more."""
        if worker not in self._scheduler.workers:
            return 0.0
        self._asked.setdefault(worker, time.monotonic())
        if worker not in self._tasks:
            self._tasks[worker] = asyncio.create_task(self._ask(worker))
        return self._vigil.silence_s(self._asked[worker])

    def forget(self, worker: str) -> None:
        """Forget a worker that left."""
        self._asked.pop(worker, None)
        task = self._tasks.pop(worker, None)
        if task is not None:
            task.cancel()

    def close(self) -> None:
        """End all waits: the scheduler closes."""
        for worker in list(self._tasks):
            self.forget(worker)

    async def _ask(self, worker: str) -> None:
        while worker in self._scheduler.workers:
            try:
                await ping_worker(self._scheduler, worker)
                break
            except OSError:
                await asyncio.sleep(_AGAIN_S)
        self._asked.pop(worker, None)
        self._tasks.pop(worker, None)
