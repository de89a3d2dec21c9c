"""All-reduce by recursive halving and doubling, for long vectors on any number of ranks.

Problem: the ring sends no byte too often, but takes a number of messages that grows with the ranks.

Update, for 2**q ranks: in step d = P/2, P/4, ..., 1 rank r and rank r XOR d split the part of the vector that both work
on: each keeps the half on its side, sends the other one and adds the one it receives. Then rank r has the sum of chunk
r, and in steps d = 1, 2, ..., P/2 the same pairs exchange all their chunks, which doubles them. With other numbers of
ranks the first pairs are folded into one rank each, as in `dsgd.collectives.algorithms.recursive_doubling`.

Cost per rank: 2 q messages, 2 (P - 1) / P of the vector, and the fold: two messages of the whole vector more for half
the ranks of a fold, `cost.allreduce_cost`.

Chunk r is added up on rank r alone, partial sums of ranks P/2 apart first, and then copied.

Source: Rabenseifner 2004; Thakur, Rabenseifner and Gropp 2005, section 4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache

from dsgd.collectives.algorithms.plan import Move, Part, Plan, folded
from dsgd.collectives.cost import ring_bounds


@lru_cache(maxsize=1024)
def rabenseifner_plan(rank: int, size: int, n: int) -> Plan:
    """Return what `rank` of `size` does to sum vectors of n elements."""

    def among(number: int, core: int, rank_of: Callable[[int], int]) -> Iterator[Move]:
        bounds = ring_bounds(n, core)

        def block(of: int, length: int) -> Part:
            """Return the chunks of the `length` numbers, a power of two, that `of` is among."""
            first = of & -length
            return Part(bounds[first], bounds[first + length])

        distances = [1 << k for k in range(core.bit_length() - 1)]
        for distance in reversed(distances):
            other = number ^ distance
            yield Move(rank_of(other), block(other, distance), rank_of(other), block(number, distance), adds=True)
        for distance in distances:
            other = number ^ distance
            yield Move(rank_of(other), block(number, distance), rank_of(other), block(other, distance), adds=False)

    return Plan.of(folded(rank, size, Part(0, n), among))
