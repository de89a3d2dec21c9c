"""What changes in the process of a worker while ranks run there: timers of Dask, and memory that is freed."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from distributed import Client, Scheduler, Worker
from tornado.ioloop import PeriodicCallback

from dsgd.runtime.dask_internals import servers_here
from dsgd.runtime.worker import process
from gang_cluster import on_ranks, start_cluster


def _worker(**periods: float) -> Any:
    return SimpleNamespace(
        periodic_callbacks={name: PeriodicCallback(lambda: None, period) for name, period in periods.items()}
    )


def _periods(worker: Any) -> dict[str, float]:
    return {name: timer.callback_time for name, timer in worker.periodic_callbacks.items()}


def test_timers_are_slow_as_long_as_anybody_wants() -> None:
    """Gangs that share a worker and end in any order, or fail: the last to end restores the periods."""
    periods = {"profile": 10.0, "tick": 2000.0, "heartbeat": 1.0}
    worker, slow, first = _worker(**periods), periods | {"profile": 500.0}, contextlib.ExitStack()
    first.enter_context(process.slow_timers([worker]))
    with contextlib.suppress(ZeroDivisionError), process.slow_timers([worker]):
        assert _periods(worker) == slow
        first.close()
        assert _periods(worker) == slow
        1 / 0  # noqa: B018
    assert _periods(worker) == periods
    assert not process._before


def _look(*_: Any) -> list[dict[str, float]]:
    return [_shortest(server) for kind in (Worker, Scheduler) for server in kind._instances]


def _shortest(server: Any) -> dict[str, float]:
    # Dask itself changes the period of others, of the heartbeat for one, by how many workers there are.
    return {name: period for name, period in _periods(server).items() if name in process._NAMES}


def test_servers_of_dask_have_these_timers() -> None:
    """Those of a real worker and of its scheduler are slow during a job and have their periods again after it."""
    with start_cluster(1, processes=False) as cluster, Client(cluster) as client:
        servers = [cluster.workers[0], cluster.scheduler]
        assert list(servers_here(client)) == servers[::-1]
        before = [_shortest(server) for server in servers]
        assert [set(periods) for periods in before] == [{"profile", "tick"}, {"tick"}]
        assert max(period for periods in before for period in periods.values()) < 500.0
        seen = on_ranks(client, lambda rank, packed: [packed, _look()], pack=_look).value
        after = [_shortest(server) for server in servers]
        with Client(cluster.scheduler_address) as other:
            assert not servers_here(other)
    assert after == before
    for stage in seen:  # packing, training
        assert {"profile": 500.0, "tick": 500.0} in stage
        assert {"tick": 500.0} in stage


_PROGRAM = """
import json, resource
import numpy as np
from dsgd.runtime.worker.process import keep_freed_memory

def faults(size=125_000):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(200):
        np.ones(size)  # a megabyte, 245 pages, or more
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

found = [faults()]
with keep_freed_memory():
    with keep_freed_memory():
        found.append(faults())
    found.append(faults())
found.append(faults(250_000))  # not what would fit where one of those before was
with keep_freed_memory():
    pieces = [np.ones(125_000) for _ in range(100)]
    guard = np.ones(1000)
    del pieces
    held = resident()
given_back = held - resident()
print(json.dumps({"faults": found, "given_back": given_back}))
"""


@pytest.mark.skipif(process._libc() is None, reason="only glibc has thresholds for freed memory")
def test_freed_memory_is_kept_for_a_while() -> None:
    """New pages for every array before and after, next to none within; what is free in the end is given back."""
    environment = {**os.environ, "MALLOC_TRIM_THRESHOLD_": "65536"}
    done = subprocess.run([sys.executable, "-c", _PROGRAM], env=environment, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    before, inner, outer, after = found["faults"]
    assert min(before, after) > 200 * 100
    assert max(inner, outer) < 200 * 10
    assert found["given_back"] > 50 * 2**20
