"""Mailboxes (`dsgd.comm.base`) of ranks that are threads of this process, and of ranks with connections.

Every rank that is a thread has a box with a queue for each other rank, and a lock. Posting copies an array into a queue
and wakes the rank that waits at the box; taking copies it out again.

The connections of other ranks are a mesh of their own: TCP, with TLS or without, or by way of the workers of the ranks.
In a gang of more than `dsgd.comm.sockets.mesh.FULL_MESH` two ranks are connected when one of them first has mail for
the other. A frame goes to the kernel as far as that takes it without waiting, which is all of most frames. The rest of
a long one is left to a thread that is started when it is needed for the first time. Cost per frame: one copy of the
array more than `dsgd.comm.wires.tcp`, and one system call to look.
"""

from __future__ import annotations

import select
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, final

import numpy as np

from dsgd.comm.base import MAX_OUTSTANDING, AbstractMailbox, next_after, no_room
from dsgd.comm.frames import HEADER_BYTES, OP_SEND, AbortFlag, check_array, check_limit, not_at_one_point
from dsgd.comm.sockets.link import Link, PeerLateError, as_bytes, charge_exchange, receive_some, send_bytes
from dsgd.comm.sockets.listener import Listener
from dsgd.comm.sockets.mesh import FULL_MESH
from dsgd.comm.wires import tcp
from dsgd.comm.wires.tcp import TCPTransport
from dsgd.errors import AbortedError, GangTimeoutError
from dsgd.ledger import WAIT, WIRE, RankLedger
from dsgd.types import AnyArray

# How long a rank that waits for room is deaf to a flag that is set while it looks away.
_SLICE_S: Final = 0.5


class _Letter(NamedTuple):
    array: AnyArray
    dtype: int
    op: int


class _Box:
    """What has come for one rank of this process."""

    def __init__(self, size: int) -> None:
        self.changed = threading.Condition()
        self.messages: list[deque[_Letter]] = [deque() for _ in range(size)]
        self.gone: set[int] = set()
        self.is_closed = False


@final
class InprocMailbox(AbstractMailbox):
    """The mailbox of a rank that is a thread; made by `connect`."""

    def __init__(self, rank: int, boxes: list[_Box], ledger: RankLedger, abort: AbortFlag, timeout_s: float) -> None:
        self.rank = rank
        self.size = len(boxes)
        self.ledger = ledger
        self.deadline_s = timeout_s
        self._boxes = boxes
        self._box = boxes[rank]
        self._abort = abort
        self._last = -1
        abort.on_set(self._wake)

    def post(self, to: int, array: AnyArray, op: int = OP_SEND) -> None:
        """Put a copy into the box of rank `to`; see `AbstractMailbox.post`."""
        self._abort.check()
        self._check_peer(to)
        dtype = check_array(array)
        if self._box.is_closed:
            raise AbortedError(f"rank {self.rank} has closed its mailbox and can post nothing.")
        ledger, clock = self.ledger, self.ledger.clock
        start = clock()
        message = _Letter(array.copy(), dtype, op)
        copied_at = clock()
        box = self._boxes[to]
        messages = box.messages[self.rank]
        deadline = time.monotonic() + self.deadline_s
        with box.changed:
            while len(messages) >= MAX_OUTSTANDING and not box.is_closed and not self._abort.is_set:
                if not box.changed.wait(min(deadline - time.monotonic(), _SLICE_S)) and time.monotonic() >= deadline:
                    raise no_room(self.rank, to, self.deadline_s)
            self._abort.check()
            if box.is_closed:
                raise AbortedError(
                    f"rank {to} (a thread of this process) went away while rank {self.rank} wrote to it."
                )
            messages.append(message)
            box.changed.notify_all()
        ledger.count(HEADER_BYTES + array.nbytes)
        ledger.charge(WIRE, copied_at - start)
        ledger.charge(WAIT, clock() - copied_at)

    def ready(self, sources: Sequence[int], limit_s: float) -> int | None:
        """Look, or wait; see `AbstractMailbox.ready`."""
        box = self._box
        deadline = time.monotonic() + limit_s
        with box.changed:
            while True:
                self._abort.check()
                found = next_after(self._last, [s for s in sources if box.messages[s] or s in box.gone], self.size)
                left_s = deadline - time.monotonic()
                if found is not None or left_s <= 0.0:
                    break
                box.changed.wait(left_s)
        self._last = self._last if found is None else found
        return found

    def take(self, source: int, out: AnyArray, op: int = OP_SEND) -> None:
        """Copy the oldest message of a rank; see `AbstractMailbox.take`."""
        self._abort.check()
        self._check_peer(source)
        dtype = check_array(out)
        ledger, clock, box = self.ledger, self.ledger.clock, self._box
        start = self._since()
        messages = box.messages[source]
        deadline = time.monotonic() + self.deadline_s
        with box.changed:
            while not messages:
                self._abort.check()
                if source in box.gone:
                    raise AbortedError(
                        f"rank {source} (a thread of this process) went away while rank {self.rank} waited."
                    )
                left_s = deadline - time.monotonic()
                if left_s <= 0.0:
                    raise GangTimeoutError(
                        f"rank {self.rank} waited {self.deadline_s:g} s for rank {source} (a thread of this process) "
                        "to post. It hangs or is overloaded; raise the timeout if its work takes longer."
                    )
                box.changed.wait(left_s)
            message = messages.popleft()
            if len(messages) == MAX_OUTSTANDING - 1:
                box.changed.notify_all()
        arrived_at = clock()
        if (op, dtype, out.nbytes) != (message.op, message.dtype, message.array.nbytes):
            raise not_at_one_point(self.rank, source, op, out, message.op, message.array)
        np.copyto(out, message.array.reshape(out.shape))
        ledger.charge(WAIT, arrived_at - start)
        ledger.charge(WIRE, clock() - arrived_at)

    def close(self) -> None:
        """Leave; a peer that waits for this rank, now or later, gets an error, after the frames posted to it."""
        with self._box.changed:
            self._box.is_closed = True
            self._box.changed.notify_all()
        for box in self._boxes:
            with box.changed:
                box.gone.add(self.rank)
                box.changed.notify_all()

    def _wake(self) -> None:
        # A rank that posts waits at the box of its peer.
        for box in self._boxes:
            with box.changed:
                box.changed.notify_all()


def connect_threads(
    ledgers: Sequence[RankLedger], aborts: Sequence[AbortFlag], timeout_s: float
) -> list[AbstractMailbox]:
    """Return the mailboxes of ranks that are threads of this process."""
    check_limit("timeout_s", timeout_s)
    boxes = [_Box(len(ledgers)) for _ in ledgers]
    return [
        InprocMailbox(rank, boxes, ledger, abort, timeout_s)
        for rank, (ledger, abort) in enumerate(zip(ledgers, aborts, strict=True))
    ]


class _Parcel:
    """A frame of which the kernel has not taken all."""

    __slots__ = ("data", "link", "sent")

    def __init__(self, link: Link, data: memoryview, sent: int) -> None:
        self.link, self.data, self.sent = link, data, sent


@final
class LinkMailbox(AbstractMailbox):
    """The mailbox of a rank that has connections of its own to the others."""

    def __init__(self, mesh: TCPTransport) -> None:
        self.rank = mesh.rank
        self.size = mesh.size
        self.ledger = mesh.ledger
        self.deadline_s = mesh.deadline_s
        self._mesh = mesh
        self._has_all = mesh.is_complete
        self._abort = mesh.abort
        self._last = -1
        # What the thread and its owner share; also held while a socket under TLS is read or written, whose two
        # directions have one state.
        self._changed = threading.Condition()
        self._parcels: dict[int, deque[_Parcel]] = {}
        self._thread: threading.Thread | None = None
        self._is_closing = False
        self._broken: dict[int, OSError] = {}
        mesh.abort.on_set(self._wake)

    def post(self, to: int, array: AnyArray, op: int = OP_SEND) -> None:
        """Pass the system as many bytes as it accepts, and keep a copy of the rest; see `AbstractMailbox.post`."""
        self._check_peer(to)
        ledger = self.ledger
        start = ledger.clock()
        if not self._has_all:
            # The peer may be at work for long before it looks for mail.
            self._mesh.reach(to, at_once=True)
            self._has_all = self._mesh.is_complete
        waited_s = self._await_room(to)
        link, _ = self._mesh.announce(to, array, None, None, op)
        assert link is not None  # announce returns one for each array
        try:
            with self._changed:
                if error := self._broken.get(to):
                    raise error
                parcels = self._parcels.setdefault(to, deque())
                data = memoryview(b"".join((link.header_out, as_bytes(array))))
                # Behind what still waits for this peer: frames arrive in the order in which they are posted.
                sent = 0 if parcels else send_bytes(link, data)
                if sent < data.nbytes:
                    parcels.append(_Parcel(link, data, sent))
                    self._start()
                    self._changed.notify_all()
        except OSError as error:
            self._mesh.raise_for(error, link, None)
        ledger.charge(WAIT, waited_s)
        ledger.charge(WIRE, ledger.clock() - start - waited_s)

    def ready(self, sources: Sequence[int], limit_s: float) -> int | None:
        """Look, or wait; see `AbstractMailbox.ready`."""
        self._abort.check()
        found = next_after(self._last, self._mesh.heard_from(sources, limit_s), self.size)
        self._abort.check()
        self._last = self._last if found is None else found
        return found

    def take(self, source: int, out: AnyArray, op: int = OP_SEND) -> None:
        """Receive the oldest frame of a rank; see `AbstractMailbox.take`."""
        self._check_peer(source)
        _, link = self._mesh.announce(None, None, source, out, op)
        assert link is not None  # announce returns one for each array
        ledger = self.ledger
        start, arrived_at = self._since(), ledger.clock()
        got, payload = 0, as_bytes(out)
        total = HEADER_BYTES + payload.nbytes
        last = time.monotonic()
        try:
            while got < total:
                with self._changed:
                    more = receive_some(link, payload, got)
                if more:
                    if not got:
                        arrived_at = ledger.clock()
                    got, last = got + more, time.monotonic()
                elif not self._mesh.heard_from((source,), left_s := last + self.deadline_s - time.monotonic()):
                    self._abort.check()
                    if left_s <= 0.0:
                        raise PeerLateError("made no progress", link)
        except OSError as error:
            self._mesh.raise_for(error, link, None)
        if ledger.timing:
            charge_exchange(ledger, start, arrived_at, link)

    def close(self) -> None:
        """Wait until the peers have read what was posted to them, then close the connections."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        self._mesh.close()

    def _await_room(self, to: int) -> float:
        """Wait until one more frame may wait for a peer; return how long it took, in seconds."""
        parcels = self._parcels.get(to, ())
        if len(parcels) < MAX_OUTSTANDING:
            return 0.0
        start = time.monotonic()
        with self._changed:
            while len(parcels) >= MAX_OUTSTANDING and to not in self._broken:
                self._abort.check()
                left_s = start + self.deadline_s - time.monotonic()
                if left_s <= 0.0:
                    raise no_room(self.rank, to, self.deadline_s)
                self._changed.wait(min(left_s, _SLICE_S))
        return time.monotonic() - start

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._send, name=f"dsgd-post-{self.rank}", daemon=True)
            self._thread.start()

    def _send(self) -> None:
        """Send what the kernel did not take at once, until the mailbox closes."""
        last = time.monotonic()
        while True:
            with self._changed:
                first = [parcels[0] for parcels in self._parcels.values() if parcels]
                if not first:
                    if self._is_closing:
                        return
                    self._changed.wait()
                    last = time.monotonic()
                    continue
                # An error here would be lost: a rank that waits for room reports that the peer does not read.
                if self._abort.is_set or (self._is_closing and time.monotonic() - last > self.deadline_s):
                    return
                moved = [self._push(parcel) for parcel in first]
                if any(moved):
                    last = time.monotonic()
                    self._changed.notify_all()
                    continue
            poller = select.poll()
            for parcel in first:
                poller.register(parcel.link.sock, select.POLLOUT)
            poller.poll(_SLICE_S * 1000)

    def _push(self, parcel: _Parcel) -> bool:
        """Send some of a parcel; return whether anything has changed."""
        peer = parcel.link.rank
        try:
            n_bytes = send_bytes(parcel.link, parcel.data[parcel.sent :])
        except OSError as error:
            # The next frame to this peer raises it.
            self._broken[peer] = error
            self._parcels[peer].clear()
            return True
        parcel.sent += n_bytes
        if parcel.sent == parcel.data.nbytes:
            self._parcels[peer].popleft()
        return n_bytes > 0

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()


def connect_links(listener: Listener, rank: int, addresses: Sequence[str], **settings: Any) -> LinkMailbox:
    """Return the mailbox of a rank, once it is connected with all others or, in a large gang, can be."""
    first = None if len(addresses) <= FULL_MESH else ()
    return LinkMailbox(tcp.connect(listener, rank, addresses, first=first, **settings))
