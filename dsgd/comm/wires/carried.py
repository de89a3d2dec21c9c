"""The common part of wires of other packages, whose arrays a library carries; docs/extending.rst has one.

Problem: MPI, UCX and the like are fast between processes, but know nothing of jobs, deadlines or ranks that are at
different points; calls that do not match hang or end the process.

All ranks join over TCP (`mesh`), which authenticates the members of the gang. The header of a frame is sent over that
connection. Only after it has shown that the right array follows does the library receive the array. So mismatches, dead
peers, stopped jobs and deadlines are handled as on TCP; the library waits only for an array that its peer has begun to
send.

Cost per frame: that of a frame of no bytes over TCP, and what the library needs for the array.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from dsgd.comm.base import AbstractTransport
from dsgd.comm.frames import AbortFlag
from dsgd.comm.sockets.handshake import receive_exactly
from dsgd.comm.sockets.link import Link, charge_exchange
from dsgd.comm.sockets.listener import Listener
from dsgd.comm.wires.tcp import Entrance, TCPTransport
from dsgd.errors import AbortedError, GangTimeoutError, ProtocolError
from dsgd.types import AnyArray

_LENGTH: Final = struct.Struct("<I")
_MAX_SAID_BYTES: Final = 64 * 1024
# Looks without a pause come to some tens of microseconds; the longest pause is what an abort may have to wait for.
_BUSY_LOOKS: Final = 500
_LEAST_PAUSE_S: Final = 1e-5
_LONGEST_PAUSE_S: Final = 1e-3


class Pending(Protocol):
    """An array on its way."""

    def wait(self, limit_s: float) -> None:
        """Return when it is through; raises TimeoutError or ConnectionError where it will not be."""
        ...


class Carrier(Protocol):
    """What moves arrays between two ranks."""

    def send(self, peer: int, array: AnyArray) -> Pending:
        """Begin to send."""
        ...

    def receive(self, peer: int, array: AnyArray) -> Pending:
        """Begin to receive."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


class CarriedTransport(AbstractTransport):
    """A rank whose arrays a library carries; made by `connect`."""

    def __init__(self, mesh: TCPTransport, carrier: Carrier, wire: str) -> None:
        self.rank = mesh.rank
        self.size = mesh.size
        self.ledger = mesh.ledger
        self.hosts = mesh.hosts
        self.deadline_s = mesh.deadline_s
        self.wire = wire
        self._mesh = mesh
        self._carrier: Carrier | None = carrier

    def exchange(
        self, to: int | None, outgoing: AnyArray | None, source: int | None, incoming: AnyArray | None, op: int = 0
    ) -> None:
        """Send `outgoing` while receiving `incoming`; see `AbstractTransport.exchange`."""
        out, inn = self._mesh.announce(to, outgoing, source, incoming, op)
        carrier, ledger = self._carrier, self.ledger
        assert carrier is not None  # announce has refused a closed transport
        start = arrived_at = ledger.clock()
        at, sending = out, None
        try:
            if out is not None and to is not None and outgoing is not None:
                out.sock.sendall(out.header_out)
                if outgoing.nbytes:
                    sending = carrier.send(to, outgoing)
            at = inn
            if inn is not None and source is not None and incoming is not None:
                inn.fill(memoryview(inn.header_in))
                inn.check_header()
                arrived_at = ledger.clock()
                if incoming.nbytes:
                    carrier.receive(source, incoming).wait(self.deadline_s)
            at = out
            if sending is not None:
                sending.wait(self.deadline_s)
        except OSError as error:
            self._mesh.raise_for(error, at, inn)
        if ledger.timing:
            charge_exchange(ledger, start, arrived_at, inn)

    def set_deadline(self, deadline_s: float) -> None:
        """Change the longest wait; see `AbstractTransport.set_deadline`."""
        self._mesh.set_deadline(deadline_s)
        self.deadline_s = deadline_s

    def close(self) -> None:
        """Close all connections; peers that wait for this rank see that it went away."""
        self._mesh.close()
        carrier, self._carrier = self._carrier, None
        if carrier is not None:
            carrier.close()


def tell_all(links: dict[int, Link], rank: int, said: bytes) -> list[bytes]:
    """Return what all ranks say, in rank order; all call it at once, right after they have joined."""
    told = {rank: said}
    for link in links.values():
        link.sock.sendall(_LENGTH.pack(len(said)) + said)
    for peer, link in links.items():
        length = _LENGTH.unpack(_receive(link, _LENGTH.size))[0]
        if length > _MAX_SAID_BYTES:
            raise ProtocolError(f"rank {peer} at {link.address} does not say how it is reached, but {length} bytes.")
        told[peer] = _receive(link, length)
    return [told[peer] for peer in range(len(told))]


def _receive(link: Link, n_bytes: int) -> bytes:
    data = receive_exactly(link.sock, n_bytes)
    if len(data) < n_bytes:
        raise ConnectionResetError(f"rank {link.rank} closed the connection")
    return data


def look_until(is_over: Callable[[], bool], limit_s: float, abort: AbortFlag) -> bool:
    """Ask again and again, with longer and longer pauses, whether something is over."""
    for _ in range(_BUSY_LOOKS):
        if is_over():
            return True
    deadline, pause_s = time.monotonic() + limit_s, _LEAST_PAUSE_S
    while not is_over():
        if abort.is_set or time.monotonic() >= deadline:
            return False
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
    return True


def connect(
    listener: Listener,
    rank: int,
    addresses: Sequence[str],
    wire: str,
    make: Callable[[dict[int, Link], AbortFlag, int], Carrier],
    **options: Any,
) -> CarriedTransport:
    """Join the gang over TCP, and let a library carry the arrays."""
    everybody = tuple(peer for peer in range(len(addresses)) if peer != rank)
    entrance = Entrance(listener, rank, addresses, f"{wire} ".encode(), first=everybody, **options)
    joined = entrance.join()
    mesh = entrance.transport(joined)
    try:
        carrier = make(joined.links, mesh.abort, entrance.credentials.job)
    except BaseException as error:
        mesh.close()
        mesh.abort.check()
        if isinstance(error, (BlockingIOError, TimeoutError)):  # the first is what a deadline of the kernel raises
            raise GangTimeoutError(f"rank {rank}: {wire} could not be started: {error}.") from error
        if isinstance(error, OSError):
            raise AbortedError(f"a peer went away while rank {rank} set up {wire}: {error}.") from error
        raise
    return CarriedTransport(mesh, carrier, wire)
