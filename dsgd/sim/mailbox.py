"""Mailboxes on the virtual clock.

A rank that posts continues at once, while its port is busy as long as the frame takes. Before a rank looks, all ranks
with earlier clocks run, so the result does not depend on the machine. A look that finds nothing costs `LOOK_S`;
otherwise a rank that keeps looking would stay at the same time for ever.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import inf
from typing import Final, final

from dsgd.comm.base import MAX_OUTSTANDING, AbstractMailbox, next_after
from dsgd.comm.frames import HEADER_BYTES, OP_SEND, AbortFlag
from dsgd.errors import AbortedError
from dsgd.ledger import WAIT, WIRE, RankLedger
from dsgd.sim.transport import DEADLINE_S, Fabric, Message
from dsgd.types import AnyArray

#: Virtual seconds of a look into a mailbox that finds nothing.
LOOK_S: Final = 1e-6


@final
class SimMailbox(AbstractMailbox):
    """The mailbox of a simulated rank; made by `connect`.

    - `boxes`, shape (size, size): ``boxes[r][s]`` holds what rank s has posted to rank r; shared by all.
    """

    def __init__(
        self,
        rank: int,
        fabric: Fabric,
        boxes: list[list[deque[Message]]],
        gone: set[int],
        ledger: RankLedger,
        abort: AbortFlag,
    ) -> None:
        self.rank, self.size, self.ledger, self.deadline_s = rank, len(boxes), ledger, DEADLINE_S
        self._fabric, self._scheduler, self._clock = fabric, fabric.scheduler, fabric.scheduler.clocks[rank]
        self._boxes, self._box, self._gone, self._abort = boxes, boxes[rank], gone, abort
        self._last = -1

    def post(self, to: int, array: AnyArray, op: int = OP_SEND) -> None:
        """Put a copy on its way; see `AbstractMailbox.post`."""
        self._check_peer(to)
        if self.rank in self._gone:
            raise AbortedError(f"rank {self.rank} has closed its mailbox and can post nothing.")
        self._scheduler.take(self.rank)
        box, begin = self._boxes[to][self.rank], self._clock.now
        while len(box) >= MAX_OUTSTANDING and to not in self._gone:
            self._scheduler.wait(self.rank, "room", (to,))
        if to in self._gone:
            raise AbortedError(f"rank {to} (simulated) went away while rank {self.rank} wrote to it.")
        self.ledger.charge(WAIT, self._clock.now - begin)
        _, message = self._fabric.send(self.rank, to, array, op, self._clock.now)
        box.append(message)
        self.ledger.count(HEADER_BYTES + array.nbytes)
        self._scheduler.wake(to, "mail", self.rank, message.arrives)

    def ready(self, sources: Sequence[int], limit_s: float) -> int | None:
        """Look, or wait; see `AbstractMailbox.ready`."""
        self._scheduler.take(self.rank)
        end = self._clock.now + limit_s if limit_s < DEADLINE_S else inf
        while (found := self._find(sources)) is None and self._clock.now < end:
            # Frames that are under way come at their time, and others may overtake them.
            arrivals = [self._box[source][0].arrives for source in sources if self._box[source]]
            self._scheduler.wait(self.rank, "mail", sources, min([end, *arrivals]))
        if found is None:
            self._clock.now += LOOK_S
        else:
            self._last = found
        return found

    def take(self, source: int, out: AnyArray, op: int = OP_SEND) -> None:
        """Take the oldest frame of a rank; see `AbstractMailbox.take`."""
        self._check_peer(source)
        self._scheduler.take(self.rank)
        begin, box = self._clock.now, self._box[source]
        while not box:
            if source in self._gone:
                raise AbortedError(f"rank {source} (simulated) went away while rank {self.rank} waited.")
            self._scheduler.wait(self.rank, "mail", (source,))
        message = box.popleft()
        self._clock.now = max(self._clock.now, message.arrives)
        if len(box) == MAX_OUTSTANDING - 1:
            self._scheduler.wake(source, "room", self.rank, self._clock.now)
        message.fill(out, op, self.rank, source)
        wire_s = min(message.busy_s, self._clock.now - begin)
        self.ledger.charge(WIRE, wire_s)
        self.ledger.charge(WAIT, self._clock.now - begin - wire_s)

    def close(self) -> None:
        """Leave; a peer that waits for this rank, now or later, gets an error, after the frames posted to it."""
        if self.rank in self._gone:
            return
        self._gone.add(self.rank)
        for peer in range(self.size):
            self._scheduler.wake(peer, "mail", self.rank, self._clock.now)
            self._scheduler.wake(peer, "room", self.rank, self._clock.now)

    def _find(self, sources: Sequence[int]) -> int | None:
        now = self._clock.now
        here = [s for s in sources if (self._box[s][0].arrives <= now if self._box[s] else s in self._gone)]
        return next_after(self._last, here, self.size)


def connect(fabric: Fabric, ledgers: Sequence[RankLedger], abort: AbortFlag) -> list[AbstractMailbox]:
    """Return the mailboxes of all ranks of a simulated gang."""
    n = fabric.size
    boxes: list[list[deque[Message]]] = [[deque() for _ in range(n)] for _ in range(n)]
    gone: set[int] = set()
    return [SimMailbox(rank, fabric, boxes, gone, ledgers[rank], abort) for rank in range(n)]
