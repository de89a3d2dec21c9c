"""A fault at every call of a client to the cluster, whatever it is that the client then waits for."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import dask.array as da
import distributed.core
import numpy as np
import pytest
from distributed import Client, LocalCluster

import dsgd
from dsgd import Gang, SGDClassifier
from dsgd.comm.memory.segment import shared_folder
from dsgd.errors import DsgdError
from dsgd.runtime import Timeouts
from gang_cluster import start_cluster, wait_until
from shared_memory import shared_names

LIMITS = Timeouts(hung=2.0, peer=4.0, scheduler=10.0)
#: Longer than all limits together, and far below the minutes after which Dask gives up.
AT_MOST_S = 40.0
FAULTS = ["stop", "kill", "retire"]
#: ``DSGD_EVERY_CALL=1`` hurts every call of every fit in every way, in half an hour; else some of each kind.
EVERYTHING = os.environ.get("DSGD_EVERY_CALL") == "1"

rng = np.random.default_rng(0)
X, y = rng.normal(size=(20_000, 10)), rng.integers(0, 2, 20_000)


def fit_arrays(client: Client) -> None:
    """Train on arrays of this process, which are handed over."""
    SGDClassifier(client=Gang(client, timeouts=LIMITS), max_iter=2, tol=None, random_state=0).fit(X, y)


def fit_collection(client: Client) -> None:
    """Train on what Dask computes."""
    blocks = da.from_array(X[:2000], chunks=(500, 10)), da.from_array(y[:2000], chunks=500)
    SGDClassifier(client=Gang(client, timeouts=LIMITS), max_iter=2, tol=None, random_state=0).fit(*blocks)


def fit_on_disk(client: Client) -> None:
    """Train on rows that workers keep in files."""
    model = SGDClassifier(client=Gang(client, timeouts=LIMITS, out_of_core=True), max_iter=2, tol=None, random_state=0)
    model.fit(X[:2000], y[:2000])


def fit_apart(client: Client) -> None:
    """Have a worker drive a fit, and fetch the result."""
    model = SGDClassifier(max_iter=2, tol=None, random_state=0, client=Gang(timeouts=LIMITS))
    fit = dsgd.submit(model, X, y, client=client)
    try:
        fit.result(timeout=AT_MOST_S / 2)
    except TimeoutError:
        pass  # it has a deadline of the caller's, and is not cancelled by it
    finally:
        fit.forget()


@contextmanager
def calls(client: Client, heed: Callable[[str], None]) -> Iterator[None]:
    """Call `heed` with the name of each message before the client sends it, to the scheduler or to a worker."""
    send_recv, to_scheduler = distributed.core.send_recv, client._send_to_scheduler

    async def asked(comm: Any, **message: Any) -> Any:
        heed(message["op"])
        return await send_recv(comm, **message)

    def told(message: Any) -> None:
        heed(message["op"])
        to_scheduler(message)

    distributed.core.send_recv, client._send_to_scheduler = asked, told
    try:
        yield
    finally:
        distributed.core.send_recv, client._send_to_scheduler = send_recv, to_scheduler


@pytest.mark.filterwarnings("ignore:Client 'published-.*' desires key:UserWarning")  # Dask's own, of a killed worker
@pytest.mark.parametrize(
    ("fit", "fault"),
    [(fit, fault) for fit in (fit_arrays, fit_collection, fit_on_disk, fit_apart) for fault in FAULTS]
    if EVERYTHING
    else [(fit_arrays, "stop"), (fit_collection, "stop"), (fit_on_disk, "kill"), (fit_apart, "kill")],
)
@pytest.mark.slow
def test_no_call_waits_without_end(fit: Callable[[Client], None], fault: str) -> None:
    """Wherever a worker is stopped or killed, the fit goes on without it or ends with an error of ours, and soon."""
    before = shared_names()
    with ExitStack() as stack:
        seen: list[str] = []
        cluster, client = started(stack, fit)
        with calls(client, seen.append):
            fit(client)
        firsts = sorted({op: k for k, op in reversed(list(enumerate(seen)))}.values())
        places = range(len(seen)) if EVERYTHING else firsts[fault == "kill" :: 2]
        for place in places:
            if one_fault(cluster, client, fit, fault, seen[place], seen[:place].count(seen[place])):
                stack.close()
                cluster, client = started(stack, fit)
    # Of a driver that was killed while it handed rows over: the next process would remove it, but not at once.
    for name in shared_names() - before:
        Path(shared_folder(), name).unlink()


def started(stack: ExitStack, fit: Callable[[Client], None]) -> tuple[LocalCluster, Client]:
    """Return a cluster that has done a fit, and so has loaded and compiled everything."""
    cluster = stack.enter_context(start_cluster(2))
    client = stack.enter_context(Client(cluster, set_as_default=False))
    fit(client)
    return cluster, client


def one_fault(
    cluster: LocalCluster, client: Client, fit: Callable[[Client], None], fault: str, op: str, skipped: int
) -> bool:
    """Hurt a worker just before the client sends a message of this kind, and wait for the end of the fit.

    Returns
    -------
    bool
        Whether the cluster is one worker short from now on.
    """
    wait_until(lambda: len(client.nthreads()) != 2, 60.0)
    pids = client.run(os.getpid)
    address = max(pids)
    victim, left = pids[address], [skipped]

    retired: list[asyncio.Future[Any]] = []

    def retire() -> None:
        retired.append(asyncio.ensure_future(cluster.scheduler.retire_workers([address], close_workers=True)))

    def heed(sent: str) -> None:
        if sent == op:
            left[0] -= 1
            if left[0] == -1:
                if fault == "retire":
                    cluster.loop.add_callback(retire)
                else:
                    os.kill(victim, signal.SIGSTOP if fault == "stop" else signal.SIGKILL)

    begin = time.monotonic()
    outcome = "trained"
    try:
        with calls(client, heed):
            fit(client)
    except DsgdError as error:
        outcome = f"{type(error).__name__}: {error}"
    finally:
        if left[0] < 0 and fault == "stop":
            os.kill(victim, signal.SIGCONT)
    elapsed_s = time.monotonic() - begin
    logging.getLogger("test").info("%s, %s at %s: %.1f s, %s", fit.__name__, fault, op, elapsed_s, outcome)
    assert elapsed_s < AT_MOST_S, f"{fault} at {op}: {outcome}"
    if left[0] < 0 and fault != "stop":
        wait_until(lambda: address in client.nthreads(), 60.0)
    return bool(retired)
