"""A sum tree in one array: weights that change one at a time, and draws in proportion to them, in O(log n) each.

Problem: to draw one of n rows with a probability proportional to a weight, while each step changes one of the weights.

Method: level 0 holds the weights; an entry of the level above is the sum of eight neighbours, which share a cache line.
The top level has eight entries at most. A draw goes down from the top, a change goes up from its weight. A sum is added
up again from its eight entries and never changed by a difference: the tree is a function of the weights, to the bit,
and rounding does not build up.

Cost: 8 n / 7 numbers of float64, and log_8(n) lines of memory for a draw or a change. The source of
`dsgd.kernels.importance` has a red-black tree for the same bound; weights have fixed places here, so nothing needs to
be rebalanced.
"""

from __future__ import annotations

import math

import numpy as np

from dsgd.kernels.jit import leaf_kernel, scalar
from dsgd.kernels.prefetch import prefetch
from dsgd.types import FloatVector, IntVector, WordVector

#: Entries that a sum is of: a cache line of float64.
FANOUT = 8

_EIGHT = np.uint64(8)
_THREE = np.uint64(3)
_ONE = np.uint64(1)
_ZERO = np.uint64(0)


def sum_levels(n: int) -> IntVector:
    """Return where each level of a tree of n weights begins, the weights first, and last where the top level ends.

    - returned: all multiples of `FANOUT`: what is left of a level stays zero.
    """
    places, size = [0], max(1, n)
    while True:
        n_groups = math.ceil(size / FANOUT)
        places.append(places[-1] + FANOUT * n_groups)
        if n_groups == 1:
            return np.array(places, np.int64)
        size = n_groups


@scalar
def group_sum(tree: FloatVector, first: np.uint64) -> float:
    """Return the sum of a group."""
    # As two halves of two: rounding is the same for all that read it, and additions wait less for each other.
    low = (tree[first] + tree[first + np.uint64(1)]) + (tree[first + np.uint64(2)] + tree[first + np.uint64(3)])
    high = (tree[first + np.uint64(4)] + tree[first + np.uint64(5)]) + (
        tree[first + np.uint64(6)] + tree[first + np.uint64(7)]
    )
    return float(low + high)


@scalar
def total(tree: FloatVector, levels: IntVector) -> float:
    """Return the sum of all weights."""
    found: float = group_sum(tree, np.uint64(levels[levels.shape[0] - 2]))
    return found


@scalar
def update_all(tree: FloatVector, levels: IntVector, places: WordVector, n: np.uint64) -> None:
    """Add up the sums above n places whose weights have changed; level by level, so that none waits for another.

    - `tree`, shape (levels[-1],): updated in place.
    """
    for level in range(levels.shape[0] - 2):
        first, above = np.uint64(levels[level]), np.uint64(levels[level + 1])
        for k in range(n):
            group = places[k] >> _THREE
            tree[above + group] = group_sum(tree, first + group * _EIGHT)
            places[k] = group


@scalar
def descend(tree: FloatVector, first: np.uint64, left: float) -> tuple[np.uint64, float]:
    """Return the child of a group that something left of its sum falls on, and what is left of that child."""
    # Without branches, which nobody could predict: how many entries end at or before what is left.
    end, child, before = 0.0, _ZERO, 0.0
    for k in range(np.uint64(7)):
        end += tree[first + k]
        is_beyond = left >= end
        child += _ONE if is_beyond else _ZERO
        before = end if is_beyond else before
    # Rounding may lead past the last entry that is not zero: that one is meant.
    while tree[first + child] <= 0.0 and child > _ZERO:
        child -= _ONE
    return child, max(0.0, left - before)


@scalar
def find_all(
    tree: FloatVector, levels: IntVector, which: WordVector, n: np.uint64, left: FloatVector, places: WordVector
) -> None:
    """Find the places that parts of the sum of all weights, in [0, sum), fall on; never one of weight zero.

    All of them go down level by level, so that the memory of one comes while the others compute.

    - `tree`, shape (levels[-1],): not all weights are zero, none is negative.
    - `which`: where in the other two the n parts are.
    - `left`: the parts, overwritten; uniform for draws.
    """
    n_levels = levels.shape[0] - 1
    for d in range(n):
        places[which[d]] = _ZERO
    for above in range(n_levels):
        base = np.uint64(levels[n_levels - 1 - above])
        below = np.uint64(levels[max(0, n_levels - 2 - above)])
        for d in range(n):
            j = which[d]
            child, left[j] = descend(tree, base + places[j] * _EIGHT, left[j])
            places[j] = places[j] * _EIGHT + child
            if above < n_levels - 1:
                prefetch(tree, below + places[j] * _EIGHT)


@leaf_kernel
def build(tree: FloatVector, levels: IntVector) -> None:
    """Add up all levels above the weights.

    - `tree`, shape (levels[-1],): the first level is read, the others are overwritten.
    """
    for level in range(levels.shape[0] - 2):
        first, above = np.uint64(levels[level]), np.uint64(levels[level + 1])
        n_groups = np.uint64(levels[level + 1] - levels[level]) >> _THREE
        for group in range(n_groups):
            tree[above + group] = group_sum(tree, first + group * _EIGHT)
