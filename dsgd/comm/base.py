"""What every wire is: exchanges, mailboxes, and collectives that a wire runs itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, final, get_args

import numpy as np

from dsgd.comm.frames import OP_SEND
from dsgd.errors import AbortedError, GangTimeoutError, InvalidParameterError
from dsgd.ledger import RankLedger
from dsgd.types import AnyArray, FloatMatrix, IntMatrix, IntVector
from dsgd.validation import check_choice

if TYPE_CHECKING:
    from dsgd.comm.memory.segment import SharedArray, Window


_Ours = Literal["auto", "spin", "shm", "tcp", "rpc"]

#: What a user may ask for: memory inside a host where possible; the same, polled; memory or an error; TCP alone; the
#: ports of the workers alone; or ``"package.module:function"``, a wire of another package.
TransportName = _Ours | str


def check_transport(where: str, transport: Any) -> None:
    """Raise `InvalidParameterError` unless `transport` is a wire of this package or may be one of another."""
    if not (isinstance(transport, str) and ":" in transport):
        check_choice(where, transport, (*get_args(_Ours), "package.module:function"))


class AbstractTransport(ABC):
    """Moves arrays between the ranks of one gang.

    Buffers belong to the caller and are reused from round to round: a transport neither keeps nor copies them beyond
    the call. Every frame says which job, sequence number, operation and dtype it belongs to, so that ranks which are
    not at the same point fail loudly (`ProtocolError`) and do not add up the wrong numbers.
    """

    rank: int
    size: int
    ledger: RankLedger
    hosts: tuple[int, ...]
    processes: tuple[int, ...] = ()
    wire: str
    deadline_s: float
    concurrent: bool = False
    is_virtual: bool = False
    shared_array: SharedArray | None = None
    mailbox: AbstractMailbox | None = None
    window: Window | None = None
    adder: Callable[[int, AnyArray, int, AnyArray, int], bool] | None = None
    offload: Offload | None = None

    @abstractmethod
    def exchange(
        self, to: int | None, outgoing: AnyArray | None, source: int | None, incoming: AnyArray | None, op: int = 0
    ) -> None:
        """Send `outgoing` to rank `to` while receiving `incoming` from rank `source`; either half may be None.

        Both directions proceed at once: two ranks that exchange large arrays never wait for each other's buffers.
        """

    @abstractmethod
    def set_deadline(self, deadline_s: float) -> None:
        """Change the longest wait for a peer that makes no progress, from the next wait on."""

    @abstractmethod
    def close(self) -> None:
        """Let go of sockets and buffers; may be called more than once."""

    def worked(self, *, rows: int = 0, entries: int = 0, params: int = 0, n_bytes: int = 0, epochs: int = 0) -> None:
        """Say that this rank has called a kernel: a simulated one is charged virtual seconds for it (`dsgd.sim`)."""
        del rows, entries, params, n_bytes, epochs

    def helper(self, name: str) -> Executor:
        """Return an executor for one exchange at a time beside the work of this rank; the caller shuts it down."""
        return ThreadPoolExecutor(1, thread_name_prefix=name)

    @final
    def _check_open(self, is_closed: bool, *peers: int | None) -> None:
        if is_closed:
            raise AbortedError(f"rank {self.rank} has closed its transport and can exchange nothing.")
        for peer in peers:
            if peer is not None and (peer == self.rank or not 0 <= peer < self.size):
                raise InvalidParameterError(f"rank {self.rank} of {self.size} has no peer {peer}.")

    @final
    def send(self, to: int, outgoing: AnyArray, op: int = 0) -> None:
        """Send an array to a peer."""
        self.exchange(to, outgoing, None, None, op)

    @final
    def exchange_and_add(
        self, to: int, outgoing: AnyArray, source: int, scratch: AnyArray, total: AnyArray, op: int = 0
    ) -> None:
        """Send `outgoing` while adding the array from rank `source` to `total`."""
        if self.adder is None or not self.adder(to, outgoing, source, total, op):
            self.exchange(to, outgoing, source, scratch, op)
            np.add(scratch, total, out=total)

    @final
    def recv(self, source: int, incoming: AnyArray, op: int = 0) -> None:
        """Receive an array from a peer."""
        self.exchange(None, None, source, incoming, op)


#: Frames of one rank that may wait for one other before `post` waits.
MAX_OUTSTANDING: Final = 8


class AbstractMailbox(ABC):
    """Sends frames without waiting for the receiver; used by the thread of its rank alone.

    `post` copies the array and returns; a rank that has `MAX_OUTSTANDING` frames on the way to one peer waits until one
    has left, so memory is bounded. Frames of one rank to another stay in order and are numbered and checked like all
    others; every wait has a deadline and ends when the job stops. Mailboxes have connections of their own, so a frame
    that is not taken yet never delays a collective, and they may connect servers, which take part in none. Cost per
    frame: one copy more than `AbstractTransport.exchange`. Bytes are counted when a frame is posted; copying and
    sending is charged to wire, waiting for a frame or for room to wait.
    """

    rank: int
    size: int
    ledger: RankLedger
    deadline_s: float
    _asked: float | None = None  # when `wait_any` began, until its frame is taken

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
        """Return one of `sources` from which a frame is here; waits for it, and `take` charges that."""
        self._asked = self.ledger.clock()
        source = self.ready(sources, self.deadline_s)
        if source is None:
            names = ", ".join(map(str, sources))
            raise GangTimeoutError(
                f"rank {self.rank} waited {self.deadline_s:g} s for a frame of rank(s) {names}, and none posted one. "
                "They hang or are overloaded; raise the timeout if their work takes longer."
            )
        return source

    @final
    def _since(self) -> float:
        """Return when this rank began to wait for the frame that it takes."""
        asked, self._asked = self._asked, None
        return self.ledger.clock() if asked is None else asked

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


class Schedule(NamedTuple):
    """The messages of a collective, of all ranks.

    - `moves`, shape (n_moves, 4): the rank that one is sent to or -1, its bytes with the header, the rank that one
      comes
      from at the same time or -1, and the bytes that are then added up.
    """

    first: IntVector
    moves: IntMatrix
    sent: IntMatrix


class Repeats(NamedTuple):
    """What a rank does around a collective that is repeated.

    - `work`, shape (n, 3): of each time the work before it: rows that a kernel visits, entries of these rows, and
      parameters of the model.
    - `seconds`, shape (n, 4): filled with the seconds of each time: of work, wire and wait, and from its begin to
      its end.
    """

    work: IntMatrix
    seconds: FloatMatrix


class Call(NamedTuple):
    """A collective, as one of the ranks calls it; no rank ends before all have begun."""

    op: int
    kind: Hashable
    array: AnyArray
    own: Any
    schedule: Callable[[], Schedule]
    finish: Callable[[Sequence[Any]], None]
    repeats: Repeats | None = None


class Offload(Protocol):
    """Runs the collectives of one rank on a wire that is given the messages of all ranks, a `Schedule`, at once.

    A collective of a thousand simulated ranks would be ten thousand calls of `AbstractTransport.exchange` for a result
    that is known once all have begun. Network cards that reduce vectors are given the same (collective offload).
    """

    def __call__(self, call: Call) -> None:
        """Return when the result is there."""
        ...
