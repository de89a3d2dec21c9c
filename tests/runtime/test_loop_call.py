"""Waiting for what happens on an event loop, which an interrupt must leave alive, and leases that are renewed there."""

from __future__ import annotations

import asyncio
import concurrent.futures
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from dsgd.runtime.gang.client import LoopCall


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop in a thread of its own, as that of a client."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield loop
    asyncio.run_coroutine_threadsafe(_cancel_all(), loop).result(10.0)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10.0)
    loop.close()


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def wait_for_it(loop: asyncio.AbstractEventLoop, seconds: float) -> None:
    """Wait for a call and cancel it at last, as callers of `LoopCall` do."""
    call = LoopCall(loop, lambda: asyncio.sleep(seconds))
    try:
        call.result(0.02)
    except TimeoutError:
        pass
    finally:
        call.cancel()


@pytest.mark.parametrize("seconds", [0.0, 0.01, 60.0])
def test_an_interrupt_at_any_point_of_a_wait_leaves_the_loop_alive(
    loop: asyncio.AbstractEventLoop, seconds: float
) -> None:
    """Ctrl-C may come after any line and at the end of any function, those of the standard library too."""
    for point in range(1, 1000):
        left = point

        def interrupt(frame: Any, event: str, arg: Any) -> Any:
            nonlocal left
            if frame.f_code.co_name == "_remove":  # what a weak reference calls cannot raise
                return None
            left -= 1
            if left == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
            return interrupt

        sys.settrace(interrupt)
        try:
            wait_for_it(loop, seconds)
        except KeyboardInterrupt:
            is_interrupted = True
        else:
            is_interrupted = False
        finally:
            sys.settrace(None)
        is_alive = threading.Event()
        loop.call_soon_threadsafe(is_alive.set)
        assert is_alive.wait(10.0), f"the loop hangs after an interrupt at point {point}"
        if not is_interrupted:
            break
    assert 20 < point < 999


def test_outcomes_come_as_they_are(loop: asyncio.AbstractEventLoop) -> None:
    """A value, an error, and what was cancelled; without any the wait ends in time."""

    async def fail() -> None:
        raise OSError("gone")

    assert LoopCall(loop, lambda: asyncio.sleep(0, "value")).result(10.0) == "value"
    with pytest.raises(OSError, match="gone"):
        LoopCall(loop, fail).result(10.0)
    call = LoopCall(loop, lambda: asyncio.sleep(60.0))
    with pytest.raises(TimeoutError):
        call.result(0.01)
    call.cancel()
    with pytest.raises(concurrent.futures.CancelledError):
        call.result(10.0)
