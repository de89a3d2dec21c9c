"""What ranks say about a run: sums that all of them need, and numbers of each that one of them shows.

Problem: at the end of an epoch ranks agree whether to go on, and rank 0 tells where the time of each has gone. An
all-reduce of a vector with a place for every rank says everything to everybody: P log2 P messages of P numbers, which
is more than many a method sends.

Update: ranks are cut into blocks of about the root of P, or by processes where those of different ones cannot reach
each other. Every rank sends its part of the sums and its own numbers to the first of its block, which adds up the
sums, in the order of ranks, and puts the numbers one after another; the firsts send theirs to rank 0, which does the
same. The sums, or the numbers of all, go back by a broadcast.

Cost: 2 (P - 1) messages of all ranks together. Of s sums and k numbers of each rank, every number travels two steps up
at most: (P - 1) (s + k) numbers, and again k for each rank of a block but the first; and (P - 1) s down. Both are of
order P, where a binomial tree would carry the numbers of a rank log2 P steps.

The order of additions follows from the number of ranks (or from their processes), so bits are the same on every wire.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from dsgd.collectives.cost import Cost, broadcast_cost, groups_of
from dsgd.comm.base import AbstractTransport
from dsgd.comm.frames import HEADER_BYTES, OP_GATHER
from dsgd.types import AnyArray

Blocks = Sequence[Sequence[int]]


def blocks_of(size: int, processes: Sequence[int] = ()) -> list[list[int]]:
    """Return the ranks of each block, ascending: those of a process, or about the root of all of them."""
    return groups_of(processes) if processes else _even_blocks(size)


@lru_cache(maxsize=8)
def _even_blocks(size: int) -> list[list[int]]:
    width = math.isqrt(size - 1) + 1
    return groups_of([rank // width for rank in range(size)])


def gather_sums(transport: AbstractTransport, blocks: Blocks, sums: AnyArray, own: AnyArray) -> AnyArray | None:
    """Add up `sums` at rank 0, and return the numbers of all there; called by all ranks."""
    rank, k = transport.rank, own.shape[0]
    block = next(block for block in blocks if rank in block)
    if rank != block[0]:
        transport.send(block[0], np.concatenate([sums, own]), OP_GATHER)
        return None
    found = _take(transport, block[1:], [1] * (len(block) - 1), sums, k)
    table = np.concatenate([own, *found])
    if rank:
        transport.send(0, np.concatenate([sums, table]), OP_GATHER)
        return None
    others = blocks[1:]
    found = _take(transport, [other[0] for other in others], [len(other) for other in others], sums, k)
    return np.concatenate([table, *found]).reshape(transport.size, k)


def tally_cost(rank: int, size: int, n_sums: int, n_own: int, itemsize: int, processes: Sequence[int] = ()) -> Cost:
    """Return what `rank` sends where ranks add up sums and rank 0 gets numbers of each (`Group.tally`)."""
    if size == 1:
        return Cost(0, 0)
    blocks = blocks_of(size, processes)
    place, block = next((place, block) for place, block in enumerate(blocks) if rank in block)
    leads = rank == block[0]
    down = [broadcast_cost(rank, size, n_sums, itemsize)]
    if processes:
        down = [broadcast_cost(block.index(rank), len(block), n_sums, itemsize)]
        down += [broadcast_cost(place, len(blocks), n_sums, itemsize)] * leads
    n_bytes, messages = (sum(getattr(part, name) for part in down) for name in ("n_bytes", "messages"))
    if rank:
        n_bytes += (n_sums + n_own * (len(block) if leads else 1)) * itemsize + HEADER_BYTES
    return Cost(n_bytes, messages + (rank > 0))


def _take(
    transport: AbstractTransport, sources: Sequence[int], counts: Sequence[int], sums: AnyArray, k: int
) -> list[AnyArray]:
    """Take messages, one after another; add what they begin with to `sums`, and return the rest of each."""
    rest = []
    n = sums.shape[0]
    for source, count in zip(sources, counts, strict=True):
        arrived = np.empty(n + count * k, dtype=sums.dtype)
        transport.recv(source, arrived, OP_GATHER)
        sums += arrived[:n]
        transport.worked(n_bytes=sums.nbytes)
        rest.append(arrived[n:])
    return rest
