"""Sending and receiving a frame at once, over a socket or through shared memory.

A frame longer than the buffers of a connection leaves only as fast as the peer reads it, so two ranks that both send
before they read would wait for each other for ever; and a rank may send to one peer through memory while another peer
sends to it over TCP. It serves whichever is ready, straight from or to the caller's array, and sleeps if neither is.
"""

from __future__ import annotations

import select
import socket
import time
from typing import Final

from dsgd.comm.frames import HEADER_BYTES, AbortFlag
from dsgd.comm.memory.streams import BAD_HEADER, BAD_OUT, IN_AT, IN_END, OUT_AT, OUT_END, UNREADABLE, Ring, pump
from dsgd.comm.sockets.link import LOOKS, Link, PeerGoneError, PeerLateError, as_bytes, receive_some, send_some
from dsgd.errors import ProtocolError
from dsgd.ledger import RankLedger
from dsgd.types import AnyArray

#: How long a rank of a spinning gang looks at memory before it sleeps.
SPIN_S: Final = 0.01

_BELL_BYTES: Final = 4096
_NO_BYTES: Final = memoryview(bytearray())


class FrameExchange:
    """What is left of two frames."""

    def __init__(
        self,
        out: Link | None,
        ring_out: Ring | None,
        outgoing: AnyArray | None,
        source: Link | None,
        ring_in: Ring | None,
        incoming: AnyArray | None,
        sent: int = 0,
    ) -> None:
        self.link_out, self.ring_out, self.link_in, self.ring_in = out, ring_out, source, ring_in
        # What goes over sockets (all, the header or nothing of a frame), and how much of it is through.
        self._payload_out = self._payload_in = _NO_BYTES
        self._out_bytes = self._in_bytes = self._got = 0
        self._sent = sent
        if out is not None and outgoing is not None:
            self._out_bytes = HEADER_BYTES
            if ring_out is None:
                self._payload_out = as_bytes(outgoing)
                self._out_bytes += outgoing.nbytes
            elif ring_out.carries_headers:
                self._out_bytes = 0
        if source is not None and incoming is not None:
            self._in_bytes = HEADER_BYTES
            if ring_in is None:
                self._payload_in = as_bytes(incoming)
                self._in_bytes += incoming.nbytes
            elif ring_in.carries_headers:
                self._in_bytes = 0

    def run(
        self, ledger: RankLedger, deadline_s: float, abort: AbortFlag, *, n_polls: int = 0, spins: bool = False
    ) -> float:
        """Move both frames, each as fast as its peer lets it; return when the first bytes came, zero if not timed."""
        arrived_at, last, n_looks = 0.0, time.monotonic(), 0
        gone: Link | None = None
        has_rings = self.ring_in is not None or self.ring_out is not None
        while not self.is_over:
            before, timed = self.moved, ledger.timing and not arrived_at
            self.step_sockets()
            self.step_rings(n_polls, until_arrived=timed)
            if timed and self.has_arrived:
                arrived_at = ledger.clock()
            if self.moved != before:
                last, n_looks = time.monotonic(), 0
                continue
            abort.check()
            if gone is not None:
                raise PeerGoneError("it closed the connection", gone)
            n_looks += 1
            if n_looks <= LOOKS and has_rings and not self.only_rings:
                continue
            idle_s = time.monotonic() - last
            if idle_s >= deadline_s:
                raise PeerLateError("made no progress", self.awaited)
            gone = self.sleep(0.0 if spins and idle_s < SPIN_S else deadline_s - idle_s)
        return arrived_at

    @property
    def moved(self) -> int:
        """Bytes moved so far, in either direction."""
        n_bytes = self._sent + self._got
        if self.ring_out is not None:
            n_bytes += self.ring_out.state[OUT_AT]
        if self.ring_in is not None:
            n_bytes += self.ring_in.state[IN_AT]
        return int(n_bytes)

    @property
    def has_arrived(self) -> bool:
        """Whether the first bytes of the incoming frame are there."""
        return self._got > 0 or (self.ring_in is not None and self.ring_in.state[IN_AT] > 0)

    @property
    def only_rings(self) -> bool:
        """Whether nothing is left to be moved over sockets."""
        return self._sent == self._out_bytes and self._got == self._in_bytes

    @property
    def is_over(self) -> bool:
        """Whether both frames are through."""
        return not (not self.only_rings or _open_out(self.ring_out) or _open_in(self.ring_in))

    @property
    def awaited(self) -> Link:
        """The peer that something is still due from, or else to."""
        link = self.link_in if self._got < self._in_bytes or _open_in(self.ring_in) else self.link_out
        link = link or self.link_out or self.link_in
        assert link is not None  # one of the two frames is never None
        return link

    def step_sockets(self) -> None:
        """Send and receive what the sockets take and have."""
        if self._sent < self._out_bytes and self.link_out is not None:
            self._sent += send_some(self.link_out, self._payload_out, self._sent)
        if self._got < self._in_bytes and self.link_in is not None:
            self._got += receive_some(self.link_in, self._payload_in, self._got)

    def step_rings(self, n_polls: int, *, until_arrived: bool) -> None:
        """Write and read what the rings take and have; look `n_polls` times where there is nothing else to look at."""
        ring_in = self.ring_in
        if ring_in is None and self.ring_out is None:
            return
        if not self.only_rings:
            n_polls = 0
            if self._got < self._in_bytes:
                # An array is read only after its header has shown that it is the one due.
                ring_in = None
        code = pump(self.ring_out, ring_in, n_polls, until_arrived=until_arrived and not self.has_arrived)
        self.check(code)

    def sleep(self, limit_s: float) -> Link | None:
        """Wait until a socket or a bell has something; returns a peer that is found to have gone."""
        poller = select.poll()
        if self._sent < self._out_bytes and self.link_out is not None:
            poller.register(self.link_out.sock, select.POLLOUT)
        if self._got < self._in_bytes and self.link_in is not None:
            if self.link_in.has_pending:
                return None
            fd = self.link_in.sock.fileno()
            both = self._sent < self._out_bytes and self.link_in is self.link_out
            poller.register(fd, select.POLLIN | select.POLLOUT if both else select.POLLIN)
        # Only peers that still have to send: one that has finished may leave.
        due = [(self.ring_out, _open_out), (self.ring_in, _open_in)]
        rings = {ring.bell.fileno(): ring for ring, is_open in due if ring is not None and is_open(ring)}
        for bell in rings:
            poller.register(bell, select.POLLIN)
        ready = {fd for fd, _ in poller.poll(limit_s * 1000)}
        for bell in ready & rings.keys():
            if not drain(rings[bell].bell):
                return rings[bell].link
        return None

    def check(self, code: int) -> None:
        """Raise what `pump` has found wrong: a `ProtocolError`, or that the peer has gone."""
        link = self.link_out if code == BAD_OUT else self.link_in
        if code < BAD_HEADER or link is None:
            return
        if code == BAD_HEADER:
            link.check_header()
        if code == UNREADABLE:
            raise PeerGoneError("its memory cannot be read where it says that its frame is", link)
        raise ProtocolError(
            f"rank {link.rank} at {link.address} has written into the shared memory that it moved a number of bytes "
            "that it cannot have moved."
        )


def _open_out(ring: Ring | None) -> bool:
    return ring is not None and bool(ring.state[OUT_AT] < ring.state[OUT_END])


def _open_in(ring: Ring | None) -> bool:
    return ring is not None and bool(ring.state[IN_AT] < ring.state[IN_END])


def drain(bell: socket.socket) -> bool:
    """Take the bytes out of a bell; returns whether it is still connected."""
    try:
        return bool(bell.recv(_BELL_BYTES, socket.MSG_DONTWAIT))
    except BlockingIOError:
        return True
    except OSError:
        return False
