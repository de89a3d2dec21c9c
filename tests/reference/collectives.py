"""All-reduces over a list of vectors, in plain numpy, in the order of sums that the algorithms promise; and costs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dsgd.collectives import Cost, choose_algorithm
from dsgd.collectives.algorithms.plan import Plan
from dsgd.collectives.cost import n_levels
from dsgd.comm.frames import HEADER_BYTES


def recursive_doubling(vectors: list[NDArray]) -> list[NDArray]:
    """Return what every rank holds after recursive doubling with a fold."""
    size = len(vectors)
    core = 1
    while 2 * core <= size:
        core *= 2
    n_folded = size - core
    partial = [vectors[2 * k] + vectors[2 * k + 1] for k in range(n_folded)]
    partial += [v.copy() for v in vectors[2 * n_folded :]]
    distance = 1
    while distance < core:
        partial = [partial[min(r, r ^ distance)] + partial[max(r, r ^ distance)] for r in range(core)]
        distance *= 2
    return [partial[rank // 2 if rank < 2 * n_folded else rank - n_folded].copy() for rank in range(size)]


def ring(vectors: list[NDArray]) -> list[NDArray]:
    """Return what every rank holds after a ring: chunk k is summed from rank k on, round the ring."""
    size, n = len(vectors), len(vectors[0])
    total = np.empty_like(vectors[0])
    for k in range(size):
        chunk = slice(n * k // size, n * (k + 1) // size)
        total[chunk] = vectors[k][chunk]
        for step in range(1, size):
            total[chunk] = total[chunk] + vectors[(k + step) % size][chunk]
    return [total.copy() for _ in vectors]


def rabenseifner(vectors: list[NDArray]) -> list[NDArray]:
    """Return what every rank holds after halving and doubling with a fold: chunk k is what number k adds up."""
    size, n = len(vectors), len(vectors[0])
    core = 1
    while 2 * core <= size:
        core *= 2
    n_folded = size - core
    partial = [vectors[2 * k] + vectors[2 * k + 1] for k in range(n_folded)]
    partial += [v.copy() for v in vectors[2 * n_folded :]]
    distance = core // 2
    while distance:
        partial = [partial[k] + partial[k ^ distance] for k in range(core)]
        distance //= 2
    total = np.concatenate([partial[k][n * k // core : n * (k + 1) // core] for k in range(core)])
    return [total.copy() for _ in vectors]


def binomial(vectors: list[NDArray]) -> list[NDArray]:
    """Return what every rank holds after a sum up a binomial tree to rank 0 and a broadcast."""
    partial = [v.copy() for v in vectors]
    distance = 1
    while distance < len(vectors):
        for low in range(0, len(vectors) - distance, 2 * distance):
            partial[low] = partial[low] + partial[low + distance]
        distance *= 2
    return [partial[0].copy() for _ in vectors]


def torus(vectors: list[NDArray]) -> list[NDArray]:
    """Return what every rank holds after rings along rows, then along columns for each of the rows' chunks."""
    size, n = len(vectors), len(vectors[0])
    n_rows = max(d for d in range(1, size + 1) if size % d == 0 and d * d <= size)
    n_columns = size // n_rows
    rows = [ring(vectors[k * n_columns : (k + 1) * n_columns])[0] for k in range(n_rows)]
    cuts = [n * k // n_columns for k in range(n_columns + 1)]
    total = np.concatenate(
        [ring([row[cuts[k] : cuts[k + 1]] for row in rows])[0] for k in range(n_columns)], dtype=vectors[0].dtype
    )
    return [total.copy() for _ in vectors]


def double_tree(vectors: list[NDArray]) -> list[NDArray]:
    """Return what every rank holds after a sum up two in-order trees, of one half of the vector each."""
    size, n = len(vectors), len(vectors[0])

    def up(low: int, high: int, part: slice, ranks: list[int]) -> tuple[int, NDArray] | None:
        """Return the root and the sum of the numbers between low and high, both exclusive."""
        if high - low < 2:
            return None
        root = low + 2 ** int(np.log2(high - low - 1))
        total = vectors[ranks[root]][part]
        below = [up(low, root, part, ranks), up(root, high, part, ranks)]
        for _, sum_below in sorted((b for b in below if b is not None), key=lambda b: b[0]):
            total = total + sum_below
        return ranks[root], total

    halves = []
    mirrored = [size - 1 - k for k in range(size)] if size % 2 == 0 else [(k + 1) % size for k in range(size)]
    for part, ranks in ((slice(0, n // 2), list(range(size))), (slice(n // 2, n), mirrored)):
        below = up(0, size, part, ranks)
        own = vectors[ranks[0]][part]
        halves.append(own if below is None else own + below[1])
    total = np.concatenate(halves)
    return [total.copy() for _ in vectors]


def hierarchical(vectors: list[NDArray], hosts: list[int]) -> list[NDArray]:
    """Return what every rank holds when hosts sum up a tree, their first ranks all-reduce, and all get the result."""
    groups = [[r for r, host in enumerate(hosts) if host == name] for name in dict.fromkeys(hosts)]
    sums = [binomial([vectors[r] for r in group])[0] for group in groups]
    total = globals()[choose_algorithm(sums[0].nbytes, len(groups))](sums)[0]
    return [total.copy() for _ in vectors]


def gather_cost(rank: int, lengths: Sequence[int], itemsize: int, root: int = 0) -> Cost:
    """Return what `rank` sends when `root` gathers ``lengths[r]`` elements from each rank r: a length and a vector."""
    if rank == root:
        return Cost(0, 0)
    return Cost(8 + lengths[rank] * itemsize + 2 * HEADER_BYTES, 2)


def barrier_cost(size: int) -> Cost:
    """Return what every rank sends in a barrier."""
    return Cost(n_levels(size) * HEADER_BYTES, n_levels(size))


def plan_cost(plan: Plan, itemsize: int) -> Cost:
    """Return the cost of a rank with this plan, counted message by message."""
    sent = [move.outgoing.length for move in plan.moves if move.to is not None]
    return Cost(sum(sent) * itemsize + len(sent) * HEADER_BYTES, len(sent))
