"""The transport between threads of several processes: memory within a process, another wire between.

Problem: a cluster of W workers with T threads has W T ranks. Connecting them pairwise takes (W T)^2 / 2 connections,
4,088 open files in each process of 64 workers with 8 threads, and a segment of shared memory for every pair on a host.
Almost none of them would be used: vectors are summed inside each process first, and then one thread per process
exchanges the sums.

The threads of a process are connected pairwise (`inproc`). The first rank of each process, its leader, has a connection
to every other leader: one wire between processes, of as many ends as there are processes, used by one thread in each.
Collectives (`dsgd.collectives`) go by these: inside, between leaders, inside.

Cost: W - 1 connections per process at most, whatever T is; a frame costs what it costs on its wire. If ranks exchange
one to one, they also have mailboxes (`dsgd.comm.base`), with a connection to each rank that they have mail for.

Rejected: one connection per pair of processes that carries the frames of all ranks. Frames of several senders would
have to be taken apart by a thread that reads for all, which costs a copy and two wake-ups in every round.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Final, final

from dsgd.comm.base import AbstractTransport
from dsgd.comm.frames import MAX_LIMIT_S, OP_GOSSIP, AbortFlag
from dsgd.comm.wires import inproc
from dsgd.errors import GangTimeoutError, InvalidParameterError, ProtocolError
from dsgd.ledger import RankLedger
from dsgd.types import AnyArray

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
        """Send `outgoing` while receiving `incoming`; see `AbstractTransport.exchange`.

        Both peers are ranks of this process, or both are first ranks of their processes as this one is. With mailboxes
        gossip goes through them, and reaches every rank.
        """
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


def connect(
    between: AbstractTransport,
    ranks_of: Sequence[int],
    *,
    ledgers: Sequence[RankLedger],
    abort: AbortFlag,
    timeout_s: float,
) -> list[AbstractTransport]:
    """Return the transports of the ranks that are threads of this process.

    - returned: in rank order. Where no process has two ranks that is `between` itself, and where there is one
      process, a transport of threads.
    """
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
    inside = inproc.connect(n, timeout_s=limit_s, ledgers=ledgers, aborts=[abort] * n, window=window)
    return list(inside) if alone else [NestedTransport(transport, between, ranks_of) for transport in inside]
