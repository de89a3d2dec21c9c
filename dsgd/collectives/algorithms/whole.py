"""What collectives leave on all ranks, made of the vectors of all of them at once.

Problem: where a wire runs whole collectives (`dsgd.comm.base`), their results must have the bits of those that are
made message by message, without any of the messages.

All additions here are those of the algorithms, in the same order and with the same operand first; where all ranks add
up the same numbers that is done once for all of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from dsgd.collectives.algorithms.plan import Combine, Plan
from dsgd.collectives.algorithms.tally import Blocks
from dsgd.collectives.cost import fold_of, ring_bounds
from dsgd.types import AnyArray


def reduce_by_doubling(vectors: Sequence[AnyArray], combine: Combine) -> None:
    """Do what `dsgd.collectives.algorithms.recursive_doubling` does to the vectors of all ranks."""
    core, n_folded = fold_of(len(vectors))
    parts = np.stack(vectors)
    if n_folded:
        pairs = parts[: 2 * n_folded]
        parts = np.concatenate([combine(pairs[0::2], pairs[1::2]), parts[2 * n_folded :]])
    while core > 1:
        parts, core = combine(parts[0::2], parts[1::2]), core // 2
    for vector in vectors:
        vector[...] = parts[0]


def reduce_round_ring(vectors: Sequence[AnyArray]) -> None:
    """Do what `dsgd.collectives.algorithms.ring` does to the vectors of all ranks."""
    size, n = len(vectors), vectors[0].shape[0]
    chunk = np.repeat(np.arange(size), np.diff(ring_bounds(n, size)))
    columns, table = np.arange(n), np.stack(vectors)
    total = table[chunk % size, columns]
    for step in range(1, size):
        total = np.add(total, table[(chunk + step) % size, columns])
    for vector in vectors:
        vector[...] = total


def reduce_by_plans(vectors: Sequence[AnyArray], plan_of: Callable[[int], Plan], combine: Combine) -> None:
    """Do what ranks with these plans do to their vectors, message by message; see `run_plan`."""
    size = len(vectors)
    plans, at = [plan_of(rank).moves for rank in range(size)], [0] * size
    under_way: dict[tuple[int, int], deque[AnyArray]] = {}
    has_sent = [False] * size
    ready = deque(range(size))
    while ready:
        rank = ready.popleft()
        while at[rank] < len(plans[rank]):
            to, outgoing, source, incoming, adds = plans[rank][at[rank]]
            if to is not None and not has_sent[rank]:
                message = vectors[rank][outgoing[0] : outgoing[1]].copy()
                under_way.setdefault((rank, to), deque()).append(message)
                ready.append(to)
                has_sent[rank] = True
            if source is not None:
                if not under_way.get((source, rank)):
                    break
                arrived, mine = under_way[source, rank].popleft(), vectors[rank][incoming[0] : incoming[1]]
                if not adds:
                    mine[...] = arrived
                elif to is None or outgoing == incoming:
                    combine(*((mine, arrived) if rank < source else (arrived, mine)), out=mine)
                else:
                    np.add(arrived, mine, out=mine)
            at[rank], has_sent[rank] = at[rank] + 1, False


class Tallied:
    """What a rank brings to a tally, and what it finds."""

    def __init__(self, sums: AnyArray, own: AnyArray) -> None:
        self.sums, self.own = sums, own
        self.table: AnyArray | None = None


def tally_all(brought: Sequence[Tallied], blocks: Blocks) -> None:
    """Do what `dsgd.collectives.algorithms.tally.gather_sums` and a broadcast do; every rank finds the table."""
    parts = [tallied.sums.copy() for tallied in brought]
    for block in blocks:
        for rank in block[1:]:
            parts[block[0]] += parts[rank]
    for block in blocks[1:]:
        parts[0] += parts[block[0]]
    table = np.stack([tallied.own for tallied in brought])
    for tallied in brought:
        tallied.sums[...] = parts[0]
        tallied.table = table


def fill_all(wholes: Sequence[AnyArray], ends: Sequence[int]) -> None:
    """Do what an all-gather does, in whichever way; see `dsgd.collectives.Group.fill`."""
    whole = np.concatenate([own[a:b] for own, (a, b) in zip(wholes, pairwise(ends), strict=True)])
    for own in wholes:
        own[...] = whole
