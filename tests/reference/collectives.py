"""All-reduces over a list of vectors, in plain numpy and in the order of sums that the algorithms promise."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


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


def hierarchical(vectors: list[NDArray], hosts: list[int]) -> list[NDArray]:
    """Return what every rank holds when hosts sum up a tree, their first ranks all-reduce, and all get the result."""
    groups = [[r for r, host in enumerate(hosts) if host == name] for name in dict.fromkeys(hosts)]
    sums = []
    for group in groups:
        partial = [vectors[r].copy() for r in group]
        distance = 1
        while distance < len(group):
            for low in range(0, len(group) - distance, 2 * distance):
                partial[low] = partial[low] + partial[low + distance]
            distance *= 2
        sums.append(partial[0])
    n_bytes = sums[0].nbytes
    short = len(sums[0]) < len(groups) or n_bytes <= 64 * 1024
    total = (recursive_doubling(sums) if short else ring(sums))[0]
    return [total.copy() for _ in vectors]
