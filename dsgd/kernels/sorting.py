"""Sorting of evenly distributed hashes in one pass, and of strata; and dealing rows by their hashes."""

from __future__ import annotations

import numpy as np

from dsgd.kernels.jit import kernel
from dsgd.types import AnyArray, FloatVector, IntVector

__all__ = ["MOVES_PER_HASH", "count_hashes", "deal_hashes", "sort_hashes", "spread_strata"]

#: Hashes that are spread evenly take fewer than two moves each within their buckets; more are no hashes.
MOVES_PER_HASH = 16


@kernel
def sort_hashes(hashes: AnyArray, shift: np.uint64, ends: IntVector, ordered: AnyArray, order: IntVector) -> bool:
    """Sort hashes by their first bits, then by insertion; equal ones stay in their order.

    Parameters
    ----------
    hashes : array of uint64, shape (n,)
        What to sort.
    shift : uint64
        How many bits a bucket leaves out: 64 less the logarithm of the number of buckets.
    ends : array of int64, shape (n_buckets + 1,)
        Zeros; overwritten.
    ordered : array of uint64, shape (n,)
        The hashes, ascending, at the end.
    order : array of int64, shape (n,)
        Where each of them stood.

    Returns
    -------
    bool
        Whether they are sorted; False where buckets are so uneven that insertion takes too long.
    """
    n = hashes.shape[0]
    for i in range(n):
        ends[(hashes[i] >> shift) + np.uint64(1)] += 1
    for b in range(1, ends.shape[0]):
        ends[b] += ends[b - 1]
    # Here ends[b] is where bucket b begins; after the loop, where it ends.
    for i in range(n):
        bucket = hashes[i] >> shift
        place = ends[bucket]
        ends[bucket] = place + 1
        ordered[place] = hashes[i]
        order[place] = i
    # No hash goes further than the beginning of its bucket, as those before it are smaller.
    moves_left = MOVES_PER_HASH * n
    for i in range(1, n):
        value, source, k = ordered[i], order[i], i
        while k > 0 and ordered[k - 1] > value:
            ordered[k], order[k] = ordered[k - 1], order[k - 1]
            k -= 1
        ordered[k], order[k] = value, source
        moves_left -= i - k
        if moves_left < 0:
            return False
    return True


@kernel
def spread_strata(
    strata: IntVector, order: IntVector, offsets: FloatVector, counts: IntVector, seen: IntVector, keys: AnyArray
) -> None:
    """Give the members of every stratum places at equal distances, from an offset on; their order stays.

    Parameters
    ----------
    strata : array of int64, shape (n,)
        The stratum of each member, from 0.
    order : array of int64, shape (n,)
        The members in their order.
    offsets : array of float64, shape (n_strata,)
        Where the first member of each lies, in distances; in [0, 1), multiples of 2^-24.
    counts : array of int64, shape (n_strata,)
        Members of each; under 2^29.
    seen : array of int64, shape (n_strata,)
        Zeros; overwritten.
    keys : array of uint64, shape (n,)
        Place of each member, in the order of `order`, as a share of all places, times 2^64; overwritten.
    """
    for i in range(order.shape[0]):
        k = strata[order[i]]
        keys[i] = np.uint64((seen[k] + offsets[k]) / counts[k] * 2.0**64)
        seen[k] += 1


@kernel
def count_hashes(hashes: AnyArray, shift: np.uint64, counts: IntVector) -> None:
    """Add to ``counts[b]`` the hashes whose first bits, all but `shift`, are b."""
    for i in range(hashes.shape[0]):
        counts[hashes[i] >> shift] += 1


@kernel
def deal_hashes(hashes: AnyArray, least: AnyArray, ends: IntVector, order: IntVector) -> None:
    """Write the numbers of hashes into `order`, part by part, those of a part ascending.

    Parameters
    ----------
    hashes : array of uint64, shape (n,)
        What to deal.
    least : array of uint64, shape (n_parts - 1,)
        The least hash of every part but the first, ascending.
    ends : array of int64, shape (n_parts,)
        Where each part begins; afterwards, where it ends.
    order : array of int64, shape (n,)
        Overwritten.
    """
    for i in range(hashes.shape[0]):
        low, high = 0, least.shape[0]
        while low < high:
            middle = (low + high) // 2
            if least[middle] <= hashes[i]:
                low = middle + 1
            else:
                high = middle
        place = ends[low]
        ends[low] = place + 1
        order[place] = i
