"""Memory shared by ranks of one host: which ranks share it, what is left behind, and peers that die or send lies."""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsgd.collectives import Group
from dsgd.comm.memory import neighbours, segment, streams
from dsgd.comm.memory.streams import Ring
from dsgd.comm.wires import shm, tcp
from dsgd.comm.wires.shm import SharedTransport
from dsgd.errors import AbortedError, InvalidParameterError, ProtocolError
from dsgd.kernels import atomics
from gangs import TOKEN, connect_shm, gang, raise_first, run_ranks

LONG = 300_000
each_wait = pytest.mark.parametrize("wait", ["sleep", "spin"])


def names() -> set[str]:
    return {path.name for path in segment.shared_folder().glob("dsgd-*")}


def lasting(found: set[str], within_s: float = 20.0) -> set[str]:
    """Return those of the names that stay: those of other tests, which run beside, go within seconds."""
    deadline = time.monotonic() + within_s
    while found and time.monotonic() < deadline:
        time.sleep(0.01)
        found &= names()
    return found


@contextmanager
def joined(n: int, timeout_s: float = 20.0, **options: Any) -> Iterator[list[SharedTransport]]:
    transports = raise_first(connect_shm(n, timeout_s, **options))
    try:
        yield transports
    finally:
        for transport in transports:
            transport.close()


def swap(transports: list[SharedTransport], n: int = LONG) -> list[np.ndarray]:
    """Let two ranks exchange n numbers; return what each received."""
    received = [np.empty(n), np.empty(n)]

    def program(rank: int) -> None:
        transports[rank].exchange(1 - rank, np.full(n, float(rank)), 1 - rank, received[rank])

    raise_first(run_ranks([lambda: program(0), lambda: program(1)]))
    return received


def test_nothing_has_a_name_once_ranks_have_met() -> None:
    """While a gang runs, neither its memory nor its local sockets can be found in the file system."""
    before = names()
    with joined(3) as transports:
        assert [t.wire for t in transports] == ["shm"] * 3
        assert not lasting(names() - before)
        assert all(t.hosts == (0, 0, 0) for t in transports)


def test_ranks_of_other_hosts_talk_over_tcp() -> None:
    """Whoever has another identity is on another host; hosts are numbered as they first occur, alike on all ranks."""
    identities = [b"b" * 32, b"a" * 32, b"b" * 32, b"c" * 32]
    with joined(4, identity=identities) as transports:
        assert [t.wire for t in transports] == ["shm+tcp", "tcp", "shm+tcp", "tcp"]
        assert {t.hosts for t in transports} == {(0, 1, 0, 2)}


def test_equal_identities_are_no_proof(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A peer that claims to be on this host but sees another memory under the name is reached over TCP."""
    whole = segment.Segment.open

    def elsewhere(name: str, size: int) -> segment.Segment:
        found = whole(name, size)
        return _Copy(found)  # type: ignore[return-value]

    monkeypatch.setattr(neighbours.Segment, "open", elsewhere)
    with caplog.at_level(logging.WARNING, logger="dsgd.comm.wires.shm"), joined(2) as transports:
        assert [t.wire for t in transports] == ["tcp", "tcp"]
        assert (swap(transports)[0] == 1.0).all()
    assert "another memory" in caplog.text


class _Copy:
    """A segment whose bytes are private to the one that opened it."""

    def __init__(self, found: segment.Segment) -> None:
        self.array = found.array.copy()
        self.unlink = found.unlink


@pytest.mark.parametrize("problem", ["full", "missing"])
def test_without_room_ranks_warn_once_and_talk_over_tcp(
    problem: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """A shared folder that is full or missing costs speed and one warning per rank, not the fit."""
    if problem == "full":

        def no_room(fd: int, size: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(segment, "_reserve", no_room)
    else:
        monkeypatch.setattr(segment, "shared_folder", lambda: tmp_path / "missing")
    identity = b"h" * 32
    with caplog.at_level(logging.WARNING, logger="dsgd.comm.wires.shm"), joined(3, identity=identity) as transports:
        assert [t.wire for t in transports] == ["tcp"] * 3
        assert (swap(transports[:2])[1] == 0.0).all()
        assert {t.hosts for t in transports} == {(0, 0, 0)}
    assert len(caplog.records) == 3
    assert all("uses TCP" in record.getMessage() for record in caplog.records)
    assert not lasting(names())


def test_a_segment_is_opened_by_name_size_and_owner_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths, links and files of another size are refused: a name comes from a peer."""
    monkeypatch.setattr(segment, "shared_folder", lambda: tmp_path)
    made = segment.Segment.create(8192)
    made.array[:3] = 7
    again = segment.Segment.open(made.name, 8192)
    assert again.array[:4].tolist() == [7, 7, 7, 0]
    for name in ("../" + made.name, "", "a" * 31, made.name.upper() + "/"):
        with pytest.raises(OSError, match="not the name of a segment"):
            segment.Segment.open(name, 8192)
    with pytest.raises(OSError, match="4096 bytes"):
        segment.Segment.open(made.name, 4096)
    (tmp_path / f"dsgd-{'b' * 32}").symlink_to(tmp_path / f"dsgd-{made.name}")
    with pytest.raises(OSError, match="b" * 32):
        segment.Segment.open("b" * 32, 8192)
    made.unlink()
    again.unlink()
    made.unlink()
    assert [path.name for path in tmp_path.iterdir()] == [f"dsgd-{'b' * 32}"]


def test_what_a_killed_maker_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An old segment that no process holds goes when the next one is made; one that is held or new stays."""
    monkeypatch.setattr(segment, "shared_folder", lambda: tmp_path)
    orphan, held, new = (tmp_path / f"dsgd-{digit * 32}" for digit in "abc")
    for path in (orphan, held, new, tmp_path / f"dsgd-{'a' * 32}.sock", tmp_path / "dsgd-notes"):
        path.touch()
        if path != new:
            os.utime(path, (0, 0))
    with held.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        made = segment.Segment.create(4096)
    made.unlink()
    assert {path.name for path in tmp_path.iterdir()} == {held.name, new.name, "dsgd-notes"}


def test_all_ranks_must_wait_in_the_same_way() -> None:
    """A gang in which one rank spins and the other sleeps, or one knows nothing of shared memory, does not start."""
    options: dict[str, Any] = {"job_id": "test", "epoch": 0, "token": TOKEN, "connect_timeout_s": 10.0}
    with tcp.Listener() as first, tcp.Listener() as second:
        addresses = [first.address, second.address]
        two_kinds = run_ranks(
            [lambda: tcp.connect(first, 0, addresses, **options), lambda: shm.connect(second, 1, addresses, **options)]
        )
    for result in (*connect_shm(2, wait=["sleep", "spin"]), *two_kinds):
        assert isinstance(result, ProtocolError)
        assert "settings" in str(result)
    (refused,) = connect_shm(1, wait="doze")
    assert isinstance(refused, InvalidParameterError)


class _Memory:
    """A segment without a file, for two ends in one thread."""

    def __init__(self) -> None:
        self.array = np.zeros(streams.segment_bytes(4096), dtype=np.uint8)

    def rings(self, *, carries_headers: bool) -> tuple[Ring, Ring]:
        from dsgd.comm.sockets.link import Link

        made = []
        for first, sock in zip((True, False), socket.socketpair(), strict=True):
            link = Link(sock, 0, "here", job=1, epoch=0)
            made.append(Ring(self, 4096, link, sock, first=first, carries_headers=carries_headers))  # type: ignore[arg-type]
        return made[0], made[1]


@settings(max_examples=60)
@given(sizes=st.lists(st.integers(0, 20_000), min_size=1, max_size=8), headers=st.booleans())
def test_frames_of_any_size_pass_a_small_ring(sizes: list[int], headers: bool) -> None:
    """Frames of any sizes, also many times that of the ring, arrive as they were, in order."""
    mine, theirs = _Memory().rings(carries_headers=headers)
    for number, n in enumerate(sizes):
        sent = np.random.default_rng(number).integers(0, 256, n).astype(np.uint8)
        got = np.zeros(n, dtype=np.uint8)
        mine.link.pack_out(7, n, 1)
        theirs.link.pack_wanted(7, n, 1)
        mine.start_out(sent)
        theirs.start_in(got)
        for _ in range(2 + n // 2000):
            streams.pump(mine, None)
            streams.pump(None, theirs)
        assert streams.pump(mine, theirs) == streams.DONE
        np.testing.assert_array_equal(got, sent)
    for end in (mine, theirs):
        end.close()


def summed(n: int, dtype: type, **options: Any) -> list[bytes]:
    """Return the bytes that each of three ranks has after an all-reduce, and that an exchange brought it."""

    def program(rank: int, transport: Any) -> bytes:
        vector = np.random.default_rng((n, rank)).standard_normal(n).astype(dtype)
        got = np.empty_like(vector)
        transport.exchange((rank + 1) % 3, vector, (rank - 1) % 3, got)
        Group(transport, "ring").allreduce(vector)
        return vector.tobytes() + got.tobytes()

    with joined(3, **options) as transports:
        return raise_first(run_ranks([lambda r=r, t=t: program(r, t) for r, t in enumerate(transports)]))


@each_wait
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_frames_that_are_pulled_have_the_bits_of_the_others(wait: str, dtype: type) -> None:
    """Whoever may read a neighbour's memory and who may not get the same arrays and the same sums."""
    n = 3 * streams.PULL_FROM_BYTES // np.dtype(dtype).itemsize + 7
    with gang("inproc", 3) as transports:
        expected = [np.random.default_rng((n, rank)).standard_normal(n).astype(dtype) for rank in range(3)]
        raise_first(run_ranks([lambda t=t: Group(t, "ring").allreduce(expected[t.rank]) for t in transports]))
    ways = [summed(n, dtype, wait=wait, pulls=pulls) for pulls in (True, False, [True, False, True])]
    assert ways[0] == ways[1] == ways[2]
    assert [way[: len(way) // 2] for way in ways[0]] == [vector.tobytes() for vector in expected]


@pytest.mark.skipif(not atomics.CAN_READ, reason="this system lets no process read another one's memory")
def test_what_the_peer_is_allowed_is_known() -> None:
    """Two processes of one user find out alike who reads whose memory; one that does not want to is not read for."""
    for wanted in ([True, True], [True, False], [False, False]):
        sockets = socket.socketpair()
        with sockets[0], sockets[1]:
            ends = zip(sockets, wanted, strict=True)
            found = raise_first(
                run_ranks([lambda s=s, w=w: streams.agree_on_pulling(s, wanted=w) for s, w in ends])  # type: ignore[misc]
            )
        assert [bool(each.peer) for each in found] == wanted
        assert [each.is_read for each in found] == wanted[::-1]


@pytest.mark.slow
@pytest.mark.skipif(not atomics.CAN_READ, reason="this system lets no process read another one's memory")
@each_wait
def test_a_frame_that_cannot_be_read_is_an_error(wait: str) -> None:
    """A peer that says its frame is where it has no memory is named, and nothing of this process is touched."""
    with joined(2, timeout_s=2.0, wait=wait) as transports, pytest.MonkeyPatch.context() as patch:
        start, liar = Ring.start_out, transports[1]._rings[0]

        def lie(end: Ring, outgoing: np.ndarray) -> None:
            start(end, outgoing)
            end.address_out = 4096 if end is liar else end.address_out

        patch.setattr(Ring, "start_out", lie)
        results = run_ranks(
            [lambda k=k: transports[k].exchange(1 - k, np.zeros(LONG), 1 - k, np.zeros(LONG)) for k in range(2)]
        )
    assert isinstance(results[0], AbortedError)
    assert "rank 1" in str(results[0])
    assert "cannot be read" in str(results[0])


def test_a_bystander_that_leaves_disturbs_no_exchange() -> None:
    """A neighbour that has done its part may leave while another one is still awaited."""
    with joined(3) as transports:

        def middle() -> float:
            got = np.empty(LONG)
            transports[1].exchange(0, np.zeros(LONG), 2, got)
            return float(got[-1])

        def first() -> None:
            transports[0].recv(1, np.empty(LONG))
            transports[0].close()

        def last() -> None:
            time.sleep(0.2)
            transports[2].send(1, np.full(LONG, 2.0))

        assert raise_first(run_ranks([first, middle, last]))[1] == 2.0


@each_wait
def test_garbage_in_the_memory_is_a_protocol_error(wait: str) -> None:
    """A peer that scribbles over the whole segment is named, whether frames or counters are hit."""
    with joined(2, timeout_s=2.0, wait=wait) as transports:
        swap(transports)
        shared = transports[1]._rings[0]._segment.array
        shared[:] = np.random.default_rng(0).integers(0, 256, len(shared)).astype(np.uint8)
        with pytest.raises(ProtocolError, match="rank 1"):
            transports[0].exchange(1, np.zeros(LONG), 1, np.zeros(LONG))


@each_wait
@pytest.mark.parametrize("where", ["written", "read"])
@settings(max_examples=25)
@given(value=st.one_of(st.integers(-(2**63), -10_000), st.integers(2**40, 2**63 - 1)))
def test_counters_that_cannot_be_are_refused(wait: str, where: str, value: int) -> None:
    """Whatever a peer writes over the counters, this rank raises and touches nothing outside of the rings."""
    memory = _Memory()
    mine, theirs = memory.rings(carries_headers=wait == "spin")
    control = np.frombuffer(memory.array, dtype=np.int64)
    place = 1024 + (0 if where == "read" else 512) + (128 if where == "read" else 0)
    control[place // 8] = value
    array = np.zeros(1000)
    if where == "read":
        mine.start_out(array)
        assert streams.pump(mine, None) == streams.BAD_OUT
    else:
        mine.start_in(array)
        assert streams.pump(None, mine) == streams.BAD_IN
    assert not array.any()
    for end in (mine, theirs):
        end.close()
