"""Assignment of rows to blocks: consecutive or at random.

Problem: the order of rows often has a meaning (a time series, one class after the other). Ranks with consecutive rows
then have different kinds of rows, and models that are rarely averaged suffer: on ijcnn1, a time series, one average of
the models of sixteen ranks is 1.8 points below one rank, and as good as it if rows are assigned at random. The methods
that average models assume random assignment.

Update: rows are dealt in the order of the listing, each to a rank drawn from those that have the fewest visits so far;
where there are very many, chunks of 32 neighbours. So every P neighbours go to P different ranks, and all ranks have
rows from everywhere in equal parts, to one visit or a chunk where no row has a weight. Who gets a row depends on (seed,
number of the row), so threads, workers and simulated ranks train on the same rows, and get the same model to the bit.
Within its blocks the rows of a rank are in the order of the array. A block is read in one pass over a part of the
array, and the blocks of all ranks with the same place come from the same part, so little of an array in a file is in
memory at a time.

Cost: 10 ns and 12 bytes per row, of very many 2 ns and 8 bytes; and a copy of the rows of a block while it is sent.
Threads of this process read the rows where they are.

Source: Zinkevich, Weimer, Smola and Li 2010, algorithm 3 ("randomly partition the examples"); here without replacement
from every P neighbours (systematic sampling).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from scipy.sparse import issparse

from dsgd.comm.memory.cores import count_cores
from dsgd.inputs.blocks import Block
from dsgd.kernels.row_order import CHUNK, deal_rows
from dsgd.local import split
from dsgd.local.blocks import Piece, Selection
from dsgd.local.order import MAX_COPIES, count_visits
from dsgd.stages import carried, stage
from dsgd.types import FloatVector, IndexVector, IntVector

Packed = TypeVar("Packed")

# Who gets a row must be independent of the order in which ranks visit their rows, which has the same seed.
_SALT = 0xD6E8FEB86659FD93
# Of so many rows for each rank chunks stay together: lines and pages that several ranks read cost each of them.
_MANY_ROWS = 16_384


@dataclass(frozen=True)
class Partition:
    """The rows of every block; blocks are numbered rank by rank. Made by `partition_rows`.

    - `order`, shape (n_rows,): the rows of all ranks, rank by rank, those of each ascending; None for consecutive
      rows.
    """

    stops: tuple[int, ...]
    pieces: int = 1
    order: IndexVector | None = None

    @property
    def n_ranks(self) -> int:
        """How many ranks there are."""
        return len(self.stops) - 1

    @property
    def n_blocks(self) -> int:
        """How many blocks there are."""
        return self.n_ranks * self.pieces

    def rows(self, k: int) -> slice | IndexVector:
        """Return the rows of block k, ascending, as an index of the array."""
        start, stop = self._span(k)
        return slice(start, stop) if self.order is None else self.order[start:stop]

    def n_rows(self, k: int) -> int:
        """Return how many rows block k has."""
        start, stop = self._span(k)
        return stop - start

    def block(self, rows: Block, k: int) -> Block:
        """Return block k of (X, y, sample_weight)."""
        mine = self.rows(k)
        X, y, weights = rows
        return _taken(X, mine), None if y is None else y[mine], None if weights is None else weights[mine]

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
    n_rows: int, sample_weight: FloatVector | None, n_ranks: int, *, pieces: int = 1, seed: int | None = None
) -> Partition:
    """Assign the rows of an array to ranks."""
    visits = None if sample_weight is None else count_visits(np.asarray(sample_weight, np.float64))
    if seed is None or n_ranks == 1:
        return Partition(_stops(visits, n_rows, n_ranks), pieces)
    with stage("order"):
        run = CHUNK if n_rows >= _MANY_ROWS * n_ranks else 1
        pools, sizes = np.zeros((MAX_COPIES * run + 1, n_ranks), np.uint32), np.zeros(MAX_COPIES * run + 1, np.int64)
        pools[0], sizes[0] = np.arange(n_ranks), n_ranks
        ranks, order = np.empty(-(-n_rows // run), np.uint32), np.empty(n_rows, np.uint32)
        given = np.empty(0, np.int64) if visits is None else visits
        counts, heads = np.zeros((2, n_ranks), np.int64)
        deal_rows(given, n_rows, run, np.uint64((seed ^ _SALT) % 2**64), pools, sizes, counts, heads, ranks, order)
        return Partition(tuple(np.cumsum([0, *counts]).tolist()), pieces, order)


def pack_for_threads(
    rows: Block,
    n_ranks: int,
    pack: Callable[[Sequence[Block], int], Packed],
    *,
    seed: int | None,
    readable: Piece | None = None,
) -> list[Packed]:
    """Return the data of ranks that are threads of this process; each packs its own."""
    X, y, weights = rows
    with stage("pack"):
        partition = partition_rows(X.shape[0], weights, n_ranks, seed=seed)

        def share(rank: int) -> Packed:
            if readable is None:
                return pack([partition.block(rows, rank)], rank)
            mine = partition.rows(rank)
            index = None if n_ranks == 1 else np.arange(mine.start, mine.stop) if isinstance(mine, slice) else mine
            return pack([(Selection(readable, index, X.shape[1]), y, weights)], rank)

        return side_by_side(share, n_ranks)


def side_by_side(work: Callable[[int], Packed], n: int) -> list[Packed]:
    """Return ``work(k)`` for every k below n, each called in a thread of its own."""
    if n == 1:
        return [work(0)]
    with ThreadPoolExecutor(min(n, count_cores())) as threads:
        begun = [threads.submit(carried(work, leads=k == 0), k) for k in range(n)]
        return [each.result() for each in begun]


def _stops(visits: IntVector | None, n_rows: int, n_ranks: int) -> tuple[int, ...]:
    """Cut consecutive rows into parts of visits as equal as can be."""
    # Visits before each row, and all of them.
    before = np.arange(n_rows + 1) if visits is None else np.concatenate([[0], np.cumsum(visits)])
    total = int(before[-1])
    stops = [0]
    for rank in range(1, n_ranks):
        goal = total * rank // n_ranks
        stop = min(int(np.searchsorted(before, goal, "right")) - 1, max(n_rows - 1, 0))
        edges = [stop, min(stop + 1, n_rows)]
        off, nearest = min((abs(int(before[edge]) - goal), edge) for edge in edges)
        stops.append(nearest if off <= _reach(total, n_ranks) else stop)
    return (*stops, n_rows)


def _reach(total: int, n_ranks: int) -> int:
    """Return how far from an even cut a row of several visits may take it: little enough that every rank has rows."""
    return max(0, min(MAX_COPIES, (total // n_ranks - 1) // 2))


def _taken(X: Any, rows: slice | IndexVector) -> Any:
    """Return some rows of an array, or of a CSR matrix; neighbours as views."""
    if not (issparse(X) and isinstance(rows, slice)):
        return X[rows]
    pointers = X.indptr[rows.start : rows.stop + 1]
    entries = slice(pointers[0], pointers[-1])
    parts = (X.data[entries], X.indices[entries], pointers - pointers[0])
    return type(X)(parts, shape=(rows.stop - rows.start, X.shape[1]), copy=False)
