"""The connections of a rank to its peers: a few at once, others when they are first needed.

Problem: P ranks that are all connected with each other hold P - 1 connections each, which no process of hundreds may
have, and few of which are ever used: a sum takes log2 P of them, a ring two.

Method: a rank joins its `first_peers` and is then connected with any other one when the two first exchange something.
In a small gang these are all. In a larger one they are its neighbours in a hypercube, by which short vectors are summed
(`dsgd.collectives.algorithms.rings`): every rank is connected with every other one through some others, so
that ranks which do not fit are found before work starts.

Of two first peers the higher rank connects. Later either may, the higher at once and the lower a moment later, since
usually both need the connection; `LinkTable` says whose holds. A thread lets peers in (`acceptor`), so a rank waits
for no other one but for its answers. The port is closed when the last peer has come: at once in a small gang, with the
transport in a larger one.

A peer whose port is closed or filtered is reached by a detour, where there is one: through the port on which its
process is reached anyway (`dsgd.comm.wires.rpc`). That is decided for each pair by the rank that connects.

Cost: four records of 128 bytes per connection, and a few round trips to measure the latency.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Final

from dsgd.comm.frames import AbortFlag
from dsgd.comm.sockets.acceptor import Acceptor
from dsgd.comm.sockets.connector import Connector, CrossedError, Deadline, Detour, check_room
from dsgd.comm.sockets.handshake import Credentials
from dsgd.comm.sockets.link import Link, LinkTable, shut_down
from dsgd.comm.sockets.listener import Listener, Wrap
from dsgd.errors import GangTimeoutError

#: Up to so many ranks are all connected with each other from the start.
FULL_MESH: Final = 8
_SLICE_S: Final = 0.1
# For so long a rank waits for the call of a higher one before it calls itself.
_COURTESY_S: Final = 0.05


def first_peers(rank: int, size: int) -> tuple[int, ...]:
    """Return the ranks that `rank` is connected with from the start, ascending.

    All others if there are at most `FULL_MESH` ranks, else its neighbours in a `hypercube`.
    """
    if size <= FULL_MESH:
        return tuple(peer for peer in range(size) if peer != rank)
    folded, steps = hypercube(rank, size)
    return tuple(sorted([*folded, *steps]))


def hypercube(rank: int, size: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the neighbours of `rank` in a hypercube of 2**q ranks, the largest that there are enough of.

    - returned: of each of the first pairs of ranks, as many as there are ranks beyond, the other one; empty for
      other ranks.
    - returned: the neighbours in dimension 0, 1, ...; of a pair the even rank has them for both.
    """
    core = 1 << (size.bit_length() - 1)
    n_folded = size - core
    folded = (rank ^ 1,) if rank < 2 * n_folded else ()
    if folded and rank % 2:
        return folded, ()
    number = rank // 2 if folded else rank - n_folded
    others = [number ^ (1 << k) for k in range(core.bit_length() - 1)]
    return folded, tuple(2 * other if other < n_folded else other + n_folded for other in others)


class Mesh:
    """The connections of one rank; `join` makes the first."""

    def __init__(
        self,
        listener: Listener,
        addresses: Sequence[str],
        credentials: Credentials,
        abort: AbortFlag,
        limit_s: float,
        wrap: Wrap | None,
        detour: Detour | None,
        first: Collection[int],
    ) -> None:
        self._listener, self._addresses, self._abort, self._limit_s = listener, addresses, abort, limit_s
        self.rank, self._first = credentials.rank, first
        self._table = LinkTable(self.rank, credentials.size, first, self._ring)
        self.links = self._table.links
        # Shutting a socket down is how a flag that is set wakes the thread that waits for an answer on it.
        self._opened: set[socket.socket] = set()
        self._settle_late: Callable[[Link], Link] = lambda link: link
        self._connector = Connector(credentials, abort, wrap, detour, self._opened)
        self._acceptor = Acceptor(listener, credentials, wrap, self._table, self._settled, limit_s, self._opened)
        self._bell: tuple[int, int] | None = None

    @property
    def is_complete(self) -> bool:
        """Whether this rank is connected with all others."""
        return self._table.is_complete

    def join(self) -> None:
        """Connect with the first peers; see `dsgd.comm.wires.tcp.connect` for the errors."""
        self._abort.on_set(self.wake)
        deadline = Deadline(self._limit_s)
        try:
            check_room(self.rank, len(self._first))
            if len(self._addresses) > 1:
                self._acceptor.start()
            for peer in self._first:
                if peer < self.rank and self._table.call(peer):
                    self._call(peer, deadline)
            while missing := self._table.wait_for(self._first, min(_SLICE_S, deadline.left_s())):
                self._abort.check()
                if deadline.is_over:
                    raise self._not_joined(missing)
            self._abort.check()
        except BaseException:
            self._hang_up()
            self._abort.check()
            raise
        if self.is_complete:
            self._acceptor.stop()
            self._listener.close()

    def open_to_all(self, settle: Callable[[Link], Link]) -> None:
        """Let peers come that are not among the first, from now on and as long as the transport lives."""
        if not self.is_complete:
            self._settle_late = settle
            self._listener.is_kept = True
            self._table.open_to_all()
            self._acceptor.wake()

    def reach(self, peers: Collection[int], limit_s: float, *, at_once: bool = False) -> None:
        """Connect with peers where there is no connection yet."""
        missing = self._table.missing(peers)
        if not missing:
            return
        deadline = Deadline(min(limit_s, self._limit_s))
        for peer in missing:
            if (at_once or peer < self.rank) and self._table.call(peer):
                self._call(peer, deadline)
        for peer in self._table.wait_for(missing, _COURTESY_S):
            if self._table.call(peer):
                self._call(peer, deadline)
        while late := self._table.wait_for(missing, min(_SLICE_S, deadline.left_s())):
            self._abort.check()
            if deadline.is_over:
                raise self._not_joined(late)
            for peer in late:
                # A call of that peer, which this rank had waited for, has failed.
                if self._table.call(peer):
                    self._call(peer, deadline)

    def arrivals(self) -> int:
        """Return the descriptor of a pipe that can be read once another peer has come since `heed_arrivals`."""
        if self._bell is None:
            self._bell = os.pipe()
            for end in self._bell:
                os.set_blocking(end, False)
        return self._bell[0]

    def heed_arrivals(self) -> None:
        """Empty that pipe."""
        with suppress(BlockingIOError):
            os.read(self.arrivals(), 4096)

    def wake(self) -> None:
        """Let this rank see that its job has stopped; may be called from any thread."""
        for link in list(self.links.values()):
            shut_down(link.sock)
        for sock in list(self._opened):
            shut_down(sock)
        self._acceptor.end()

    def close(self) -> None:
        """Close all connections and the port; may be called more than once."""
        self._hang_up()
        if self._listener.is_kept:
            self._listener.is_kept = False
            self._listener.close()
        bell, self._bell = self._bell, None
        for end in bell or ():
            os.close(end)

    def _hang_up(self) -> None:
        for sock in list(self._opened):
            shut_down(sock)
        self._acceptor.stop()
        for sock in [*self._opened, *(link.sock for link in self.links.values())]:
            sock.close()

    def _call(self, peer: int, deadline: Deadline) -> None:
        """Connect to a peer, unless that calls itself at the same time."""
        try:
            link = self._connector.connect(peer, self._addresses[peer], deadline)
            with self._connector.holding(link.sock):
                self._table.put(self._settled(link), called=True)
        except BaseException as error:
            self._table.drop(peer, called=True)
            if not isinstance(error, CrossedError):
                raise

    def _settled(self, link: Link) -> Link:
        """Return the link to use for one that was just made."""
        return link if link.rank in self._first else self._settle_late(link)

    def _ring(self) -> None:
        bell = self._bell
        if bell is not None:
            with suppress(BlockingIOError):
                os.write(bell[1], b"\0")

    def _not_joined(self, missing: Sequence[int]) -> GangTimeoutError:
        refusals = self._listener.refusals
        refused = f" Turned away meanwhile: {'; '.join(refusals)}." if refusals else ""
        return GangTimeoutError(
            f"rank {self.rank} at {self._listener.address} waited {self._limit_s:g} s for rank(s) "
            f"{', '.join(map(str, missing))} to join.{refused} Check that their workers run and can reach this address."
        )
