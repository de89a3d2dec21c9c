"""What a job does to others who use the same cluster: nothing, whatever becomes of it."""

from __future__ import annotations

import os
import signal
import threading
from functools import partial
from typing import Any

import numpy as np
import pytest
from distributed import Client, LocalCluster

import gang_programs as programs
from chaos.neighbour import Neighbour
from dsgd.runtime import Restart, Shrink, Timeouts
from dsgd.runtime.timeouts import FailurePolicy
from gang_cluster import client_fixture, cluster_fixture, n_started, on_ranks, once, signal_rank, wait_until

pytestmark = pytest.mark.cluster

cluster = cluster_fixture(3)
client = client_fixture(3)


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


@pytest.mark.parametrize("policy", ["restart", "shrink"])
@pytest.mark.slow
def test_workers_that_are_late_are_waited_for(client: Client, neighbour: Neighbour, policy: FailurePolicy) -> None:
    """Workers that are packing when another one is killed are not affected, and the job continues there."""
    killed: list[str] = []
    # Longer than the five seconds after which late workers were once removed.
    client.run(programs.be_slow, 6.0)

    def kill() -> None:
        wait_until(lambda: neighbour.client.run_on_scheduler(n_started) < 3, 30.0)
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
    check_unharmed(neighbour, killed[0])


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
