"""Sorting rows into a file larger than memory, without scattered writes.

Problem: rows are walked in a random order, so every block has rows for every part of the file. Written one by
one to where they belong, they would touch every page of the file once per block.

Method: the file is cut into windows that fit into memory. First every row is appended to the window it belongs to, so
that a block is written in as many runs as there are windows. Then one window after the other is read into memory and
its rows are written back in order; a window holds the same rows, and so the same bytes, before and after. The result is
bit for bit that of writing each row where it belongs.

Cost: the file is written twice and read once. Memory: one window twice, and 8 bytes a visit for the order.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from dsgd.kernels.rows import place_dense, place_sparse
from dsgd.local.blocks import Piece, SparsePiece
from dsgd.local.shard import Shard
from dsgd.types import AnyArray, IntVector

#: Rows of a window; of a file of n bytes a block of b bytes is written in pieces of about ``b * WINDOW_BYTES / n``.
WINDOW_BYTES = 16 << 20
# A page that is written to may bring the 2 MiB around it into memory: no more windows are written to before a release.
_AT_ONCE = 8


class Windows:
    """The windows of a shard whose rows are being placed."""

    def __init__(self, shard: Shard, window_bytes: int = WINDOW_BYTES) -> None:
        self._shard = shard
        n_rows = shard.n_rows
        n_windows = max(1, -(-shard.nbytes // window_bytes))
        if shard.indptr is None:
            edges = np.arange(n_windows + 1) * n_rows // n_windows
        else:
            # By entries: rows may be of very different lengths. A row longer than a window has one to itself.
            starts = np.linspace(0, shard.nnz, n_windows + 1)[1:-1]
            edges = np.unique(np.r_[0, np.searchsorted(shard.indptr, starts), n_rows])
        self._edges: IntVector = edges.astype(np.int64)
        self._filled = self._edges[:-1].copy()
        self._filled_entries = (
            np.empty(0, np.int64) if shard.indptr is None else shard.indptr[self._edges[:-1]].astype(np.int64)
        )

    def append(self, piece: Piece, rows: IntVector, places: IntVector) -> None:
        """Append row ``rows[v]`` of a piece to the window of row ``places[v]`` of the shard, for every visit v."""
        shard = self._shard
        window = np.searchsorted(self._edges, places, side="right") - 1
        # Stable, so that rows stand in a window as they came: `settle` counts on it.
        order = np.argsort(window, kind="stable")
        window, rows = window[order], rows[order]
        if isinstance(piece, SparsePiece):
            lengths = np.diff(piece.indptr).astype(np.int64)[rows]
            starts, self._filled_entries = _queue(window, lengths, self._filled_entries)
        else:
            starts, self._filled = _queue(window, np.ones(len(rows), np.int64), self._filled)
        for first, last in pairwise(np.searchsorted(window, range(0, len(self._filled) + _AT_ONCE, _AT_ONCE))):
            if isinstance(piece, SparsePiece):
                begins = starts[first:last].astype(np.uint64)
                piece.place(rows[first:last], np.arange(last - first), shard.values, shard.indices, begins)
            else:
                piece.place(rows[first:last], starts[first:last], shard.values)
            if shard.mapping is not None:
                shard.mapping.release()

    def settle(self, order: AnyArray) -> None:
        """Bring the rows of every window into their walking order."""
        shard = self._shard
        for first, last in pairwise(self._edges.tolist()):
            # Rows of a window came ascending, and the visits of each in the order of their places.
            places = first + np.argsort(order[first:last], kind="stable")
            came = np.arange(last - first)
            if shard.indptr is None or shard.indices is None:
                place_dense(shard.values[first:last].copy(), came, places, shard.values)
            else:
                entries = slice(int(shard.indptr[first]), int(shard.indptr[last]))
                lengths = shard.indptr[places + 1] - shard.indptr[places]
                starts = np.zeros(last - first + 1, np.uint64)
                np.cumsum(lengths, out=starts[1:])
                values, indices = shard.values[entries].copy(), shard.indices[entries].copy()
                place_sparse(values, indices, starts, came, places, shard.values, shard.indices, shard.indptr)
            shard.release(first, last)


def _queue(group: IntVector, sizes: IntVector, heads: IntVector) -> tuple[IntVector, IntVector]:
    """Queue items of some sizes behind the heads of their groups."""
    ends = np.r_[0, np.cumsum(sizes)]
    edges = ends[np.searchsorted(group, np.arange(len(heads) + 1))]
    return ends[:-1] - edges[group] + heads[group], heads + np.diff(edges)
