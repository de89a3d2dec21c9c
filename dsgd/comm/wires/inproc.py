"""The transports between threads: of one process, and of several processes, with another wire between these.

Every ordered pair of ranks has two queues. The sender offers a reference to its array; the receiver copies it straight
into its own buffer and confirms; only then does the sender continue. So both may reuse their buffers at once, and
nothing is copied twice. A closed or aborted rank leaves a notice in every queue that a peer could wait on. Cost per
message: one copy and two wake-ups. Bytes and messages are counted as the same frames would have on a wire, so that a
run on threads predicts the traffic of a run on processes.

**Threads of several processes.** Connecting the W T ranks of W workers with T threads pairwise would take 4,088 open
files in each process of 64 workers with 8 threads, almost none of which would be used. So the threads of a process are
connected pairwise, and the first rank of each process, its leader, with every other leader: W - 1 connections per
process at most. Collectives (`dsgd.collectives`) go by these: inside, between leaders, inside. If ranks exchange one to
one, they also have mailboxes (`dsgd.comm.base`), with a connection to each rank that they have mail for.

Rejected: one connection per pair of processes that carries the frames of all ranks. Frames of several senders would
have to be taken apart by a thread that reads for all, which costs a copy and two wake-ups in every round.
"""

from __future__ import annotations

import queue
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final, NamedTuple, final

import numpy as np

from dsgd.comm.base import AbstractTransport
from dsgd.comm.frames import HEADER_BYTES, MAX_LIMIT_S, OP_GOSSIP, AbortFlag, check_array, check_limit, not_at_one_point
from dsgd.comm.memory.cores import count_cores
from dsgd.comm.memory.segment import SharedArray, Window, inproc_windows
from dsgd.errors import AbortedError, GangTimeoutError, InvalidParameterError, ProtocolError
from dsgd.ledger import WAIT, WIRE, RankLedger
from dsgd.types import AnyArray

DEFAULT_TIMEOUT_S: Final = 60.0


class _Offer(NamedTuple):
    """What a sender offers: its array, and the type and operation it expects."""

    array: AnyArray
    dtype: int
    op: int


@dataclass(frozen=True)
class _Gone:
    """A notice: the rank on the other side of a meeting point has left."""

    rank: int


class _Aborted:
    """A notice: the job of the rank that waits here has stopped."""


@dataclass(frozen=True)
class _Meeting:
    """Where one rank hands arrays to another: offers, and the seconds or the error that became of each."""

    offers: queue.SimpleQueue[_Offer | _Gone | _Aborted] = field(default_factory=queue.SimpleQueue)
    answers: queue.SimpleQueue[float | str | _Gone | _Aborted] = field(default_factory=queue.SimpleQueue)


class InprocTransport(AbstractTransport):
    """A rank that is a thread; made by `connect`. Rank s hands arrays to rank r at ``meetings[s][r]``."""

    def __init__(
        self,
        rank: int,
        meetings: list[list[_Meeting]],
        ledger: RankLedger,
        abort: AbortFlag,
        timeout_s: float,
        window: Window | None,
    ) -> None:
        self.rank = rank
        self.size = len(meetings)
        self.ledger = ledger
        self.hosts = (0,) * self.size
        self.wire = "inproc"
        self.window = window
        self._abort = abort
        self.deadline_s = timeout_s
        self._closed = False
        self._to = meetings[rank]
        self._from = [row[rank] for row in meetings]
        abort.on_set(self._wake)

    def exchange(
        self, to: int | None, outgoing: AnyArray | None, source: int | None, incoming: AnyArray | None, op: int = 0
    ) -> None:
        """Hand `outgoing` to rank `to` while receiving `incoming`; see `AbstractTransport.exchange`."""
        self._abort.check()
        self._check_open(self._closed, to, source)
        dtype = check_array(incoming) if incoming is not None else 0
        ledger, clock, wire_s = self.ledger, self.ledger.clock, 0.0
        start = clock()
        if to is not None and outgoing is not None:
            self._to[to].offers.put(_Offer(outgoing, check_array(outgoing), op))
            ledger.count(HEADER_BYTES + outgoing.nbytes)
        if source is not None and incoming is not None:
            wire_s += self._take(source, incoming, dtype, op)
        if to is not None and outgoing is not None:
            before = clock()
            wire_s += min(self._await_answer(to), clock() - before)
        if ledger.timing:
            ledger.charge(WIRE, wire_s)
            ledger.charge(WAIT, max(clock() - start - wire_s, 0.0))

    def set_deadline(self, deadline_s: float) -> None:
        """Change the longest wait; see `AbstractTransport.set_deadline`."""
        check_limit("deadline_s", deadline_s)
        self.deadline_s = deadline_s

    def close(self) -> None:
        """Leave; a peer that waits for this rank, now or later, gets an error."""
        if self._closed:
            return
        self._closed = True
        if self.window is not None:
            self.window.close()
        for peer in range(self.size):
            self._to[peer].offers.put(_Gone(self.rank))
            self._from[peer].answers.put(_Gone(self.rank))

    def _take(self, source: int, incoming: AnyArray, dtype: int, op: int) -> float:
        # Returns the seconds that the copy took.
        meeting = self._from[source]
        try:
            offer = meeting.offers.get(timeout=self.deadline_s)
        except queue.Empty:
            raise self._too_late(source, "send") from None
        if not isinstance(offer, _Offer):
            meeting.offers.put(offer)
            raise self._notice(offer)
        if offer.op != op or offer.dtype != dtype or offer.array.nbytes != incoming.nbytes:
            error = not_at_one_point(self.rank, source, op, incoming, offer.op, offer.array)
            meeting.answers.put(str(error))
            raise error
        # Shapes may differ where sizes agree, as on any wire.
        given = offer.array if offer.array.shape == incoming.shape else offer.array.reshape(incoming.shape)
        start = self.ledger.clock()
        np.copyto(incoming, given)
        copied_s: float = self.ledger.clock() - start
        meeting.answers.put(copied_s)
        return copied_s

    def _await_answer(self, to: int) -> float:
        answers = self._to[to].answers
        try:
            answer = answers.get(timeout=self.deadline_s)
        except queue.Empty:
            raise self._too_late(to, "receive") from None
        if isinstance(answer, float):
            return answer
        answers.put(answer)
        if isinstance(answer, str):
            raise ProtocolError(answer)
        raise self._notice(answer)

    def _notice(self, notice: _Gone | _Aborted) -> AbortedError:
        if self._abort.is_set or isinstance(notice, _Aborted):
            return AbortedError(self._abort.reason)
        return AbortedError(f"rank {notice.rank} (a thread of this process) went away while rank {self.rank} waited.")

    def _too_late(self, peer: int, verb: str) -> GangTimeoutError:
        return GangTimeoutError(
            f"rank {self.rank} waited {self.deadline_s:g} s for rank {peer} (a thread of this process) to {verb}. "
            "It hangs or is overloaded; raise the timeout if its work takes longer."
        )

    def _wake(self) -> None:
        for peer in range(self.size):
            self._from[peer].offers.put(_Aborted())
            self._to[peer].answers.put(_Aborted())


def connect(
    n: int,
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    ledgers: Sequence[RankLedger] | None = None,
    aborts: Sequence[AbortFlag] | None = None,
    window: bool | None = None,
) -> list[InprocTransport]:
    """Return the transports of n ranks that are threads of this process."""
    if n < 1:
        raise InvalidParameterError(f"connect(n=...) must be a positive number of ranks. Got {n}.")
    check_limit("timeout_s", timeout_s)
    ledgers = [RankLedger(rank) for rank in range(n)] if ledgers is None else ledgers
    aborts = [AbortFlag() for _ in range(n)] if aborts is None else aborts
    for name, given in (("ledgers", ledgers), ("aborts", aborts)):
        if len(given) != n:
            raise InvalidParameterError(f"connect({name}=...) must have one entry per rank ({n}). Got {len(given)}.")
    meetings = [[_Meeting() for _ in range(n)] for _ in range(n)]
    window = 1 < n <= count_cores() if window is None else window
    windows: Sequence[Window | None] = inproc_windows(aborts) if window else [None] * n
    transports = [
        InprocTransport(rank, meetings, ledgers[rank], aborts[rank], timeout_s, windows[rank]) for rank in range(n)
    ]
    shared_array = SharedArray()
    for transport in transports:
        transport.shared_array = shared_array
    return transports


# A rank may wait for its leader while that waits for another process, whose deadline must pass first: the error of the
# leader names the rank that is late.
_PATIENCE: Final = 2.0


@final
class NestedTransport(AbstractTransport):
    """A rank that is a thread of one of several processes; made by `connect`.

    It reaches the ranks of its process and, if it is the first of them, the first rank of every other process.
    """

    def __init__(self, inside: AbstractTransport, between: AbstractTransport, ranks_of: Sequence[int]) -> None:
        first = list(accumulate(ranks_of, initial=0))
        self.rank = first[between.rank] + inside.rank
        self.size = first[-1]
        self.ledger = inside.ledger
        self.hosts = tuple(host for host, n in zip(between.hosts, ranks_of, strict=True) for _ in range(n))
        self.processes = tuple(process for process, n in enumerate(ranks_of) for _ in range(n))
        self.wire = f"inproc+{between.wire}"
        self.deadline_s = between.deadline_s
        self._inside, self._between = inside, between
        self._first = first[between.rank], first[:-1]
        # Numbers of the peers that this rank can reach, on the wire that leads to them.
        mine = range(first[between.rank], first[between.rank + 1])
        leaders = first[:-1] if inside.rank == 0 else []
        self._number_inside: dict[int | None, int | None] = {None: None} | {r: r - mine.start for r in mine}
        self._number_between: dict[int | None, int | None] = {None: None} | {r: k for k, r in enumerate(leaders)}
        self.adder = None if between.adder is None else self._add

    def exchange(
        self, to: int | None, outgoing: AnyArray | None, source: int | None, incoming: AnyArray | None, op: int = 0
    ) -> None:
        """Send `outgoing` while receiving `incoming`: inside a process, between leaders, or through mailboxes."""
        inside, between = self._number_inside, self._number_between
        if op == OP_GOSSIP and self.mailbox is not None:
            # Any two ranks may be neighbours in a graph. Both halves of an exchange must use the wire of that pair.
            if to is not None and outgoing is not None:
                self.mailbox.post(to, outgoing, op)
            if source is not None and incoming is not None:
                self.mailbox.take(source, incoming, op)
        elif to in inside and source in inside:
            try:
                self._inside.exchange(inside[to], outgoing, inside[source], incoming, op)
            except (GangTimeoutError, ProtocolError) as error:
                error.add_note(f"Inside this process ranks are counted from its first, which is rank {self._first[0]}.")
                raise
        elif to in between and source in between:
            try:
                self._between.exchange(between[to], outgoing, between[source], incoming, op)
            except (GangTimeoutError, ProtocolError) as error:
                names = ", ".join(map(str, self._first[1]))
                error.add_note(f"Between processes rank k stands for process k; their first ranks are {names}.")
                raise
        else:
            peers = " and ".join(str(peer) for peer in (to, source) if peer is not None)
            raise InvalidParameterError(
                f"rank {self.rank} of {self.size} has no way to rank {peers}: between processes the first rank of each "
                "exchanges with the first ranks of the others."
            )

    def _add(self, to: int, outgoing: AnyArray, source: int, total: AnyArray, op: int) -> bool:
        """Let the wire between processes add up arrays as they arrive, if it leads to both peers."""
        number, adder = self._number_between, self._between.adder
        other, first = number.get(to), number.get(source)
        if adder is None or other is None or first is None:
            return False
        return adder(other, outgoing, first, total, op)

    def set_deadline(self, deadline_s: float) -> None:
        """Change the longest wait; see `AbstractTransport.set_deadline`."""
        if self._inside.rank == 0:
            self._between.set_deadline(deadline_s)
        self._inside.set_deadline(min(_PATIENCE * deadline_s, MAX_LIMIT_S))
        self.deadline_s = deadline_s

    def close(self) -> None:
        """Leave the ranks of this process; the wire between processes is closed where it was opened."""
        self._inside.close()


def connect_nested(
    between: AbstractTransport,
    ranks_of: Sequence[int],
    *,
    ledgers: Sequence[RankLedger],
    abort: AbortFlag,
    timeout_s: float,
) -> list[AbstractTransport]:
    """Return the transports of the threads of this process, by rank: those of `between` if each is alone in one."""
    if len(ranks_of) != between.size or len(ledgers) != ranks_of[between.rank]:
        raise InvalidParameterError(
            f"connect(ranks_of=...) must have one number per process ({between.size}), and one ledger per rank of this "
            f"one. Got {list(ranks_of)} and {len(ledgers)} ledgers in process {between.rank}."
        )
    n = ranks_of[between.rank]
    if max(ranks_of) == 1:
        return [between]
    alone = between.size == 1
    limit_s = timeout_s if alone else min(_PATIENCE * timeout_s, MAX_LIMIT_S)
    window = None if alone else False
    inside = connect(n, timeout_s=limit_s, ledgers=ledgers, aborts=[abort] * n, window=window)
    return list(inside) if alone else [NestedTransport(transport, between, ranks_of) for transport in inside]
