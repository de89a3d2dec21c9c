"""Mailboxes: frames whose sender does not wait, over threads and connections of every kind."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from dsgd.comm.base import MAX_OUTSTANDING, AbstractMailbox
from dsgd.comm.frames import HEADER_BYTES, AbortFlag
from dsgd.comm.wires.mailboxes import LinkMailbox, connect_links, connect_threads
from dsgd.errors import AbortedError, GangTimeoutError, InvalidParameterError, ProtocolError
from dsgd.ledger import RankLedger
from gangs import WRAPS, connect_with, gang, raise_first, run_ranks

KINDS = ("inproc", "tcp", "wrapped", "tls", "rpc")


@contextlib.contextmanager
def mailboxes(
    kind: str, n: int, timeout_s: float = 20.0, aborts: Sequence[AbortFlag] | None = None
) -> Iterator[list[AbstractMailbox]]:
    """Give n connected mailboxes, closed at the end."""
    aborts = [AbortFlag() for _ in range(n)] if aborts is None else aborts
    with contextlib.ExitStack() as cleanup:
        if kind == "inproc":
            boxes = connect_threads([RankLedger(rank) for rank in range(n)], aborts, timeout_s)
        elif kind == "rpc":
            meshes = cleanup.enter_context(gang(kind, n, timeout_s, aborts))
            boxes = [LinkMailbox(mesh) for mesh in meshes]
        else:
            options: dict[str, Any] = {"wrap": WRAPS[kind]()} if kind in WRAPS else {}
            boxes = raise_first(connect_with(connect_links, n, timeout_s, aborts, **options))
        for box in boxes:
            cleanup.callback(box.close)
        yield boxes


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def post_many(box: AbstractMailbox, frame: np.ndarray) -> None:
    for _ in range(100):
        box.post(1, frame)


@pytest.mark.parametrize("n", [2, 5, 11])
def test_frames_come_complete_and_in_order(kind: str, n: int) -> None:
    """Whatever lengths and types are posted, each rank takes from each other one what that one has posted, in order."""
    lengths, dtypes = (0, 1, 17, 30_000), (np.float64, np.float32, np.uint8)

    def frame(source: int, to: int, number: int) -> np.ndarray:
        rng = np.random.default_rng((source, to, number))
        return rng.integers(0, 100, size=lengths[number % 4]).astype(dtypes[number % 3])

    def program(box: AbstractMailbox) -> None:
        peers = [rank for rank in range(n) if rank != box.rank]
        for number in range(MAX_OUTSTANDING):
            for to in peers:
                box.post(to, frame(box.rank, to, number), op=number)
        left = dict.fromkeys(peers, 0)
        while left:
            source = box.wait_any(list(left))
            expected = frame(source, box.rank, left[source])
            out = np.empty_like(expected)
            box.take(source, out, op=left[source])
            np.testing.assert_array_equal(out, expected)
            left[source] += 1
            if left[source] == MAX_OUTSTANDING:
                del left[source]

    with mailboxes(kind, n) as boxes:
        raise_first(run_ranks([lambda box=box: program(box) for box in boxes]))


def test_ranks_of_a_large_gang_are_connected_by_their_mail() -> None:
    """Who waits for mail of several ranks gets that of the one that posts, and only ranks with mail are connected."""
    with mailboxes("tcp", 11) as boxes:
        assert boxes[4].ready(range(4), 0.0) is None
        found = run_ranks([lambda: boxes[4].wait_any([0, 7, 10]), lambda: boxes[10].post(4, np.ones(3))])
        assert found[0] == 10
        assert boxes[4].ready([0, 7, 10], 0.0) == 10
        boxes[4].post(0, np.ones(2))
        assert boxes[0].wait_any(range(1, 11)) == 4
        links = [sorted(box._mesh._links) for box in boxes]  # type: ignore[attr-defined]
        assert links == [[4], [], [], [], [0, 10], [], [], [], [], [], [4]]


def test_a_sender_does_not_wait_for_the_receiver(kind: str) -> None:
    """Two ranks post each other as many long frames as may be under way before either takes one; arrays are reused."""
    n = 300_000

    def program(box: AbstractMailbox) -> None:
        mine, out = np.empty(n), np.empty(n)
        for number in range(MAX_OUTSTANDING):
            mine[:] = number + 10 * box.rank
            box.post(1 - box.rank, mine)
        met.wait(20.0)
        for number in range(MAX_OUTSTANDING):
            box.take(1 - box.rank, out)
            assert out[0] == out[-1] == number + 10 * (1 - box.rank)

    met = threading.Barrier(2)
    with mailboxes(kind, 2) as boxes:
        raise_first(run_ranks([lambda box=box: program(box) for box in boxes]))


def test_room_is_waited_for(kind: str) -> None:
    """A rank that posts more than may be under way continues as the other takes its frames."""
    n_frames, n = 3 * MAX_OUTSTANDING, 100_000

    def receive(box: AbstractMailbox) -> float:
        out, total = np.empty(n), 0.0
        for _ in range(n_frames):
            box.take(0, out)
            total += out[0]
        return total

    def send(box: AbstractMailbox) -> None:
        for number in range(n_frames):
            box.post(1, np.full(n, float(number)))

    with mailboxes(kind, 2) as boxes:
        results = raise_first(run_ranks([lambda: send(boxes[0]), lambda: receive(boxes[1])]))
    assert results[1] == sum(range(n_frames))


def test_polls_see_what_has_come_and_nothing_else(kind: str) -> None:
    """A rank sees nothing before a frame was posted, then the frame, and nothing once it is taken; none is left out."""
    with mailboxes(kind, 3) as (box, other, third):
        assert not box.poll(1)
        assert box.poll_any([1, 2]) is None
        other.post(0, np.ones(3))
        assert box.wait_any([1, 2]) == 1
        assert box.poll(1)
        assert not box.poll(2)
        third.post(0, np.ones(3))
        other.post(0, np.ones(3))
        assert box.wait_any([2]) == 2
        out, taken = np.empty(3), []
        for _ in range(3):
            taken.append(box.wait_any([1, 2]))
            box.take(taken[-1], out)
        assert sorted(taken) == [1, 1, 2]
        assert taken[0] != taken[1]
        assert box.poll_any([1, 2]) is None


def test_ledgers_count_what_was_posted(kind: str) -> None:
    """Each frame counts once, with its header, where it was posted; to wait for one is wait and not wire."""
    pause_s = 0.15

    def send(box: AbstractMailbox) -> dict[str, float]:
        box.ledger.begin_round("sync")
        box.post(1, np.zeros(10))
        time.sleep(pause_s)
        box.post(1, np.zeros(5, np.float32))
        box.ledger.end_round()
        return box.ledger.records().totals

    def receive(box: AbstractMailbox) -> dict[str, float]:
        box.ledger.begin_round("sync")
        box.take(0, np.empty(10))
        box.take(0, np.empty(5, np.float32))
        box.ledger.end_round()
        return box.ledger.records().totals

    with mailboxes(kind, 2) as boxes:
        sent, received = raise_first(run_ranks([lambda: send(boxes[0]), lambda: receive(boxes[1])]))
    assert sent["bytes_sent"] == 2 * HEADER_BYTES + 80 + 20
    assert sent["messages"] == 2
    assert received["bytes_sent"] == received["messages"] == 0
    assert received["wait_s"] > 0.5 * pause_s
    assert received["wire_s"] < received["wait_s"]


@pytest.mark.parametrize(
    ("out", "op", "what"),
    [(np.empty(4), 3, "operation"), (np.empty(4, np.float32), 2, "dtype"), (np.empty(5), 2, "size")],
)
def test_a_frame_that_is_not_due_is_refused(kind: str, out: np.ndarray, op: int, what: str) -> None:
    """A frame of another operation, type or size than expected is an error and not a wrong number."""
    with mailboxes(kind, 2) as (box, other):
        other.post(0, np.zeros(4), op=2)
        with pytest.raises(ProtocolError, match=f"expected {what}"):
            box.take(1, out, op)


@pytest.mark.parametrize("wait", ["take", "wait_any", "post"])
def test_a_job_that_stops_wakes_whoever_waits(kind: str, wait: str) -> None:
    """Whatever a rank waits for, it learns at once that the job has stopped, and why."""
    aborts = [AbortFlag(), AbortFlag()]

    def work(box: AbstractMailbox) -> None:
        if wait == "take":
            box.take(1, np.empty(3))
        elif wait == "wait_any":
            box.wait_any([1])
        else:
            post_many(box, np.zeros(1_000_000))

    with mailboxes(kind, 2, aborts=aborts) as (box, _):
        timer = threading.Timer(0.1, aborts[0].set, ["somebody pulled the plug"])
        timer.start()
        with pytest.raises(AbortedError, match="somebody pulled the plug"):
            work(box)
        timer.join()


def test_what_was_posted_arrives_though_the_sender_has_left(kind: str) -> None:
    """Frames posted before a mailbox was closed are taken; only then is the rank told that its peer left."""
    n = 500_000

    def send(box: AbstractMailbox) -> None:
        for number in range(3):
            box.post(0, np.full(n, float(number)))
        box.close()

    def receive(box: AbstractMailbox) -> None:
        out = np.empty(n)
        for number in range(3):
            box.take(1, out)
            assert out[-1] == number
        assert box.wait_any([1]) == 1
        with pytest.raises(AbortedError, match="rank 1"):
            box.take(1, out)

    with mailboxes(kind, 2) as boxes:
        raise_first(run_ranks([lambda: receive(boxes[0]), lambda: send(boxes[1])]))


def test_waits_end_at_the_deadline(kind: str) -> None:
    """A rank that posts nothing is named when the time is up."""
    with mailboxes(kind, 3, timeout_s=0.1) as (box, *_):
        with pytest.raises(GangTimeoutError, match=r"rank\(s\) 1, 2"):
            box.wait_any([1, 2])
        with pytest.raises(GangTimeoutError, match="rank 1"):
            box.take(1, np.empty(2))


def test_memory_is_bounded(kind: str) -> None:
    """A rank that posts to one that takes nothing ends with an error when its frames are too many."""
    # Beyond what the kernel keeps; it has a deadline of its own, which runs while frames are copied.
    frame = np.zeros(1 if kind == "inproc" else 300_000)
    text = f"rank 0 has {MAX_OUTSTANDING} frames under way to rank 1"
    with mailboxes(kind, 2, timeout_s=0.15) as (box, _), pytest.raises(GangTimeoutError, match=text):
        post_many(box, frame)


def test_there_is_no_mailbox_of_oneself_or_nobody(kind: str) -> None:
    """A rank can only write to the others of its gang."""
    with mailboxes(kind, 2) as (box, _):
        for peer in (0, 2, -1):
            with pytest.raises(InvalidParameterError, match="no mailbox"):
                box.post(peer, np.zeros(1))
