"""Records with codes: what goes in comes out, and anything else on the way ends the connection."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsgd.collectives import Group
from dsgd.comm.sockets.authenticated import OVERHEAD_BYTES, PIECE_BYTES, AuthenticatedSocket, added_bytes
from dsgd.comm.sockets.handshake import RECORD_BYTES, Credentials
from dsgd.comm.wires import tcp
from dsgd.comm.wires.carried import connect as connect_carried
from dsgd.errors import InvalidParameterError, ProtocolError
from gangs import TOKEN, connect_tcp, gang, raise_first, run_ranks

_THERE, _BACK = bytes(range(32)), bytes(range(32, 64))


@contextlib.contextmanager
def sender_and_wire() -> Iterator[tuple[AuthenticatedSocket, socket.socket]]:
    """Give a socket that sends records, and the wire on which they come out."""
    ours, wire = socket.socketpair()
    with AuthenticatedSocket(ours, _THERE, _BACK, "the receiver") as sender, wire:
        wire.settimeout(10.0)
        yield sender, wire


def records_of(*messages: bytes, keys: tuple[bytes, bytes] = (_THERE, _BACK)) -> list[bytes]:
    """Return the records that these messages become, each of at most one piece."""
    ours, wire = socket.socketpair()
    with AuthenticatedSocket(ours, *keys, "the receiver") as sender, wire:
        found = []
        for message in messages:
            sender.sendall(message)
            found.append(wire.recv(2 * PIECE_BYTES))
    return found


def taken(wire: bytes) -> tuple[bytes, str]:
    """Return what a receiver takes of these bytes before the stream ends, and the error that ended it."""
    ours, there = socket.socketpair()
    got = b""
    with AuthenticatedSocket(ours, _BACK, _THERE, "rank 3 at 10.0.0.1:9") as receiver, there:
        there.sendall(wire)  # little enough for the buffer of the system
        there.shutdown(socket.SHUT_WR)
        try:
            while more := receiver.recv(1000):
                got += more
        except ProtocolError as problem:
            return got, str(problem)
    return got, ""


def test_a_record_is_length_payload_and_the_code_of_rfc_2104() -> None:
    """The code is HMAC-SHA256 of sequence number, length and payload, the first 16 bytes of it."""
    for number, record in enumerate(records_of(b"first", b"x" * PIECE_BYTES)):
        payload = (b"first", b"x" * PIECE_BYTES)[number]
        signed = struct.pack("<QI", number, len(payload)) + payload
        code = hmac.digest(_THERE, signed, hashlib.sha256)[:16]
        assert record == struct.pack("<I", len(payload)) + payload + code
        assert len(record) == len(payload) + OVERHEAD_BYTES == len(payload) + added_bytes(len(payload))


_lengths = st.lists(st.integers(0, 3 * PIECE_BYTES), max_size=4)
_chunks = st.lists(st.integers(1, 40) | st.integers(1, 40_000), max_size=20)


@given(_lengths, _chunks, st.integers(100, 50_000))
@settings(max_examples=40)
def test_bytes_come_out_as_they_went_in(lengths: list[int], chunks: list[int], asked: int) -> None:
    """However bytes are sent, cut on the way and asked for, they come out complete and in order."""
    source = np.random.default_rng(len(lengths))
    messages = [source.bytes(n) for n in lengths]
    with sender_and_wire() as (sender, wire):
        came = bytearray()
        reader = threading.Thread(target=lambda: came.extend(iter_all(wire)))
        reader.start()
        for message in messages:
            sender.sendall(message)
        socket.socket.shutdown(sender, socket.SHUT_WR)
        reader.join(10.0)
    assert len(came) == sum(lengths) + sum(map(added_bytes, lengths))
    ours, there = socket.socketpair()
    with AuthenticatedSocket(ours, _BACK, _THERE, "the sender") as receiver, there:

        def pass_on() -> None:
            at = 0
            for step in (*chunks, len(came) + 1):
                there.sendall(came[at : at + step])
                at += step
            there.shutdown(socket.SHUT_WR)

        writer = threading.Thread(target=pass_on)
        writer.start()
        got = b""
        while more := receiver.recv(asked):
            got += more
        assert receiver.pending() == 0
        writer.join(10.0)
    assert got == b"".join(messages)


def iter_all(wire: socket.socket) -> bytes:
    """Return all that comes until the end of the stream."""
    found = b""
    while more := wire.recv(1 << 16):
        found += more
    return found


@given(st.integers(0, 3), st.data())
@settings(max_examples=60)
def test_no_flipped_bit_is_taken(number: int, data: Any) -> None:
    """A bit flipped anywhere in a record ends the connection there: only the records before it are taken."""
    messages = [bytes([k]) * (200 * k + 1) for k in range(4)]
    records = records_of(*messages)
    bit = data.draw(st.integers(0, 8 * len(records[number]) - 1))
    altered = bytearray(records[number])
    altered[bit // 8] ^= 1 << (bit % 8)
    records[number] = bytes(altered)
    got, error = taken(b"".join(records))
    assert got == b"".join(messages[:number])
    # A length that was made greater waits for bytes that never come.
    assert error.startswith("rank 3 at 10.0.0.1:9 sent a record ") or bit < 32


@pytest.mark.parametrize(
    "tamper",
    [
        lambda a, b, c: [a, a, b, c],
        lambda a, b, c: [b, a, c],
        lambda a, b, c: [a, c],
        lambda a, b, c: [a, b, b, c],
        lambda a, b, c: [a, *records_of(b"two", keys=(_BACK, _THERE)), c],
        lambda a, b, c: [a, records_of(b"one", b"two", keys=(hashlib.sha256(b"other").digest(), _BACK))[1], c],
        lambda a, b, c: [a, b[:4] + b[4:-1] + b"\0\0", c],
        lambda a, b, c: [struct.pack("<I", 0), a],
        lambda a, b, c: [struct.pack("<I", 2**31), a],
    ],
    ids=[
        "first twice",
        "swapped",
        "left out",
        "later twice",
        "reflected",
        "other connection",
        "longer",
        "none",
        "huge",
    ],
)
def test_no_record_is_taken_out_of_place(tamper: Callable[..., list[bytes]]) -> None:
    """Repeated, moved, dropped, reflected and foreign records are refused, and the error names the peer."""
    messages = (b"one", b"two", b"three")
    got, error = taken(b"".join(tamper(*records_of(*messages))))
    assert b"".join(messages).startswith(got)
    assert got != b"".join(messages)
    assert error.startswith("rank 3 at 10.0.0.1:9 sent a record ")
    assert "on its way" in error


def test_a_stream_cut_in_a_record_ends_without_its_bytes() -> None:
    """Of a record that is not complete nothing is taken; the peer has gone."""
    one, two = records_of(b"one", b"two")
    assert taken(one + two[:-1]) == (b"one", "")


def test_keys_belong_to_one_connection_and_one_direction() -> None:
    """Both ends have the same two keys, each for one direction; another handshake has others."""
    calling, called = (Credentials(rank, 2, "job", 0, TOKEN, b"", "hmac") for rank in (1, 0))
    seen: set[bytes] = set()
    for _ in range(2):
        hello = calling.hello(0)
        welcome = called.sign(called.hello(1), b"accept", hello)
        proof = calling.sign(calling.hello(0), b"connect", hello, welcome)
        ours, theirs = socket.socketpair()
        with (
            calling.secure(ours, "rank 0", hello, welcome, proof, called=True) as one,
            called.secure(theirs, "rank 1", hello, welcome, proof, called=False) as other,
        ):
            for source, to in ((one, other), (other, one)):
                source.sendall(b"word")
                assert to.recv(10) == b"word"
        for credentials, is_caller in ((calling, True), (called, False)):
            ours, wire = socket.socketpair()
            with credentials.secure(ours, "rank 7", hello, welcome, proof, called=is_caller) as sender, wire:
                sender.sendall(b"word")
                came = wire.recv(100)
                assert came not in seen
                seen.add(came)
                wire.sendall(came)
                with pytest.raises(ProtocolError, match="rank 7 sent a record"):
                    sender.recv(10)
    assert len(seen) == 4


class _Path:
    """A program between two ranks, which passes bytes on and may flip one bit of those that go to the acceptor."""

    def __init__(self, address: str) -> None:
        self._to = tcp.Listener, address
        self.server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.server.getsockname()[1]}"
        self.n_passed = [0, 0]
        self.flips = False
        self._socks: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._connect, daemon=True)]
        self._threads[0].start()

    def _connect(self) -> None:
        near, _ = self.server.accept()
        host, port = self._to[1].split(":")
        far = socket.create_connection((host, int(port)))
        self._socks += [near, far]
        for way, (a, b) in enumerate(((near, far), (far, near))):
            self._threads.append(threading.Thread(target=self._pass, args=(a, b, way), daemon=True))
            self._threads[-1].start()

    def _pass(self, source: socket.socket, to: socket.socket, way: int) -> None:
        with contextlib.suppress(OSError):
            while data := bytearray(source.recv(1 << 16)):
                if self.flips and way == 0:
                    data[-20] ^= 1
                self.n_passed[way] += len(data)
                to.sendall(data)
            to.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """End both connections and the threads."""
        for sock in (*self._socks, self.server):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        for thread in self._threads:
            thread.join(10.0)


@contextlib.contextmanager
def two_ranks_and_a_path(**options: Any) -> Iterator[tuple[list[Any], _Path]]:
    """Give two transports and the program between them."""
    with contextlib.ExitStack() as cleanup:
        listeners = [cleanup.enter_context(tcp.Listener()) for _ in range(2)]
        path = _Path(listeners[0].address)
        cleanup.callback(path.close)
        settings: dict[str, Any] = {"job_id": "test", "epoch": 0, "token": TOKEN, "timeout_s": 20.0, **options}
        addresses = [path.address, listeners[1].address]
        calls = [lambda rank=rank: tcp.connect(listeners[rank], rank, addresses, **settings) for rank in range(2)]
        transports = raise_first(run_ranks(calls))
        for transport in transports:
            cleanup.callback(transport.close)
        yield transports, path


def test_a_program_on_the_path_can_change_a_sum_only_without_codes() -> None:
    """A flipped bit gives a plain gang a wrong sum; with integrity="hmac" it is a ProtocolError that names the peer."""

    def add(transport: Any) -> Any:
        vector = np.ones(100)
        Group(transport).allreduce(vector)
        return vector

    for integrity in ("none", "hmac"):
        with two_ranks_and_a_path(integrity=integrity) as (transports, path):
            path.flips = True
            results = run_ranks([lambda t=t: closing_on_error(t, add) for t in transports])
            if integrity == "none":
                assert not np.array_equal(results[0], np.full(100, 2.0))
            else:
                assert isinstance(results[0], ProtocolError)
                assert str(results[0]).startswith("rank 1 at 127.0.0.1:")
                # What went the other way was not touched.
                assert isinstance(results[1], Exception) or np.array_equal(results[1], np.full(100, 2.0))


def closing_on_error(transport: Any, program: Callable[[Any], Any]) -> Any:
    """Run a program, and let the peer know when it fails, as a rank does."""
    try:
        return program(transport)
    except BaseException:
        transport.close()
        raise


@pytest.mark.parametrize("n", [0, 1, 2043, 2044, 70_000])
def test_the_ledger_counts_every_byte_of_codes_as_control(n: int) -> None:
    """The algorithm has sent as many bytes as without codes; with those of control that is all that was on the wire."""
    sent = {}
    for integrity in ("none", "hmac"):
        with two_ranks_and_a_path(integrity=integrity) as (transports, path):
            before = path.n_passed[0]

            def program(transport: Any) -> None:
                transport.ledger.begin_round("sync")
                if transport.rank:
                    transport.send(0, np.ones(n))
                else:
                    transport.recv(1, np.empty(n))
                transport.ledger.end_round()

            raise_first(run_ranks([lambda t=t: program(t) for t in transports]))
            totals = transports[1].ledger.records().totals
            assert path.n_passed[0] - before == totals["bytes_sent"] + totals["control_bytes_sent"]
            sent[integrity] = totals["bytes_sent"]
            assert totals["control_bytes_sent"] == (integrity == "hmac") * added_bytes(40 + 8 * n)
    assert sent["none"] == sent["hmac"]


def test_the_handshake_is_as_long_as_before() -> None:
    """Codes begin after it: strangers cannot make a rank compute or keep more than for a plain gang."""
    with two_ranks_and_a_path(integrity="hmac") as (_, path):
        pings = 8 * (1 + OVERHEAD_BYTES)
        assert path.n_passed == [2 * RECORD_BYTES + pings] * 2


def test_ranks_that_disagree_do_not_join() -> None:
    """A rank without codes is told that its settings are not the same."""
    results = connect_tcp(2, connect_timeout_s=2.0, integrity=["hmac", "none"])
    assert all(isinstance(result, ProtocolError) for result in results)
    assert "settings of the job" in str(results[0])


def test_codes_beside_tls_or_a_library_are_refused() -> None:
    """TLS has codes of its own, and a library carries arrays without any: both are errors, not silence."""
    with tcp.Listener() as listener:
        one: dict[str, Any] = {"job_id": "j", "epoch": 0, "token": TOKEN}
        with pytest.raises(InvalidParameterError, match="has no use beside wrap"):
            tcp.connect(listener, 0, [listener.address], integrity="hmac", wrap=lambda sock, side: sock, **one)
        with pytest.raises(InvalidParameterError, match="must be 'none' or 'hmac'"):
            tcp.connect(listener, 0, [listener.address], integrity="crc", **one)
        with pytest.raises(InvalidParameterError, match="protects no arrays that gloo carries"):
            connect_carried(listener, 0, [listener.address], "gloo", lambda *args: None, integrity="hmac", **one)  # type: ignore[arg-type, return-value]


def test_memory_of_a_host_has_no_codes() -> None:
    """Frames through shared memory are as without; those between hosts have codes."""
    with gang("mixed-hmac", 3) as transports:
        raise_first(run_ranks([lambda t=t: Group(t).allreduce(np.ones(5000)) for t in transports]))
        ways = {
            (t.rank, peer): link.is_authenticated
            for t in transports
            for peer, link in t._mesh._links.items()  # type: ignore[attr-defined]
        }
    assert ways == {(a, b): 2 in (a, b) for a in range(3) for b in range(3) if a != b}
