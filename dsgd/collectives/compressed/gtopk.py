"""The sum of sparse vectors, truncated to its k largest entries at every step.

Problem: gathered by everybody, the k entries of each of P ranks are up to k P different ones.

Update, by a butterfly: with 2**q the largest power of two up to P and e = P - 2**q, of the first e pairs of ranks the
odd one sends its entries to the even one and receives the result at the end; the 2**q that are left swap their entries
with a partner at distance 1, 2, 4, ... and keep the k largest of the sum. By a tree: ranks send their entries to the
rank at distance 1, 2, 4, ... below, which keeps the k largest of the sum; rank 0 broadcasts the last ones. In a sum the
lower ranks come first, and of equal magnitudes the lower place is larger, so every bit agrees on all ranks.

Cost per rank: a frame of k entries is `dsgd.compress.sparse.sparse_bytes` long; a butterfly takes log2 P of them one
after the other, a tree twice as many. See `gtopk_cost`.

Source: see `dsgd.compress.residual`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dsgd.collectives.compressed.encoding import encoding
from dsgd.collectives.cost import Cost, allreduce_cost, broadcast_cost, fold_of
from dsgd.collectives.group import Group
from dsgd.comm.frames import HEADER_BYTES, OP_ALLREDUCE
from dsgd.compress.base import Scratch
from dsgd.compress.residual import GTopK, GTopKMemory
from dsgd.compress.sparse import decode_sparse, encode_sparse, largest, sparse_bytes
from dsgd.kernels.bits import add_at
from dsgd.kernels.select import merge_ascending
from dsgd.types import ByteVector, FloatVector, IndexVector


class Entries(NamedTuple):
    """A sparse vector."""

    places: IndexVector
    values: FloatVector


def merge_pair(lower: Entries, upper: Entries, k: int, scratch: Scratch) -> tuple[Entries, Entries]:
    """Return the k largest entries of a sum, and the others."""
    n = lower.places.shape[0] + upper.places.shape[0]
    places = scratch.take("merged places", n, np.uint32)
    values = scratch.take("merged values", n, lower.values.dtype)
    count = merge_ascending(*lower, *upper, places, values)
    places, values = places[:count], values[:count]
    chosen = np.zeros(count, dtype=bool)
    chosen[largest(values, k, k, 0, scratch)] = True
    return Entries(places[chosen], values[chosen]), Entries(places[~chosen], values[~chosen])


def merge_all(parts: list[Entries], k: int, route: str) -> tuple[Entries, list[tuple[int, Entries]]]:
    """Return what all ranks hold in the end, and what was dropped on the way, by the rank that dropped it."""
    size, scratch = len(parts), Scratch()
    dropped: list[tuple[int, Entries]] = []
    held = dict(enumerate(parts))

    def merge(rank: int, upper: int) -> None:
        held[rank], rest = merge_pair(held[rank], held[upper], k, scratch)
        dropped.append((rank, rest))

    ranks = list(range(size))
    if route == "butterfly":
        _, n_folded = fold_of(size)
        for rank in range(0, 2 * n_folded, 2):
            merge(rank, rank + 1)
        ranks = [*range(0, 2 * n_folded, 2), *range(2 * n_folded, size)]
    while len(ranks) > 1:
        # All ranks of a block of a butterfly hold the same set: the lowest acts for them, and keeps dropped entries.
        for rank, upper in zip(ranks[::2], ranks[1::2], strict=False):
            merge(rank, upper)
        ranks = ranks[::2]
    return held[0], dropped


def gtopk_sum(group: Group, vector: FloatVector, compressor: GTopK, memory: GTopKMemory) -> None:
    """Replace `vector` by the k entries of the sum over ranks that the merges leave; see `GTopK`.

    - `vector`, shape (n,): this rank's vector, weighted; overwritten, bitwise equal on all ranks.
    """
    n = vector.shape[0]

    def choose() -> Entries:
        places, values = decode_sparse(compressor.encode(vector, memory), n, vector.dtype)
        return Entries(places, values.copy())

    own = encoding(group, n, choose)
    merging = _Merging(group, n, compressor, memory, own.places.shape[0])
    if group.transport.processes:
        total = merging.replayed(own)
    elif compressor.route == "butterfly":
        total = merging.by_butterfly(own)
    else:
        total = merging.by_tree(own)

    def apply() -> None:
        vector.fill(0.0)
        add_at(vector, *total, 1.0)
        if compressor.dropped == "put-back":
            absent = ~np.isin(own.places, total.places, assume_unique=True)
            add_at(memory.residual, own.places[absent], own.values[absent], 1.0)

    encoding(group, n, apply)


class _Merging:
    """The merges of one rank, with their buffers."""

    def __init__(self, group: Group, n: int, compressor: GTopK, memory: GTopKMemory, k: int) -> None:
        self._group, self._n, self._compressor, self._memory = group, n, compressor, memory
        self._scratch = memory.scratch
        dtype = memory.residual.dtype
        # All ranks are at the same vector, so that in a warm-up they send as many entries too.
        self._incoming = memory.scratch.take("incoming", sparse_bytes(k, n, dtype.itemsize), np.uint8)
        self._dtype = dtype

    def by_butterfly(self, own: Entries) -> Entries:
        """Return what all ranks hold after swaps at distances 1, 2, 4, ..."""
        rank, size = self._group.rank, self._group.size
        core, n_folded = fold_of(size)
        folds = rank < 2 * n_folded
        if folds and rank % 2:
            self._exchange(rank - 1, own, None)
            return self._exchange(None, None, rank - 1)
        number, held = rank - n_folded, own
        if folds:
            number = rank // 2
            held = self._merge(held, self._exchange(None, None, rank + 1), keeps=True)
        distance = 1
        while distance < core:
            other = number ^ distance
            peer = 2 * other if other < n_folded else other + n_folded
            theirs = self._exchange(peer, held, peer)
            lower, upper = (held, theirs) if number < other else (theirs, held)
            held = self._merge(lower, upper, keeps=number % (2 * distance) == 0)
            distance *= 2
        if folds:
            self._exchange(rank + 1, held, None)
        return held

    def by_tree(self, own: Entries) -> Entries:
        """Return what rank 0 holds after sends over distances 1, 2, 4, ..., broadcast to all."""
        rank, size = self._group.rank, self._group.size
        held, distance = own, 1
        while distance < size and rank % (2 * distance) == 0:
            if rank + distance < size:
                held = self._merge(held, self._exchange(None, None, rank + distance), keeps=True)
            distance *= 2
        if rank:
            self._exchange(rank - distance, held, None)
            frame = self._incoming
        else:
            frame = encode_sparse(*held, self._n, self._scratch)
        self._group.broadcast(frame)
        return held if rank == 0 else self._decoded(frame)

    def replayed(self, own: Entries) -> Entries:
        """Return what all ranks would hold, from the entries of all of them: every rank does every merge."""
        group = self._group
        frame = encode_sparse(*own, self._n, self._scratch)
        frames = group.allgatherv(frame, [frame.shape[0]] * group.size)
        parts = [self._decoded(frame) for frame in frames]
        total, dropped = merge_all(parts, own.places.shape[0], self._compressor.route)
        for rank, rest in dropped:
            self._keep(rest, keeps=rank == group.rank)
        return total

    def _merge(self, lower: Entries, upper: Entries, *, keeps: bool) -> Entries:
        def work() -> Entries:
            held, rest = merge_pair(lower, upper, lower.places.shape[0], self._scratch)
            self._keep(rest, keeps=keeps)
            return held

        return encoding(self._group, lower.places.shape[0] + upper.places.shape[0], work)

    def _keep(self, rest: Entries, *, keeps: bool) -> None:
        if keeps and self._compressor.dropped == "conserving":
            add_at(self._memory.residual, *rest, 1.0)

    def _exchange(self, to: int | None, outgoing: Entries | None, source: int | None) -> Entries:
        """Send entries and receive others; return those received or, if none were, those sent."""
        frame = None if outgoing is None else encode_sparse(*outgoing, self._n, self._scratch)
        incoming = None if source is None else self._incoming
        self._group.transport.exchange(to, frame, source, incoming, OP_ALLREDUCE)
        if incoming is None and outgoing is not None:
            return outgoing
        return self._decoded(self._incoming)

    def _decoded(self, frame: ByteVector) -> Entries:
        places, values = decode_sparse(frame, self._n, self._dtype)
        # The frame is a buffer that the next one is received into.
        return Entries(places, values.copy())


def gtopk_cost(rank: int, size: int, n: int, itemsize: int, compressor: GTopK) -> Cost | None:
    """Return what `rank` sends in `gtopk_sum` of n elements of `itemsize` bytes; None with a warm-up.

    A butterfly takes ``log2 P`` frames of k entries from each rank (one more from the partner of a rank that is folded,
    one in all from that). A tree takes one up from each rank but the first, and those of a broadcast.
    """
    frame = compressor.payload_bytes(n, itemsize)
    if frame is None:
        return None
    if compressor.route == "butterfly":
        # Frames go to whom recursive doubling sends vectors.
        return allreduce_cost(rank, size, frame, 1, "recursive_doubling")
    down, up = broadcast_cost(rank, size, frame, 1), int(rank > 0)
    return down + Cost(up * (frame + HEADER_BYTES), up)
