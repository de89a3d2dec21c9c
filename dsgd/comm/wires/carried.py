"""Wires that something else carries: the ports of Dask's workers, and other packages; docs/extending.rst has one.

Firewalls, proxies and container networks often allow one port per worker, the one that Dask uses. A rank holds one end
of a local socket and knows no difference: handshake, frames, deadlines and abort are those of TCP. The other end
belongs to a `Relay` on the event loop of its process, which posts what it reads there, at most `CHUNK_BYTES` at a time,
to the process of the peer, and writes what is posted to it. The answer to a post is given when the peer's socket has
taken the bytes, and until then nothing more is read: a rank that does not read stops the one that sends, and no more
than one chunk per connection and direction is held outside the kernel. Chunks are numbered by their first byte, so that
one that was lost, sent twice or made up ends the connection. What is posted are bytes; nothing here unpickles anything.
Posts are sent by `dsgd.runtime`, over the RPC of Dask's workers, which is encrypted if the cluster is: about half a
millisecond on one host.

**Other packages.** MPI, UCX and the like are fast between processes, but know nothing of jobs, deadlines or ranks that
are at different points; calls that do not match hang or end the process. All ranks join over TCP
(`dsgd.comm.sockets.mesh`), which authenticates them, and the header of a frame is sent over that connection. Only after
it has shown that the right array follows does the library receive the array. So mismatches, dead peers, stopped jobs
and deadlines are handled as on TCP. Cost per frame: that of a frame of no bytes over TCP, and what the library needs.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol, TypeAlias

from dsgd.comm.base import AbstractTransport
from dsgd.comm.frames import AbortFlag
from dsgd.comm.sockets.handshake import receive_exactly
from dsgd.comm.sockets.link import Link, charge_exchange, shut_down
from dsgd.comm.sockets.listener import Listener, split_address
from dsgd.comm.wires.tcp import Entrance, TCPTransport
from dsgd.errors import AbortedError, GangTimeoutError, ProtocolError
from dsgd.types import AnyArray

#: What is posted at once.
CHUNK_BYTES: Final = 1 << 20

# How long the end of an old connection may take before a new one is refused. One that a listener has let go of ends
# after two posts.
_CLEAR_S: Final = 3.0

#: Delivers bytes to the process of a peer: takes the number of the first byte and the bytes (none at the end), returns
#: when they have been taken, raises OSError when they never will be.
Post: TypeAlias = Callable[[int, bytes], Awaitable[None]]


class Relay:
    """One end of a connection: moves bytes between a local socket and the process of a peer."""

    def __init__(self, sock: socket.socket, post: Post) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._post = post
        self._n_received = 0
        self._writing = asyncio.Lock()

    async def run(self) -> None:
        """Post what the rank sends until it closes its socket, or until the peer cannot be reached."""
        loop = asyncio.get_running_loop()
        n_sent = 0
        try:
            data = None
            while data != b"":
                try:
                    data = await loop.sock_recv(self._sock, CHUNK_BYTES)
                except ConnectionError:
                    data = b""  # the rank has closed its socket and not read all that came
                await self._post(n_sent, data)
                n_sent += len(data)
        except OSError:
            pass  # the peer cannot be reached; the rank learns of it by the end of its stream
        finally:
            shut_down(self._sock)
            async with self._writing:
                self._sock.close()

    async def deliver(self, position: int, data: bytes) -> None:
        """Hand bytes of the peer to the rank; returns when its socket has taken them."""
        if self._writing.locked():
            raise ProtocolError("expected one message at a time, got a second one.")
        if position != self._n_received:
            raise ProtocolError(f"expected the bytes from {self._n_received} on, got those from {position} on.")
        if len(data) > CHUNK_BYTES:
            raise ProtocolError(f"expected at most {CHUNK_BYTES} bytes, got {len(data)}.")
        async with self._writing:
            if self._sock.fileno() < 0:
                raise ConnectionResetError("the rank has left")
            if data:
                await asyncio.get_running_loop().sock_sendall(self._sock, data)
                self._n_received += len(data)
            else:
                self._sock.shutdown(socket.SHUT_WR)

    def stop(self) -> None:
        """End the connection; from any thread."""
        shut_down(self._sock)


class Switchboard:
    """The relays of the ranks that one process runs for one job, used on its event loop."""

    def __init__(self) -> None:
        self.refused: Counter[str] = Counter()
        self._doors: dict[int, str] = {}
        # Two ranks that call each other at once have two for a moment: the one called here, and the one that came.
        self._relays: dict[tuple[int, int, bool], Relay] = {}
        self._tasks: dict[tuple[int, int, bool], asyncio.Task[None]] = {}
        self._is_closed = False

    def open_door(self, rank: int, address: str) -> None:
        """Let peers connect to a rank of this process, which listens at `address`; from any thread."""
        self._doors[rank] = address

    def close_door(self, rank: int) -> None:
        """Refuse new connections to ranks of this process; from any thread."""
        self._doors.pop(rank, None)

    def start(self, rank: int, peer: int, sock: socket.socket, post: Post, *, came: bool = False) -> None:
        """Begin to relay between `sock` and a peer that this rank calls or, with `came`, that has called it."""
        place = rank, peer, came
        if self._is_closed or place in self._relays:
            sock.close()
            raise ProtocolError(f"rank {rank} cannot be connected with rank {peer} now.")
        relay = self._relays[place] = Relay(sock, post)
        task = self._tasks[place] = asyncio.get_running_loop().create_task(relay.run())

        def ended(_: asyncio.Task[None]) -> None:
            del self._tasks[place], self._relays[place]

        task.add_done_callback(ended)

    async def call(
        self, rank: int, peer: int, sock: socket.socket, post: Post, ask: Callable[[], Awaitable[None]]
    ) -> None:
        """Connect a rank of this process with a peer, and relay between it and `sock`.

        Where it has called before in vain, what is left of that connection ends first, here and then there: otherwise
        its last messages would go to the new one.
        """
        try:
            await self._clear(rank, peer, came=False)
            await ask()
        except BaseException:
            sock.close()
            raise
        self.start(rank, peer, sock, post)

    async def _clear(self, rank: int, peer: int, *, came: bool) -> None:
        """Wait until a relay is gone whose caller has left it."""
        task = self._tasks.get((rank, peer, came))
        if task is not None:
            await asyncio.wait([task], timeout=_CLEAR_S)

    async def admit(self, rank: int, peer: int, post: Post) -> None:
        """Connect a peer to a rank of this process, as if it had come through the network."""
        if rank not in self._doors or rank == peer:
            self.refused["rank"] += 1
            raise ProtocolError(f"no rank {rank} waits for rank {peer} here.")
        await self._clear(rank, peer, came=True)
        host, port = split_address(self._doors[rank])
        sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        try:
            sock.setblocking(False)
            await asyncio.get_running_loop().sock_connect(sock, (host, port))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except BaseException:
            sock.close()
            raise
        self.start(rank, peer, sock, post, came=True)

    async def deliver(self, rank: int, peer: int, position: int, data: bytes, *, came: bool) -> None:
        """Hand bytes to a rank of this process, from a peer that has called it (`came`) or not; see `Relay.deliver`."""
        relay = self._relays.get((rank, peer, came))
        if relay is None and not data:
            return  # it ends what has ended here already
        if relay is None:
            self.refused["rank"] += 1
            raise ProtocolError(f"rank {rank} is not connected with rank {peer} here.")
        try:
            await relay.deliver(position, data)
        except ProtocolError:
            self.refused["malformed"] += 1
            relay.stop()
            raise

    def close(self) -> None:
        """End all connections; from any thread."""
        self._is_closed = True
        self._doors.clear()
        for relay in list(self._relays.values()):
            relay.stop()


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
