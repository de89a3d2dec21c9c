"""All-reduce and all-gather round a ring, for long vectors.

Problem: the sum of long vectors costs bandwidth, so no byte may be sent more often than needed.

Update: the vector is cut into one chunk per rank. In step s of P - 1 rank r sends chunk (r - s) mod P to rank r + 1 and
adds what comes to chunk (r - s - 1) mod P; afterwards rank r owns the sum of chunk r + 1. In P - 1 more steps the sums
travel round: rank r sends chunk (r + 1 - s) mod P and overwrites chunk (r - s) mod P.

Cost per rank: 2 (P - 1) messages, 2 (P - 1) / P of the vector, which no algorithm undercuts; see `cost.allreduce_cost`.

Each chunk is summed in one fixed order of ranks and then copied, so every bit agrees on all ranks.

Source: Patarasuk and Yuan 2009.
"""

from __future__ import annotations

from collections.abc import Sequence

from dsgd.collectives.cost import ring_bounds
from dsgd.comm.base import AbstractTransport
from dsgd.comm.frames import OP_ALLGATHER, OP_ALLREDUCE
from dsgd.types import AnyArray

__all__ = ["ring_allgather", "ring_allreduce", "ring_scratch_length"]


def ring_scratch_length(n: int, size: int) -> int:
    """Return how many elements `ring_allreduce` needs as scratch: those of the longest chunk."""
    return -(-n // size)


def ring_allreduce(transport: AbstractTransport, vector: AnyArray, scratch: AnyArray) -> None:
    """Replace `vector` by its sum over ranks.

    Parameters
    ----------
    transport : AbstractTransport
        Connects the ranks.
    vector : array, shape (n,)
        Summed in place.
    scratch : array, shape (ring_scratch_length(n, size),) or longer, dtype of `vector`
        May be overwritten.
    """
    rank, size = transport.rank, transport.size
    after, before = (rank + 1) % size, (rank - 1) % size
    bounds = ring_bounds(vector.shape[0], size)
    chunks = [vector[bounds[k] : bounds[k + 1]] for k in range(size)]
    for step in range(size - 1):
        mine = chunks[(rank - step - 1) % size]
        theirs = chunks[(rank - step) % size]
        transport.exchange_and_add(after, theirs, before, scratch[: mine.shape[0]], mine, OP_ALLREDUCE)
        transport.worked(n_bytes=mine.nbytes)
    for step in range(size - 1):
        transport.exchange(after, chunks[(rank + 1 - step) % size], before, chunks[(rank - step) % size], OP_ALLREDUCE)


def ring_allgather(transport: AbstractTransport, gathered: Sequence[AnyArray]) -> None:
    """Fill the parts of `gathered` with the vectors of all ranks.

    Parameters
    ----------
    transport : AbstractTransport
        Connects the ranks.
    gathered : sequence of arrays, one per rank, or array of shape (size, n)
        Part `rank` holds this rank's vector; the others are overwritten. Their lengths may differ, but every rank
        knows all of them.
    """
    rank, size = transport.rank, transport.size
    after, before = (rank + 1) % size, (rank - 1) % size
    for step in range(size - 1):
        transport.exchange(
            after, gathered[(rank - step) % size], before, gathered[(rank - step - 1) % size], OP_ALLGATHER
        )
