"""Broadcast down and reduce up a binomial tree, gather at and scatter from one rank, and the dissemination barrier.

Problem: one rank's vector must reach all, and all must know that all have arrived, in ceil(log2 P) steps.

Update: in step k of a broadcast every rank whose number relative to the root is below 2**k sends to the rank 2**k
above it. In step k of a barrier rank r sends to r + 2**k and receives from r - 2**k, so that after the last step it has
heard, directly or through others, from all ranks.

A reduction is a broadcast backwards: in step k every rank with bit k set, and none below it, sends its partial sum to
the rank 2**k below it, which adds it to its own.

A gather sends every vector straight to the root, in the order of ranks, and a scatter straight from it: nothing is sent
twice, and the root must receive or send each byte once in any case.

Cost: `cost.broadcast_cost`, `cost.gather_cost`, `cost.barrier_cost`.

Source: Hensgen, Finkel and Manber 1988 (barrier); Thakur, Rabenseifner and Gropp 2005 (broadcast).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dsgd.collectives.algorithms.plan import Combine
from dsgd.comm.base import AbstractTransport
from dsgd.comm.frames import OP_ALLREDUCE, OP_BARRIER, OP_BROADCAST, OP_GATHER, OP_SCATTER
from dsgd.types import AnyArray


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


def binomial_reduce(transport: AbstractTransport, vector: AnyArray, scratch: AnyArray, combine: Combine) -> None:
    """Combine the vectors of all ranks at rank 0; the vectors of the others become partial results."""
    rank, size = transport.rank, transport.size
    distance = 1
    while distance < size:
        if rank % (2 * distance):
            transport.exchange(rank - distance, vector, None, None, OP_ALLREDUCE)
            return
        if rank + distance < size:
            transport.exchange(None, None, rank + distance, scratch, OP_ALLREDUCE)
            combine(vector, scratch, out=vector)
            transport.worked(n_bytes=vector.nbytes)
        distance *= 2


def direct_gather(transport: AbstractTransport, vector: AnyArray, parts: Sequence[AnyArray] | None, root: int) -> None:
    """Send `vector` to the root, which fills the other ranks' entries of `parts`, one array per rank."""
    if transport.rank != root or parts is None:
        transport.exchange(root, vector, None, None, OP_GATHER)
        return
    for source in range(transport.size):
        if source != root:
            transport.exchange(None, None, source, parts[source], OP_GATHER)


def direct_scatter(
    transport: AbstractTransport, parts: Sequence[AnyArray] | AnyArray | None, out: AnyArray, root: int
) -> None:
    """Fill `out` with this rank's entry of `parts`, one array per rank, which the root sends out."""
    if transport.rank != root or parts is None:
        transport.exchange(None, None, root, out, OP_SCATTER)
        return
    for to in range(transport.size):
        if to != root:
            transport.exchange(to, parts[to], None, None, OP_SCATTER)
    out[...] = parts[root]


def gather_any(transport: AbstractTransport, vector: AnyArray, root: int) -> list[AnyArray] | None:
    """Return the vectors of all ranks, of any lengths, at the root, which learns the lengths first; None elsewhere."""
    length = np.array([vector.shape[0]], dtype=np.int64)
    if transport.rank != root:
        direct_gather(transport, length, None, root)
        direct_gather(transport, vector, None, root)
        return None
    lengths = [length.copy() for _ in range(transport.size)]
    direct_gather(transport, length, lengths, root)
    parts = [vector if r == root else np.empty(int(n[0]), dtype=vector.dtype) for r, n in enumerate(lengths)]
    direct_gather(transport, vector, parts, root)
    return parts


def dissemination_barrier(transport: AbstractTransport, nothing_out: AnyArray, nothing_in: AnyArray) -> None:
    """Return once every rank has called it; the arrays are empty and only lend their dtype."""
    rank, size = transport.rank, transport.size
    distance = 1
    while distance < size:
        transport.exchange((rank + distance) % size, nothing_out, (rank - distance) % size, nothing_in, OP_BARRIER)
        distance *= 2
