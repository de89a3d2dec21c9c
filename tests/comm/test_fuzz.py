"""What a stranger or a broken peer may send: any bytes, on every way into a rank.

Each test draws its share of ``DSGD_FUZZ_CASES`` cases, few by default; ``DSGD_FUZZ_CASES=100000 pytest
tests/comm/test_fuzz.py`` draws many. Nothing may hang (the suite's own time limit), crash, pass for something it is
not, or take memory because it says so.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import resource
import socket
import ssl
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from distributed import Security
from hypothesis import given, settings
from hypothesis import strategies as st

from dsgd.collectives import Group
from dsgd.comm import frames
from dsgd.comm.frames import AbortFlag
from dsgd.comm.memory import neighbours, streams
from dsgd.comm.memory.segment import Segment
from dsgd.comm.sockets.handshake import RECORD_BYTES, Credentials, Record
from dsgd.comm.sockets.link import Link
from dsgd.comm.sockets.listener import Guest
from dsgd.comm.wires import inproc
from dsgd.comm.wires.carried import CHUNK_BYTES, Switchboard
from dsgd.comm.wires.tcp import TCPTransport
from dsgd.errors import AbortedError, DsgdError, GangTimeoutError, ProtocolError
from dsgd.kernels import rounds
from dsgd.ledger import RankLedger
from dsgd.local import SGD, Objective, make_shard
from dsgd.runtime.rank import Rank
from dsgd.runtime.train.fused import FusedRounds
from dsgd.runtime.worker.store import JobStore
from dsgd.runtime.worker.wires import RelayHandlers
from dsgd.sync import Cut

N_TESTS = 10
share = settings(max_examples=max(int(os.environ.get("DSGD_FUZZ_CASES", "1000")) // N_TESTS, 1))
pytestmark = pytest.mark.timeout(3600)

JOB, EPOCH, TOKEN = 7, 1, bytes(range(32))
N = 12
_GROWTH_KB = 200_000


@pytest.fixture(autouse=True)
def _bounded_memory() -> Iterator[None]:
    """Fail if a case made this process grow by what a length claimed, which is terabytes at worst."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < _GROWTH_KB


def good_frame() -> bytes:
    header = bytearray(frames.HEADER_BYTES)
    frames.pack_into(header, JOB, EPOCH, 0, frames.OP_ALLREDUCE, frames.DTYPE_CODES[np.dtype(np.float64)], 8 * N)
    return bytes(header) + np.arange(N, dtype=np.float64).tobytes()


@st.composite
def near(draw: st.DrawFn, good: bytes) -> bytes:
    """Draw bytes that are like `good` but for a few, cut short, or with more behind them; or any bytes at all."""
    if draw(st.integers(0, 4)) == 0:
        return draw(st.binary(max_size=2 * len(good)))
    data = bytearray(good)
    for place, value in draw(st.lists(st.tuples(st.integers(0, len(good) - 1), st.integers(0, 255)), max_size=6)):
        data[place] = value
    return bytes(data[: draw(st.integers(0, len(good)))] if draw(st.booleans()) else data) + draw(
        st.binary(max_size=40)
    )


def feed(data: bytes, read: Callable[[socket.socket], Any]) -> Any:
    """Return what `read` makes of a connection over which these bytes come and then the end, or its error."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(data)
        theirs.shutdown(socket.SHUT_WR)
        ours.settimeout(10.0)
        try:
            return read(ours)
        except (DsgdError, OSError) as error:
            return error


u16, u32, u64 = (st.integers(0, 2**bits - 1) for bits in (16, 32, 64))
codes = st.sampled_from(sorted(frames.DTYPE_CODES.values()))


@given(st.tuples(u64, u32, u64, u16, codes, st.integers(0, frames.MAX_FRAME_BYTES), u32))
def test_a_header_reads_as_it_was_written(fields: tuple[int, ...]) -> None:
    """unpack_from undoes pack_into for every value of every field."""
    buffer = bytearray(frames.HEADER_BYTES)
    frames.pack_into(buffer, *fields)
    assert frames.unpack_from(buffer) == frames.Header(*fields)


def test_what_a_header_cannot_say_is_refused_by_name() -> None:
    """Another version of the layout, an unknown type and an impossible length, before anything is allocated."""
    buffer = bytearray(frames.HEADER_BYTES)
    frames.pack_into(buffer, 1, 0, 0, 0, 99, 0)
    with pytest.raises(ProtocolError, match="dtype code"):
        frames.unpack_from(buffer)
    frames.pack_into(buffer, 1, 0, 0, 0, 1, frames.MAX_FRAME_BYTES + 1)
    with pytest.raises(ProtocolError, match="at most"):
        frames.unpack_from(buffer)
    frames.pack_into(buffer, 1, 0, 0, 0, 1, 0)
    buffer[4] = 77
    with pytest.raises(ProtocolError, match="version 77"):
        frames.unpack_from(buffer)


@share
@given(near(good_frame()[: frames.HEADER_BYTES]))
def test_any_header_is_read_or_refused(data: bytes) -> None:
    """A header that is read says what it was packed from, and a difference to the one due shows in words."""
    try:
        header = frames.unpack_from(data)
    except ProtocolError:
        return
    again = bytearray(frames.HEADER_BYTES)
    frames.pack_into(
        again, header.job, header.epoch, header.sequence, header.op, header.dtype, header.nbytes, header.flags
    )
    assert again == data[: frames.HEADER_BYTES]
    due = frames.unpack_from(good_frame())
    assert (frames.describe_mismatch(due, header) == "") == (header == due)
    assert header.nbytes <= frames.MAX_FRAME_BYTES


@share
@given(near(good_frame()))
def test_any_frame_is_taken_or_refused(data: bytes) -> None:
    """A rank takes the one frame that is due and nothing else, and writes nowhere but into its array."""
    memory = np.full(N + 2, -1.0)

    def receive(sock: socket.socket) -> None:
        link = Link(sock, 1, "somewhere", job=JOB, epoch=EPOCH)
        transport = TCPTransport(0, 2, {1: link}, RankLedger(0), AbortFlag(), 10.0)
        transport.recv(1, memory[1:-1], frames.OP_ALLREDUCE)

    result = feed(data, receive)
    assert result is None or isinstance(result, (ProtocolError, AbortedError))
    assert (result is None) == (
        data[: frames.HEADER_BYTES] == good_frame()[: frames.HEADER_BYTES] and len(data) >= len(good_frame())
    )
    assert memory[0] == memory[-1] == -1.0
    if result is None:
        assert memory[1:-1].tobytes() == data[frames.HEADER_BYTES : len(good_frame())]


@share
@given(near(Record(frames.job_code("job"), EPOCH, 1, 0, 2, bytes(32), bytes(range(32))).pack()))
def test_any_first_record_is_kept_or_refused(data: bytes) -> None:
    """A guest is kept while what it sent may become a record, and one whose bytes were changed proves nothing."""
    credentials = Credentials(0, 2, "job", EPOCH, TOKEN, b"")

    def read(sock: socket.socket) -> Record | None:
        sock.setblocking(False)
        guest = Guest(sock, "somewhere", 0.0)
        guest.read()
        return guest.record

    result = feed(data, read)
    assert isinstance(result, (Record, ProtocolError, ConnectionError))
    if isinstance(result, Record):
        assert result.pack() == bytes(data[:RECORD_BYTES])
        assert not credentials.verifies(result, b"connect", result, result)


@share
@given(near(neighbours._Note(neighbours._OPEN, b"n" * 32, b"a" * 32, "text").pack()))
def test_any_note_of_a_neighbour_is_read_or_refused(data: bytes) -> None:
    """What a peer says about its host is a note or an error, and no name of a segment opens anything else."""
    note = feed(data, lambda sock: neighbours._Note.read(Link(sock, 1, "x", job=JOB, epoch=EPOCH), neighbours._OPEN))
    assert isinstance(note, (neighbours._Note, ProtocolError, ConnectionError))
    if isinstance(note, neighbours._Note):
        with pytest.raises(OSError, match=r"segment|No such file"):
            Segment.open(note.first.decode(errors="replace"), 4096)


CAPACITY = 256


@pytest.fixture(scope="module", autouse=True)
def _pull_short_frames() -> Iterator[None]:
    """Let frames be pulled that are as short as those of these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "PULL_FROM_BYTES", CAPACITY)
        yield


words = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-2 * CAPACITY, 4 * CAPACITY))


anything = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text("jobx", max_size=8),
    st.binary(max_size=40),
)


@share
@given(
    st.fixed_dictionaries(
        {
            "job_id": st.one_of(st.just("job"), anything),
            "epoch": st.one_of(st.just(EPOCH), anything),
            "token": st.one_of(st.just(TOKEN), anything),
            "rank": st.one_of(st.just(0), anything),
            "peer": st.one_of(st.just(1), anything),
        }
    ),
    anything,
    anything,
    anything,
)
def test_any_message_of_a_relay_is_taken_or_refused(
    fields: dict[str, Any], position: Any, data: Any, came: Any
) -> None:
    """Only bytes of a connection of an open job are taken; everything else gets a reason, and is counted."""
    store = JobStore()
    store.open("job", EPOCH, TOKEN)
    handlers = RelayHandlers(SimpleNamespace(rpc=None), store)  # type: ignore[arg-type]

    async def call() -> list[str]:
        return [
            await handlers.message(**fields, position=position, data=data, came=came),
            await handlers.connect(**fields, address=data),
        ]

    said, refused = asyncio.run(call()), handlers.refused
    store.close_all("over")
    assert all(said) or data == b""
    assert sum(refused.values()) <= 2


steps = st.tuples(st.integers(-2, 60), st.binary(max_size=30))


@share
@given(st.lists(st.one_of(steps, st.just("next")), max_size=6))
def test_a_relay_takes_its_bytes_in_order_or_ends(messages: list[Any]) -> None:
    """Bytes that are not those due end the connection: what comes out is always the beginning of what was sent."""

    async def run() -> tuple[bytes, bytes]:
        sent, taken = b"", b""
        board = Switchboard()
        ours, theirs = socket.socketpair()

        async def post(position: int, data: bytes) -> None:
            pass

        board.start(0, 1, theirs, post)
        for message in messages:
            position, data = (len(sent), b"due") if message == "next" else message
            try:
                await board.deliver(0, 1, position, data, came=False)
            except (ProtocolError, OSError):
                break
            sent += data
        with pytest.raises(ProtocolError):
            await board.deliver(0, 1, len(sent), bytes(CHUNK_BYTES + 1), came=False)
        board.close()
        ours.setblocking(False)
        while piece := await asyncio.get_running_loop().sock_recv(ours, 4096):
            taken += piece
        ours.close()
        await asyncio.gather(*board._tasks.values())
        return sent, taken

    sent, taken = asyncio.run(run())
    assert taken == sent


SHARD = make_shard(np.ones((4, 3)), np.array([1.0, -1.0, 1.0, -1.0]))
N_ROUNDS = 4


@share
@given(
    st.integers(0, 1),
    st.lists(st.one_of(st.integers(-1, N_ROUNDS + 2), words), min_size=4, max_size=4),
    st.binary(max_size=64),
)
@pytest.mark.slow
def test_any_box_of_a_window_ends_in_a_result_or_an_error(victim: int, shown: list[int], vector: bytes) -> None:
    """Whatever a peer writes into its box, the spinning loop ends with a round of the epoch, or an error in time."""
    transports = inproc.connect(2, timeout_s=0.01, window=True)
    window = transports[victim].window
    assert window is not None
    n_bytes = rounds.box_bytes(rounds.SLOT_BYTES)
    own, box = ((ctypes.c_uint8 * n_bytes).from_address(int(window.incoming[rank])) for rank in (victim, 1 - victim))
    control = (ctypes.c_int64 * 4).from_buffer(box)
    control[:] = shown
    ctypes.memmove(ctypes.addressof(box) + 128, vector, len(vector))
    before = bytes(box)
    optimizer = SGD(Objective("hinge", "l2", 1e-3))
    params = np.zeros(4)
    rank = Rank(Group(transports[victim]), AbortFlag())
    loop = FusedRounds(rank, window, optimizer, params, params, SHARD, optimizer.init(SHARD), 100)
    result: Any = None
    try:
        result = loop.run(0, N_ROUNDS, Cut((0, 0), N_ROUNDS), 0.5)
    except (ProtocolError, AbortedError, GangTimeoutError) as error:
        result = str(error)
    assert f"rank {1 - victim}" in result if isinstance(result, str) else 1 <= result <= N_ROUNDS
    assert bytes(box) == before
    assert int.from_bytes(bytes(own)[:8], "little") <= N_ROUNDS
    for transport in transports:
        transport.close()


@pytest.fixture(scope="module")
def contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """What the two ends of a connection in an encrypted cluster are made with."""
    pytest.importorskip("cryptography")
    security = Security.temporary()
    return security.get_listen_args("worker")["ssl_context"], security.get_connection_args("worker")["ssl_context"]


changes = st.tuples(
    st.lists(st.tuples(st.integers(0, 2**16), st.integers(1, 255)), max_size=4),
    st.one_of(st.none(), st.integers(0, 2**16)),
    st.binary(max_size=40),
)


def change(data: bytes, how: tuple[list[tuple[int, int]], int | None, bytes]) -> bytes:
    """Return bytes of which some are another, cut short, or with more behind them."""
    flipped, end, more = how
    changed = bytearray(data)
    for place, value in flipped:
        changed[place % len(data)] ^= value
    return bytes(changed if end is None else changed[: end % len(data)]) + more


@share
@given(how=st.one_of(changes, st.binary(max_size=400)))
def test_any_tls_hello_is_answered_or_refused(contexts: Any, how: Any) -> None:
    """A guest that begins TLS with anything but a handshake is a stranger, and cannot join by continuing."""
    outgoing = ssl.MemoryBIO()
    client = contexts[1].wrap_bio(ssl.MemoryBIO(), outgoing)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    data = how if isinstance(how, bytes) else change(outgoing.read(), how)

    def read(sock: socket.socket) -> Record | None:
        sock.setblocking(False)
        with contexts[0].wrap_socket(sock, server_side=True, do_handshake_on_connect=False) as wrapped:
            guest = Guest(wrapped, "somewhere", 0.0)
            guest.read()
            return guest.record

    assert not isinstance(feed(data, read), Record)
