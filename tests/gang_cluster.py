"""Clusters for tests of gangs: fixtures that give one, signals to its ranks, and a look at what is left there."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from distributed import Client, Future, LocalCluster

import gang_programs as programs
from dsgd import Gang
from dsgd.runtime import run_on_cluster


def start_cluster(n_workers: int, **options: Any) -> LocalCluster:
    """Return a cluster of worker processes, or of threads of this one with ``processes=False``."""
    return LocalCluster(
        **{
            "n_workers": n_workers,
            "threads_per_worker": 1,
            "dashboard_address": ":0",
            "scheduler_kwargs": {"dashboard": False},
            "silence_logs": logging.CRITICAL,
        }
        | options
    )


def cluster_fixture(n_workers: int) -> Any:
    """Return a fixture: a cluster for a module."""

    @pytest.fixture(scope="module")
    def cluster() -> Iterator[LocalCluster]:
        with start_cluster(n_workers) as cluster:
            yield cluster

    return cluster


def module_client(n_workers: int, *, set_as_default: bool = False, **options: Any) -> Any:
    """Return a fixture: a client of a cluster, for a module."""

    @pytest.fixture(scope="module")
    def client() -> Iterator[Client]:
        with start_cluster(n_workers, **options) as cluster, Client(cluster, set_as_default=set_as_default) as client:
            yield client

    return client


def client_fixture(n_workers: int, *, hurt: bool = False) -> Any:
    """Return a fixture: a client of the whole cluster. After the test nothing is left; a hurt cluster trains again."""

    @pytest.fixture
    def client(cluster: LocalCluster) -> Iterator[Client]:
        with Client(cluster, set_as_default=False) as client:
            wait_until(lambda: len(client.nthreads()) != n_workers, 60.0)
            yield client
            if hurt:
                wait_until(lambda: len(client.nthreads()) != n_workers, 60.0)
                value = run_on_cluster(programs.add_up, [], client=client, pack=programs.keep).value
                assert value[0] == n_workers
            assert_clean(client)

    return client


def on_ranks(
    client: Client, program: Any, *args: Any, blocks: Sequence[Any] = (), pack: Any = programs.keep, **options: Any
) -> Any:
    """Run a program with these arguments on the ranks of a job, which takes its blocks as they are."""
    gang = Gang(client, **{name: options.pop(name) for name in Gang().get_params() if name in options})
    return run_on_cluster(program, list(blocks), client=gang, pack=pack, args=args, **options)


def once(action: Callable[[], Any]) -> Callable[[Mapping[str, Any]], None]:
    """Return a listener that acts on the first event of a running program."""
    done: list[bool] = []

    def listen(event: Mapping[str, Any]) -> None:
        if not done and "phase" not in event:
            done.append(True)
            action()

    return listen


def plugins_of(dask_scheduler: Any) -> list[Any]:
    """Return the plugins that know of gangs."""
    return [plugin for name, plugin in dask_scheduler.plugins.items() if name.startswith("dsgd-gangs")]


def jobs_of(dask_scheduler: Any) -> list[Any]:
    """Return the jobs that a scheduler knows."""
    return [job for plugin in plugins_of(dask_scheduler) for job in plugin.registry.jobs.values()]


def n_started(dask_scheduler: Any) -> int:
    """Return how many members of running jobs have begun."""
    return sum(len(job.started) for job in jobs_of(dask_scheduler))


def addresses(dask_scheduler: Any) -> list[str]:
    """Return where ranks listen that have come to the rendezvous."""
    return [address for job in jobs_of(dask_scheduler) for address in job.addresses.values()]


def rank_workers(client: Client) -> list[str]:
    """Return the worker of each rank of the running job."""
    members: list[str] = client.run_on_scheduler(
        lambda dask_scheduler: [member.worker for job in jobs_of(dask_scheduler) for member in job.members]
    )
    return members


def signal_rank(client: Client, rank: int, number: signal.Signals = signal.SIGKILL) -> tuple[str, int]:
    """Send a signal to the process of a rank of the running job; returns its worker and pid."""
    worker = rank_workers(client)[rank]
    pid: int = client.run(os.getpid, workers=[worker])[worker]
    os.kill(pid, number)
    return worker, pid


def put_blocks(client: Client, n_blocks: int, n_rows: int = 4) -> list[Future]:
    """Put blocks on the cluster; all values of block k are k."""
    blocks = [(np.full((n_rows, 3), float(k)), np.zeros(n_rows), None) for k in range(n_blocks)]
    # One by one, each in a list: scatter would take a tuple, or a list of all, apart.
    return [client.scatter([block], hash=False)[0] for block in blocks]


def wait_until(what: Callable[[], Any], timeout_s: float = 10.0) -> None:
    """Wait until `what` returns something false, and fail with it if it never does."""
    deadline = time.monotonic() + timeout_s
    while left := what():
        assert time.monotonic() < deadline, f"left on the cluster: {left}"
        time.sleep(0.02)


def assert_clean(client: Client) -> None:
    """Fail if a task, a job, a lease, a store, a socket or a thread of a gang is left."""
    wait_until(lambda: [*client.run_on_scheduler(_left_on_scheduler), *_left_on_workers(client)])


def _left_on_workers(client: Client) -> list[str]:
    known = {
        int(address.rsplit(":", 1)[1]) for address in _dask_addresses(client) if address.startswith(("tcp", "tls"))
    }
    found = client.run(_left_on_worker, known)
    return [f"{worker}: {item}" for worker, items in found.items() for item in items]


def _dask_addresses(client: Client) -> list[str]:
    info = client.scheduler_info(n_workers=-1)
    nannies = [str(worker["nanny"]) for worker in info["workers"].values() if worker["nanny"]]
    return [info["address"], *info["workers"], *nannies]


def _left_on_scheduler(dask_scheduler: Any) -> list[str]:
    left = [f"task {key}: {task.state}" for key, task in dask_scheduler.tasks.items() if str(key).startswith("dsgd-")]
    for plugin in plugins_of(dask_scheduler):
        left += [f"job {job}" for job in plugin.registry.jobs]
        left += [f"lease of {worker}" for worker in plugin.registry.leases]
        left += [f"waiter of {job}" for job in (*plugin._changed, *plugin._meetings)]
    left += [f"dataset {name}" for name in dask_scheduler.extensions["publish"].datasets if "dsgd" in str(name)]
    # What holds a published dataset stays in Dask's list when it is unpublished, and holds nothing.
    clients = [name for name, client in dask_scheduler.clients.items() if client.wants_what or "published" not in name]
    left += [f"client {name}" for name in clients if "dsgd" in str(name)]
    return left


def _left_on_worker(known: set[int], dask_worker: Any) -> list[str]:
    import threading

    import psutil

    left = [f"task {key}" for key in dask_worker.state.tasks if str(key).startswith("dsgd-")]
    for name, plugin in dask_worker.plugins.items():
        if name.startswith("dsgd-jobs") and len(plugin.store):
            left.append("an open job")
    if not dask_worker.address.startswith(("tcp", "tls")):
        return left
    known = known | {dask_worker.http_server.port}
    for connection in psutil.Process().net_connections(kind="inet"):
        ports = {connection.laddr.port} | ({connection.raddr.port} if connection.raddr else set())
        if connection.status in ("LISTEN", "ESTABLISHED", "CLOSE_WAIT") and not ports & known:
            left.append(f"socket {connection.laddr} {connection.raddr} {connection.status}")
    threads = [thread.name for thread in threading.enumerate() if thread.name.startswith("Dask-Default-Threads")]
    if len(threads) > dask_worker.state.nthreads:
        left.append(f"threads {threads}")
    return left
