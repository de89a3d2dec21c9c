"""Connecting every rank with every other one.

Rank i connects to all lower ranks, one after the other, then accepts all higher ones, many at a time: a stranger that
connects and says nothing holds up nobody. No cycle of waiting is possible, because a rank waits for lower ranks only
while it connects, and rank 0 connects to none.

Cost: one connection and four records of 128 bytes per pair of ranks, and a few round trips to measure the latency.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeAlias

from dsgd.comm import handshake
from dsgd.comm.base import AbortFlag
from dsgd.comm.handshake import RECORD_BYTES, Credentials, Record, receive_exactly, refusal_text
from dsgd.comm.link import Link, shut_down
from dsgd.comm.listener import Listener, split_address
from dsgd.errors import AbortedError, GangTimeoutError, ProtocolError

__all__ = ["Wrap", "join_mesh", "measure_latency"]

Wrap: TypeAlias = Callable[[socket.socket, bool], socket.socket]

_N_PINGS: Final = 8
_MAX_GUESTS: Final = 256
# A blocking step with a guest (a TLS handshake, a record in pieces) may hold up the others for this long.
_GUEST_STEP_S: Final = 2.0
_LOOK_UP_S: Final = 0.25
_CONNECT_SLICE_S: Final = 2.0


@dataclass
class _Guest:
    """A connection that has not proved yet that it belongs here."""

    sock: socket.socket
    peer: str
    data: bytes = b""
    hello: Record | None = None
    welcome: Record | None = None


class _Deadline:
    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._end = time.monotonic() + limit_s

    def left_s(self) -> float:
        return max(self._end - time.monotonic(), 1e-3)

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._end


def join_mesh(
    listener: Listener,
    addresses: Sequence[str],
    credentials: Credentials,
    abort: AbortFlag,
    limit_s: float,
    wrap: Wrap | None,
) -> dict[int, Link]:
    """Return one link per peer; see `dsgd.comm.tcp.connect` for the parameters and errors."""
    links: dict[int, Link] = {}
    # Shutting a socket down is how a flag that is set while this rank connects wakes it.
    opened: list[socket.socket] = []

    def wake() -> None:
        for sock in opened:
            shut_down(sock)

    abort.on_set(wake)
    deadline = _Deadline(limit_s)
    try:
        for peer in range(credentials.rank):
            links[peer] = _join(peer, addresses[peer], credentials, abort, deadline, opened, wrap)
        _accept(listener, credentials, abort, deadline, opened, links, wrap)
        abort.check()
    except BaseException:
        for sock in opened:
            sock.close()
        abort.check()
        raise
    return links


def _join(
    peer: int,
    address: str,
    credentials: Credentials,
    abort: AbortFlag,
    deadline: _Deadline,
    opened: list[socket.socket],
    wrap: Wrap | None,
) -> Link:
    who = f"rank {peer} at {address}"
    try:
        sock = _reach(address, abort, deadline)
        opened.append(sock)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if wrap is not None:
            sock = wrap(sock, False)
            opened[-1] = sock
        sock.settimeout(deadline.left_s())
        hello = credentials.hello(peer)
        sock.sendall(hello.pack())
        welcome = _read(sock, who)
        if welcome.status != handshake.OK:
            raise ProtocolError(f"{who} turned rank {credentials.rank} away: {refusal_text(welcome.status)}.")
        is_rank = credentials.verifies(welcome, b"accept", hello)
        # Sent even if the peer is not what it says, so that it can tell its side of it: a proof gives nothing away.
        proof = credentials.sign(credentials.hello(peer), b"connect", hello, welcome)
        sock.sendall(proof.pack())
        if not is_rank:
            raise ProtocolError(f"{who} did not prove who it is: {refusal_text(handshake.WRONG_TOKEN)}.")
        verdict = _read(sock, who)
        if not credentials.verifies(verdict, b"verdict", hello, welcome, proof):
            reason = verdict.status or handshake.WRONG_TOKEN
            raise ProtocolError(f"{who} turned rank {credentials.rank} away: {refusal_text(reason)}.")
        if verdict.status != handshake.OK:
            raise ProtocolError(f"{who} and rank {credentials.rank} do not fit: {refusal_text(verdict.status)}.")
        latency_s = measure_latency(sock, is_first=True)
    except TimeoutError as error:
        raise GangTimeoutError(
            f"rank {credentials.rank} could not join {who} within {deadline.limit_s:g} s: it does not answer."
        ) from error
    except OSError as error:
        raise AbortedError(f"{who} went away while rank {credentials.rank} joined it: {error}.") from error
    return Link(sock, peer, address, job=credentials.job, epoch=credentials.epoch, latency_s=latency_s)


def _reach(address: str, abort: AbortFlag, deadline: _Deadline) -> socket.socket:
    # In slices, because nothing wakes a thread that is still connecting.
    while True:
        abort.check()
        try:
            return socket.create_connection(split_address(address), timeout=min(deadline.left_s(), _CONNECT_SLICE_S))
        except TimeoutError:
            if deadline.is_over:
                raise


def _read(sock: socket.socket, who: str) -> Record:
    data = receive_exactly(sock, RECORD_BYTES)
    if not data:
        raise ConnectionResetError("it closed the connection during the handshake")
    try:
        return Record.unpack(data)
    except ProtocolError as error:
        raise ProtocolError(f"{who} does not answer as a rank: {error}") from None


def _accept(
    listener: Listener,
    credentials: Credentials,
    abort: AbortFlag,
    deadline: _Deadline,
    opened: list[socket.socket],
    links: dict[int, Link],
    wrap: Wrap | None,
) -> None:
    missing = set(range(credentials.rank + 1, credentials.size))
    guests: dict[socket.socket, _Guest] = {}
    if not missing:
        return
    with selectors.DefaultSelector() as selector:
        selector.register(listener.sock, selectors.EVENT_READ)
        try:
            while missing:
                if deadline.is_over:
                    raise _not_joined(listener, credentials.rank, missing, deadline)
                ready = selector.select(min(deadline.left_s(), _LOOK_UP_S))
                abort.check()
                for key, _ in ready:
                    if key.fileobj is listener.sock:
                        guest = _receive_guest(listener, wrap)
                        if guest is not None:
                            if len(guests) >= _MAX_GUESTS:
                                oldest = next(iter(guests))
                                selector.unregister(oldest)
                                listener.refuse(oldest, guests.pop(oldest).peer, "said nothing")
                            guests[guest.sock] = guest
                            selector.register(guest.sock, selectors.EVENT_READ)
                        continue
                    guest = guests[key.fileobj]  # type: ignore[index]
                    link = _attend(guest, listener, credentials, missing, deadline)
                    if link is not None or guest.sock.fileno() < 0:
                        del guests[guest.sock]
                        selector.unregister(guest.sock)
                    if link is not None:
                        opened.append(link.sock)
                        links[link.rank] = link
                        missing.discard(link.rank)
        finally:
            for guest in guests.values():
                listener.refuse(guest.sock, guest.peer, "said nothing")


def _not_joined(listener: Listener, rank: int, missing: set[int], deadline: _Deadline) -> GangTimeoutError:
    names = ", ".join(str(peer) for peer in sorted(missing))
    refused = f" Turned away meanwhile: {'; '.join(listener.refusals)}." if listener.refusals else ""
    return GangTimeoutError(
        f"rank {rank} at {listener.address} waited {deadline.limit_s:g} s for rank(s) {names} to join.{refused} "
        "Check that their workers run and can reach this address."
    )


def _receive_guest(listener: Listener, wrap: Wrap | None) -> _Guest | None:
    try:
        sock, name = listener.sock.accept()
    except (BlockingIOError, ConnectionError):
        return None
    peer = f"{name[0]}:{name[1]}"
    try:
        sock.settimeout(_GUEST_STEP_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if wrap is not None:
            sock = wrap(sock, True)
    except OSError as error:
        listener.refuse(sock, peer, f"{error}")
        return None
    return _Guest(sock, peer)


def _attend(
    guest: _Guest, listener: Listener, credentials: Credentials, missing: set[int], deadline: _Deadline
) -> Link | None:
    """Read what a guest sent and answer; return its link once it has joined. A guest turned away is closed."""
    sock = guest.sock
    try:
        more = sock.recv(RECORD_BYTES - len(guest.data))
        guest.data += more
        if not more:
            listener.refuse(sock, guest.peer, "left without joining")
            return None
        if len(guest.data) < RECORD_BYTES:
            # Strangers show at the first bytes; waiting for a whole record of theirs would keep them here.
            if not Record.may_start(guest.data):
                listener.refuse(sock, guest.peer, "does not speak the handshake of dsgd")
            return None
        try:
            record = Record.unpack(guest.data)
        except ProtocolError as error:
            listener.refuse(sock, guest.peer, str(error))
            return None
        guest.data = b""
        if guest.hello is None or guest.welcome is None:
            _welcome(guest, record, listener, credentials)
            return None
        if not _judge(guest, record, guest.hello, guest.welcome, listener, credentials, missing):
            return None
        sock.settimeout(deadline.left_s())
        latency_s = measure_latency(sock, is_first=False)
        return Link(
            sock, guest.hello.rank, guest.peer, job=credentials.job, epoch=credentials.epoch, latency_s=latency_s
        )
    except OSError as error:
        listener.refuse(sock, guest.peer, f"{error}")
    return None


def _welcome(guest: _Guest, hello: Record, listener: Listener, credentials: Credentials) -> None:
    status = credentials.fence(hello)
    welcome = credentials.sign(credentials.hello(hello.rank, status), b"accept", hello)
    guest.sock.sendall(welcome.pack())
    if status != handshake.OK:
        listener.refuse(guest.sock, guest.peer, refusal_text(status))
    guest.hello, guest.welcome = hello, welcome


def _judge(
    guest: _Guest,
    proof: Record,
    hello: Record,
    welcome: Record,
    listener: Listener,
    credentials: Credentials,
    missing: set[int],
) -> bool:
    sock, rank = guest.sock, hello.rank
    if not credentials.verifies(proof, b"connect", hello, welcome):
        with suppress(OSError):
            sock.sendall(credentials.hello(rank, handshake.WRONG_TOKEN).pack())
        listener.refuse(sock, guest.peer, refusal_text(handshake.WRONG_TOKEN))
        return False
    status = credentials.compare(hello)
    if status == handshake.OK and rank not in missing:
        status = handshake.WRONG_RANK
    verdict = credentials.sign(credentials.hello(rank, status), b"verdict", hello, welcome, proof)
    sock.sendall(verdict.pack())
    if status != handshake.OK:
        listener.refuse(sock, guest.peer, refusal_text(status))
        raise ProtocolError(
            f"rank {rank} at {guest.peer} does not fit rank {credentials.rank}: {refusal_text(status)}."
        )
    return True


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
