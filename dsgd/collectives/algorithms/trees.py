"""Collectives along trees and to one rank: broadcast, reduction, gather, scatter, barrier, two all-reduces, the tally.

Binomial trees. In step k of a broadcast every rank whose number relative to the root is below 2**k sends to the rank
2**k above it. A reduction is a broadcast backwards: in step k every rank with bit k set, and none below it, sends its
partial sum to the rank 2**k below it, which adds it to its own. `binomial_plan` is the one after the other, for links
that carry one direction at a time: one message of the vector up, but for rank 0, and one to each child down.

Barrier: in step k rank r sends to r + 2**k and receives from r - 2**k, so that after the last of ceil(log2 P) steps it
has heard, directly or through others, from all ranks.

Gather and scatter: every vector goes straight to the root, in the order of ranks, or straight from it. Nothing is sent
twice, and the root must receive or send each byte once in any case.

Double tree, for vectors of medium length on many ranks. In one tree half of the ranks are leaves, whose wires carry
every byte once in either direction while those of the inner ranks carry it three times. So two trees over the same
ranks, such that the inner ranks of one are leaves of the other, carry one half of the vector each, in pieces. In the
first, rank 0 is the root, its child heads an in-order binary tree of the others, whose inner ranks are the even ones;
the second is the first mirrored if P is even, and shifted by one rank if it is odd. A rank adds its children's sums in
the order of their ranks. About 2 of the vector and 2 ceil(log2 P) steps of latency.

Tally: what ranks say about a run, sums that all of them need and numbers of each that rank 0 shows. A sum of a vector
with a place for every rank would take P log2 P messages of P numbers. Instead the ranks of blocks of about the root of
P, or of a process, send their numbers to the first of their block, and the firsts theirs to rank 0. The sums, or the
numbers of all, go back by a broadcast: 2 (P - 1) messages of all ranks together.

Costs: `dsgd.collectives.cost`, `tally_cost`.

Source: Hensgen, Finkel and Manber 1988 (barrier); Thakur, Rabenseifner and Gropp 2005 (binomial trees); Sanders, Speck
and Träff 2009, the trees being those of NCCL 2.4 (double tree).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from dsgd.collectives.algorithms.plan import Combine, Move, Parents, Part, Plan, tree_plan
from dsgd.collectives.cost import Cost, broadcast_cost, groups_of, tree_pieces
from dsgd.comm.base import AbstractTransport
from dsgd.comm.frames import HEADER_BYTES, OP_ALLREDUCE, OP_BARRIER, OP_BROADCAST, OP_GATHER, OP_SCATTER
from dsgd.types import AnyArray


def binomial_broadcast(transport: AbstractTransport, vector: AnyArray, root: int) -> None:
    """Replace `vector`, shape (n,), by that of rank `root`."""
    rank, size = transport.rank, transport.size
    relative = (rank - root) % size
    distance = 1
    while distance < size:
        if relative < distance:
            if relative + distance < size:
                transport.exchange((rank + distance) % size, vector, None, None, OP_BROADCAST)
        elif relative < 2 * distance:
            transport.exchange(None, None, (rank - distance) % size, vector, OP_BROADCAST)
        distance *= 2


def binomial_reduce(transport: AbstractTransport, vector: AnyArray, scratch: AnyArray, combine: Combine) -> None:
    """Combine the vectors of all ranks at rank 0; the vectors of the others become partial results."""
    rank, size = transport.rank, transport.size
    distance = 1
    while distance < size:
        if rank % (2 * distance):
            transport.exchange(rank - distance, vector, None, None, OP_ALLREDUCE)
            return
        if rank + distance < size:
            transport.exchange(None, None, rank + distance, scratch, OP_ALLREDUCE)
            combine(vector, scratch, out=vector)
            transport.worked(n_bytes=vector.nbytes)
        distance *= 2


def direct_gather(transport: AbstractTransport, vector: AnyArray, parts: Sequence[AnyArray] | None, root: int) -> None:
    """Send `vector` to the root, which fills the other ranks' entries of `parts`, one array per rank."""
    if transport.rank != root or parts is None:
        transport.exchange(root, vector, None, None, OP_GATHER)
        return
    for source in range(transport.size):
        if source != root:
            transport.exchange(None, None, source, parts[source], OP_GATHER)


def direct_scatter(
    transport: AbstractTransport, parts: Sequence[AnyArray] | AnyArray | None, out: AnyArray, root: int
) -> None:
    """Fill `out` with this rank's entry of `parts`, one array per rank, which the root sends out."""
    if transport.rank != root or parts is None:
        transport.exchange(None, None, root, out, OP_SCATTER)
        return
    for to in range(transport.size):
        if to != root:
            transport.exchange(to, parts[to], None, None, OP_SCATTER)
    out[...] = parts[root]


def gather_any(transport: AbstractTransport, vector: AnyArray, root: int) -> list[AnyArray] | None:
    """Return the vectors of all ranks, of any lengths, at the root, which learns the lengths first; None elsewhere."""
    length = np.array([vector.shape[0]], dtype=np.int64)
    if transport.rank != root:
        direct_gather(transport, length, None, root)
        direct_gather(transport, vector, None, root)
        return None
    lengths = [length.copy() for _ in range(transport.size)]
    direct_gather(transport, length, lengths, root)
    parts = [vector if r == root else np.empty(int(n[0]), dtype=vector.dtype) for r, n in enumerate(lengths)]
    direct_gather(transport, vector, parts, root)
    return parts


def dissemination_barrier(transport: AbstractTransport, nothing_out: AnyArray, nothing_in: AnyArray) -> None:
    """Return once every rank has called it; the arrays are empty and only lend their dtype."""
    rank, size = transport.rank, transport.size
    distance = 1
    while distance < size:
        transport.exchange((rank + distance) % size, nothing_out, (rank - distance) % size, nothing_in, OP_BARRIER)
        distance *= 2


@lru_cache(maxsize=1024)
def binomial_plan(rank: int, size: int, n: int) -> Plan:
    """Return what `rank` of `size` does to sum vectors of n elements."""
    whole, below, distance = Part(0, n), list[int](), 1
    while distance < size and not rank & distance:
        if rank + distance < size:
            below.append(rank + distance)
        distance *= 2
    moves = [Move(None, whole, child, whole, adds=True) for child in below]
    if rank:
        moves.append(Move(rank - distance, whole, None, whole, adds=False))
        moves.append(Move(None, whole, rank - distance, whole, adds=False))
    moves += [Move(child, whole, None, whole, adds=False) for child in reversed(below)]
    return Plan.of(moves)


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
    cost = broadcast_cost(rank, size, n_sums, itemsize)
    if processes:
        cost = broadcast_cost(block.index(rank), len(block), n_sums, itemsize)
        if leads:
            cost += broadcast_cost(place, len(blocks), n_sums, itemsize)
    if rank:
        cost += Cost((n_sums + n_own * (len(block) if leads else 1)) * itemsize + HEADER_BYTES, 1)
    return cost


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
