"""What a job does to others who use the same cluster: nothing, whatever becomes of it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from distributed import Client, LocalCluster

import gang_programs as programs
from dsgd.runtime import Restart, Shrink, Timeouts
from dsgd.runtime.timeouts import FailurePolicy
from gang_cluster import client_fixture, cluster_fixture, on_ranks, signal_rank, wait_until

pytestmark = pytest.mark.cluster

cluster = cluster_fixture(3)
client = client_fixture(3)


class Neighbour:
    """Another user of the cluster, who keeps a value on every worker."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.workers = sorted(client.nthreads())
        self.pids = client.run(os.getpid)
        self.kept = {
            worker: client.scatter([f"kept on {worker}"], workers=[worker], hash=False)[0] for worker in self.workers
        }

    def check_unharmed(self, *, but: str = "") -> None:
        """Fail if a worker, `but` for one, is another process or has lost its value."""
        others = [worker for worker in self.workers if worker != but]
        wait_until(lambda: set(others) - set(self.client.nthreads()))
        assert self.client.run(os.getpid, workers=others) == {worker: self.pids[worker] for worker in others}
        for worker in others:
            assert self.kept[worker].result(timeout=20) == f"kept on {worker}"
        assert self.client.run_on_scheduler(_statuses).items() >= dict.fromkeys(others, "running").items()


def _statuses(dask_scheduler: Any) -> dict[str, str]:
    return {ws.address: ws.status.name for ws in dask_scheduler.workers.values()}


@pytest.fixture
def neighbour(cluster: LocalCluster, client: Client) -> Any:
    """Give another user of the same cluster."""
    with Client(cluster, set_as_default=False) as other:
        yield Neighbour(other)


def _block(k: int) -> Any:
    return np.full((4, 3), float(k)), np.zeros(4), None


def started_members(dask_scheduler: Any) -> int:
    """Return how many members of the running job have begun."""
    plugins = [plugin for name, plugin in dask_scheduler.plugins.items() if name.startswith("dsgd-gangs")]
    return sum(len(job.started) for plugin in plugins for job in plugin.registry.jobs.values())


@pytest.mark.parametrize("policy", ["restart", "shrink"])
@pytest.mark.slow
def test_workers_that_are_late_are_waited_for(client: Client, neighbour: Neighbour, policy: FailurePolicy) -> None:
    """Workers that are packing when another one is killed are not affected, and the job continues there."""
    killed: list[str] = []
    # Longer than the five seconds after which late workers were once removed.
    client.run(programs.be_slow, 6.0)

    def kill() -> None:
        wait_until(lambda: neighbour.client.run_on_scheduler(started_members) < 3, 30.0)
        killed.append(signal_rank(neighbour.client, 2)[0])

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.warns(RuntimeWarning, match="rank 2 .* was lost; training goes on"):
        result = on_ranks(
            client,
            programs.count_starts,
            0.2,
            blocks=client.map(_block, range(3), pure=False),
            pack=programs.keep_slowly,
            on_failure=policy,
        )
    killer.join()
    assert result.value in (2, 3)
    assert sum(stats["n_blocks"] for stats in result.stats) == (2 if policy == "shrink" else 3)
    neighbour.check_unharmed(but=killed[0])


@pytest.mark.slow
def test_a_function_of_another_user_costs_it_no_worker(client: Client, neighbour: Neighbour) -> None:
    """A worker whose interpreter another user's function holds for too long is done without, and stays."""
    begun: list[Any] = []

    def hold(event: Mapping[str, Any]) -> None:
        if "begun" in event and not begun:
            worker = neighbour.workers[1]
            begun.append(neighbour.client.submit(programs.hold_lock, 9, workers=[worker], pure=False))

    with pytest.warns(RuntimeWarning, match="hangs; training goes on with 2 ranks and all rows"):
        result = on_ranks(
            client,
            programs.count_starts,
            3.0,
            blocks=client.map(_block, range(3), pure=False),
            on_event=hold,
            on_failure="restart",
            timeouts=Timeouts(hung=3.0),
        )
    assert result.value == 2
    assert sum(stats["n_blocks"] for stats in result.stats) == 3
    assert begun[0].result(timeout=60) == "held"
    wait_until(lambda: set(client.run_on_scheduler(_statuses).values()) - {"running"}, 30.0)
    neighbour.check_unharmed()


@pytest.mark.parametrize("policy", [Restart, Shrink])
def test_a_hung_worker_is_removed_where_that_is_asked_for(
    client: Client, neighbour: Neighbour, policy: type[Restart | Shrink]
) -> None:
    """A stopped worker is lost when it was silent too long; with remove_hung=True it leaves, and no other one."""
    stopped: list[tuple[str, int]] = []

    def stop(event: Mapping[str, Any]) -> None:
        if "begun" in event and not stopped:
            stopped.append(signal_rank(neighbour.client, 1, signal.SIGSTOP))

    try:
        with pytest.warns(RuntimeWarning, match="hangs; training goes on"):
            result = on_ranks(
                client,
                programs.count_starts,
                0.5,
                blocks=client.map(_block, range(3), pure=False),
                on_event=stop,
                on_failure=policy(remove_hung=True),
                timeouts=Timeouts(hung=3.0),
            )
        assert result.value == 2
        assert sum(stats["n_blocks"] for stats in result.stats) == (3 if policy is Restart else 2)
        assert stopped[0][0] not in client.nthreads()
    finally:
        os.kill(stopped[0][1], signal.SIGKILL)
    neighbour.check_unharmed(but=stopped[0][0])
