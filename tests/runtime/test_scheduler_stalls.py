"""Schedulers in processes of their own that stand still, which costs no fit, or die, which ends it with an error."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from distributed import Client

import gang_programs as programs
from dsgd.errors import ClusterUnreachableError
from dsgd.runtime import Timeouts
from gang_cluster import assert_clean, n_started, on_ranks, once, wait_until

pytestmark = pytest.mark.cluster


@contextlib.contextmanager
def running_cluster(folder: Path) -> Iterator[tuple[int, Client]]:
    """Give the process of a scheduler and a client; workers give up short calls of the scheduler after a second."""
    there = f"--scheduler-file={folder / 'scheduler.json'}"
    commands = [["scheduler", "--port=0", "--no-dashboard", there]]
    commands += [["worker", "--nthreads=1", "--memory-limit=0", "--no-dashboard", there]] * 2
    started = []
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    try:
        for kind, *options in commands:
            command = [sys.executable, "-m", f"distributed.cli.dask_{kind}", *options]
            started.append(subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL))
        wait_until(lambda: not (folder / "scheduler.json").exists(), 60.0)
        with Client(scheduler_file=str(folder / "scheduler.json"), set_as_default=False, timeout=8) as client:
            client.wait_for_workers(2, timeout=60)
            on_ranks(client, programs.add_up)
            client.run(programs.expect_answers_within, 1.0)
            yield started[0].pid, client
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait(30.0)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Client]]:
    """A cluster for all tests whose scheduler wakes again."""
    with running_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@contextlib.contextmanager
def asleep(pid: int, seconds: float) -> Iterator[Callable[[], None]]:
    """Give a function that stops the scheduler for some seconds, once."""
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


@pytest.mark.slow
def test_a_scheduler_that_slept_blames_nobody(cluster: tuple[int, Client]) -> None:
    """A scheduler that was stopped for longer than a rank may be silent continues the job when it wakes."""
    pid, client = cluster
    with asleep(pid, 6.5) as sleep:
        # Long enough for a process that gets no core for a while, as on a machine with ten times as much load.
        result = on_ranks(client, programs.spin, 7.5, timeouts=Timeouts(hung=5.0), on_event=once(sleep))
        assert result.value > 0
        assert_clean(client)


@pytest.mark.parametrize("stage", ["joining", "the end"])
@pytest.mark.slow
def test_a_scheduler_that_sleeps_long_costs_no_fit(cluster: tuple[int, Client], stage: str) -> None:
    """What ranks have to say to a scheduler that stands still, they say later, and the job is done.

    The stall outlasts short calls (`_CALL_S`, shortened here), and the pause after which the scheduler knows that it
    slept.
    """
    pid, client = cluster
    with asleep(pid, 4.5) as sleep:

        def stop_while_packing() -> None:
            with Client(client.scheduler.address, set_as_default=False) as other:
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
def test_a_worker_that_is_always_late_is_not_hung(cluster: tuple[int, Client]) -> None:
    """On a machine with too much to do heartbeats come late: as late again, and somewhat later, ends no job."""
    _, client = cluster
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


@pytest.mark.slow
def test_a_scheduler_that_is_killed_ends_the_job(tmp_path: Path) -> None:
    """The error says that the cluster is not there any more."""
    with running_cluster(tmp_path) as (pid, client), pytest.raises(ClusterUnreachableError):
        on_ranks(client, programs.spin, 60.0, on_event=once(lambda: os.kill(pid, signal.SIGKILL)))
