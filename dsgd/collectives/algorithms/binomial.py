"""All-reduce up and down one binomial tree, for links that carry one direction at a time.

Problem: some networks are fast to one rank only, and some sums are needed in the order of a tree.

Update: in step k rank r with bit k set, and none below it, sends its partial sum to rank r - 2**k, which adds it; then
rank 0 sends the result down the same way backwards.

Cost per rank: one message of the vector up, but for rank 0, and one to each child down; 2 ceil(log2 P) one after the
other, of which rank 0 is in all. See `cost.allreduce_cost`. Recursive doubling takes fewer on any number of ranks.

All is added up on the way to rank 0 and its bits are copied.

Source: Thakur, Rabenseifner and Gropp 2005, section 4.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from dsgd.collectives.algorithms.plan import Move, Part, Plan


@lru_cache(maxsize=1024)
def binomial_plan(rank: int, size: int, n: int) -> Plan:
    """Return what `rank` of `size` does to sum vectors of n elements."""
    return Plan.of(_moves(rank, size, Part(0, n)))


def _moves(rank: int, size: int, whole: Part) -> Iterator[Move]:
    below = []
    distance = 1
    while distance < size and not rank & distance:
        if rank + distance < size:
            below.append(rank + distance)
        distance *= 2
    for child in below:
        yield Move(None, whole, child, whole, adds=True)
    if rank:
        yield Move(rank - distance, whole, None, whole, adds=False)
        yield Move(None, whole, rank - distance, whole, adds=False)
    for child in reversed(below):
        yield Move(child, whole, None, whole, adds=False)
