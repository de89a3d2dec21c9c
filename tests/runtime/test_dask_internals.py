"""What dsgd uses of Dask beyond its documented interface, on real clusters and with whatever Dask is installed."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
import urllib.request
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, Final

import cloudpickle
import dask
import numpy as np
import pytest
from distributed import Client, LocalCluster, get_worker
from distributed.security import Security

from dsgd.runtime import dask_internals as internals
from dsgd.runtime.versions import local_versions
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


def test_servers_answer_and_hear(cluster: LocalCluster, client: Client) -> None:
    """Calls under new names are answered by scheduler and workers, and streams bring messages in order."""
    scheduler, (one, two) = cluster.scheduler, cluster.workers.values()
    heard: list[Any] = []
    internals.serve(scheduler, {"dsgd_test": lambda value: value + 1}, {"dsgd-up": lambda worker, n: heard.append(n)})
    internals.serve(one, {}, {"dsgd-down": lambda n: heard.append(-n)})
    internals.serve(two, {"dsgd_test": lambda value: value + 2})
    assert _on_loop(cluster, lambda: internals.ask_scheduler(client, "dsgd_test", value=1)) == 2
    assert _on_loop(cluster, lambda: internals.ask_scheduler(one, "dsgd_test", value=2)) == 3
    assert _on_loop(cluster, lambda: internals.ask_worker(one, two.address, "dsgd_test", value=3)) == 5
    internals.serve(two, {"dsgd_twice": lambda data: internals.as_frame(2 * data)})
    sent = internals.as_frame(np.arange(3.0))
    came = _on_loop(cluster, lambda: internals.ask_worker(one, two.address, "dsgd_twice", data=sent))
    np.testing.assert_array_equal(came.data, [0.0, 2.0, 4.0])
    for n in (1, 2, 3):
        internals.tell_scheduler(one, {"op": "dsgd-up", "n": n})
    wait_until(lambda: len(heard) < 3)
    for n in (1, 2):
        assert _on_loop(cluster, lambda n=n: internals.tell_worker(scheduler, one.address, {"op": "dsgd-down", "n": n}))
    wait_until(lambda: len(heard) < 5)
    assert heard == [1, 2, 3, -1, -2]
    assert not _on_loop(cluster, lambda: internals.tell_worker(scheduler, "inproc://gone", {"op": "dsgd-down", "n": 0}))


def test_addresses_of_the_scheduler(cluster: LocalCluster, client: Client) -> None:
    """Client and worker know their scheduler, and a client that has none says so."""
    assert internals.scheduler_address(client) == cluster.scheduler_address
    assert internals.scheduler_address(cluster.workers[0]) == cluster.scheduler_address
    assert internals.scheduler_address(SimpleNamespace(scheduler=None)) == ""


def test_clients_leave_no_thread(cluster: LocalCluster) -> None:
    """Neither an attempt to connect that fails nor a client that is stopped leaves the thread of an event loop."""
    before = set(threading.enumerate())
    with pytest.raises(OSError, match=r"127\.0\.0\.1:9"):
        internals.open_client("tcp://127.0.0.1:9", 0.2)
    client = internals.open_client(cluster.scheduler_address, 5.0)
    assert client.status == "running"
    client.close()
    internals.stop_loop(client)
    wait_until(lambda: [thread for thread in set(threading.enumerate()) - before if "IO loop" in thread.name])


def _own_client(name: str) -> tuple[str, str, int]:
    with internals.open_client_beside(get_worker(), name) as client:
        return client.id, internals.scheduler_address(client), sum(client.nthreads().values())


def test_a_task_has_a_client_of_its_own(cluster: LocalCluster, client: Client) -> None:
    """A task gets a client of the cluster with the name that it asks for."""
    name, address, n_threads = client.submit(_own_client, "dsgd-test", pure=False).result(20.0)
    assert "dsgd-test" in name
    assert (address, n_threads) == (cluster.scheduler_address, 2)


def test_the_probe_knows_the_scheduler(cluster: LocalCluster, client: Client) -> None:
    """It says which versions and plugins the scheduler has."""
    found = client.run_on_scheduler(internals.make_scheduler_probe(lambda: {"dsgd": "1"}))
    assert found == {"versions": {"dsgd": "1"}, "plugins": list(internals.plugins_of(cluster.scheduler))}


@pytest.mark.parametrize("number", ["1", "2"])
def test_one_worker_gets_a_plugin(cluster: LocalCluster, number: str) -> None:
    """It is installed there alone if versions agree, and else nothing of it stays; the worker says which."""
    scheduler, (one, two) = cluster.scheduler, cluster.workers.values()
    heard: list[Any] = []
    internals.serve(scheduler, {}, {"dsgd-answer": lambda worker, problem: heard.append((worker, problem))})
    plugin = cloudpickle.dumps(internals.make_installer({**local_versions(), "python": number}, "dsgd-answer"))
    _on_loop(cluster, lambda: internals.add_worker_plugin(scheduler, one.address, plugin, "dsgd-test"))
    wait_until(lambda: not heard)
    assert heard == [(one.address, f"has python {local_versions()['python']}")]
    assert "dsgd-test" not in {*one.plugins, *two.plugins, *scheduler.worker_plugins}


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


def test_workers_are_meant_by_what_they_are(cluster: LocalCluster) -> None:
    """By name, address or host, and by resources; both must fit."""
    states = list(cluster.scheduler.workers.values())
    host = states[0].host
    for names, n in ((None, 2), ([states[0].address], 1), (["0"], 1), ([host], 2), (["other"], 0)):
        assert sum(internals.offers(ws, names, {}) for ws in states) == n
    assert not any(internals.offers(ws, None, {"GPU": 1.0}) for ws in states)


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


def test_datasets_are_released(cluster: LocalCluster, client: Client) -> None:
    """A dataset is seen by name, and leaves nothing when it is unpublished, even if somebody has done so by hand."""
    scheduler = cluster.scheduler
    for by_hand in (False, True):
        client.publish_dataset(client.submit(_place, 2, pure=False), name="dsgd-test")
        assert "dsgd-test" in internals.published(scheduler)
        if by_hand:
            client.unpublish_dataset("dsgd-test")
        _on_loop(cluster, lambda: internals.unpublish(scheduler, "dsgd-test"))
        assert "dsgd-test" not in internals.published(scheduler)
        assert not [name for name in scheduler.clients if "dsgd-test" in name]


def test_pages_are_added_once(cluster: LocalCluster) -> None:
    """A page is served, other pages link to it, and adding it again changes nothing."""
    from bokeh.models import Div

    scheduler = cluster.scheduler
    assert internals.has_dashboard(scheduler)

    def fill(doc: Any) -> Callable[[], None]:
        doc.add_root(Div(text="a page"))
        return lambda: None

    for _ in range(2):
        _on_loop(cluster, lambda: internals.add_page(scheduler, "/dsgd-test", "A title", fill, 1000))
    home = f"http://127.0.0.1:{scheduler.http_server.port}"
    with urllib.request.urlopen(f"{home}/dsgd-test", timeout=20.0) as page:
        assert "data-root-id" in page.read().decode()
    with urllib.request.urlopen(f"{home}/status", timeout=20.0) as page:
        assert page.read().decode().count('href="dsgd-test"') == 1


def test_removed_workers_say_how_they_left() -> None:
    """A worker is removed at once, and the reasons that Dask gives for departures are understood."""
    with start_cluster(2, processes=False) as cluster, Client(cluster, set_as_default=False) as client:
        scheduler, heard = cluster.scheduler, []
        plugin = SimpleNamespace(
            remove_worker=lambda scheduler, worker, *, stimulus_id, **kwargs: heard.append(stimulus_id)
        )
        scheduler.plugins["dsgd-test"] = plugin
        one, two = list(scheduler.workers.values())
        _on_loop(cluster, lambda: internals.remove_worker(scheduler, one, STIMULUS))
        client.retire_workers([two.address])
        wait_until(lambda: list(scheduler.workers))
        del scheduler.plugins["dsgd-test"]
    assert [internals.departure(stimulus).split(" (")[0] for stimulus in heard] == ["left the cluster", "was retired"]


def test_blocked_calls_are_told() -> None:
    """The error of a call that the cluster has disallowed names the call and the kind of server."""
    with start_cluster(1, processes=False) as cluster, Client(cluster, set_as_default=False) as client:
        cluster.scheduler.blocked_handlers = ["run_function"]
        cluster.workers[0].blocked_handlers = ["run"]
        with pytest.raises(ValueError, match="disallowed") as on_scheduler:
            client.run_on_scheduler(_place, 0)
        with pytest.raises(Exception, match="disallowed") as on_worker:
            client.run(_place, 0)
    assert internals.blocked_call(on_scheduler.value) == ("run_function", "Scheduler")
    assert internals.blocked_call(on_worker.value) == ("run", "Worker")
    assert internals.blocked_call(ValueError("another")) is None


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
