"""What dsgd uses of Dask beyond its documented interface, on real clusters and with whatever Dask is installed."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, Final

import dask
import pytest
from distributed import Client, LocalCluster, get_worker
from distributed.security import Security

from dsgd.runtime import dask_internals as internals
from gang_cluster import start_cluster, wait_until

pytestmark = pytest.mark.cluster

STIMULUS: Final = "dsgd-test"


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with start_cluster(2, processes=False, scheduler_kwargs={"dashboard": True}) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    with Client(cluster, set_as_default=False) as client:
        yield client


def _on_loop(cluster: LocalCluster, call: Callable[[], Any]) -> Any:
    """Return what `call` returns on the event loop of scheduler and workers; a coroutine is awaited."""

    async def run() -> Any:
        value = call()
        return await value if asyncio.iscoroutine(value) else value

    return asyncio.run_coroutine_threadsafe(run(), internals.event_loop(cluster.scheduler)).result(20.0)


def test_workers_answer_pings(cluster: LocalCluster) -> None:
    """A worker answers, and one that is not there is an error of the system."""
    scheduler, one = cluster.scheduler, next(iter(cluster.workers.values()))
    _on_loop(cluster, lambda: internals.ping_worker(scheduler, one.address))
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "0.2s"}),
        pytest.raises(OSError, match=r"127\.0\.0\.1:9"),
    ):
        _on_loop(cluster, lambda: internals.ping_worker(scheduler, "tcp://127.0.0.1:9"))


def test_what_is_not_understood_ends_no_stream(cluster: LocalCluster, client: Client) -> None:
    """A message that its function cannot take, or raises for, is logged; worker and scheduler hear the next one."""
    scheduler, one = cluster.scheduler, next(iter(cluster.workers.values()))
    heard: list[Any] = []
    internals.serve(scheduler, {}, {"dsgd-up": lambda worker, n: heard.append(1 // n)})
    internals.serve(one, {}, {"dsgd-down": lambda n: heard.append(-1 // n)})
    for message in ({"n": 0}, {"m": 1}, {"n": 1}):
        internals.tell_scheduler(one, {"op": "dsgd-up", **message})
        _on_loop(cluster, lambda m=message: internals.tell_worker(scheduler, one.address, {"op": "dsgd-down", **m}))
    wait_until(lambda: len(heard) < 2)
    assert sorted(heard) == [-1, 1]
    assert client.submit(_place, 0, workers=[one.address], pure=False).result(20.0) == one.address


_GATE = threading.Event()


def _wait_for(_: str) -> bool:
    return _GATE.wait(20.0)


def test_who_is_waited_for(cluster: LocalCluster, client: Client) -> None:
    """Of a key that is there these are its holders, of one that is computed the worker of what is missing."""
    scheduler, (one, two) = cluster.scheduler, cluster.workers.values()
    _GATE.clear()
    held = client.submit(_place, 0, workers=[one.address], pure=False)
    held.result(20.0)
    slow = client.submit(_wait_for, held, workers=[two.address], pure=False)
    last = client.submit(bool, slow, pure=False)
    wait_until(lambda: not client.processing()[two.address])
    found = _on_loop(cluster, lambda: internals.needed_workers(scheduler, [held.key, last.key, "unknown"]))
    assert len(found) == 2
    assert [two.address] in found
    assert any(one.address in any_of for any_of in found)
    _GATE.set()
    assert last.result(20.0)


def test_a_paused_worker_gets_no_tasks(cluster: LocalCluster, client: Client) -> None:
    """A worker that is paused by the scheduler runs nothing until it is resumed."""
    scheduler = cluster.scheduler
    states = list(scheduler.workers.values())
    assert [internals.state_of(ws) for ws in states] == ["running"] * 2
    _on_loop(cluster, lambda: internals.pause_worker(scheduler, states[0], STIMULUS))
    assert [internals.state_of(ws) for ws in states] == ["paused", "running"]
    places = client.gather(client.map(_place, range(8), pure=False))
    assert set(places) == {states[1].address}
    _on_loop(cluster, lambda: internals.resume_worker(scheduler, states[0], STIMULUS))
    assert [internals.state_of(ws) for ws in states] == ["running"] * 2
    assert client.submit(_place, 0, workers=[states[0].address], pure=False).result(20.0) == states[0].address


def _place(_: int) -> str:
    return str(get_worker().address)


def test_replicas_are_forgotten_and_made_again(cluster: LocalCluster, client: Client) -> None:
    """What only one worker holds is computed again elsewhere once the scheduler has forgotten that it is there."""
    first, second = list(cluster.scheduler.workers.values())
    future = client.submit(_place, 0, workers=[first.address, second.address], pure=False)
    holder = future.result(20.0)
    ws = cluster.scheduler.workers[holder]
    _on_loop(cluster, lambda: internals.pause_worker(cluster.scheduler, ws, STIMULUS))
    _on_loop(cluster, lambda: internals.forget_replicas(cluster.scheduler, ws, [future.key, "unknown"], STIMULUS))
    wait_until(lambda: future.result(20.0) == holder)
    _on_loop(cluster, lambda: internals.resume_worker(cluster.scheduler, ws, STIMULUS))


def test_blocks_are_fetched_from_where_they_are(cluster: LocalCluster, client: Client) -> None:
    """A block that is here is not transferred, one that is elsewhere is, and one that nobody has is not found."""
    one, two = cluster.workers.values()
    future = client.submit(_place, 1, workers=[one.address], pure=False)
    assert future.result(20.0) == one.address
    assert _on_loop(cluster, lambda: internals.fetch_block(one, future.key)) == ([one.address], False)
    assert _on_loop(cluster, lambda: internals.fetch_block(two, future.key)) == ([one.address], True)
    assert future.key not in two.data
    assert _on_loop(cluster, lambda: internals.fetch_block(two, "unknown")) == ([], False)


def test_certificates_of_a_worker() -> None:
    """Workers of one cluster connect with their certificates, and those of another cluster are refused."""
    one, other = (SimpleNamespace(security=Security.temporary()) for _ in range(2))
    assert _shake_hands(one, one)
    with pytest.raises(ssl.SSLError):
        _shake_hands(one, other)


def _shake_hands(server: Any, client: Any) -> bool:
    """Let the two ends of a TLS connection talk until both are done."""
    one, two = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        internals.ssl_context(server, server_side=True).wrap_bio(one, two, server_side=True),
        internals.ssl_context(client, server_side=False).wrap_bio(two, one),
    ]
    for end in ends[::-1] * 4:
        with contextlib.suppress(ssl.SSLWantReadError):
            end.do_handshake()
    return all(end.getpeercert() for end in ends)


def test_facts_of_the_machine() -> None:
    """The loopback has its address, an interface that is not there is an error, and cores and memory are counted."""
    import psutil

    names = [name for name, of in psutil.net_if_addrs().items() if any(each.address == "127.0.0.1" for each in of)]
    assert internals.interface_address(names[0]) == "127.0.0.1"
    with pytest.raises(ValueError, match="none-such"):
        internals.interface_address("none-such")
    assert internals.cpu_count() >= 1
    assert internals.memory_bytes() >= 1 << 20
