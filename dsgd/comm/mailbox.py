"""Frames between two ranks of which the sender does not wait for the receiver.

Problem: `AbstractTransport.exchange` is a meeting: both ranks are there. Asynchronous methods need the opposite. A rank
sends what it has and goes on; the other looks now and then whether something has come, and takes it when it likes.

`post` copies the array and returns. At most `MAX_OUTSTANDING` frames of a rank wait for one peer: a rank that posts
more waits until one has left, so memory is bounded however slow the peer is. `poll` and `poll_any` look, `wait_any` waits,
`take` fills an array with the oldest frame of a rank. Frames of one rank to another stay in order and are numbered and
checked like all others; every wait has a deadline and ends when the job stops.

A gang has its mailboxes beside its transport and not in it, over connections of their own: a frame that nobody has taken
yet never stands in the way of a collective. They may have more ends than the transport has, since servers take part in no
collective.

`InprocMailbox` joins threads of one process. `LinkMailbox` joins ranks that have a connection to each other: TCP, with
TLS or without, or by way of their workers. It sends what the kernel takes at once, and leaves the rest of a long frame to
a thread that is started when it is needed for the first time.

Cost per frame: one copy more than `exchange`. Bytes and messages are counted when a frame is posted; copying and sending
is charged to wire, waiting for a frame that has not come yet, or for room, to wait.
"""

from __future__ import annotations

import select
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, final

import numpy as np

from dsgd.comm import tcp
from dsgd.comm.base import AbortFlag, check_limit
from dsgd.comm.duplex import receive_some, send_bytes
from dsgd.comm.link import Link, PeerLateError, as_bytes
from dsgd.comm.listener import Listener
from dsgd.comm.tcp import TCPTransport
from dsgd.comm.wire import HEADER_BYTES, OP_SEND, Header, check_array, describe_mismatch
from dsgd.errors import AbortedError, GangTimeoutError, InvalidParameterError, ProtocolError
from dsgd.ledger import WAIT, WIRE, RankLedger
from dsgd.types import AnyArray

__all__ = ["MAX_OUTSTANDING", "AbstractMailbox", "InprocMailbox", "LinkMailbox", "connect_inproc", "connect_links"]

#: Frames of one rank that may wait for one other before `post` waits.
MAX_OUTSTANDING: Final = 8
# The longest sleep of a thread that watches a flag which nothing rings for.
_SLICE_S: Final = 0.5


class AbstractMailbox(ABC):
    """Sends frames without waiting for the receiver; used by the thread of its rank alone.

    Attributes
    ----------
    rank, size : int
        This end, and how many there are; workers first, with the numbers that they have in collectives.
    ledger : RankLedger
        Charged with wire and wait seconds, bytes and messages.
    deadline_s : float
        Longest wait, in seconds.
    """

    rank: int
    size: int
    ledger: RankLedger
    deadline_s: float

    @abstractmethod
    def post(self, to: int, array: AnyArray, op: int = OP_SEND) -> None:
        """Send a copy of an array to rank `to`; does not wait for it.

        Parameters
        ----------
        to : int
            Another rank.
        array : array
            C-contiguous; the caller's again on return.
        op : int
            Code of the operation, checked when the frame is taken.

        Raises
        ------
        AbortedError
            The job stopped, or the peer went away.
        GangTimeoutError
            `MAX_OUTSTANDING` frames wait for this peer, and none left within the deadline.
        """

    @abstractmethod
    def ready(self, sources: Sequence[int], limit_s: float) -> int | None:
        """Return one of `sources` from which a frame is here or begins to come; waits at most `limit_s` seconds.

        A peer that went away counts as ready: `take` says so. Where several are ready, none is left out for ever.
        Raises `AbortedError` if the job stopped.
        """

    @abstractmethod
    def take(self, source: int, out: AnyArray, op: int = OP_SEND) -> None:
        """Fill `out` with the oldest frame of rank `source`, waiting for it if need be.

        Parameters
        ----------
        source : int
            Another rank.
        out : array
            C-contiguous, of the dtype and size that were posted; filled in place.
        op : int
            Code of the operation.

        Raises
        ------
        AbortedError
            The job stopped, or the peer went away.
        GangTimeoutError
            Nothing came within the deadline.
        ProtocolError
            The frame is not the one expected.
        """

    @abstractmethod
    def close(self) -> None:
        """Leave, once what was posted has left; may be called more than once."""

    @final
    def poll(self, source: int) -> bool:
        """Return whether a frame of rank `source` is here or begins to come."""
        return self.ready((source,), 0.0) is not None

    @final
    def poll_any(self, sources: Sequence[int]) -> int | None:
        """Return one of `sources` from which a frame is here or begins to come, None if there is none."""
        return self.ready(sources, 0.0)

    @final
    def wait_any(self, sources: Sequence[int]) -> int:
        """Return one of `sources` from which a frame is here; waits for it.

        Raises
        ------
        AbortedError
            The job stopped.
        GangTimeoutError
            Nothing came within the deadline; names those that were waited for.
        """
        ledger = self.ledger
        start = ledger.clock() if ledger.timing else 0.0
        source = self.ready(sources, self.deadline_s)
        if ledger.timing:
            ledger.charge(WAIT, ledger.clock() - start)
        if source is None:
            names = ", ".join(map(str, sources))
            raise GangTimeoutError(
                f"rank {self.rank} waited {self.deadline_s:g} s for a frame of rank(s) {names}, and none posted one. "
                "They hang or are overloaded; raise the timeout if their work takes longer."
            )
        return source

    @final
    def _check_peer(self, peer: int) -> None:
        if peer == self.rank or not 0 <= peer < self.size:
            raise InvalidParameterError(f"rank {self.rank} of {self.size} has no mailbox of a rank {peer} to write to.")


class _Letter(NamedTuple):
    array: AnyArray
    dtype: int
    op: int


class _Box:
    """What has come for one rank of this process."""

    def __init__(self, size: int) -> None:
        self.changed = threading.Condition()
        self.letters: list[deque[_Letter]] = [deque() for _ in range(size)]
        self.gone: set[int] = set()
        self.is_closed = False


@final
class InprocMailbox(AbstractMailbox):
    """The mailbox of a rank that is a thread; made by `connect_inproc`.

    Parameters
    ----------
    rank : int
        This rank.
    boxes : list of _Box, length size
        The box of every rank; shared by all of them.
    ledger : RankLedger
        Charged with what this rank sends and waits for.
    abort : AbortFlag
        Wakes this rank from any wait when set.
    timeout_s : float
        Longest wait, in seconds.
    """

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
        ledger = self.ledger
        clock = ledger.clock if ledger.timing else None
        start = clock() if clock else 0.0
        letter = _Letter(array.copy(), dtype, op)
        copied_at = clock() if clock else 0.0
        box = self._boxes[to]
        letters = box.letters[self.rank]
        deadline = time.monotonic() + self.deadline_s
        with box.changed:
            while len(letters) >= MAX_OUTSTANDING and not box.is_closed and not self._abort.is_set:
                if not box.changed.wait(min(deadline - time.monotonic(), _SLICE_S)) and time.monotonic() >= deadline:
                    raise _no_room(self.rank, to, self.deadline_s)
            self._abort.check()
            if box.is_closed:
                raise AbortedError(f"rank {to} (a thread of this process) went away while rank {self.rank} wrote to it.")
            letters.append(letter)
            box.changed.notify_all()
        ledger.count(HEADER_BYTES + array.nbytes)
        if clock:
            ledger.charge(WIRE, copied_at - start)
            ledger.charge(WAIT, clock() - copied_at)

    def ready(self, sources: Sequence[int], limit_s: float) -> int | None:
        """Look, or wait; see `AbstractMailbox.ready`."""
        box = self._box
        deadline = time.monotonic() + limit_s
        with box.changed:
            while True:
                self._abort.check()
                found = _next_after(self._last, [s for s in sources if box.letters[s] or s in box.gone], self.size)
                left_s = deadline - time.monotonic()
                if found is not None or left_s <= 0.0:
                    break
                box.changed.wait(left_s)
        self._last = self._last if found is None else found
        return found

    def take(self, source: int, out: AnyArray, op: int = OP_SEND) -> None:
        """Copy the oldest letter of a rank; see `AbstractMailbox.take`."""
        self._abort.check()
        self._check_peer(source)
        dtype = check_array(out)
        ledger, box = self.ledger, self._box
        clock = ledger.clock if ledger.timing else None
        start = clock() if clock else 0.0
        letters = box.letters[source]
        deadline = time.monotonic() + self.deadline_s
        with box.changed:
            while not letters:
                self._abort.check()
                if source in box.gone:
                    raise AbortedError(
                        f"rank {source} (a thread of this process) went away while rank {self.rank} waited."
                    )
                left_s = deadline - time.monotonic()
                if left_s <= 0.0:
                    raise GangTimeoutError(
                        f"rank {self.rank} waited {self.deadline_s:g} s for rank {source} (a thread of this process) to "
                        "post. It hangs or is overloaded; raise the timeout if its work takes longer."
                    )
                box.changed.wait(left_s)
            letter = letters.popleft()
            if len(letters) == MAX_OUTSTANDING - 1:
                box.changed.notify_all()
        arrived_at = clock() if clock else 0.0
        expected, got = Header(0, 0, 0, op, dtype, out.nbytes), Header(0, 0, 0, letter.op, letter.dtype, letter.array.nbytes)
        if expected != got:
            text = describe_mismatch(expected, got)
            raise ProtocolError(f"rank {self.rank} and rank {source} are not at the same point: {text}.")
        np.copyto(out, letter.array if letter.array.shape == out.shape else letter.array.reshape(out.shape))
        if clock:
            ledger.charge(WAIT, arrived_at - start)
            ledger.charge(WIRE, clock() - arrived_at)

    def close(self) -> None:
        """Leave; a peer that waits for this rank, now or later, is told so, after what was posted to it."""
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


def connect_inproc(
    ledgers: Sequence[RankLedger], aborts: Sequence[AbortFlag], timeout_s: float
) -> list[AbstractMailbox]:
    """Return the mailboxes of ranks that are threads of this process.

    Parameters
    ----------
    ledgers : sequence of RankLedger
        One per rank.
    aborts : sequence of AbortFlag
        One per rank; may be one flag again and again.
    timeout_s : float
        Longest wait, in seconds.
    """
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
    """The mailbox of a rank that has a connection to each other one.

    Parameters
    ----------
    mesh : TCPTransport
        The connections, made for this mailbox; it closes them.
    abort : AbortFlag
        The one that `mesh` was made with.
    """

    def __init__(self, mesh: TCPTransport, abort: AbortFlag) -> None:
        self.rank = mesh.rank
        self.size = mesh.size
        self.ledger = mesh.ledger
        self.deadline_s = mesh.deadline_s
        self._mesh = mesh
        self._abort = abort
        self._last = -1
        # What the thread and its owner share; also held while a socket under TLS is read or written, whose two
        # directions have one state.
        self._changed = threading.Condition()
        self._parcels: dict[int, deque[_Parcel]] = {}
        self._thread: threading.Thread | None = None
        self._is_closing = False
        self._broken: dict[int, OSError] = {}
        abort.on_set(self._wake)

    def post(self, to: int, array: AnyArray, op: int = OP_SEND) -> None:
        """Give the kernel what it takes, and keep a copy of the rest; see `AbstractMailbox.post`."""
        self._check_peer(to)
        ledger = self.ledger
        clock = ledger.clock if ledger.timing else None
        start = clock() if clock else 0.0
        waited_s = self._await_room(to)
        link, _ = self._mesh.announce(to, array, None, None, op)
        assert link is not None  # announce returns one for each array
        try:
            with self._changed:
                if error := self._broken.get(to):
                    raise error
                parcels = self._parcels.setdefault(to, deque())
                data = memoryview(b"".join((link.header_out, as_bytes(array))))
                sent = 0 if parcels else send_bytes(link, data)
                if sent < data.nbytes:
                    parcels.append(_Parcel(link, data, sent))
                    self._start()
                    self._changed.notify_all()
        except OSError as error:
            self._mesh.raise_for(error, link, None)
        if clock:
            ledger.charge(WAIT, waited_s)
            ledger.charge(WIRE, clock() - start - waited_s)

    def ready(self, sources: Sequence[int], limit_s: float) -> int | None:
        """Look, or wait; see `AbstractMailbox.ready`."""
        self._abort.check()
        found = _next_after(self._last, self._mesh.heard_from(sources, limit_s), self.size)
        self._abort.check()
        self._last = self._last if found is None else found
        return found

    def take(self, source: int, out: AnyArray, op: int = OP_SEND) -> None:
        """Receive the oldest frame of a rank; see `AbstractMailbox.take`."""
        self._check_peer(source)
        _, link = self._mesh.announce(None, None, source, out, op)
        assert link is not None  # announce returns one for each array
        ledger = self.ledger
        clock = ledger.clock if ledger.timing else None
        start = clock() if clock else 0.0
        arrived_at, got, payload = start, 0, as_bytes(out)
        total = HEADER_BYTES + payload.nbytes
        last = time.monotonic()
        try:
            while got < total:
                with self._changed:
                    more = receive_some(link, payload, got)
                if more:
                    if clock and not got:
                        arrived_at = clock()
                    got, last = got + more, time.monotonic()
                elif not self._mesh.heard_from((source,), left_s := last + self.deadline_s - time.monotonic()):
                    self._abort.check()
                    if left_s <= 0.0:
                        raise PeerLateError("made no progress", link)
        except OSError as error:
            self._mesh.raise_for(error, link, None)
        if clock:
            ledger.charge(WAIT, arrived_at - start)
            ledger.charge(WIRE, clock() - arrived_at)

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
                    raise _no_room(self.rank, to, self.deadline_s)
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
                # Nobody hears this thread: that a peer reads nothing is said to whoever waits for room.
                if self._abort.is_set or (self._is_closing and time.monotonic() - last > self.deadline_s):
                    return
                if any([self._push(parcel) for parcel in first]):
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
    """Return the mailbox of a rank that is connected with all others, once it is.

    Parameters
    ----------
    listener : Listener
        This rank's own; the caller closes it.
    rank : int
        This rank.
    addresses : sequence of str, length size
        Where each rank listens.
    **settings
        Those of `dsgd.comm.tcp.connect`, whose errors it raises; `abort` must be among them.
    """
    return LinkMailbox(tcp.connect(listener, rank, addresses, **settings), settings["abort"])


def _next_after(last: int, ready: Sequence[int], size: int) -> int | None:
    """Return the first of some ranks, counted from the one after `last` on."""
    return min(ready, key=lambda rank: (rank - last - 1) % size, default=None)


def _no_room(rank: int, to: int, deadline_s: float) -> GangTimeoutError:
    return GangTimeoutError(
        f"rank {rank} has {MAX_OUTSTANDING} frames under way to rank {to}, which took none of them for {deadline_s:g} s. "
        "It hangs or is overloaded; raise the timeout if its work takes longer."
    )
