"""Connecting every rank to every other rank.

Rank i connects to all lower ranks, one after the other, then accepts all higher ones, many at a time, and closes its
port. A stranger that connects and sends nothing delays no peer, and is dropped within a second whatever the rank does.
Ranks cannot wait in a cycle, because a rank waits for lower ranks only while it connects, and rank 0 connects to none.

A peer whose port is closed or filtered is reached by a detour, where there is one: through the port on which its
process is reached anyway (`dsgd.comm.wires.rpc`). That is decided for each pair by the rank that connects.

Cost: one connection and four records of 128 bytes per pair of ranks, and a few round trips to measure the latency.
"""

from __future__ import annotations

import logging
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from dsgd.comm.abort import AbortFlag
from dsgd.comm.sockets import handshake
from dsgd.comm.sockets.handshake import RECORD_BYTES, Credentials, Record, receive_exactly, refusal_kind, refusal_text
from dsgd.comm.sockets.link import Link, shut_down
from dsgd.comm.sockets.listener import Guest, Listener, Wrap, split_address
from dsgd.errors import AbortedError, GangTimeoutError, ProtocolError

__all__ = ["Detour", "join_mesh", "measure_latency"]

_N_PINGS: Final = 8
_LOOK_UP_S: Final = 0.1
_CONNECT_SLICE_S: Final = 2.0
# If there is a detour. A filter drops the first packet and its retransmissions after 1 and 3 s.
_DIRECT_S: Final = 3.0
_FILTERED_S: Final = 0.5
# A peer may turn a rank away that stalled for the best part of a second between two records, and a proxy may accept
# every connection and then close it.
_N_TRIES: Final = 3

_log = logging.getLogger("dsgd.comm.wires.rpc")


@dataclass(frozen=True)
class Detour:
    """Another way to peers that cannot be connected to.

    Parameters
    ----------
    open : callable
        Takes the number of a peer and returns a connected socket; raises OSError where there is no way either.
    always : bool, default False
        Whether to take it without trying to connect.
    """

    open: Callable[[int], socket.socket]
    always: bool = False


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
    detour: Detour | None = None,
) -> dict[int, Link]:
    """Return one link per peer; see `dsgd.comm.wires.tcp.connect` for the parameters and errors."""
    mesh = _Mesh(listener, credentials, abort, _Deadline(limit_s), wrap, detour)
    abort.on_set(mesh.wake)
    try:
        if credentials.rank:
            # Strangers do not wait until this rank is through.
            with listener.attended(wrap, credentials.job, credentials.epoch):
                for peer in range(credentials.rank):
                    mesh.links[peer] = mesh.join(peer, addresses[peer])
        mesh.accept_all()
        listener.close()
        abort.check()
    except BaseException:
        for sock in mesh.opened:
            sock.close()
        abort.check()
        raise
    return mesh.links


class _Mesh:
    """A rank on its way into the gang: it connects to lower ranks, then lets higher ones in."""

    def __init__(
        self,
        listener: Listener,
        credentials: Credentials,
        abort: AbortFlag,
        deadline: _Deadline,
        wrap: Wrap | None,
        detour: Detour | None,
    ) -> None:
        self._listener, self._credentials, self._abort = listener, credentials, abort
        self._deadline, self._wrap, self._detour = deadline, wrap, detour
        self._patience_s = deadline.limit_s if detour is None else _DIRECT_S
        self._missing = set(range(credentials.rank + 1, credentials.size))
        self.links: dict[int, Link] = {}
        # Shutting a socket down is how a flag that is set while this rank connects wakes it.
        self.opened: list[socket.socket] = []

    def wake(self) -> None:
        """Let this rank see that its job has stopped."""
        for sock in self.opened:
            shut_down(sock)

    def join(self, peer: int, address: str) -> Link:
        """Return a link to a peer that has shown that it belongs here."""
        rank, who = self._credentials.rank, f"rank {peer} at {address}"
        try:
            sock = None if self._detour is not None and self._detour.always else self._direct(peer, address)
            if sock is not None:
                return self._link(sock, peer, address, relayed=0)
            assert self._detour is not None  # _direct has raised otherwise
            sock = self._detour.open(peer)
            self.opened.append(sock)
            self._secure(sock)
            self._greet(self.opened[-1], peer, who, relayed=1)
            return self._link(self.opened[-1], peer, f"{address} (through its worker)", relayed=1)
        except TimeoutError as error:
            raise GangTimeoutError(
                f"rank {rank} could not join {who} within {self._deadline.limit_s:g} s: it does not answer."
            ) from error
        except OSError as error:
            raise AbortedError(f"{who} went away while rank {rank} joined it: {error}.") from error

    def _direct(self, peer: int, address: str) -> socket.socket | None:
        """Connect to a peer and greet it; None if that cannot be and there is a detour."""
        for attempt in range(_N_TRIES):
            problem: OSError
            try:
                sock = self._reach(address)
            except OSError as error:
                if isinstance(error, TimeoutError):
                    self._patience_s = min(self._patience_s, _FILTERED_S)
                problem = error
                break
            self.opened.append(sock)
            try:
                self._secure(sock)
                self._greet(self.opened[-1], peer, f"rank {peer} at {address}", relayed=0)
                return self.opened[-1]
            except (ConnectionError, ssl.SSLEOFError) as error:
                self._abort.check()
                self.opened.pop().close()
                problem = error
                time.sleep(_LOOK_UP_S * attempt)
        if self._detour is None:
            raise problem
        _log.warning(
            "rank %d cannot connect to rank %d at %s (%s): the two connect through the ports of their workers, which "
            "takes about a millisecond per message. Let workers reach each other on the ports that ranks listen on.",
            self._credentials.rank,
            peer,
            address,
            str(problem) or type(problem).__name__,
        )
        return None

    def _reach(self, address: str) -> socket.socket:
        # In slices, because nothing wakes a thread that is still connecting.
        limit = _Deadline(min(self._patience_s, self._deadline.left_s()))
        while True:
            self._abort.check()
            try:
                return socket.create_connection(split_address(address), timeout=min(limit.left_s(), _CONNECT_SLICE_S))
            except TimeoutError:
                if limit.is_over:
                    raise

    def _secure(self, sock: socket.socket) -> None:
        """Encrypt the socket opened last, where sockets are encrypted."""
        with suppress(OSError):  # a detour is no TCP connection
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.settimeout(self._deadline.left_s())
        if self._wrap is not None:
            sock = self.opened[-1] = self._wrap(sock, False)
            if isinstance(sock, ssl.SSLSocket):
                sock.do_handshake()

    def _greet(self, sock: socket.socket, peer: int, who: str, *, relayed: int) -> None:
        """Exchange the four records of a handshake."""
        credentials = self._credentials
        hello = credentials.hello(peer, relayed=relayed)
        sock.sendall(hello.pack())
        welcome = _read(sock, who)
        if welcome.status != handshake.OK:
            raise ProtocolError(f"{who} turned rank {credentials.rank} away: {refusal_text(welcome.status)}.")
        is_rank = credentials.verifies(welcome, b"accept", hello)
        # Sent even if the peer fails the proof, so that it can report the error too: a proof reveals nothing.
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

    def _link(self, sock: socket.socket, peer: int, address: str, *, relayed: int, is_first: bool = True) -> Link:
        latency_s = measure_latency(sock, is_first=is_first)
        job, epoch = self._credentials.job, self._credentials.epoch
        return Link(sock, peer, address, job=job, epoch=epoch, latency_s=latency_s, way="rpc" if relayed else "tcp")

    def accept_all(self) -> None:
        """Let all higher ranks in."""
        while self._missing:
            if self._deadline.is_over:
                raise self._not_joined()
            for guest in self._listener.look(self._wrap, self._credentials.job, self._credentials.epoch):
                link = self._answer(guest)
                if link is not None:
                    self.opened.append(link.sock)
                    self.links[link.rank] = link
                    self._missing.discard(link.rank)
            self._abort.check()
            if self._missing:
                self._listener.wait(min(self._deadline.left_s(), _LOOK_UP_S))

    def _not_joined(self) -> GangTimeoutError:
        names = ", ".join(str(peer) for peer in sorted(self._missing))
        refused = f" Turned away meanwhile: {'; '.join(self._listener.refusals)}." if self._listener.refusals else ""
        who = f"rank {self._credentials.rank} at {self._listener.address}"
        return GangTimeoutError(
            f"{who} waited {self._deadline.limit_s:g} s for rank(s) {names} to join.{refused} "
            "Check that their workers run and can reach this address."
        )

    def _answer(self, guest: Guest) -> Link | None:
        """Answer the record of a guest; return its link once it has joined. A guest turned away is closed."""
        record, sock = guest.record, guest.sock
        assert record is not None  # of a guest that is due an answer
        try:
            if guest.hello is None or guest.welcome is None:
                self._welcome(guest, record)
                return None
            if not self._judge(guest, record, guest.hello, guest.welcome):
                return None
            sock.settimeout(self._deadline.left_s())
            self._listener.guests.remove(guest)
            return self._link(sock, guest.hello.rank, guest.peer, relayed=guest.hello.relayed, is_first=False)
        except OSError as error:
            self._listener.refuse(guest, "left", f"{error}")
        return None

    def _welcome(self, guest: Guest, hello: Record) -> None:
        status = handshake.check_job(hello, self._credentials.job, self._credentials.epoch)
        welcome = self._credentials.sign(self._credentials.hello(hello.rank, status), b"accept", hello)
        guest.sock.sendall(welcome.pack())
        if status != handshake.OK:
            self._refuse(guest, status)
        guest.hello, guest.welcome = hello, welcome
        guest.answered()

    def _refuse(self, guest: Guest, status: int) -> None:
        self._listener.refuse(guest, refusal_kind(status), refusal_text(status))

    def _judge(self, guest: Guest, proof: Record, hello: Record, welcome: Record) -> bool:
        sock, rank = guest.sock, hello.rank
        if not self._credentials.verifies(proof, b"connect", hello, welcome):
            with suppress(OSError):
                sock.sendall(self._credentials.hello(rank, handshake.WRONG_TOKEN).pack())
            self._refuse(guest, handshake.WRONG_TOKEN)
            return False
        status = self._credentials.compare(hello)
        if status == handshake.OK and rank not in self._missing:
            status = handshake.WRONG_RANK
        verdict = self._credentials.sign(self._credentials.hello(rank, status), b"verdict", hello, welcome, proof)
        sock.sendall(verdict.pack())
        if status != handshake.OK:
            self._refuse(guest, status)
            raise ProtocolError(
                f"rank {rank} at {guest.peer} does not fit rank {self._credentials.rank}: {refusal_text(status)}."
            )
        return True


def _read(sock: socket.socket, who: str) -> Record:
    data = receive_exactly(sock, RECORD_BYTES)
    if not data:
        raise ConnectionResetError("it closed the connection during the handshake")
    try:
        return Record.unpack(data)
    except ProtocolError as error:
        raise ProtocolError(f"{who} does not answer as a rank: {error}") from None


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
