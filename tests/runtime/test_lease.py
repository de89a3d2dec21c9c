"""The lease of a job: renewed while its thread attends to it, given up when it does not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from dsgd.runtime.gang import job_handle as module
from dsgd.runtime.gang.job_handle import Lease


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.mark.parametrize("reason", [None, "enough"])
def test_the_end_of_a_lease_is_noticed_at_once(
    loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch, reason: str | None
) -> None:
    """A job that ends does not wait for the next look at whether its thread attends to it."""
    monkeypatch.setattr(module, "_LOOK_S", 3600.0)
    given_up: list[str] = []

    async def renew() -> None:
        raise AssertionError("it was renewed before its time")

    async def give_up(why: str) -> None:
        given_up.append(why)

    lease = Lease(loop, renew, give_up, lease_s=3600.0)
    with lease.attended:
        lease.begin()
        # The keeper has had its turn, and sleeps.
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0.01), loop).result()
        lease.end(reason, timeout_s=5.0)
        assert lease._tried.is_set()
    assert given_up == ([] if reason is None else [reason])
