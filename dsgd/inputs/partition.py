"""Assignment of rows to blocks: consecutive or at random.

Problem: the order of rows often has a meaning (a time series, one class after the other). Ranks with consecutive rows
then have different kinds of rows, and models that are rarely averaged suffer: on ijcnn1, a time series, one average of
the models of sixteen ranks is 1.8 points below one rank, and as good as it if rows are assigned at random. The methods
that average models assume random assignment.

Update: rows are sorted by a hash of (seed, content of the row), and the sorted rows are cut into parts of as many
visits (`dsgd.local.order`) for every rank. Threads, workers and simulated ranks therefore train on the same rows in
whatever order these arrive, and get the same model to the bit. Rows of equal content stay on one rank if parts then
differ by at most a few visits, so that a row of weight two still equals that row twice. Within its blocks the rows of a
rank are in the order of the array. A block is read in one pass over a part of the array, and the blocks of all ranks
with the same place come from the same part, so little of an array in a file is in memory at a time.

Cost: a pass over the array and three over 8 bytes per row (with sample weights, a sort of these); then 8 bytes per row,
and a copy of the rows of a block while it is sent. Rows that threads of this process train on are read once for their
hashes, which also checks that they are finite, and copied once, each by its own thread, to the place where it trains on
them. Blocks bring the hashes along, 8 bytes per row, so that workers need not read their rows for them.

Source: Zinkevich, Weimer, Smola and Li 2010, algorithm 3 ("randomly partition the examples"); the hash is ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from scipy.sparse import issparse

from dsgd.inputs.blocks import Block, HashedBlock, nbytes_of
from dsgd.kernels.sorting import count_hashes, deal_hashes
from dsgd.local import split
from dsgd.local.blocks import Piece, Selection, fingerprints, readable
from dsgd.local.order import MAX_COPIES, Words, content_keys, count_visits, sort_keys
from dsgd.runtime.pools import count_cores
from dsgd.stages import carried, stage
from dsgd.types import FloatVector, IntVector

__all__ = ["KnownRows", "Partition", "pack_for_threads", "partition_rows", "read_rows", "side_by_side"]

Packed = TypeVar("Packed")

# Keys of a partition must be independent of the order in which a rank visits its rows, which has the same seed.
_SALT = 0xD6E8FEB86659FD93
# First bits of hashes by which they are counted: the counts of more would be in no cache.
_MOST_BITS = 16


@dataclass(frozen=True)
class Partition:
    """The rows of every block; blocks are numbered rank by rank. Made by `partition_rows`.

    Parameters
    ----------
    stops : sequence of int, length n_ranks + 1
        The start of the rows of each rank, and the end of the last.
    pieces : int, default 1
        Blocks of each rank.
    order : array of int64, shape (n_rows,), or None, default None
        The rows of all ranks, rank by rank, those of each ascending; None for consecutive rows.
    prints : array of uint64, shape (n_rows,), or None, default None
        Fingerprints of all rows of the array, which blocks bring along; None if rows were not hashed.
    """

    stops: tuple[int, ...]
    pieces: int = 1
    order: IntVector | None = None
    prints: Words | None = None

    @property
    def n_ranks(self) -> int:
        """How many ranks there are."""
        return len(self.stops) - 1

    @property
    def n_blocks(self) -> int:
        """How many blocks there are."""
        return self.n_ranks * self.pieces

    def rows(self, k: int) -> slice | IntVector:
        """Return the rows of block k, ascending, as an index of the array."""
        start, stop = self._span(k)
        return slice(start, stop) if self.order is None else self.order[start:stop]

    def n_rows(self, k: int) -> int:
        """Return how many rows block k has."""
        start, stop = self._span(k)
        return stop - start

    def block(self, rows: Block, k: int) -> Block:
        """Return block k of (X, y, sample_weight): a `HashedBlock` if rows were hashed."""
        mine = self.rows(k)
        X, y, weights = rows
        block = _taken(X, mine), None if y is None else y[mine], None if weights is None else weights[mine]
        return block if self.prints is None else HashedBlock(block, self.prints[mine])

    def _span(self, k: int) -> tuple[int, int]:
        rank, piece = divmod(k, self.pieces)
        first, last = self.stops[rank : rank + 2]
        start, stop = split(last - first, self.pieces, piece)
        return first + start, first + stop

    def reading_order(self) -> list[int]:
        """Return the numbers of the blocks in the order in which they lie in the array."""
        blocks = range(self.n_blocks)
        return list(blocks) if self.order is None else sorted(blocks, key=lambda k: (k % self.pieces, k))


def partition_rows(
    X: Any,
    sample_weight: FloatVector | None,
    n_ranks: int,
    *,
    pieces: int = 1,
    seed: int | None = None,
    prints: Words | None = None,
) -> Partition:
    """Assign the rows of an array to ranks.

    Parameters
    ----------
    X : array or CSR matrix, shape (n_rows, ...)
        The rows.
    sample_weight : array, shape (n_rows,), or None
        Their weights, not negative.
    n_ranks : int
        Ranks.
    pieces : int, default 1
        Blocks of each rank.
    seed : int or None, default None
        Seed of the hash; None assigns consecutive rows.
    prints : array of uint64, shape (n_rows,), or None, default None
        `dsgd.local.blocks.fingerprints` of the rows, if known.

    Returns
    -------
    Partition
        The rows of every block.
    """
    n_rows = int(X.shape[0])
    visits = None if sample_weight is None else count_visits(np.asarray(sample_weight, np.float64))
    if seed is None or n_ranks == 1:
        return Partition(_stops(visits, None, n_rows, n_ranks), pieces, prints=prints)
    if prints is None:
        rows = X if issparse(X) else X.reshape(n_rows, math.prod(X.shape[1:]))
        known = read_rows(rows, count_cores())
        with stage("hash", 0 if known else nbytes_of(X)):
            prints = known.prints if known else fingerprints(rows)
    with stage("order", prints.nbytes):
        hashes = content_keys(prints, seed ^ _SALT)
        dealt = _dealt(hashes, n_ranks) if visits is None and n_rows else None
        if dealt is not None:
            return Partition(dealt[0], pieces, dealt[1], prints)
        order, keys = sort_keys(hashes)
        stops = _stops(None if visits is None else visits[order], keys, n_rows, n_ranks)
        # Sorted by rank; the rows of a rank keep their order: numpy sorts small integers in two passes.
        rank_of = np.empty(n_rows, np.uint16 if n_ranks < 2**16 else np.int64)
        for rank, (start, stop) in enumerate(pairwise(stops)):
            rank_of[order[start:stop]] = rank
        return Partition(stops, pieces, np.argsort(rank_of, kind="stable"), prints)


def pack_for_threads(
    rows: Block,
    n_ranks: int,
    pack: Callable[[Sequence[Block], int], Packed],
    *,
    seed: int | None,
    known: KnownRows | None = None,
) -> list[Packed]:
    """Return the data of ranks that are threads of this process; each packs its own.

    Parameters
    ----------
    rows : tuple
        (X, y, sample_weight).
    n_ranks : int
        Ranks.
    pack : callable
        Called as ``pack(blocks, rank)``, in a thread of its own; packs the blocks of a rank.
    seed : int or None
        See `partition_rows`.
    known : KnownRows or None, default None
        The rows, if kernels can read them without conversion; `pack` then gets a `dsgd.local.blocks.Selection` in place
        of X, and copies them once.

    Returns
    -------
    list, length n_ranks
        The results of `pack` for each rank.
    """
    X, y, weights = rows
    with stage("pack"):
        prints = None if known is None else known.prints
        partition = partition_rows(X, weights, n_ranks, seed=seed, prints=prints)

        def share(rank: int) -> Packed:
            if known is None:
                return pack([partition.block(rows, rank)], rank)
            if n_ranks == 1:
                return pack([(known.selected(None), y, weights)], rank)
            mine = np.asarray(partition.rows(rank))
            targets, own_weights = (None if column is None else column[mine] for column in (y, weights))
            return pack([(known.selected(mine), targets, own_weights)], rank)

        return side_by_side(share, n_ranks)


@dataclass(frozen=True)
class KnownRows:
    """All rows of an array as kernels read them, with the results of one pass over them; made by `read_rows`.

    Parameters
    ----------
    piece : DensePiece or SparsePiece
        The rows.
    n_features : int
        Columns.
    prints : array of uint64, shape (n_rows,)
        Their fingerprints.
    are_finite : bool
        Whether all values are finite.
    """

    piece: Piece
    n_features: int
    prints: Words
    are_finite: bool

    def selected(self, index: IntVector | None) -> Selection:
        """Return some of the rows by their numbers, ascending, or all."""
        return Selection(self.piece, index, self.prints, self.n_features)


def read_rows(X: Any, n_threads: int) -> KnownRows | None:
    """Read rows once, a part of them in each thread, and return the results that packing needs.

    Parameters
    ----------
    X : array or CSR matrix, shape (n_rows, n_features)
        The rows.
    n_threads : int
        How many threads read.

    Returns
    -------
    KnownRows or None
        None if rows must be converted first.
    """
    with stage("hash") as it:
        whole = readable(X)
        if whole is None:
            return None
        prints = np.zeros(whole.n_rows, np.uint64)
        it.nbytes = whole.nbytes
        # Loads the kernel, as a stage of its own: for a thread that waits until another has it, that would be hashing.
        whole.part(0, 0).add_fingerprints(prints[:0])

        def read(part: int) -> bool:
            start, stop = split(whole.n_rows, n_threads, part)
            return whole.part(start, stop).add_fingerprints(prints[start:stop])

        return KnownRows(whole, int(X.shape[1]), prints, all(side_by_side(read, n_threads)))


def side_by_side(work: Callable[[int], Packed], n: int) -> list[Packed]:
    """Return ``work(k)`` for every k below n, each called in a thread of its own."""
    if n == 1:
        return [work(0)]
    with ThreadPoolExecutor(min(n, count_cores())) as threads:
        begun = [threads.submit(carried(work, leads=k == 0), k) for k in range(n)]
        return [each.result() for each in begun]


def _dealt(hashes: Words, n_ranks: int) -> tuple[tuple[int, ...], IntVector] | None:
    """Return the stops and the order of a partition of unweighted rows as `_stops` cuts them, but sort few hashes.

    These are the ones with the same first bits as one at a cut. None where equal rows have to be divided.
    """
    n_rows = hashes.shape[0]
    n_bits = min(_MOST_BITS, max(1, n_rows.bit_length() - 2))
    shift, counts = np.uint64(64 - n_bits), np.zeros(2**n_bits, np.int64)
    count_hashes(hashes, shift, counts)
    ends = np.cumsum(counts)
    goals = [n_rows * rank // n_ranks for rank in range(1, n_ranks)]
    buckets = np.searchsorted(ends, goals, "right")
    is_cut = np.zeros(counts.shape[0], bool)
    is_cut[buckets] = True
    near = np.sort(hashes[is_cut[hashes >> shift]])
    # How many hashes before the end of a bucket are not near a cut.
    others = (ends - np.cumsum(np.where(is_cut, counts, 0)))[buckets]
    stops, least = [0], np.empty(n_ranks - 1, np.uint64)
    for number, (goal, n_others) in enumerate(zip(goals, others.tolist(), strict=True)):
        at = near[goal - n_others]
        left, right = (int(np.searchsorted(near, at, side)) + n_others for side in ("left", "right"))
        off, stop = min((abs(edge - goal), edge) for edge in (left, right))
        if off > _reach(n_rows, n_ranks) or at == np.iinfo(np.uint64).max:
            return None
        stops.append(stop)
        least[number] = at + np.uint64(stop > left)
    order = np.empty(n_rows, np.int64)
    deal_hashes(hashes, least, np.array(stops), order)
    return (*stops, n_rows), order


def _reach(total: int, n_ranks: int) -> int:
    """Return how far from an even cut equal rows are kept together: little enough that every rank has rows."""
    return max(0, min(MAX_COPIES, (total // n_ranks - 1) // 2))


def _stops(visits: IntVector | None, keys: Words | None, n_rows: int, n_ranks: int) -> tuple[int, ...]:
    """Cut rows into parts of equal visits; rows sorted by keys between different contents if that is near."""
    # Visits before each row, and all of them.
    before = np.arange(n_rows + 1) if visits is None else np.concatenate([[0], np.cumsum(visits)])
    total = int(before[-1])
    stops = [0]
    for rank in range(1, n_ranks):
        goal = total * rank // n_ranks
        stop = min(int(np.searchsorted(before, goal, "right")) - 1, max(n_rows - 1, 0))
        edges = [stop, min(stop + 1, n_rows)]
        if keys is not None and n_rows:
            edges = [int(np.searchsorted(keys, keys[stop], side)) for side in ("left", "right")]
        off, nearest = min((abs(int(before[edge]) - goal), edge) for edge in edges)
        stops.append(nearest if off <= _reach(total, n_ranks) else stop)
    return (*stops, n_rows)


def _taken(X: Any, rows: slice | IntVector) -> Any:
    """Return some rows of an array, or of a CSR matrix; neighbours as views."""
    if not (issparse(X) and isinstance(rows, slice)):
        return X[rows]
    pointers = X.indptr[rows.start : rows.stop + 1]
    entries = slice(pointers[0], pointers[-1])
    parts = (X.data[entries], X.indices[entries], pointers - pointers[0])
    return type(X)(parts, shape=(rows.stop - rows.start, X.shape[1]), copy=False)
