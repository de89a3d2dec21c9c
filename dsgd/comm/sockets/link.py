"""A connection between two ranks: frames in both directions at once."""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import numpy as np

from dsgd.comm.frames import HEADER_BYTES, describe_mismatch, pack_into, unpack_from
from dsgd.comm.sockets.handshake import receive_exactly
from dsgd.errors import ProtocolError
from dsgd.ledger import WAIT, WIRE, RankLedger
from dsgd.types import AnyArray

# Large enough to be worth a system call, small enough to stay in the cache between the two directions.
SEGMENT_BYTES: Final = 512 * 1024

# What two ranks that send before they receive may have under way without waiting for each other, in any TCP; also what
# TLS has in one record.
STREAM_SEGMENT_BYTES: Final = 16 * 1024

# To fall asleep and be woken costs more than a few looks, and a peer at the same point of its work is there by then: an
# all-reduce of 1 KB took 34 us over TCP without looks and 15 us with them. Where a third program wanted one of the two
# cores the looks were in vain, and it took 33 us without and 51 us with them; hence the rests, with which it took 35.
# `FrameExchange.run` looks as often for the header of an array that comes through shared memory.
LOOKS: Final = 6

# A look at a local socket costs half a microsecond and takes nobody's lock: a round of one row on two Dask workers took
# 26 us with six of them and 18 us with 24.
_LOCAL_LOOKS: Final = 24
_MAX_REST: Final = 64
_N_PINGS: Final = 8
_KEEPALIVE_IDLE_S: Final = 10
_KEEPALIVE_INTERVAL_S: Final = 5


class PeerGoneError(OSError):
    """The peer has closed the connection, or the connection broke."""

    def __init__(self, problem: str, link: Link) -> None:
        super().__init__(problem)
        self.link = link


class PeerLateError(PeerGoneError):
    """The peer let its deadline pass."""


class Link:
    """A connection to one peer: two system calls and no allocation for a short frame, both ways at once for a long one.

    The socket blocks, with its deadline kept by the kernel (``SO_RCVTIMEO``, ``SO_SNDTIMEO``): `socket.settimeout`
    would add a ``poll`` before every call. A frame goes out with one ``sendmsg`` of header and array and comes in with
    one ``recvmsg`` into both. Pieces of frames are sent and received without waiting (`dsgd.comm.frame_exchange`); a
    wrapped socket (TLS), which has no such calls, is read only when the system has something for it.
    """

    def __init__(
        self,
        sock: socket.socket,
        rank: int,
        address: str,
        *,
        job: int,
        epoch: int,
        latency_s: float = 0.0,
        way: str = "tcp",
    ) -> None:
        self.sock = sock
        self.rank = rank
        self.address = address
        self.latency_s = latency_s
        self.way = way
        self.is_plain = type(sock) is socket.socket
        self._rest = 1
        self._n_looks = _LOCAL_LOOKS if sock.family == socket.AF_UNIX else LOOKS
        self._n_unlooked = 0
        self.header_in = bytearray(HEADER_BYTES)
        self.header_out = bytearray(HEADER_BYTES)
        self.header_wanted = bytearray(HEADER_BYTES)
        self._job = job
        self._epoch = epoch
        self._n_sent = 0
        self._n_received = 0

    @property
    def has_pending(self) -> bool:
        """Whether a wrapped socket holds bytes that the system no longer knows of."""
        if self.is_plain:
            return False
        pending = getattr(self.sock, "pending", None)
        return pending is not None and pending() > 0

    def configure(self, timeout_s: float) -> None:
        """Set deadlines and options for the data path."""
        sock = self.sock
        # A wrapped socket may have done this before it was wrapped, or have no such options.
        with suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (("TCP_KEEPIDLE", _KEEPALIVE_IDLE_S), ("TCP_KEEPINTVL", _KEEPALIVE_INTERVAL_S)):
            _set_tcp_option(sock, name, value)
        if self.is_plain:
            sock.settimeout(None)
        self.set_deadline(timeout_s)

    def set_deadline(self, deadline_s: float) -> None:
        """Let the kernel keep another deadline from the next wait on, in seconds."""
        sock = self.sock
        _set_tcp_option(sock, "TCP_USER_TIMEOUT", int(deadline_s * 1000))
        if not self.is_plain:
            sock.settimeout(deadline_s)
            return
        whole, part = divmod(deadline_s, 1.0)
        # Zero would mean no limit.
        limit = struct.pack("@ll", int(whole), max(int(part * 1e6), 1))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    def pack_out(self, dtype: int, nbytes: int, op: int) -> None:
        """Write the header of the next frame to send."""
        pack_into(self.header_out, self._job, self._epoch, self._n_sent, op, dtype, nbytes)
        self._n_sent += 1

    def pack_wanted(self, dtype: int, nbytes: int, op: int) -> None:
        """Write the header that the next frame to receive must have."""
        pack_into(self.header_wanted, self._job, self._epoch, self._n_received, op, dtype, nbytes)
        self._n_received += 1

    def check_header(self) -> None:
        """Raise `ProtocolError` unless the header that came is the one wanted."""
        if self.header_in == self.header_wanted:
            return
        try:
            text = describe_mismatch(unpack_from(self.header_wanted), unpack_from(self.header_in))
        except ProtocolError as error:
            text = str(error)
        raise ProtocolError(f"A frame from rank {self.rank} at {self.address} is not the one due here: {text}")

    def _hear(self, payload: memoryview) -> int:
        """Return how many bytes of a frame came first, into `header_in` and `payload`; polls a few times, then sleeps.

        If polling failed it sleeps at once for the next frame, then for two, then four, as long as it keeps failing.
        """
        buffers = (self.header_in, payload)
        if self._n_unlooked:
            self._n_unlooked -= 1
            return self.sock.recvmsg_into(buffers)[0]
        for _ in range(self._n_looks):
            try:
                got = self.sock.recvmsg_into(buffers, 0, socket.MSG_DONTWAIT)[0]
            except BlockingIOError:
                continue
            self._rest = 1
            return got
        self._n_unlooked = self._rest
        self._rest = min(2 * self._rest, _MAX_REST)
        return self.sock.recvmsg_into(buffers)[0]

    def send_at_once(self, outgoing: AnyArray) -> int:
        """Send what leaves without waiting for the peer, which of most short frames is all; return the bytes sent."""
        if not self.is_plain:
            if HEADER_BYTES + outgoing.nbytes > STREAM_SEGMENT_BYTES:
                return 0
            # Header and array in one record: a copy costs less than a second record.
            self.sock.sendall(b"".join((self.header_out, as_bytes(outgoing))))
            return HEADER_BYTES + outgoing.nbytes
        first = outgoing.data if outgoing.nbytes <= SEGMENT_BYTES else as_bytes(outgoing)[:SEGMENT_BYTES]
        try:
            return self.sock.sendmsg((self.header_out, first), (), socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0

    def receive(self, incoming: AnyArray, clock: Callable[[], float]) -> float:
        """Receive a frame, and check it; return what `clock` showed when its first bytes were there."""
        got, arrived_at = 0, 0.0
        if self.is_plain:
            got = self._hear(incoming.data)
            if not got:
                raise PeerGoneError("it closed the connection", self)
            arrived_at = clock()
            if got == HEADER_BYTES + incoming.nbytes and self.header_in == self.header_wanted:
                return arrived_at
        self.fill(memoryview(self.header_in)[got:])
        arrived_at = arrived_at or clock()
        self.check_header()
        self.fill(as_bytes(incoming)[max(got - HEADER_BYTES, 0) :])
        return arrived_at

    def fill(self, buffer: memoryview) -> None:
        """Receive until `buffer` is full."""
        flags, got = socket.MSG_WAITALL if self.is_plain else 0, 0
        while got < len(buffer):
            more = self.sock.recv_into(buffer[got:], 0, flags)
            if not more:
                raise PeerGoneError("it closed the connection", self)
            got += more


def _set_tcp_option(sock: socket.socket, name: str, value: int) -> None:
    # Not every system has every option, and a local socket has none of them.
    if hasattr(socket, name):
        with suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def shut_down(sock: socket.socket) -> None:
    """Wake a thread that blocks on a socket, from any other; the peer sees the end of the stream."""
    with suppress(OSError):
        # Not the method of a wrapped socket: that one would touch the state of the thread that reads.
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


def as_bytes(array: AnyArray) -> memoryview:
    """Return the bytes of a C-contiguous array, without a copy."""
    # memoryview.cast refuses arrays without elements, hence the view.
    return array.reshape(-1).view(np.uint8).data


def charge_exchange(ledger: RankLedger, start: float, arrived_at: float, source: Link | None) -> None:
    """Charge an exchange: until the first bytes came, beyond their travel, to waiting; the rest to the wire."""
    elapsed_s = ledger.clock() - start
    wait_s = 0.0 if source is None else max(arrived_at - start - source.latency_s, 0.0)
    ledger.charge(WAIT, wait_s)
    ledger.charge(WIRE, elapsed_s - wait_s)


def measure_latency(sock: socket.socket, *, is_first: bool) -> float:
    """Return half of the shortest of a few round trips, in seconds; both ends call it at once."""
    shortest_s = float("inf")
    ping = b"\0"
    start: float | None = None
    for _ in range(_N_PINGS):
        if is_first:
            start = time.perf_counter()
            sock.sendall(ping)
        if not receive_exactly(sock, 1):
            raise ConnectionResetError("it closed the connection during the handshake")
        if start is not None:
            shortest_s = min(shortest_s, time.perf_counter() - start)
        if not is_first:
            start = time.perf_counter()
            sock.sendall(ping)
    return shortest_s / 2


def receive_some(link: Link, payload: memoryview, got: int) -> int:
    """Receive what is there of a frame from byte `got` on; returns the bytes received, zero if nothing is there."""
    if not link.is_plain:
        return _receive_stream(link, payload, got)
    try:
        if got < HEADER_BYTES:
            buffers = (memoryview(link.header_in)[got:], payload[:SEGMENT_BYTES])
            more = link.sock.recvmsg_into(buffers, 0, socket.MSG_DONTWAIT)[0]
        else:
            start = got - HEADER_BYTES
            more = link.sock.recv_into(payload[start : start + SEGMENT_BYTES], 0, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return 0
    except OSError as error:
        raise PeerGoneError(str(error), link) from error
    if not more:
        raise PeerGoneError("it closed the connection", link)
    if got < HEADER_BYTES <= got + more:
        link.check_header()
    return more


def send_some(link: Link, payload: memoryview, sent: int) -> int:
    """Send what the socket takes of a frame from byte `sent` on; returns the bytes sent, zero if it takes nothing."""
    if not link.is_plain:
        return _send_stream(link, payload, sent)
    try:
        if sent < HEADER_BYTES:
            buffers = (memoryview(link.header_out)[sent:], payload[:SEGMENT_BYTES])
            return link.sock.sendmsg(buffers, (), socket.MSG_DONTWAIT)
        start = sent - HEADER_BYTES
        return link.sock.send(payload[start : start + SEGMENT_BYTES], socket.MSG_DONTWAIT)
    except BlockingIOError:
        return 0
    except OSError as error:
        raise PeerGoneError(str(error), link) from error


def send_bytes(link: Link, data: memoryview) -> int:
    """Send what the socket takes of some bytes, header and all; returns how many, zero if it takes nothing."""
    try:
        if link.is_plain:
            return link.sock.send(data, socket.MSG_DONTWAIT)
        sent = 0
        while sent < len(data) and _is_ready(link.sock, select.POLLOUT):
            piece = data[sent : sent + STREAM_SEGMENT_BYTES]
            link.sock.sendall(piece)
            sent += len(piece)
        return sent
    except BlockingIOError:
        return 0
    except OSError as error:
        raise PeerGoneError(str(error), link) from error


def _receive_stream(link: Link, payload: memoryview, got: int) -> int:
    # A wrapped socket knows no MSG_DONTWAIT: it is asked only when it has something.
    if not link.has_pending and not _is_ready(link.sock, select.POLLIN):
        return 0
    start = got - HEADER_BYTES
    buffer = memoryview(link.header_in)[got:] if start < 0 else payload[start : start + STREAM_SEGMENT_BYTES]
    try:
        more = link.sock.recv_into(buffer)
    except OSError as error:
        raise PeerGoneError(str(error), link) from error
    if not more:
        raise PeerGoneError("it closed the connection", link)
    if got < HEADER_BYTES <= got + more:
        link.check_header()
    return more


def _send_stream(link: Link, payload: memoryview, sent: int) -> int:
    if not _is_ready(link.sock, select.POLLOUT):
        return 0
    start = max(sent - HEADER_BYTES, 0)
    header = memoryview(link.header_out)[sent:]
    buffer = payload[start : start + STREAM_SEGMENT_BYTES - len(header)]
    if header:
        # Header and array in one record: a copy costs less than a second record.
        buffer = memoryview(b"".join((header, buffer)))
    try:
        link.sock.sendall(buffer)
    except OSError as error:
        raise PeerGoneError(str(error), link) from error
    return len(buffer)


def _is_ready(sock: socket.socket, event: int) -> bool:
    poller = select.poll()
    poller.register(sock, event)
    return bool(poller.poll(0))
