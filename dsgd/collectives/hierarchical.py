"""All-reduce in two levels, for gangs of several hosts with several ranks on each.

Problem: inside a host a vector moves ten times faster than between hosts, and all ranks of a host share one network
card. What a flat algorithm sends between hosts grows with the ranks, not with the hosts.

Update: in every host the vectors are summed up a binomial tree to its first rank, the leader; the leaders all-reduce
among themselves (recursive doubling for short vectors, the ring for long ones); each leader broadcasts the sum inside
its host.

Cost: between hosts, what the leaders' all-reduce costs for as many ranks as there are hosts; inside, one message up
for everyone but the leader, and the broadcast's messages down. See `cost.allreduce_cost`.

The sum of a host is added in the order of its ranks' numbers in the tree and the leaders hold equal bits, so every bit
agrees on all ranks. It is not bitwise the sum of the flat algorithms, which add in another order.

Source: Karonis et al. 2000 (MPICH-G2, trees by levels of the network); Thakur, Rabenseifner and Gropp 2005 (inside).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np

from dsgd.collectives.cost import choose_algorithm, groups_of
from dsgd.collectives.recursive_doubling import recursive_doubling
from dsgd.collectives.ring import ring_allreduce
from dsgd.collectives.tree import binomial_broadcast
from dsgd.comm.base import AbstractTransport
from dsgd.comm.wire import OP_ALLREDUCE
from dsgd.types import AnyArray

__all__ = ["Hierarchy"]


class Hierarchy:
    """The place of one rank in the two levels.

    Parameters
    ----------
    transport : AbstractTransport
        Connects all ranks.
    hosts : sequence of int, length world size
        The host of each rank; equal on all ranks.
    """

    def __init__(self, transport: AbstractTransport, hosts: Sequence[int]) -> None:
        groups = groups_of(hosts)
        mine = next(group for group in groups if transport.rank in group)
        leaders = [group[0] for group in groups]
        self._host = _Subset(transport, mine)
        self._leaders = _Subset(transport, leaders) if transport.rank in leaders else None

    def allreduce(self, vector: AnyArray, scratch: AnyArray) -> None:
        """Replace `vector`, shape (n,), by its sum over ranks; `scratch` is as long and is overwritten."""
        _reduce(self._host, vector, scratch)
        leaders = self._leaders
        if leaders is not None and leaders.size > 1:
            if choose_algorithm(vector.shape[0], vector.itemsize, leaders.size) == "ring":
                ring_allreduce(leaders, vector, scratch)
            else:
                recursive_doubling(leaders, vector, scratch)
        binomial_broadcast(self._host, vector, 0)


@final
class _Subset(AbstractTransport):
    """Some of the ranks, numbered anew from 0."""

    def __init__(self, whole: AbstractTransport, members: Sequence[int]) -> None:
        self.rank = members.index(whole.rank)
        self.size = len(members)
        self.ledger = whole.ledger
        self.hosts = tuple(whole.hosts[member] for member in members)
        self.wire = whole.wire
        self.deadline_s = whole.deadline_s
        self._whole = whole
        self._members = members

    def exchange(
        self, to: int | None, outgoing: AnyArray | None, source: int | None, incoming: AnyArray | None, op: int = 0
    ) -> None:
        """See `AbstractTransport.exchange`."""
        members = self._members
        self._whole.exchange(
            None if to is None else members[to],
            outgoing,
            None if source is None else members[source],
            incoming,
            op,
        )

    def set_deadline(self, deadline_s: float) -> None:
        """Change it for the whole; see `AbstractTransport.set_deadline`."""
        self._whole.set_deadline(deadline_s)
        self.deadline_s = deadline_s

    def close(self) -> None:
        """Do nothing: the whole belongs to somebody else."""


def _reduce(transport: AbstractTransport, vector: AnyArray, scratch: AnyArray) -> None:
    """Sum vectors up a binomial tree: rank 0 gets the sum, the vectors of the others become partial sums."""
    rank, size = transport.rank, transport.size
    distance = 1
    while distance < size:
        if rank % (2 * distance):
            transport.exchange(rank - distance, vector, None, None, OP_ALLREDUCE)
            return
        if rank + distance < size:
            transport.exchange(None, None, rank + distance, scratch, OP_ALLREDUCE)
            np.add(vector, scratch, vector)
        distance *= 2
