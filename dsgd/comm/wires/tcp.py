"""The transport between processes over TCP.

Problem: ranks exchange after every few hundred microseconds of work, so a message must cost no more than its system
calls; and a peer that dies, hangs or belongs to another job must cause an error, never a hang.

Every rank listens on one port and the mesh is complete: rank i connects to all lower ranks and accepts all higher ones
(`handshake`). Frames go through blocking sockets in the thread of the rank (`link`), both ways at once. A closed
connection means that the peer's process has gone; a deadline that passes means that it hangs.

Cost per message: two system calls and no copy beyond the kernel's own. Bytes are counted as sent, headers included.

Why not the wires that Dask has: on one host a round trip of 1 KB takes about 15 us on blocking sockets, 500-700 us
over the RPC of `distributed` and 13-28 ms as a round of tasks (`benchmarks/communication/transports.py` measures it).
"""

from __future__ import annotations

import errno
import select
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final, NoReturn

from dsgd.comm.abort import AbortFlag, check_limit
from dsgd.comm.base import AbstractTransport
from dsgd.comm.frame_exchange import FrameExchange
from dsgd.comm.frames import HEADER_BYTES, check_array
from dsgd.comm.sockets.handshake import Credentials
from dsgd.comm.sockets.link import (
    Link,
    PeerGoneError,
    PeerLateError,
    charge_exchange,
    shut_down,
)
from dsgd.comm.sockets.listener import Listener, Wrap
from dsgd.comm.sockets.mesh import Detour, join_mesh
from dsgd.errors import AbortedError, GangTimeoutError, InvalidParameterError
from dsgd.ledger import RankLedger
from dsgd.types import AnyArray

__all__ = ["Detour", "Entrance", "Listener", "TCPTransport", "Wrap", "connect"]

DEFAULT_TIMEOUT_S: Final = 60.0
_WAYS: Final = ("shm", "rpc", "tcp")


class TCPTransport(AbstractTransport):
    """A rank that is a process; made by `connect`.

    Parameters
    ----------
    rank, size : int
        This rank, and how many there are.
    links : dict of int to Link
        One connection per peer.
    ledger : RankLedger
        Charged with wire and wait seconds, bytes and messages.
    abort : AbortFlag
        Wakes this rank from any wait when set, by shutting the connections down.
    timeout_s : float
        Longest wait without progress, in seconds.

    Attributes
    ----------
    abort : AbortFlag
        As given.
    """

    def __init__(
        self, rank: int, size: int, links: dict[int, Link], ledger: RankLedger, abort: AbortFlag, timeout_s: float
    ) -> None:
        self.rank = rank
        self.size = size
        self.ledger = ledger
        self.hosts = tuple(range(size))
        self.wire = "+".join(way for way in _WAYS if any(link.way == way for link in links.values())) or "tcp"
        self._links = links
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
        try:
            out = None if to is None or outgoing is None else self._links[to]
            inn = None if source is None or incoming is None else self._links[source]
        except KeyError as error:
            raise InvalidParameterError(f"rank {self.rank} of {self.size} has no peer {error}.") from None
        # Everything is checked before a frame is numbered: a refused one must not shift the count.
        dtype_out = check_array(outgoing) if outgoing is not None else 0
        dtype_in = check_array(incoming) if incoming is not None else 0
        if out is not None and outgoing is not None:
            out.pack_out(dtype_out, outgoing.nbytes, op)
            self.ledger.count(HEADER_BYTES + outgoing.nbytes)
        if inn is not None and incoming is not None:
            inn.pack_wanted(dtype_in, incoming.nbytes, op)
        return out, inn

    def latency_s(self, peer: int) -> float:
        """Return half of the shortest round trip to `peer` seen when connecting, in seconds."""
        return self._links[peer].latency_s

    def heard_from(self, peers: Sequence[int], limit_s: float) -> list[int]:
        """Return those of `peers` of which something can be read, or that went away; waits at most `limit_s`."""
        if self._closed:
            raise AbortedError(f"rank {self.rank} has closed its transport and receives nothing.")
        links = {self._links[peer].sock.fileno(): self._links[peer] for peer in peers}
        if pending := [link.rank for link in links.values() if link.has_pending]:
            return pending
        poller = select.poll()
        for fd in links:
            poller.register(fd, select.POLLIN)
        return [links[fd].rank for fd, _ in poller.poll(max(limit_s, 0.0) * 1000)]

    def set_deadline(self, deadline_s: float) -> None:
        """Change the longest wait; see `AbstractTransport.set_deadline`."""
        check_limit("deadline_s", deadline_s)
        self.deadline_s = deadline_s
        for link in self._links.values():
            link.set_deadline(deadline_s)

    def close(self) -> None:
        """Close all connections; peers that wait for this rank see that it went away."""
        self._closed = True
        for link in self._links.values():
            link.sock.close()

    def raise_for(self, error: OSError, at: Link | None, source: Link | None) -> NoReturn:
        """Turn an error of a connection into one that names the peer and the cause: gone, late, or the job stopped."""
        self.abort.check()
        link = error.link if isinstance(error, PeerGoneError) else at or source
        if link is None:
            raise error
        cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
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
        for link in self._links.values():
            shut_down(link.sock)


@dataclass
class Entrance:
    """What a rank brings to join its gang; every wire between processes begins with it.

    Parameters
    ----------
    listener : Listener
        This rank's own; closed once all ranks have joined, by the caller otherwise.
    rank : int
        This rank.
    addresses : sequence of str, length world size
        ``Listener.address`` of every rank, in rank order.
    greeting : bytes, default b""
        What ranks on this wire must agree on beside `config`.
    job_id : bytes or str
        Name of the job.
    epoch : int
        Incarnation of the gang; ranks of an earlier one are turned away.
    token : bytes, length 16 or more
        Secret that only the ranks of the job know; it does not travel.
    config : bytes, default b""
        Whatever all ranks must agree on (versions, dtype, number of features); compared by digest.
    ledger : RankLedger, optional
        Charged with what this rank sends and waits for; a new one by default.
    abort : AbortFlag, optional
        Wakes this rank from any wait when set; a new one by default.
    timeout_s : float, default 60
        Longest wait for a peer without progress, in seconds.
    connect_timeout_s : float, default 60
        Longest time for all ranks to join, in seconds.
    wrap : callable, optional
        Takes (socket, server_side) and returns the socket to use, on which no handshake has been made: the seam for
        TLS.
    detour : Detour, optional
        How to get to peers that cannot be connected to.

    Attributes
    ----------
    flag : AbortFlag
        `abort`, or the new one.
    credentials : Credentials
        What this rank shows to its peers.

    Raises
    ------
    InvalidParameterError
        `rank`, `token` or a time limit cannot be.
    """

    listener: Listener
    rank: int
    addresses: Sequence[str]
    greeting: bytes = b""
    _: KW_ONLY
    job_id: bytes | str
    epoch: int
    token: bytes
    config: bytes = b""
    ledger: RankLedger | None = None
    abort: AbortFlag | None = None
    timeout_s: float = DEFAULT_TIMEOUT_S
    connect_timeout_s: float = DEFAULT_TIMEOUT_S
    wrap: Wrap | None = None
    detour: Detour | None = None

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

    def join(self) -> dict[int, Link]:
        """Return one link per peer, once this rank is connected with all of them; see `connect` for the errors."""
        ways = self.wrap, self.detour
        return join_mesh(self.listener, self.addresses, self.credentials, self.flag, self.connect_timeout_s, *ways)

    def transport(self, links: dict[int, Link]) -> TCPTransport:
        """Return the transport over these links, with the deadlines of the data path."""
        for link in links.values():
            link.configure(self.timeout_s)
        ledger = self.ledger or RankLedger(self.rank)
        return TCPTransport(self.rank, len(self.addresses), links, ledger, self.flag, self.timeout_s)


def connect(listener: Listener, rank: int, addresses: Sequence[str], **options: Any) -> TCPTransport:
    """Join the gang: return once this rank is connected with all others.

    Parameters
    ----------
    listener, rank, addresses, **options
        See `Entrance`.

    Returns
    -------
    TCPTransport
        Connected with all other ranks.

    Raises
    ------
    InvalidParameterError
        `rank`, `token` or a time limit cannot be.
    ProtocolError
        A peer belongs to another job or incarnation, holds another token, or has another config or world size.
    GangTimeoutError
        Not all ranks joined in time; names those missing.
    AbortedError
        The job stopped, or a peer went away meanwhile.
    """
    entrance = Entrance(listener, rank, addresses, **options)
    return entrance.transport(entrance.join())
