"""Broadcast down a binomial tree, gather at one rank, and the dissemination barrier.

Problem: one rank's vector must reach all, and all must know that all have arrived, in ceil(log2 P) steps.

Update: in step k of a broadcast every rank whose number relative to the root is below 2**k sends to the rank 2**k
above it. In step k of a barrier rank r sends to r + 2**k and hears from r - 2**k, so that after the last step it has
heard, through others, from everybody.

A gather sends every vector straight to the root, in the order of ranks: nothing is sent twice, and the root receives
each byte once whatever the way.

Cost: `cost.broadcast_cost`, `cost.gather_cost`, `cost.barrier_cost`.

Source: Hensgen, Finkel and Manber 1988 (barrier); Thakur, Rabenseifner and Gropp 2005 (broadcast).
"""

from __future__ import annotations

from collections.abc import Sequence

from dsgd.comm.base import AbstractTransport
from dsgd.comm.wire import OP_BARRIER, OP_BROADCAST, OP_GATHER
from dsgd.types import AnyArray

__all__ = ["binomial_broadcast", "direct_gather", "dissemination_barrier"]


def binomial_broadcast(transport: AbstractTransport, vector: AnyArray, root: int) -> None:
    """Replace `vector`, shape (n,), by that of rank `root`."""
    rank, size = transport.rank, transport.size
    relative = (rank - root) % size
    distance = 1
    while distance < size:
        if relative < distance:
            if relative + distance < size:
                transport.exchange((rank + distance) % size, vector, None, None, OP_BROADCAST)
        elif relative < 2 * distance:
            transport.exchange(None, None, (rank - distance) % size, vector, OP_BROADCAST)
        distance *= 2


def direct_gather(transport: AbstractTransport, vector: AnyArray, parts: Sequence[AnyArray] | None, root: int) -> None:
    """Send `vector` to the root, which fills the other ranks' entries of `parts`, one array per rank."""
    if transport.rank != root or parts is None:
        transport.exchange(root, vector, None, None, OP_GATHER)
        return
    for source in range(transport.size):
        if source != root:
            transport.exchange(None, None, source, parts[source], OP_GATHER)


def dissemination_barrier(transport: AbstractTransport, nothing_out: AnyArray, nothing_in: AnyArray) -> None:
    """Return once every rank has called it; the arrays are empty and only lend their dtype."""
    rank, size = transport.rank, transport.size
    distance = 1
    while distance < size:
        transport.exchange((rank + distance) % size, nothing_out, (rank - distance) % size, nothing_in, OP_BARRIER)
        distance *= 2
