"""Messages between two ranks whose sender does not wait for the receiver.

Problem: `AbstractTransport.exchange` needs both ranks at the same time. Asynchronous methods need the opposite: a rank
sends a message and continues; the receiver checks now and then for messages, and takes them when it is ready.

`post` copies the array and returns. At most `MAX_OUTSTANDING` frames of a rank wait for one peer: a rank that posts
more waits until one has left, so memory is bounded however slow the peer is. `poll` and `poll_any` look, `wait_any`
waits, `take` fills an array with the oldest frame of a rank. Frames of one rank to another stay in order and are
numbered and checked like all others; every wait has a deadline and ends when the job stops.

The mailboxes of a gang have connections of their own, separate from its transport, so that a frame that is not taken
yet never delays a collective. They may connect more ranks than the transport, since servers take part in no collective.

Cost per frame: one copy more than `exchange`. Bytes and messages are counted when a frame is posted; copying and
sending is charged to wire, waiting for a frame that has not come yet, or for room, to wait.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final, final

from dsgd.comm.frames import OP_SEND
from dsgd.errors import GangTimeoutError, InvalidParameterError
from dsgd.ledger import WAIT, RankLedger
from dsgd.types import AnyArray

#: Frames of one rank that may wait for one other before `post` waits.
MAX_OUTSTANDING: Final = 8


class AbstractMailbox(ABC):
    """Sends frames without waiting for the receiver; used by the thread of its rank alone."""

    rank: int
    size: int
    ledger: RankLedger
    deadline_s: float

    @abstractmethod
    def post(self, to: int, array: AnyArray, op: int = OP_SEND) -> None:
        """Send a copy of an array to rank `to`; does not wait for it."""

    @abstractmethod
    def ready(self, sources: Sequence[int], limit_s: float) -> int | None:
        """Return one of `sources` from which a frame is here or begins to come; waits at most `limit_s` seconds.

        A peer that has gone counts as ready: `take` raises the error. If several are ready, each gets its turn.
        Raises `AbortedError` if the job stopped.
        """

    @abstractmethod
    def take(self, source: int, out: AnyArray, op: int = OP_SEND) -> None:
        """Fill `out` with the oldest frame of rank `source`, waiting for it if need be."""

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
        """Return one of `sources` from which a frame is here; waits for it."""
        ledger = self.ledger
        start = ledger.clock()
        source = self.ready(sources, self.deadline_s)
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


def next_after(last: int, ready: Sequence[int], size: int) -> int | None:
    """Return the first of some ranks, counted from the one after `last` on."""
    return min(ready, key=lambda rank: (rank - last - 1) % size, default=None)


def no_room(rank: int, to: int, deadline_s: float) -> GangTimeoutError:
    """Return the error of a rank whose frames the peer does not take."""
    return GangTimeoutError(
        f"rank {rank} has {MAX_OUTSTANDING} frames under way to rank {to}, which took none for {deadline_s:g} s. "
        "It hangs or is overloaded; raise the timeout if its work takes longer."
    )
