"""All-reduce on two binary trees at once, for vectors of medium length on many ranks.

Problem: in one tree half of the ranks are leaves, whose wires carry every byte once in either direction while those of
the inner ranks carry it three times.

Update: two trees over the same ranks, such that the inner ranks of one are leaves of the other, carry one half of the
vector each, in pieces. In the first, rank 0 is the root, its child heads an in-order binary tree of the others, whose
inner ranks are the even ones; the second is the first mirrored if P is even, and shifted by one rank if it is odd.

Cost per rank: as many messages per piece as it has edges in both trees, once up or once down each, so about 2 of the
vector; some 2 ceil(log2 P) steps of latency. See `cost.allreduce_cost`.

A rank adds its children's sums in the order of their ranks; the root's bits are copied.

Source: Sanders, Speck and Träff 2009; the trees are those of NCCL 2.4.
"""

from __future__ import annotations

from functools import lru_cache

from dsgd.collectives.algorithms.pipeline import Parents, tree_plan
from dsgd.collectives.algorithms.plan import Part, Plan
from dsgd.collectives.model import tree_pieces


@lru_cache(maxsize=256)
def double_tree(size: int) -> tuple[Parents, Parents]:
    """Return the two trees over `size` ranks."""
    first = [-1]
    for rank in range(1, size):
        bit = rank & -rank
        parent = (rank ^ bit) | (bit << 1)
        first.append(parent if parent < size else rank ^ bit)
    # The rank that number k of the second tree is.
    ranks = [size - 1 - k for k in range(size)] if size % 2 == 0 else [(k + 1) % size for k in range(size)]
    second = [-1] * size
    for k in range(1, size):
        second[ranks[k]] = ranks[first[k]]
    return tuple(first), tuple(second)


@lru_cache(maxsize=1024)
def double_tree_plan(rank: int, size: int, n: int, itemsize: int) -> Plan:
    """Return what `rank` of `size` does to sum vectors of n elements of `itemsize` bytes."""
    return tree_plan(rank, double_tree(size), (Part(0, n // 2), Part(n // 2, n)), tree_pieces(n * itemsize, size))
