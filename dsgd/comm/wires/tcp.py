"""The transport between processes over TCP.

Ranks exchange after every few hundred microseconds of work, so a message must cost no more than its system calls; and a
peer that dies, hangs or belongs to another job must cause an error, never a hang. Frames go through blocking sockets in
the thread of the rank (`dsgd.comm.sockets.link`), both ways at once. A closed connection means that the peer's process
has gone; a deadline that passes means that it hangs. Every rank listens on one port, and is connected with some peers
from the start, with any other when the two first exchange something (`dsgd.comm.sockets.mesh`).

Cost per message: two system calls and no copy beyond the kernel's own. Bytes are counted as sent, headers included. On
one host a round trip of 1 KB takes about 15 us on blocking sockets, 500-700 us over the RPC of `distributed` and 13-28
ms as a round of tasks (``dsgd study transports`` measures it).
"""

from __future__ import annotations

import errno
import select
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final, NoReturn

from dsgd.comm.base import AbstractTransport
from dsgd.comm.frame_exchange import FrameExchange
from dsgd.comm.frames import HEADER_BYTES, AbortFlag, check_array, check_limit
from dsgd.comm.sockets.handshake import Credentials
from dsgd.comm.sockets.link import Link, PeerGoneError, PeerLateError, charge_exchange, shut_down
from dsgd.comm.sockets.listener import Listener, Wrap
from dsgd.comm.sockets.mesh import Detour, Mesh, explained_file_limit, first_peers
from dsgd.errors import AbortedError, GangTimeoutError, InvalidParameterError
from dsgd.ledger import RankLedger
from dsgd.types import AnyArray

DEFAULT_TIMEOUT_S: Final = 60.0
_WAYS: Final = ("shm", "rpc", "tcp")


class TCPTransport(AbstractTransport):
    """A rank that is a process; made by `connect`."""

    def __init__(
        self,
        rank: int,
        size: int,
        links: dict[int, Link],
        ledger: RankLedger,
        abort: AbortFlag,
        timeout_s: float,
        mesh: Mesh | None = None,
    ) -> None:
        self.rank = rank
        self.size = size
        self.ledger = ledger
        self.hosts = tuple(range(size))
        self.wire = "+".join(way for way in _WAYS if any(link.way == way for link in links.values())) or "tcp"
        self._links = links
        self._mesh = mesh
        self.abort = abort
        self.deadline_s = timeout_s
        self._closed = False
        abort.on_set(self._wake)

    def exchange(
        self, to: int | None, outgoing: AnyArray | None, source: int | None, incoming: AnyArray | None, op: int = 0
    ) -> None:
        """Send `outgoing` while receiving `incoming`; see `AbstractTransport.exchange`."""
        out, inn = self.announce(to, outgoing, source, incoming, op)
        ledger, at = self.ledger, out
        start = arrived_at = ledger.clock()
        try:
            # Whatever leaves at once does, before anything is waited for: a short frame, all of it.
            sent = 0 if out is None or outgoing is None else out.send_at_once(outgoing)
            if outgoing is not None and out is not None and sent < HEADER_BYTES + outgoing.nbytes:
                frames = FrameExchange(out, None, outgoing, inn, None, incoming, sent)
                arrived_at = frames.run(ledger, self.deadline_s, self.abort)
            elif inn is not None and incoming is not None:
                at = inn
                arrived_at = inn.receive(incoming, ledger.clock)
        except OSError as error:
            self.raise_for(error, at, inn)
        if ledger.timing:
            charge_exchange(ledger, start, arrived_at, inn)

    def announce(
        self, to: int | None, outgoing: AnyArray | None, source: int | None, incoming: AnyArray | None, op: int
    ) -> tuple[Link | None, Link | None]:
        """Number and count the frames of an exchange, and return their links with the headers packed."""
        self.abort.check()
        if self._closed:
            raise AbortedError(f"rank {self.rank} has closed its transport and can exchange nothing.")
        to, source = None if outgoing is None else to, None if incoming is None else source
        try:
            out = None if to is None else self._links[to]
            inn = None if source is None else self._links[source]
        except KeyError:
            self.reach(*(peer for peer in (to, source) if peer is not None))
            out = None if to is None else self._links[to]
            inn = None if source is None else self._links[source]
        # Everything is checked before a frame is numbered: a refused one must not shift the count.
        dtype_out = check_array(outgoing) if outgoing is not None else 0
        dtype_in = check_array(incoming) if incoming is not None else 0
        if out is not None and outgoing is not None:
            out.pack_out(dtype_out, outgoing.nbytes, op)
            self.ledger.count(HEADER_BYTES + outgoing.nbytes)
        if inn is not None and incoming is not None:
            inn.pack_wanted(dtype_in, incoming.nbytes, op)
        return out, inn

    def reach(self, *peers: int, at_once: bool = False) -> None:
        """Connect with peers where this rank is not; `at_once` is for frames that the peer does not wait for."""
        for peer in peers:
            if peer not in self._links and (peer == self.rank or not 0 <= peer < self.size or self._mesh is None):
                raise InvalidParameterError(f"rank {self.rank} of {self.size} has no peer {peer}.")
        if self._mesh is not None:
            self._mesh.reach(peers, self.deadline_s, at_once=at_once)

    @property
    def is_complete(self) -> bool:
        """Whether this rank is connected with all others."""
        return self._mesh is None or self._mesh.is_complete

    def latency_s(self, peer: int) -> float:
        """Return half of the shortest round trip to `peer` seen when connecting, in seconds."""
        self.reach(peer)
        return self._links[peer].latency_s

    def heard_from(self, peers: Sequence[int], limit_s: float) -> list[int]:
        """Return those of `peers` of which something can be read, or that went away; waits at most `limit_s`."""
        if self._closed:
            raise AbortedError(f"rank {self.rank} has closed its transport and receives nothing.")
        deadline = time.monotonic() + limit_s
        while True:
            links = {self._links[peer].sock.fileno(): self._links[peer] for peer in peers if peer in self._links}
            # Those of which a wrapped socket holds something; others may have something, too, and are not to wait.
            pending = {fd for fd, link in links.items() if link.has_pending}
            poller = select.poll()
            for fd in links:
                poller.register(fd, select.POLLIN)
            mesh = self._mesh if len(links) < len(set(peers)) else None
            bell = -1 if mesh is None else mesh.arrivals()
            if mesh is not None:
                poller.register(bell, select.POLLIN)
                if any(peer in self._links for peer in peers if peer not in {link.rank for link in links.values()}):
                    continue  # it came between the two looks
            left_s = 0.0 if pending else max(deadline - time.monotonic(), 0.0)
            ready = pending.union(fd for fd, _ in poller.poll(left_s * 1000))
            if mesh is not None and bell in ready:
                mesh.heed_arrivals()
            if found := [links[fd].rank for fd in ready if fd != bell]:
                return found
            if time.monotonic() >= deadline:
                return []

    def set_deadline(self, deadline_s: float) -> None:
        """Change the longest wait; see `AbstractTransport.set_deadline`."""
        check_limit("deadline_s", deadline_s)
        self.deadline_s = deadline_s
        for link in list(self._links.values()):
            link.set_deadline(deadline_s)

    def close(self) -> None:
        """Close all connections; peers that wait for this rank see that it went away."""
        self._closed = True
        if self._mesh is not None:
            self._mesh.close()
        for link in self._links.values():
            link.sock.close()

    def raise_for(self, error: OSError, at: Link | None, source: Link | None) -> NoReturn:
        """Turn an error of a connection into one that names the peer and the cause: gone, late, or the job stopped."""
        self.abort.check()
        link = error.link if isinstance(error, PeerGoneError) else at or source
        if link is None:
            raise error
        cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
        # EAGAIN of a call that blocks: the time of SO_RCVTIMEO or SO_SNDTIMEO has passed.
        if isinstance(cause, (BlockingIOError, TimeoutError, PeerLateError)):
            self._raise_late(link, cause)
        raise AbortedError(
            f"rank {link.rank} at {link.address} went away during an exchange with rank {self.rank}: {error}."
        ) from error

    def _raise_late(self, link: Link, error: OSError) -> NoReturn:
        # The kernel's own verdict: nothing sent was acknowledged. It may come before our deadline.
        silent = error.errno == errno.ETIMEDOUT
        waited = "got no sign of life from" if silent else f"waited {self.deadline_s:g} s for"
        raise GangTimeoutError(
            f"rank {self.rank} {waited} rank {link.rank} at {link.address}. "
            "Its process hangs, is overloaded or cannot be reached; raise the timeout if its work takes longer."
        ) from error

    def _wake(self) -> None:
        for link in list(self._links.values()):
            shut_down(link.sock)


@dataclass
class Entrance:
    """What a rank brings to join its gang; every wire between processes begins with it."""

    listener: Listener
    rank: int
    addresses: Sequence[str]
    greeting: bytes = b""
    _: KW_ONLY
    job_id: bytes | str
    epoch: int
    token: bytes = field(repr=False)
    config: bytes = b""
    ledger: RankLedger | None = None
    abort: AbortFlag | None = None
    timeout_s: float = DEFAULT_TIMEOUT_S
    connect_timeout_s: float = DEFAULT_TIMEOUT_S
    wrap: Wrap | None = None
    detour: Detour | None = None
    first: Collection[int] | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        size = len(self.addresses)
        if not 0 <= self.rank < size:
            raise InvalidParameterError(f"connect(rank=...) must be from 0 to {size - 1}. Got {self.rank}.")
        check_limit("timeout_s", self.timeout_s)
        check_limit("connect_timeout_s", self.connect_timeout_s)
        self.flag = AbortFlag() if self.abort is None else self.abort
        config = self.greeting + self.config
        self.credentials = Credentials(self.rank, size, self.job_id, self.epoch, self.token, config)

    def join(self) -> Mesh:
        """Return the connections to the first peers, once they are there; see `connect` for the errors."""
        size = len(self.addresses)
        first = first_peers(self.rank, size) if self.first is None else self.first
        settings = self.flag, self.connect_timeout_s, self.wrap, self.detour, first
        with explained_file_limit(self.rank):
            mesh = Mesh(self.listener, self.addresses, self.credentials, *settings)
            mesh.join()
        return mesh

    def transport(self, mesh: Mesh, settle: Callable[[Link], Link] = lambda link: link) -> TCPTransport:
        """Return the transport over these connections, with the deadlines of the data path."""
        for link in mesh.links.values():
            link.configure(self.timeout_s)
        ledger = self.ledger or RankLedger(self.rank)
        settings = ledger, self.flag, self.timeout_s, mesh
        transport = TCPTransport(self.rank, len(self.addresses), mesh.links, *settings)

        def settled(link: Link) -> Link:
            link = settle(link)
            link.configure(transport.deadline_s)
            return link

        mesh.open_to_all(settled)
        return transport


def connect(listener: Listener, rank: int, addresses: Sequence[str], **options: Any) -> TCPTransport:
    """Join the gang: return once this rank is connected with its first peers, which in a small gang are all others."""
    entrance = Entrance(listener, rank, addresses, **options)
    return entrance.transport(entrance.join())
