"""The lease of a job's workers: renewed while the client attends to the job, and given up when it no longer does.

Problem: a client may be interrupted twice with ctrl-C, stopped by a debugger, or cut off, and then its workers would
stay with a job that never ends.

Method: a coroutine on the client's event loop, which no interrupt reaches, renews the lease every sixth of its time to
live and checks whether the thread of the job still attends to it. That thread holds a lock for the length of a ``with``
block; a lock is released in C, where no interrupt can intervene. Once the lock is free, the coroutine ends the job,
unless the thread has already done so; it retries for as long as the lease lives. If the event loop itself stands still,
nothing is renewed, and the scheduler ends the job (`Registry.expire`).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Final

_RENEWALS: Final = 6
# How often to check whether the thread attends to the job.
_LOOK_S: Final = 0.1
_RETRY_S: Final = 0.5


class Lease:
    """The lease of one job."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        renew: Callable[[], Awaitable[object]],
        give_up: Callable[[str], Awaitable[None]],
        lease_s: float,
    ) -> None:
        self.attended = threading.Lock()
        self._loop, self._renew, self._give_up, self._lease_s = loop, renew, give_up, lease_s
        self._reason: str | None = "its client no longer attends to it"
        self._over = False
        self._tried = threading.Event()
        self._woken = asyncio.Event()
        self._keeper: concurrent.futures.Future[None] | None = None

    def begin(self) -> None:
        """Keep the lease from now on."""
        if self._keeper is None:
            self._keeper = asyncio.run_coroutine_threadsafe(self._keep(), self._loop)

    def end(self, reason: str | None, timeout_s: float) -> None:
        """Give the lease up, and wait for the first attempt; an interrupt ends only this wait."""
        self._reason, self._over = reason, True
        if self._keeper is not None:
            # A loop that has been closed keeps nothing any more.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._woken.set)
            self._tried.wait(timeout_s)

    async def _keep(self) -> None:
        renewed_at = time.monotonic()
        renewal: asyncio.Future[object] | None = None
        while self.attended.locked() and not self._over:
            if renewal is None and time.monotonic() - renewed_at >= self._lease_s / _RENEWALS:
                renewed_at, renewal = time.monotonic(), asyncio.ensure_future(self._renew())
            if renewal is not None and renewal.done():
                # A failed call is repeated, soon enough.
                await asyncio.gather(renewal, return_exceptions=True)
                renewal = None
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), _LOOK_S)
        if renewal is not None:
            renewal.cancel()
            await asyncio.gather(renewal, return_exceptions=True)
        try:
            if self._reason is not None:
                await self._try_to_give_up(self._reason)
        finally:
            self._tried.set()

    async def _try_to_give_up(self, reason: str) -> None:
        """End the job; retry if the scheduler stands still. A scheduler that is gone has no jobs."""
        deadline = time.monotonic() + self._lease_s
        while True:
            with contextlib.suppress(TimeoutError):
                await self._give_up(reason)
                return
            self._tried.set()
            if time.monotonic() >= deadline:
                return
            await asyncio.sleep(_RETRY_S)
