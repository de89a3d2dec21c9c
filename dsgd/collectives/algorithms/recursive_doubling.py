"""All-reduce by recursive doubling, for short vectors.

Problem: the sum of short vectors costs latency, not bandwidth, so the number of steps must be small.

Update, with 2**q the largest power of two up to the world size P and e = P - 2**q: of the first e pairs of ranks
(0, 1), (2, 3), ... the odd one sends its vector to the even one and receives the result at the end. The 2**q ranks that
remain are renumbered in order; in step k number v exchanges its partial sum with number v XOR 2**k and adds.

Cost per rank: q messages of the whole vector (one more for the partner of a folded rank); see `cost.allreduce_cost`.

Both partners add the lower rank's partial sum first, so every bit agrees on all ranks, NaN payloads included. Partial
sums are of neighbours at every step: where ranks come in blocks of one size, a power of two, the first steps sum the
blocks and the others are those of as many ranks as there are blocks. Summing each block up a binomial tree and doubling
among the blocks therefore gives the same bits.

Source: Thakur, Rabenseifner and Gropp 2005, section 4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache

from dsgd.collectives.algorithms.plan import Move, Part, Plan, folded


@lru_cache(maxsize=1024)
def doubling_plan(rank: int, size: int, n: int) -> Plan:
    """Return what `rank` of `size` does to sum vectors of n elements, or to combine them in another way."""
    whole = Part(0, n)

    def among(number: int, core: int, rank_of: Callable[[int], int]) -> Iterator[Move]:
        for step in range(core.bit_length() - 1):
            peer = rank_of(number ^ (1 << step))
            yield Move(peer, whole, peer, whole, adds=True)

    return Plan.of(folded(rank, size, whole, among))
