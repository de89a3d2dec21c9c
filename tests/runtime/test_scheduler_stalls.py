"""Schedulers that stand still for seconds, on a cluster of their own: nobody is lost, and no fit."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from distributed import Client

import gang_programs as programs
from chaos.harness import Cluster
from dsgd.runtime import Timeouts
from gang_cluster import assert_clean, n_started, on_ranks, once, wait_until

pytestmark = pytest.mark.cluster


@contextlib.contextmanager
def asleep(cluster: Cluster, seconds: float) -> Iterator[Callable[[], None]]:
    """Give a function that stops the scheduler for some seconds, once."""
    pid = cluster.scheduler.pid
    assert pid is not None
    waking = threading.Timer(seconds, os.kill, (pid, signal.SIGCONT))

    def sleep() -> None:
        if not waking.ident:
            os.kill(pid, signal.SIGSTOP)
            waking.start()

    try:
        yield sleep
    finally:
        if waking.ident:
            waking.join()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A cluster whose scheduler is a process; its workers give up short calls of the scheduler after a second."""
    with Cluster(n_workers=2) as cluster:
        with cluster.observer() as client:
            client.wait_for_workers(2, timeout=30)
            client.run(programs.expect_answers_within, 1.0)
        yield cluster


@pytest.mark.slow
def test_a_scheduler_that_slept_blames_nobody(cluster: Cluster) -> None:
    """A scheduler that was stopped for longer than a rank may be silent continues the job when it wakes."""
    with cluster.observer() as client, asleep(cluster, 6.5) as sleep:
        # Long enough for a process that gets no core for a while, as on a machine with ten times as much load.
        result = on_ranks(client, programs.spin, 7.5, timeouts=Timeouts(hung=5.0), on_event=once(sleep))
        assert result.value > 0
        assert_clean(client)


@pytest.mark.parametrize("stage", ["joining", "the end"])
@pytest.mark.slow
def test_a_scheduler_that_sleeps_long_costs_no_fit(cluster: Cluster, stage: str) -> None:
    """What ranks have to say to a scheduler that stands still, they say later, and the job is done.

    The stall outlasts short calls (`_CALL_S`, shortened here), and the pause after which the scheduler knows that it
    slept.
    """
    with cluster.observer() as client, asleep(cluster, 4.5) as sleep:

        def stop_while_packing() -> None:
            with Client(cluster.address, set_as_default=False) as other:
                wait_until(lambda: other.run_on_scheduler(n_started) < 2, 30.0)
                sleep()

        watcher = threading.Thread(target=stop_while_packing)
        joining = stage == "joining"
        if joining:
            watcher.start()
        result = on_ranks(
            client,
            programs.count_starts,
            0.5,
            pack=programs.keep_for_a_while if joining else programs.keep,
            on_event=once(watcher.join if joining else sleep),
        )
        assert result.value == 2
        assert_clean(client)


@pytest.mark.slow
def test_a_worker_that_is_always_late_is_not_hung(cluster: Cluster) -> None:
    """On a machine with too much to do heartbeats come late: as late again, and somewhat later, ends no job."""
    with cluster.observer() as client:
        pid = next(iter(client.run(os.getpid).values()))

        def starve() -> None:
            for seconds in (1.2, 3.0):
                os.kill(pid, signal.SIGSTOP)
                time.sleep(seconds)
                os.kill(pid, signal.SIGCONT)
                time.sleep(1.0)

        starving = threading.Thread(target=starve)
        result = on_ranks(client, programs.spin, 7.0, timeouts=Timeouts(hung=2.0), on_event=once(starving.start))
        starving.join()
        assert result.value > 0
        assert_clean(client)
