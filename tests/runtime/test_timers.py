"""Dask's shortest timers of a worker: slow while ranks run there, as before when they have ended."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

from distributed import Client, Scheduler, Worker
from tornado.ioloop import PeriodicCallback

from dsgd.runtime.dask_internals import servers_here
from dsgd.runtime.worker import timers
from gang_cluster import on_ranks, start_cluster


def _worker(**periods: float) -> Any:
    return SimpleNamespace(
        periodic_callbacks={name: PeriodicCallback(lambda: None, period) for name, period in periods.items()}
    )


def _periods(worker: Any) -> dict[str, float]:
    return {name: timer.callback_time for name, timer in worker.periodic_callbacks.items()}


def test_timers_are_slow_as_long_as_anybody_wants() -> None:
    """Gangs that share a worker and end in any order: the last to end restores the periods."""
    worker = _worker(profile=10.0, tick=20.0, heartbeat=1.0)
    slow = {"profile": 500.0, "tick": 500.0, "heartbeat": 1.0}
    first, second = timers.slow_timers([worker]), timers.slow_timers([worker])
    for context in (first, second):
        context.__enter__()
        assert _periods(worker) == slow
    first.__exit__(None, None, None)
    assert _periods(worker) == slow
    second.__exit__(None, None, None)
    assert _periods(worker) == {"profile": 10.0, "tick": 20.0, "heartbeat": 1.0}
    assert not timers._before


def test_slower_and_missing_timers_are_left_alone() -> None:
    """The configuration may have made a timer slower already, or have turned it off."""
    worker = _worker(tick=2000.0)
    with timers.slow_timers([worker]):
        assert _periods(worker) == {"tick": 2000.0}
    assert _periods(worker) == {"tick": 2000.0}


def test_timers_are_restored_after_an_error() -> None:
    """A job that fails leaves nothing behind."""
    worker = _worker(tick=20.0)
    with contextlib.suppress(ZeroDivisionError), timers.slow_timers([worker]):
        assert _periods(worker) == {"tick": 500.0}
        1 / 0  # noqa: B018
    assert _periods(worker) == {"tick": 20.0}


def _look(*_: Any) -> list[dict[str, float]]:
    return [_shortest(server) for kind in (Worker, Scheduler) for server in kind._instances]


def _shortest(server: Any) -> dict[str, float]:
    # Dask itself changes the period of others, of the heartbeat for one, by how many workers there are.
    return {name: period for name, period in _periods(server).items() if name in timers._NAMES}


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
