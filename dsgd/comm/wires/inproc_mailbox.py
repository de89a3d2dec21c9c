"""Mailboxes of ranks that are threads of one process; see `dsgd.comm.mailbox`.

Every rank has a box with a queue for each other rank, and a lock. Posting copies an array into a queue and wakes the
rank that waits at the box; taking copies it out again.

Cost per frame: two copies of the array and at most one wake-up.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple, final

import numpy as np

from dsgd.comm.abort import AbortFlag, check_limit
from dsgd.comm.frames import HEADER_BYTES, OP_SEND, Header, check_array, describe_mismatch
from dsgd.comm.mailbox import MAX_OUTSTANDING, AbstractMailbox, next_after, no_room
from dsgd.errors import AbortedError, GangTimeoutError, ProtocolError
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
        start = clock()
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
        expected = Header(0, 0, 0, op, dtype, out.nbytes)
        got = Header(0, 0, 0, message.op, message.dtype, message.array.nbytes)
        if expected != got:
            text = describe_mismatch(expected, got)
            raise ProtocolError(f"rank {self.rank} and rank {source} are not at the same point: {text}.")
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


def connect(ledgers: Sequence[RankLedger], aborts: Sequence[AbortFlag], timeout_s: float) -> list[AbstractMailbox]:
    """Return the mailboxes of ranks that are threads of this process."""
    check_limit("timeout_s", timeout_s)
    boxes = [_Box(len(ledgers)) for _ in ledgers]
    return [
        InprocMailbox(rank, boxes, ledger, abort, timeout_s)
        for rank, (ledger, abort) in enumerate(zip(ledgers, aborts, strict=True))
    ]
