"""All-reduce and all-gather round a ring, for long vectors.

Problem: the sum of long vectors costs bandwidth, so no byte may be sent more often than needed.

Update: the vector is cut into one chunk per rank. In step s of P - 1 rank r sends chunk (r - s) mod P to rank r + 1 and
adds the received one to chunk (r - s - 1) mod P. Then rank r owns the sum of chunk r + 1. In P - 1 more steps the sums
travel round: rank r sends chunk (r + 1 - s) mod P and overwrites chunk (r - s) mod P.

Cost per rank: 2 (P - 1) messages, 2 (P - 1) / P of the vector, which no algorithm undercuts; see `cost.allreduce_cost`.

Each chunk is summed in one fixed order of ranks and then copied, so every bit agrees on all ranks.

Source: Patarasuk and Yuan 2009.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from dsgd.collectives.algorithms.plan import Move, Part, Plan
from dsgd.comm.base import AbstractTransport
from dsgd.comm.frames import OP_ALLGATHER
from dsgd.types import AnyArray


@lru_cache(maxsize=64)
def ring_plan(rank: int, size: int, n: int) -> Plan:
    """Return what `rank` of `size` does to sum vectors of n elements."""
    ranks, chunks = list(range(size)), Part(0, n).cut(size)
    return Plan.of([*reduce_scatter(rank, ranks, chunks), *allgather(rank, ranks, chunks)])


def reduce_scatter(number: int, ranks: Sequence[int], chunks: Sequence[Part]) -> Iterator[Move]:
    """Yield the moves after which rank ``ranks[number]`` has the sum of the chunk behind its own number."""
    size = len(ranks)
    for step in range(size - 1):
        sent, received = chunks[(number - step) % size], chunks[(number - step - 1) % size]
        yield Move(ranks[(number + 1) % size], sent, ranks[number - 1], received, adds=True)


def allgather(number: int, ranks: Sequence[int], chunks: Sequence[Part]) -> Iterator[Move]:
    """Yield the moves by which the chunks go round from there."""
    size = len(ranks)
    for step in range(size - 1):
        sent, received = chunks[(number + 1 - step) % size], chunks[(number - step) % size]
        yield Move(ranks[(number + 1) % size], sent, ranks[number - 1], received, adds=False)


def ring_allgather(transport: AbstractTransport, gathered: Sequence[AnyArray]) -> None:
    """Fill the parts of `gathered` with the vectors of all ranks.

    - `gathered`, shape (size, n): part `rank` holds this rank's vector; the others are overwritten. Their lengths
      may differ, but every rank knows all of them.
    """
    rank, size = transport.rank, transport.size
    after, before = (rank + 1) % size, (rank - 1) % size
    for step in range(size - 1):
        transport.exchange(
            after, gathered[(rank - step) % size], before, gathered[(rank - step - 1) % size], OP_ALLGATHER
        )
