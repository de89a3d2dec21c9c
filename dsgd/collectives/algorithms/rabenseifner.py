"""All-reduce by recursive halving and doubling, for long vectors on any number of ranks.

Problem: the ring sends no byte too often, but takes a number of messages that grows with the ranks.

Update, for 2**q ranks: in step d = P/2, P/4, ..., 1 rank r and rank r XOR d split the part of the vector that both work
on: each keeps the half on its side, sends the other one and adds what comes. Then rank r has the sum of chunk r, and in
steps d = 1, 2, ..., P/2 the same pairs exchange all that they have, which doubles it. Of other numbers of ranks the
first pairs are folded into one rank each, as in `dsgd.collectives.algorithms.recursive_doubling`.

Cost per rank: 2 q messages, 2 (P - 1) / P of the vector, and the fold: two messages of the whole vector more for half
the ranks of a fold, `cost.allreduce_cost`.

Chunk r is added up on rank r alone, partial sums of ranks P/2 apart first, and then copied.

Source: Rabenseifner 2004; Thakur, Rabenseifner and Gropp 2005, section 4.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from dsgd.collectives.algorithms.plan import Move, Part, Plan
from dsgd.collectives.cost import fold_of, ring_bounds

__all__ = ["rabenseifner_plan"]


@lru_cache(maxsize=1024)
def rabenseifner_plan(rank: int, size: int, n: int) -> Plan:
    """Return what `rank` of `size` does to sum vectors of n elements."""
    return Plan.of(_moves(rank, size, n))


def _moves(rank: int, size: int, n: int) -> Iterator[Move]:
    core, n_folded = fold_of(size)
    whole = Part(0, n)
    folds = rank < 2 * n_folded
    if folds and rank % 2:
        yield Move(rank - 1, whole, None, whole, adds=False)
        yield Move(None, whole, rank - 1, whole, adds=False)
        return
    number = rank // 2 if folds else rank - n_folded
    if folds:
        yield Move(None, whole, rank + 1, whole, adds=True)
    bounds = ring_bounds(n, core)

    def block(of: int, length: int) -> Part:
        """Return the chunks of the `length` numbers, a power of two, that `of` is among."""
        first = of & -length
        return Part(bounds[first], bounds[first + length])

    distance = core // 2
    while distance:
        other = number ^ distance
        peer = 2 * other if other < n_folded else other + n_folded
        yield Move(peer, block(other, distance), peer, block(number, distance), adds=True)
        distance //= 2
    distance = 1
    while distance < core:
        other = number ^ distance
        peer = 2 * other if other < n_folded else other + n_folded
        yield Move(peer, block(number, distance), peer, block(other, distance), adds=False)
        distance *= 2
    if folds:
        yield Move(rank + 1, whole, None, whole, adds=False)
