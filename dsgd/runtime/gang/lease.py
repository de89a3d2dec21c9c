"""A job's hold on its workers: renewed while somebody attends to the job, and given up when nobody does any more.

Problem: a client is interrupted by a user who presses ctrl-C twice, stopped by a debugger, or cut off, and its workers
stay with a job that nobody will ever end.

Method: a coroutine on the client's event loop, which no interrupt reaches, renews the lease every sixth of its time to
live and looks whether the thread of the job still attends to it. That thread holds a lock meanwhile, which ends with
its ``with`` block: a lock is let go of in C, where no interrupt comes between. When it is free the coroutine ends the
job, unless the thread has done so in good order; until then it tries, for as long as the lease lives. Where the event
loop itself stands still nothing is renewed, and the scheduler ends the job (`Registry.expire`).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Final

__all__ = ["Lease"]

_RENEWALS: Final = 6
# How often it is looked whether anybody attends to the job.
_LOOK_S: Final = 0.1
_RETRY_S: Final = 0.5


class Lease:
    """The lease of one job.

    Parameters
    ----------
    loop : asyncio.AbstractEventLoop
        That of the client.
    renew : callable
        Returns what renews the lease.
    give_up : callable
        Takes the reason; returns what ends the job, and raises where the scheduler cannot be reached.
    lease_s : float
        How long the lease lives without being renewed.

    Attributes
    ----------
    attended : threading.Lock
        Held by the thread of the job as long as it attends to it.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        renew: Callable[[], Awaitable[object]],
        give_up: Callable[[str], Awaitable[None]],
        lease_s: float,
    ) -> None:
        self.attended = threading.Lock()
        self._loop, self._renew, self._give_up, self._lease_s = loop, renew, give_up, lease_s
        self._reason: str | None = "its client attends to it no more"
        self._over = False
        self._tried = threading.Event()
        self._keeper: concurrent.futures.Future[None] | None = None

    def begin(self) -> None:
        """Keep the lease from now on."""
        if self._keeper is None:
            self._keeper = asyncio.run_coroutine_threadsafe(self._keep(), self._loop)

    def end(self, reason: str | None, timeout_s: float) -> None:
        """Give the lease up, and wait until that was tried; an interrupt ends this wait and nothing else.

        Parameters
        ----------
        reason : str or None
            Why the job is stopped; None if it has ended in good order, and its leases with it.
        timeout_s : float
            How long to wait. A scheduler that does not answer is tried again afterwards.
        """
        self._reason, self._over = reason, True
        if self._keeper is not None:
            self._tried.wait(timeout_s)

    async def _keep(self) -> None:
        renewed_at = time.monotonic()
        renewal: asyncio.Future[object] | None = None
        while self.attended.locked() and not self._over:
            if renewal is None and time.monotonic() - renewed_at >= self._lease_s / _RENEWALS:
                renewed_at, renewal = time.monotonic(), asyncio.ensure_future(self._renew())
            if renewal is not None and renewal.done():
                # A call that failed is made again, soon enough.
                await asyncio.gather(renewal, return_exceptions=True)
                renewal = None
            await asyncio.sleep(_LOOK_S)
        if renewal is not None:
            renewal.cancel()
            await asyncio.gather(renewal, return_exceptions=True)
        try:
            if self._reason is not None:
                await self._try_to_give_up(self._reason)
        finally:
            self._tried.set()

    async def _try_to_give_up(self, reason: str) -> None:
        """End the job; a scheduler that stands still is tried again, one that is gone has no jobs any more."""
        deadline = time.monotonic() + self._lease_s
        while True:
            with contextlib.suppress(TimeoutError):
                await self._give_up(reason)
                return
            self._tried.set()
            if time.monotonic() >= deadline:
                return
            await asyncio.sleep(_RETRY_S)
