"""Sorting of evenly distributed hashes in one pass."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from dsgd.kernels.jit import kernel
from dsgd.types import AnyArray, IntVector

#: Hashes that are spread evenly take fewer than two moves each within their buckets; more are no hashes.
_MOVES_PER_HASH: Final = 16


@kernel
def _sort(hashes: AnyArray, shift: np.uint64, ends: IntVector, ordered: AnyArray, order: IntVector) -> bool:
    """Sort hashes by their first bits, then by insertion; equal ones stay in their order.

    - `hashes`, shape (n,): what to sort.
    - `shift`: how many bits a bucket leaves out: 64 less the logarithm of the number of buckets.
    - `ends`, shape (n_buckets + 1,): zeros; overwritten.
    - `ordered`, shape (n,): the hashes, ascending, at the end.
    - `order`, shape (n,): where each of them stood.
    - returned: whether they are sorted; False where buckets are so uneven that insertion takes too long.
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
    moves_left = _MOVES_PER_HASH * n
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


def sort_hashes(hashes: NDArray[np.uint64]) -> tuple[IntVector, NDArray[np.uint64]]:
    """Return the order that sorts hashes, equal ones as they come, and the hashes in that order."""
    n = hashes.shape[0]
    # Four to a bucket: fewer would be buckets that no cache holds, more are moves.
    n_bits = max(1, n.bit_length() - 2)
    order, in_order = np.empty(n, np.int64), np.empty_like(hashes)
    if not _sort(hashes, np.uint64(64 - n_bits), np.zeros(2**n_bits + 1, np.int64), in_order, order):
        order = np.argsort(hashes, kind="stable")
        in_order = hashes[order]
    return order, in_order
