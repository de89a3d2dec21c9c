"""What ranks say about a run: sums that all of them need, and numbers of each that one of them shows.

Problem: at the end of an epoch ranks agree whether to go on, and rank 0 tells where the time of each has gone. An
all-reduce of a vector with a place for every rank says everything to everybody: P log2 P messages of P numbers, which
is more than many a method sends.

Update: ranks are cut into blocks of about the root of P, or by processes where those of different ones cannot reach
each other. Every rank sends its part of the sums and its own numbers to the first of its block, which adds up the
sums, in the order of ranks, and puts the numbers one after another; the firsts send theirs to rank 0, which does the
same. The sums, or the numbers of all, go back the same way.

Cost: 2 (P - 1) messages of all ranks together. Of s sums and k numbers of each rank, every number travels two steps up
at most: (P - 1) (s + k) numbers, and again k for each rank of a block but the first; and (P - 1) s down. Both are of
order P, where a binomial tree would carry the numbers of a rank log2 P steps.

The order of additions follows from the number of ranks (or from their processes), so bits are the same on every wire.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dsgd.collectives.cost import Cost, groups_of
from dsgd.comm.base import AbstractTransport
from dsgd.comm.frames import HEADER_BYTES, OP_BROADCAST, OP_GATHER
from dsgd.types import AnyArray

__all__ = ["blocks_of", "roll_call", "tally", "tally_cost"]

Blocks = Sequence[Sequence[int]]


def blocks_of(size: int, processes: Sequence[int] = ()) -> list[list[int]]:
    """Return the ranks of each block, ascending: those of a process, or about the root of all of them.

    Parameters
    ----------
    size : int
        How many ranks.
    processes : sequence of int, length size, or empty
        The process of each; see `AbstractTransport.processes`.
    """
    width = math.isqrt(size - 1) + 1
    return groups_of(processes or [rank // width for rank in range(size)])


def tally(transport: AbstractTransport, blocks: Blocks, sums: AnyArray, own: AnyArray) -> AnyArray | None:
    """Replace `sums` by their sums over ranks, and return the numbers of all on rank 0; called by all ranks.

    Parameters
    ----------
    transport : AbstractTransport
        Connects the ranks.
    blocks : sequence of sequence of int
        `blocks_of` them.
    sums : array, shape (s,)
        Replaced, bitwise equal on all ranks.
    own : array, shape (k,), dtype of `sums`
        The numbers of this rank.

    Returns
    -------
    array, shape (size, k), or None
        None on all ranks but 0.
    """
    found = _up(transport, blocks, sums, own)
    _down(transport, blocks, sums)
    return found


def roll_call(transport: AbstractTransport, blocks: Blocks, own: AnyArray) -> AnyArray:
    """Return the numbers of all ranks, shape (size, k), on every rank; parameters are those of `tally`."""
    found = _up(transport, blocks, own[:0].copy(), own)
    table = np.empty((transport.size, own.shape[0]), dtype=own.dtype) if found is None else found
    _down(transport, blocks, table.reshape(-1))
    return table


def tally_cost(rank: int, blocks: Blocks, n_sums: int, n_own: int, itemsize: int) -> Cost:
    """Return what `rank` sends in `tally`.

    Parameters
    ----------
    rank : int
        The rank.
    blocks : sequence of sequence of int
        `blocks_of` the ranks.
    n_sums, n_own, itemsize : int
        Numbers, and bytes of each.
    """
    block = next(block for block in blocks if rank in block)
    down = (rank == block[0]) * (len(block) - 1) + (rank == 0) * (len(blocks) - 1)
    up = n_sums + n_own * (len(block) if rank == block[0] else 1) if rank else 0
    messages = down + (rank > 0)
    return Cost((down * n_sums + up) * itemsize + messages * HEADER_BYTES, messages)


def _up(transport: AbstractTransport, blocks: Blocks, sums: AnyArray, own: AnyArray) -> AnyArray | None:
    """Add up `sums` at rank 0 and return the numbers of all there; elsewhere `sums` becomes a part of them."""
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


def _down(transport: AbstractTransport, blocks: Blocks, vector: AnyArray) -> None:
    """Replace `vector` by that of rank 0."""
    rank = transport.rank
    block = next(block for block in blocks if rank in block)
    if rank != block[0]:
        transport.recv(block[0], vector, OP_BROADCAST)
        return
    if rank:
        transport.recv(0, vector, OP_BROADCAST)
    else:
        for other in blocks[1:]:
            transport.send(other[0], vector, OP_BROADCAST)
    for member in block[1:]:
        transport.send(member, vector, OP_BROADCAST)
