"""Rank programs on real worker processes: what goes wrong, and that nothing is left of it."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import Client, LocalCluster

import gang_programs as programs
from dsgd.comm.memory import neighbours
from dsgd.comm.wires import shm
from dsgd.errors import ClusterError, GangError, GangTimeoutError, InvalidDataError, RankError, WorkerLostError
from dsgd.runtime import Timeouts
from dsgd.runtime.gang.cluster import Cluster
from forks import forking
from gang_cluster import (
    assert_clean,
    client_fixture,
    cluster_fixture,
    on_ranks,
    once,
    rank_workers,
    signal_rank,
    wait_until,
)

pytestmark = pytest.mark.cluster

cluster = cluster_fixture(2)
client = client_fixture(2, hurt=True)


@pytest.mark.parametrize("program", [programs.spin, programs.work_alone], ids=["talking", "computing"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_worker_is_named(client: Client, rank: int, program: Any) -> None:
    """SIGKILL of a rank's process gives an error with its rank, worker and host, whatever the others do."""
    killed: list[str] = []
    listener = once(lambda: killed.append(signal_rank(client, rank, signal.SIGKILL)[0]))
    with pytest.raises(WorkerLostError) as caught:
        on_ranks(client, program, 60.0, on_event=listener)
    assert (caught.value.rank, caught.value.worker, caught.value.host) == (rank, killed[0], "127.0.0.1")


@pytest.mark.parametrize("culprit", [0, 1])
def test_a_rank_that_raises_is_the_cause(client: Client, culprit: int) -> None:
    """The client gets the first error with its origin and traceback, not the echo of the other rank."""
    with pytest.raises(RankError, match=r"ZeroDivisionError") as caught:
        on_ranks(client, programs.fail, culprit, "zero")
    assert caught.value.rank == culprit
    assert caught.value.worker.startswith("tcp://127.0.0.1:")
    assert caught.value.host == "127.0.0.1"
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert "gang_programs.py" in caught.value.cause


def test_an_error_for_the_user_is_raised_as_itself(client: Client) -> None:
    """An error of this library keeps its type, and a note says where it came from."""
    with pytest.raises(InvalidDataError, match="row 7 is bad") as caught:
        on_ranks(client, programs.fail, 1, "data")
    assert caught.value.__notes__[0].startswith("raised by rank 1 on worker tcp://127.0.0.1:")
    with pytest.raises(InvalidDataError, match="cannot pack"):
        on_ranks(client, programs.spin, 60.0, pack=programs.fail_to_pack)


@pytest.mark.parametrize("when", ["meeting", "running"])
def test_a_failed_rank_keeps_no_memory_until_it_is_collected(client: Client, when: str) -> None:
    """A frame that an error has passed may hold that error: shared memory must not wait for the garbage collector."""
    client.run(gc.disable)
    client.run(_fail_while_meeting, when == "meeting")
    try:
        with pytest.raises(RankError, match="held by a frame"):
            on_ranks(client, programs.fail, 1, "circle")
        wait_until(lambda: [line for lines in client.run(_shared_maps).values() for line in lines])
    finally:
        client.run(_fail_while_meeting, False)
        client.run(gc.enable)


def _fail_while_meeting(fails: bool) -> None:
    """Let ranks fail, or not, when they have just shared memory."""

    def join(*args: Any, **options: Any) -> Any:
        found = [neighbours.join_neighbours(*args, **options), ValueError("held by a frame that it holds")]
        raise found[1]

    shm.join_neighbours = join if fails else neighbours.join_neighbours


def _shared_maps() -> list[str]:
    maps = Path("/proc/self/maps")
    return [line for line in maps.read_text().splitlines() if "/dev/shm/dsgd-" in line] if maps.exists() else []


@pytest.mark.parametrize(
    ("job", "name"),
    [
        ((programs.fail, 1, "odd"), "OddError"),
        ((programs.fail, 1, "interrupt"), "KeyboardInterrupt"),
        ((programs.unpicklable,), "pickle"),
    ],
)
def test_odd_errors_and_results_arrive_as_text(client: Client, job: tuple[Any, ...], name: str) -> None:
    """What cannot be pickled, or must not be raised on the client, arrives within a RankError."""
    with pytest.raises(RankError, match=name) as caught:
        on_ranks(client, *job)
    assert caught.value.rank == (job[0] is programs.fail)


def test_a_listener_that_raises_stops_the_job(client: Client) -> None:
    """What on_event raises comes out of run_on_cluster."""

    def stop() -> None:
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        on_ranks(client, programs.spin, 60.0, on_event=once(stop))


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        (Timeouts(peer=1.0), r"rank 0 waited 1 s for rank 1"),
        pytest.param(
            Timeouts(hung=3.0),
            r"rank 1 on worker tcp://.* hangs: .*not heard of for \d+\.\d s",
            marks=pytest.mark.slow,
        ),
    ],
    ids=["by its peer", "by its heartbeats"],
)
def test_a_hung_rank_is_named(client: Client, limits: Timeouts, says: str) -> None:
    """A rank that is stopped, not dead, is found by a peer that waits, or by the heartbeats of its worker before."""
    stopped: list[int] = []
    begin: list[float] = []

    def stop() -> None:
        stopped.append(signal_rank(client, 1, signal.SIGSTOP)[1])
        begin.append(time.monotonic())

    try:
        with pytest.raises(GangTimeoutError, match=says) as caught:
            on_ranks(client, programs.spin, 60.0, timeouts=limits, on_event=once(stop))
        assert time.monotonic() - begin[0] < 20.0
    finally:
        os.kill(stopped[0], signal.SIGCONT)
    assert limits.peer is None or caught.value.__notes__[0].startswith("raised by rank 0")


def test_a_long_kernel_is_no_hung_rank(client: Client) -> None:
    """A rank that computes without the interpreter lock for longer than the limit is left alone."""
    result = on_ranks(client, programs.compute, 4.0, timeouts=Timeouts(hung=2.5))
    assert result.value == 2.0


def test_a_worker_that_is_at_work_is_no_hung_rank(client: Client) -> None:
    """An event loop that is too busy to send heartbeats ends no job, unless it is for four times as long."""

    def keep_busy() -> None:
        [worker] = rank_workers(client)[1:]
        client.run(programs.keep_loop_busy, 5.0, workers=[worker])

    begin = time.monotonic()
    assert on_ranks(client, programs.spin, 6.0, timeouts=Timeouts(hung=2.0), on_event=once(keep_busy)).value > 0
    assert time.monotonic() - begin >= 5.0


@pytest.mark.slow
def test_a_clock_that_is_set_back_is_no_hung_rank(client: Client) -> None:
    """A wall clock that jumps back by an hour, and with it the timers of Dask that rest, ends no job and no wait."""
    moved: list[str] = []

    def set_back() -> None:
        moved.extend(rank_workers(client)[1:])
        client.run(programs.move_clock, -3600.0, workers=moved)

    cluster = Cluster(client)
    try:
        result = on_ranks(client, programs.spin, 3.0, timeouts=Timeouts(hung=1.5), on_event=once(set_back))
        assert result.value > 0
        silences = []
        for _ in range(5):
            silences.append(cluster.silence(moved)[0])
            time.sleep(0.5)
        assert max(silences) < 1.5
    finally:
        client.run(programs.move_clock, 3600.0, workers=moved)
        client.run(programs.restart_timers, workers=moved)


def test_a_cancelled_rank_stops_the_gang(client: Client) -> None:
    """Cancelling a rank's task from elsewhere stops all ranks, with an error that says so."""
    listener = once(lambda: client.run_on_scheduler(_cancel_ranks))
    with pytest.raises((GangError, ClusterError), match="cancelled"):
        on_ranks(client, programs.spin, 60.0, on_event=listener)


def _cancel_ranks(dask_scheduler: Any) -> None:
    keys = [key for key in dask_scheduler.tasks if str(key).startswith("dsgd-rank-")]
    for client in list(dask_scheduler.clients):
        dask_scheduler.stimulus_cancel(keys=keys, client=client, force=True, reason="test", msg="")


def run_in_process(say: Connection, address: str, program: str, lease: str) -> None:
    """Run a job, say when it runs and how it ends, and after an interrupt run another one when asked to."""
    # Tests that run in the background of a shell inherit that ctrl-C is ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    listen = once(lambda: say.send("running"))
    # The client's own thread hears the signals; nothing else here may be hit by one.
    with Client(address, set_as_default=False) as client, dask.config.set({"dsgd.runtime.timeouts.lease": lease}):
        try:
            try:
                on_ranks(client, getattr(programs, program), 60.0, on_event=listen)
            finally:
                wait_for_calm()
        except KeyboardInterrupt:
            say.send("interrupted")
            say.recv()
            say.send(int(on_ranks(client, programs.add_up).value[0]))
        except GangError as error:
            say.send(str(error))


@pytest.fixture
def running(cluster: LocalCluster) -> Iterator[Callable[..., tuple[BaseProcess, Connection]]]:
    """Give a function that starts a client process with a running job."""
    with contextlib.ExitStack() as cleanup:

        def start(program: str, lease: str = "60s") -> tuple[BaseProcess, Connection]:
            ours, theirs = forking().Pipe()
            process = forking().Process(target=run_in_process, args=(theirs, cluster.scheduler_address, program, lease))
            process.start()
            theirs.close()
            cleanup.callback(ours.close)
            cleanup.callback(process.join, 30.0)
            cleanup.callback(process.kill)
            assert ours.poll(60.0)
            assert ours.recv() == "running"
            return process, ours

        yield start


@pytest.mark.parametrize(("program", "gaps_ms"), [("work_alone", ()), ("spin", ()), ("spin", (0,)), ("spin", (12, 12))])
def test_interrupts_leave_nothing(client: Client, running: Any, program: str, gaps_ms: tuple[int, ...]) -> None:
    """SIGINT stops the job, and more of them leave no lease, though its client lives on, and that fits again."""
    process, pipe = running(program)
    os.kill(process.pid, signal.SIGINT)
    for gap_ms in gaps_ms:
        time.sleep(gap_ms / 1000)
        os.kill(process.pid, signal.SIGINT)
    assert pipe.poll(30.0)
    assert pipe.recv() == "interrupted"
    assert_clean(client)
    pipe.send("again")
    assert pipe.poll(60.0)
    assert pipe.recv() == 2
    process.join(30.0)
    assert process.exitcode == 0


def wait_for_calm() -> None:
    """Return when no interrupt has come for a while."""
    until = time.monotonic() + 0.5
    while time.monotonic() < until:
        try:
            time.sleep(0.05)
        except KeyboardInterrupt:
            until = time.monotonic() + 0.5


@pytest.mark.parametrize("program", ["spin", "work_alone"])
def test_ranks_stop_when_the_client_is_killed(client: Client, running: Any, program: str) -> None:
    """SIGKILL of the client leaves no rank running."""
    process, _ = running(program)
    process.kill()
    process.join(30.0)
    assert_clean(client)
