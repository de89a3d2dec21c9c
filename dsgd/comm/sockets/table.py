"""The connections of a rank, as its threads share them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable

from dsgd.comm.sockets.handshake import CROSSED, OK, WRONG_RANK
from dsgd.comm.sockets.link import Link


class LinkTable:
    """What the threads of a rank know of its connections: a peer is called, comes, or is linked.

    Two ranks may call each other at once, and one connection must come of it. A rank that calls a lower one turns down
    the call of that one, which then waits for the call of the higher: so the call of the higher rank wins.
    """

    def __init__(
        self, rank: int, size: int, expected: Collection[int], arrived: Callable[[], None] = lambda: None
    ) -> None:
        self.rank, self.size, self._arrived = rank, size, arrived
        self.links: dict[int, Link] = {}
        self._expected: Collection[int] = expected
        self._changed = threading.Condition()
        self._calling: set[int] = set()
        self._coming: set[int] = set()
        self._called: set[int] = set()
        self._error: BaseException | None = None

    @property
    def is_complete(self) -> bool:
        """Whether this rank is connected with all others."""
        return len(self.links) == self.size - 1

    def missing(self, peers: Iterable[int]) -> list[int]:
        """Return those of `peers` to which there is no connection, ascending."""
        return sorted(set(peers).difference(self.links))

    def awaits(self, peer: int) -> bool:
        """Return whether the call of a peer may be answered already; one that cannot be right may."""
        return peer in self._expected or not 0 <= peer < self.size

    def open_to_all(self) -> None:
        """Let any peer come from now on."""
        self._expected = range(self.size)

    def call(self, peer: int) -> bool:
        """Note that this rank calls a peer; False if a connection is there or on its way, and is to be waited for."""
        with self._changed:
            if peer in self.links or peer in self._coming or peer in self._calling:
                return False
            self._calling.add(peer)
            return True

    def let_in(self, peer: int) -> int:
        """Note that a peer that has shown who it is comes; returns why it may not, as a status of the handshake."""
        with self._changed:
            if peer == self.rank or not 0 <= peer < self.size:
                return WRONG_RANK
            if peer < self.rank and (peer in self._calling or peer in self._called):
                return CROSSED
            if peer in self.links or peer in self._coming:
                return WRONG_RANK
            self._coming.add(peer)
            return OK

    def put(self, link: Link, *, called: bool) -> None:
        """Add a connection that is made."""
        with self._changed:
            self.links[link.rank] = link
            if called:
                self._called.add(link.rank)
            self._forget(link.rank, called=called)
        self._arrived()

    def drop(self, peer: int, *, called: bool) -> None:
        """Note that a call has failed, of this rank or of the peer."""
        with self._changed:
            self._forget(peer, called=called)

    def fail(self, error: BaseException) -> None:
        """Let this rank end with an error; the first counts."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def wait_for(self, peers: Collection[int], limit_s: float) -> list[int]:
        """Wait until there is a connection to each of `peers`; returns those that are missing then."""
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or not self.missing(peers), limit_s)
            if self._error is not None:
                raise self._error
            return self.missing(peers)

    def _forget(self, peer: int, *, called: bool) -> None:
        (self._calling if called else self._coming).discard(peer)
        self._changed.notify_all()
