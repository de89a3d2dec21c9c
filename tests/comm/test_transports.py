"""What every transport promises: arrays arrive, mistakes and losses become errors, waits end."""

from __future__ import annotations

import os
import signal
import threading
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dsgd.comm.base import AbstractTransport
from dsgd.comm.frames import AbortFlag
from dsgd.comm.sockets.link import charge_exchange
from dsgd.comm.wires import inproc
from dsgd.errors import AbortedError, GangTimeoutError, InvalidParameterError, ProtocolError
from dsgd.ledger import RankLedger
from gangs import SHARED, gang, process_gang, raise_first, run_gang, run_ranks, sum_of

KINDS = ("inproc", "tcp", "wrapped", "tls", "rpc", "files", *SHARED)
each_kind = pytest.mark.parametrize("kind", KINDS)


def later(seconds: float, call: Any) -> threading.Timer:
    timer = threading.Timer(seconds, call)
    timer.start()
    return timer


@each_kind
@pytest.mark.parametrize("n", [0, 1, 1000, 70_000, 1_048_576])
def test_large_arrays_move_both_ways_at_once(kind: str, n: int) -> None:
    """Two ranks that send before they receive never block each other, whatever the size; buffers may be reused."""

    def program(transport: AbstractTransport) -> None:
        peer = 1 - transport.rank
        mine, theirs = np.empty(n), np.empty(n)
        for number in range(3):
            mine.fill(10 * transport.rank + number)
            theirs.fill(np.nan)
            transport.exchange(peer, mine, peer, theirs)
            mine.fill(-1.0)
            np.testing.assert_array_equal(theirs, np.full(n, 10.0 * peer + number))

    with gang(kind, 2) as transports:
        raise_first(run_ranks([lambda t=t: program(t) for t in transports]))


@each_kind
def test_one_way_messages_arrive_in_order(kind: str) -> None:
    """Send and recv are halves of an exchange, and messages of one sender do not overtake each other."""

    def program(transport: AbstractTransport) -> list[float]:
        seen = []
        for number, n in enumerate((1, 200_000, 0, 5)):
            if transport.rank == 0:
                transport.send(1, np.full(n, float(number)))
            else:
                array = np.empty(n)
                transport.recv(0, array)
                assert (array == number).all()
                seen.append(number)
        return seen

    with gang(kind, 2) as transports:
        assert raise_first(run_ranks([lambda t=t: program(t) for t in transports]))[1] == [0, 1, 2, 3]


@each_kind
@pytest.mark.parametrize(
    ("sent", "op", "says"),
    [
        (np.zeros(4, dtype=np.float32), 1, "dtype float64, got float32"),
        (np.zeros(3), 1, "size 32 bytes, got 24 bytes"),
        (np.zeros(5), 1, "size 32 bytes, got 40 bytes"),
        (np.zeros(100_000), 1, "size 32 bytes, got 800000 bytes"),
        (np.zeros(4), 2, "operation allreduce, got broadcast"),
    ],
)
def test_ranks_at_different_points_notice(kind: str, sent: np.ndarray, op: int, says: str) -> None:
    """Another dtype, size or operation than the one due is an error that says what was expected and got."""
    with gang(kind, 2) as (zero, one):

        def receive() -> None:
            try:
                zero.recv(1, np.zeros(4), op=1)
            finally:
                zero.close()

        results = run_ranks([receive, lambda: one.send(0, sent, op=op)])
    assert isinstance(results[0], ProtocolError)
    assert says in str(results[0])
    assert "rank 1" in str(results[0])


@each_kind
def test_a_silent_peer_is_named_when_the_deadline_passes(kind: str) -> None:
    """A rank that waits for one that does nothing gives up after its deadline and says which rank it was."""
    with gang(kind, 3, timeout_s=0.3) as transports:
        begin = time.monotonic()
        with pytest.raises(GangTimeoutError, match=r"rank 0 waited 0\.3 s for rank 2"):
            transports[0].recv(2, np.zeros(4))
        assert time.monotonic() - begin < 10.0


@each_kind
@pytest.mark.parametrize("n", [4, 100_000])
def test_a_deadline_may_be_changed(kind: str, n: int) -> None:
    """From the next wait on a rank gives up after its new deadline, on short frames and on long ones."""
    with gang(kind, 3, timeout_s=60.0) as transports:
        transports[0].set_deadline(0.2)
        assert transports[0].deadline_s == 0.2
        with pytest.raises(GangTimeoutError, match=r"rank 0 waited 0\.2 s for rank 1"):
            transports[0].recv(1, np.zeros(n))
        assert transports[1].deadline_s == 60.0
        with pytest.raises(InvalidParameterError, match=r"deadline_s=\.\.\. must be a positive number"):
            transports[1].set_deadline(0.0)


@each_kind
@pytest.mark.parametrize("n", [4, 1_000_000])
def test_a_peer_that_goes_away_is_named_at_once(kind: str, n: int) -> None:
    """A rank that waits for one that closes is told so long before its deadline."""
    with gang(kind, 2, timeout_s=30.0) as transports:
        timer = later(0.2, transports[1].close)
        begin = time.monotonic()
        with pytest.raises(AbortedError, match=r"rank 1 .*went away"):
            transports[0].exchange(1, np.zeros(n), 1, np.zeros(n))
        assert time.monotonic() - begin < 10.0
        timer.join()
        with pytest.raises(AbortedError):
            transports[0].recv(1, np.zeros(n))


@each_kind
@pytest.mark.parametrize("n", [4, 1_000_000])
def test_an_abort_wakes_a_rank_that_waits(kind: str, n: int) -> None:
    """A flag set from another thread ends the wait at once, with its reason; no exchange is possible after it."""
    aborts = [AbortFlag(), AbortFlag()]
    with gang(kind, 2, timeout_s=30.0, aborts=aborts) as transports:
        timer = later(0.2, lambda: aborts[0].set("the client went away"))
        begin = time.monotonic()
        with pytest.raises(AbortedError, match="the client went away"):
            transports[0].exchange(1, np.zeros(n), 1, np.zeros(n))
        assert time.monotonic() - begin < 10.0
        timer.join()
        with pytest.raises(AbortedError, match="the client went away"):
            transports[0].send(1, np.zeros(n))


@each_kind
def test_waiting_is_recorded_apart_from_moving(kind: str) -> None:
    """Time until the peer is there counts as wait; bytes sent are counted with their header."""
    with gang(kind, 2) as transports:

        def program(transport: AbstractTransport) -> dict[str, float]:
            peer = 1 - transport.rank
            for number in range(2):
                transport.ledger.begin_round("sync")
                if number == 1 and transport.rank == 1:
                    time.sleep(0.3)
                transport.exchange(peer, np.zeros(10), peer, np.zeros(10))
                transport.ledger.end_round()
            return transport.ledger.records().totals

        patient, late = raise_first(run_ranks([lambda t=t: program(t) for t in transports]))
    assert 0.25 < patient["wait_s"] < 5.0
    assert patient["wire_s"] >= 0.0
    assert patient["bytes_sent"] == late["bytes_sent"] == 2 * (80 + 40)
    assert patient["messages"] == 2


def test_the_way_of_a_frame_is_no_wait() -> None:
    """Of what passes until a frame is there its latency is wire; a peer that was early was not waited for."""
    for arrived_at, wait_s in ((3.0, 2.0), (0.5, 0.0)):
        ledger = RankLedger(0, clock=lambda: 5.0)
        ledger.begin_round("sync")
        charge_exchange(ledger, 0.0, arrived_at, SimpleNamespace(latency_s=1.0))  # type: ignore[arg-type]
        ledger.end_round()
        totals = ledger.records().totals
        assert (totals["wait_s"], totals["wire_s"]) == (wait_s, 5.0 - wait_s)


@each_kind
def test_arrays_that_cannot_travel_are_refused(kind: str) -> None:
    """An unknown dtype or a strided array is an error of the caller, not of the gang."""
    with gang(kind, 2) as transports:
        for array in (np.zeros(3, np.complex64), np.zeros(3, object), np.zeros(3, ">f8"), np.zeros((3, 3)).T[1:]):
            with pytest.raises(InvalidParameterError):
                transports[0].send(1, array)
            with pytest.raises(InvalidParameterError):
                transports[0].exchange(1, np.zeros(3), 1, array)
        for nobody in (0, 2, -1):
            with pytest.raises(InvalidParameterError, match=f"no peer {nobody}"):
                transports[0].send(nobody, np.zeros(3))
        received = np.empty(3)
        raise_first(run_ranks([lambda: transports[0].send(1, np.ones(3)), lambda: transports[1].recv(0, received)]))
        assert received.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("kind", ["tcp", "shm"])
def test_processes_sum_as_threads_do(kind: str) -> None:
    """Ranks in processes of their own get the bits that threads get."""

    def program(group: Any) -> list[bytes]:
        return [sum_of(group, n, seed) for seed, n in enumerate((0, 1, 7, 1000, 100_000))]

    with process_gang(3, "sums", kind=kind) as (group, _, pipes):
        assert [program(group), *(pipe.recv() for pipe in pipes)] == run_gang("inproc", 3, program)


#: What joins processes, and the length of the frames that they exchange.
each_process = pytest.mark.parametrize(("kind", "n"), [("tcp", 128), ("shm", 300_000), ("spin", 4)])


@each_process
@pytest.mark.parametrize("does", ["mute", "rounds"])
def test_a_killed_process_is_noticed_at_once(kind: str, n: int, does: str) -> None:
    """SIGKILL of a peer, at rest or in the middle of rounds, is soon an error that names it; nothing is left behind."""
    with process_gang(2, does, timeout_s=60.0, kind=kind) as (group, (process,), _):
        vector = np.zeros(n if does == "mute" else 1_000_000)

        def sum_for_ever() -> None:
            while True:
                group.allreduce(vector)

        timer = later(0.2, process.kill)
        begin = time.monotonic()
        with pytest.raises(AbortedError, match=r"rank 1 .*went away"):
            sum_for_ever()
        assert time.monotonic() - begin < 10.0
        timer.join()


@each_process
def test_a_stopped_process_is_caught_by_the_deadline(kind: str, n: int) -> None:
    """A peer that hangs (SIGSTOP) is named when the deadline passes, short of it nothing happens."""
    with process_gang(2, "mute", timeout_s=0.5, kind=kind) as (group, (process,), _):
        os.kill(process.pid, signal.SIGSTOP)
        try:
            with pytest.raises(GangTimeoutError, match=r"rank 0 waited 0\.5 s for rank 1"):
                group.allreduce(np.ones(n))
        finally:
            os.kill(process.pid, signal.SIGCONT)


@each_kind
def test_closing_twice_is_closing(kind: str) -> None:
    """Close may be called again, and nothing can be exchanged after it."""
    with gang(kind, 2) as transports:
        for transport in transports:
            transport.close()
            transport.close()
        with pytest.raises(AbortedError, match="has closed"):
            transports[0].recv(1, np.zeros(1))


def test_settings_of_a_gang_are_checked() -> None:
    """Impossible settings of the in-process gang are refused by name."""
    with pytest.raises(InvalidParameterError, match="n="):
        inproc.connect(0)
    with pytest.raises(InvalidParameterError, match="timeout_s="):
        inproc.connect(1, timeout_s=0.0)
    with pytest.raises(InvalidParameterError, match="ledgers="):
        inproc.connect(2, ledgers=[RankLedger(0)])
