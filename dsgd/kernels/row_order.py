"""Orders of rows by their place in the listing: random ones that read memory in large pieces, and dealing to ranks."""

from __future__ import annotations

import numpy as np

from dsgd.kernels.jit import leaf_kernel, scalar
from dsgd.kernels.rng import draw, mix64
from dsgd.types import AnyArray, FloatVector, IndexVector, IntVector

#: Neighbours that stay together, and how many rows are then shuffled among themselves: those lie in the L2 cache.
CHUNK, GROUP = 32, 1024

_HALF = np.uint64(32)


@scalar
def _below(word: np.uint64, n: int) -> np.int64:
    """Return the number below n that a random word stands for, each as likely as the others."""
    return np.int64(((word >> _HALF) * np.uint64(n)) >> _HALF)


@leaf_kernel
def draw_order(
    targets: FloatVector,
    low: float,
    begins: IntVector,
    heads: IntVector,
    offsets: FloatVector,
    turns: IntVector,
    key: np.uint64,
    order: IndexVector,
    ordered: FloatVector,
    scratch: IndexVector,
    chunks: IndexVector,
    ends: IndexVector,
) -> bool:
    """Draw an order in which the members of every class are spread evenly; return False if targets are no classes.

    - `targets`, shape (n,): the target of each row.
    - `low`: the least target: that of class 0. Those of the others are the whole numbers above it.
    - `begins`, shape (n_classes + 1,): zeros; where the members of each begin, overwritten.
    - `heads`, shape (n_classes,): overwritten.
    - `offsets`, shape (n_classes,): where the first member of each lies, in distances between its members; in [0,
      1), multiples of 2^-24.
    - `turns`, shape (n_classes,): the classes by their offsets: of members that belong to one place, those of the
      first come first.
    - `order`, shape (n,): the rows in their order; overwritten.
    - `ordered`, shape (n,): the targets in that order; overwritten.
    - `scratch`, shape (n,): overwritten.
    - `chunks`, shape (n // CHUNK + 1,): overwritten.
    - `ends`, shape (n + 1,) or (0,): zeros; overwritten. None where there is one class.
    """
    n, n_classes = order.shape[0], heads.shape[0]
    # Members by class, each class in the order of the listing.
    if n_classes == 1:
        begins[1] = n
        for i in range(n):
            order[i] = i
    else:
        for i in range(n):
            k = int(targets[i] - low)
            if targets[i] - low != k:
                return False
            begins[k + 1] += 1
        for k in range(n_classes):
            heads[k] = begins[k]
            begins[k + 1] += begins[k]
        for i in range(n):
            k = int(targets[i] - low)
            order[heads[k]] = i
            heads[k] += 1
    for k in range(n_classes):
        first, last = begins[k], begins[k + 1]
        n_chunks, stream = (last - first + CHUNK - 1) // CHUNK, draw(mix64(key), np.uint64(2 * k))
        for c in range(n_chunks):
            chunks[c] = c
        for c in range(n_chunks - 1, 0, -1):
            other = _below(draw(stream, np.uint64(c)), c + 1)
            chunks[c], chunks[other] = chunks[other], chunks[c]
        at = first
        for c in range(n_chunks):
            begin = first + np.int64(chunks[c]) * CHUNK
            for j in range(begin, min(last, begin + CHUNK)):
                scratch[at] = order[j]
                at += 1
        # As many members as a class has among so many rows, in whole chunks.
        size = max(1, (GROUP * (last - first) + CHUNK * n // 2) // max(1, CHUNK * n)) * CHUNK
        stream = draw(mix64(key), np.uint64(2 * k + 1))
        for begin in range(first, last, size):
            for j in range(min(last, begin + size) - 1, begin, -1):
                other = begin + _below(draw(stream, np.uint64(j)), j - begin + 1)
                scratch[j], scratch[other] = scratch[other], scratch[j]
    if n_classes == 1:
        for i in range(n):
            order[i] = scratch[i]
            ordered[i] = targets[order[i]]
        return True
    # Each member belongs at a share of all places.
    for k in range(n_classes):
        n_members = begins[k + 1] - begins[k]
        distance = n / max(1, n_members)
        for j in range(n_members):
            ends[min(n - 1, np.int64((j + offsets[k]) * distance)) + 1] += 1
    for b in range(1, n + 1):
        ends[b] += ends[b - 1]
    for turn in range(n_classes):
        k = turns[turn]
        n_members = begins[k + 1] - begins[k]
        distance = n / max(1, n_members)
        for j in range(n_members):
            b = min(n - 1, np.int64((j + offsets[k]) * distance))
            order[ends[b]] = scratch[begins[k] + j]
            ordered[ends[b]] = targets[scratch[begins[k] + j]]
            ends[b] += 1
    return True


@leaf_kernel
def deal_rows(
    visits: AnyArray,
    n_rows: int,
    run: int,
    key: np.uint64,
    pools: AnyArray,
    sizes: IntVector,
    counts: IntVector,
    heads: IntVector,
    ranks: AnyArray,
    rows: IndexVector,
) -> None:
    """Deal rows to ranks: run by run of the listing, to one of the ranks that have fewest visits so far.

    Where all rows have one visit, every `n_ranks` neighbouring runs go to different ranks, in a random order.

    - `visits`, shape (n_rows,) or (0,): visits of each row, of those of a run fewer than ``len(sizes)``; none where
      each has one.
    - `run`: neighbours that go to the same rank.
    - `pools`, shape (n_levels, n_ranks): scratch: the ranks by how many visits they have; the first row holds all
      of them.
    - `sizes`, shape (n_levels,): how many ranks are in each row of `pools`; all are in the first.
    - `counts`, `heads`, shape (n_ranks,): zeros; how many rows each rank has, and where they end, overwritten.
    - `ranks`, shape (n_runs,): the rank of each run; overwritten.
    - `rows`, shape (n_rows,): the rows rank by rank, those of each ascending; overwritten.
    """
    n_levels, n_ranks, level = sizes.shape[0], pools.shape[1], 0
    stream = mix64(key)
    for r in range(ranks.shape[0]):
        while sizes[level] == 0:
            level = level + 1 if level + 1 < n_levels else 0
        begin, end = r * run, min(n_rows, (r + 1) * run)
        j = _below(draw(stream, np.uint64(begin)), sizes[level])
        rank = pools[level, j]
        ranks[r] = rank
        counts[rank] += end - begin
        n = end - begin
        if visits.shape[0] > 0:
            n = 0
            for i in range(begin, end):
                n += visits[i]
        if n > 0:
            sizes[level] -= 1
            pools[level, j] = pools[level, sizes[level]]
            to = level + n if level + n < n_levels else level + n - n_levels
            pools[to, sizes[to]] = rank
            sizes[to] += 1
    for rank in range(1, n_ranks):
        heads[rank] = heads[rank - 1] + counts[rank - 1]
    for r in range(ranks.shape[0]):
        begin, end = r * run, min(n_rows, (r + 1) * run)
        place = heads[ranks[r]]
        heads[ranks[r]] = place + end - begin
        for i in range(end - begin):
            rows[place + i] = begin + i
