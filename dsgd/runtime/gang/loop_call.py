"""A coroutine on the event loop of a client, for whose outcome another thread waits, however often that is interrupted.

Problem: a future of `concurrent.futures` has a lock that both threads take in Python. An interrupt that comes when it
is taken and nobody has noted that yet leaves it locked: the loop waits for it for ever, and the lease of a job with it.

Method: the outcome comes through a queue that is written in C, where no interrupt can intervene.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import queue
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class LoopCall(Generic[T]):
    """Runs what `make` returns on a loop, from now on."""

    def __init__(self, loop: asyncio.AbstractEventLoop, make: Callable[[], Awaitable[T]]) -> None:
        self._loop, self._is_cancelled = loop, False
        self._task: asyncio.Task[None] | None = None
        self._outcome: queue.SimpleQueue[tuple[T, None] | tuple[None, BaseException]] = queue.SimpleQueue()
        loop.call_soon_threadsafe(self._begin, make)

    def result(self, timeout_s: float) -> T:
        """Return the result, or raise the error; TimeoutError if neither is there in time."""
        try:
            value, error = self._outcome.get(timeout=timeout_s)
        except queue.Empty:
            raise TimeoutError from None
        if error is not None:
            raise error
        return value  # type: ignore[return-value]

    def cancel(self) -> None:
        """Cancel it if it has not ended; does not wait."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._end)

    # ---- on the loop

    def _begin(self, make: Callable[[], Awaitable[T]]) -> None:
        if not self._is_cancelled:
            self._task = asyncio.ensure_future(self._run(make))

    def _end(self) -> None:
        self._is_cancelled = True
        if self._task is not None:
            self._task.cancel()

    async def _run(self, make: Callable[[], Awaitable[T]]) -> None:
        try:
            self._outcome.put((await make(), None))
        except BaseException as error:
            is_cancelled = isinstance(error, asyncio.CancelledError)
            self._outcome.put((None, concurrent.futures.CancelledError() if is_cancelled else error))
            if not isinstance(error, Exception):
                raise
