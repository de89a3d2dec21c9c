"""What a job does to others who use the same cluster: nothing, whatever becomes of it."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection
from functools import partial
from typing import Any

import numpy as np
import pytest
from distributed import Client, LocalCluster

import gang_programs as programs
from dsgd.runtime import Restart, Shrink, Timeouts
from gang_cluster import client_fixture, cluster_fixture, on_ranks, once, signal_rank, wait_until

pytestmark = pytest.mark.cluster

cluster = cluster_fixture(3)
client = client_fixture(3)


class Neighbour:
    """Another user of the cluster, who keeps an object on every worker and knows its process."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.pids: dict[str, int] = client.run(os.getpid)
        self.kept = {worker: client.scatter([worker], workers=[worker], hash=False)[0] for worker in self.pids}

    def losses(self, hit: Collection[str]) -> list[str]:
        """Return which workers but those that were hit ended, or lost what was kept there."""
        holders = self.client.run_on_scheduler(_holders, [future.key for future in self.kept.values()])
        alive: dict[str, int] = self.client.run(os.getpid, on_error="ignore")
        return [
            worker
            for worker, pid in self.pids.items()
            if worker not in hit and (alive.get(worker) != pid or not holders[self.kept[worker].key])
        ]


def _holders(keys: list[str], dask_scheduler: Any) -> dict[str, list[str]]:
    tasks = dask_scheduler.tasks
    return {key: [ws.address for ws in tasks[key].who_has or ()] if key in tasks else [] for key in keys}


@pytest.fixture
def neighbour(cluster: LocalCluster, client: Client) -> Any:
    """Give another user of the same cluster."""
    with Client(cluster, set_as_default=False) as other:
        yield Neighbour(other)


def check_unharmed(neighbour: Neighbour, *but: str) -> None:
    """Fail if a worker, `but` for these, is another process, has lost what it kept, or takes no tasks."""
    wait_until(lambda: neighbour.losses(but))
    running = neighbour.client.run_on_scheduler(lambda dask_scheduler: {ws.address for ws in dask_scheduler.running})
    assert set(neighbour.pids) - running <= set(but)


def _block(k: int) -> Any:
    return np.full((4, 3), float(k)), np.zeros(4), None


@pytest.mark.slow
def test_a_function_of_another_user_costs_it_no_worker(client: Client, neighbour: Neighbour) -> None:
    """A worker whose interpreter another user's function holds for too long is done without, and stays."""
    begun: list[Any] = []
    hold = partial(neighbour.client.submit, programs.hold_lock, 9, workers=sorted(neighbour.pids)[1:2], pure=False)
    with pytest.warns(RuntimeWarning, match="hangs; training goes on with 2 ranks and all rows"):
        result = on_ranks(
            client,
            programs.count_starts,
            3.0,
            blocks=client.map(_block, range(3), pure=False),
            on_event=once(lambda: begun.append(hold())),
            on_failure="restart",
            timeouts=Timeouts(hung=1.5),
        )
    assert result.value == 2
    assert sum(stats["n_blocks"] for stats in result.stats) == 3
    assert begun[0].result(timeout=60) == "held"
    wait_until(lambda: client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.running) < 3), 30.0)
    check_unharmed(neighbour)


@pytest.mark.parametrize("policy", [Restart, Shrink])
def test_a_hung_worker_is_removed_where_that_is_asked_for(
    client: Client, neighbour: Neighbour, policy: type[Restart | Shrink]
) -> None:
    """A stopped worker is lost when it was silent too long; with remove_hung=True it leaves, and no other one."""
    stopped: list[tuple[str, int]] = []
    try:
        with pytest.warns(RuntimeWarning, match="hangs; training goes on"):
            result = on_ranks(
                client,
                programs.count_starts,
                0.5,
                blocks=client.map(_block, range(3), pure=False),
                on_event=once(lambda: stopped.append(signal_rank(neighbour.client, 1, signal.SIGSTOP))),
                on_failure=policy(remove_hung=True),
                timeouts=Timeouts(hung=3.0),
            )
        assert result.value == 2
        assert sum(stats["n_blocks"] for stats in result.stats) == (3 if policy is Restart else 2)
        assert stopped[0][0] not in client.nthreads()
    finally:
        os.kill(stopped[0][1], signal.SIGKILL)
    check_unharmed(neighbour, stopped[0][0])
