"""Blocks of rows as a rank reads them, whole or a window at a time, in the types and layout of kernels.

Rows are walked in a random order, so every block has rows for every part of the file. Written one by one to where they
belong, they would touch every page of the file once per block. So the file is cut into windows that fit into memory.
First every row is appended to the window it belongs to; then one window after the other is read into memory and its
rows are written back in order. The result is bit for bit that of writing each row where it belongs.

Cost: the file is written twice and read once. Memory: one window twice, and 8 bytes a visit for the order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike, DTypeLike

from dsgd.errors import InvalidDataError, PartitionMismatchError
from dsgd.kernels.rows import (
    fingerprint_dense,
    fingerprint_sparse,
    has_canonical_rows,
    place_dense,
    place_sparse,
    place_wide,
)
from dsgd.local.shard import Shard, Words, word_type
from dsgd.types import AnyArray, FloatMatrix, FloatVector, IndexVector, IntVector, PointerVector

#: Rows that need a conversion are converted in pieces of this many bytes, so that no second copy of the data exists.
_PIECE_BYTES = 1 << 20

#: Rows of so many bytes at least are written past the caches, where all together are more than caches hold.
_WIDE_BYTES, _MANY_BYTES = 512, 1 << 25


@dataclass(frozen=True)
class DensePiece:
    """Dense rows of one block; `fits_directly` if kernels can read them as they are."""

    values: AnyArray
    dtype: np.dtype[Any]
    fits_directly: bool

    @property
    def n_rows(self) -> int:
        """Rows of the piece."""
        return int(self.values.shape[0])

    @property
    def nbytes(self) -> int:
        """Bytes of its rows."""
        return int(self.values.nbytes)

    def as_shard(self, targets: FloatVector, weights: FloatVector, n_features: int, index: IndexVector) -> Shard:
        """Return the rows as a shard, not copied."""
        return Shard(self.values, None, None, targets, weights, n_features, index=index)

    def lengths(self) -> IntVector:
        """Return nothing: dense rows are all as long."""
        return np.empty(0, np.int64)

    def rows(self) -> FloatMatrix:
        """Return the rows as kernels read them: contiguous, of the right type, writable."""
        return self.values if self.fits_directly else np.array(self.values, self.dtype, order="C", copy=True)

    def add_fingerprints(self, out: Words) -> None:
        """Add the fingerprint of each row to `out`."""
        fingerprint_dense(self.rows().view(word_type(self.dtype)), out)

    def place(self, rows: IntVector, places: IntVector, values: FloatMatrix) -> None:
        """Copy row ``rows[v]`` to row ``places[v]`` of `values`, for every visit v."""
        row_bytes = values.itemsize * values.shape[1]
        if row_bytes >= _WIDE_BYTES and row_bytes % 8 == 0 and values.nbytes >= _MANY_BYTES:
            place_wide(self.rows().view(np.uint64), rows, places, values.view(np.uint64))
        else:
            place_dense(self.rows(), rows, places, values)


@dataclass(frozen=True)
class SparsePiece:
    """Sparse rows of one block, canonical."""

    values: FloatVector
    indices: IndexVector
    indptr: PointerVector
    fits_directly: bool = True

    @property
    def n_rows(self) -> int:
        """Rows of the piece."""
        return int(self.indptr.shape[0]) - 1

    @property
    def nbytes(self) -> int:
        """Bytes of its rows."""
        n_entries = int(self.indptr[-1] - self.indptr[0])
        return n_entries * (self.values.itemsize + self.indices.itemsize) + self.indptr.nbytes

    def as_shard(self, targets: FloatVector, weights: FloatVector, n_features: int, index: IndexVector) -> Shard:
        """Return the rows as a shard, not copied."""
        return Shard(self.values, self.indices, self.indptr, targets, weights, n_features, index=index)

    def lengths(self) -> IntVector:
        """Return the entries of each row, shape (n_rows,)."""
        return np.diff(self.indptr).astype(np.int64)

    def add_fingerprints(self, out: Words) -> None:
        """Add the fingerprint of each row to `out`."""
        bits = self.values.view(word_type(self.values.dtype))
        fingerprint_sparse(bits, self.indices, self.indptr, out)

    def place(
        self, rows: IntVector, places: IntVector, out: tuple[FloatVector, AnyArray | None, AnyArray | None]
    ) -> None:
        """Copy row ``rows[v]`` to where the row starts of `out` say at ``places[v]``, for every visit v."""
        place_sparse((self.values, self.indices, self.indptr), rows, places, out)


Piece: TypeAlias = DensePiece | SparsePiece


@dataclass(frozen=True)
class Selection:
    """Some rows of a piece, all blocks of a rank: read where they are."""

    piece: Piece
    index: IndexVector | IntVector | None
    n_features: int

    @property
    def n_rows(self) -> int:
        """Rows of the selection."""
        return self.piece.n_rows if self.index is None else int(self.index.shape[0])

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns, as those of an array."""
        return self.n_rows, self.n_features

    @property
    def fits_directly(self) -> bool:
        """Whether kernels can read the rows as they are."""
        return True

    def as_shard(self, targets: FloatVector, weights: FloatVector, n_features: int, index: IndexVector) -> Shard:
        """Return rows of the selection as a shard, not copied."""
        rows = index if self.index is None else self.index[index].astype(np.uint32, copy=False)
        return self.piece.as_shard(targets, weights, n_features, rows)

    def lengths(self) -> IntVector:
        """Return the entries of each row, shape (n_rows,); nothing for dense rows."""
        if not isinstance(self.piece, SparsePiece) or self.index is None:
            return self.piece.lengths()
        starts = self.piece.indptr
        return (starts[self.index + 1] - starts[self.index]).astype(np.int64)

    def of(self, column: AnyArray) -> AnyArray:
        """Return what a column of all rows of the piece holds of these rows."""
        return column if self.index is None else column[self.index]

    def in_piece(self, rows: IntVector) -> IntVector:
        """Return the numbers that rows of the selection have in the piece."""
        return rows if self.index is None else self.index[rows].astype(np.int64)


def cut(X: Any, dtype: np.dtype[Any], *, sparse: bool) -> Iterator[Piece | Selection]:
    """Cut a block into pieces to convert one at a time, or into one if there is nothing to convert."""
    if isinstance(X, Selection):
        yield X
    elif sparse:
        yield _sparse_piece(X, dtype)
    else:
        yield from _dense_pieces(X, dtype)


def readable(X: Any) -> Piece | None:
    """Return all rows of an array or scipy sparse matrix as one piece; None where they must be converted first."""
    pieces = cut(X, kernel_type(X), sparse=scipy.sparse.issparse(X))
    piece = next(pieces, None)
    return piece if isinstance(piece, (DensePiece, SparsePiece)) and piece.fits_directly else None


def fingerprints(X: Any) -> Words:
    """Return the fingerprint of each row of an array or scipy sparse matrix, as kept; targets are not in it."""
    prints = np.zeros(X.shape[0], np.uint64)
    first = 0
    for piece in cut(X, kernel_type(X), sparse=scipy.sparse.issparse(X)):
        assert not isinstance(piece, Selection)
        piece.add_fingerprints(prints[first : first + piece.n_rows])
        first += piece.n_rows
    return prints


def kernel_type(X: Any) -> np.dtype[Any]:
    """Return the type in which rows are trained on: their own if they are float32, else float64."""
    return np.dtype(np.float32 if X.dtype == np.float32 else np.float64)


def _dense_pieces(X: AnyArray, dtype: np.dtype[Any]) -> Iterator[DensePiece]:
    """Cut a block into pieces to convert one at a time, or into one if there is nothing to convert."""
    if X.dtype == dtype and X.flags.c_contiguous and X.flags.aligned:
        yield DensePiece(_writable(X), dtype, True)
        return
    step = max(1, _PIECE_BYTES // max(1, X.shape[1] * dtype.itemsize))
    for start in range(0, X.shape[0], step):
        yield DensePiece(X[start : start + step], dtype, False)


def _sparse_piece(X: Any, dtype: np.dtype[Any]) -> SparsePiece:
    """Return a block as canonical CSR arrays, sharing memory with it where they already are."""
    if X.shape[1] > np.iinfo(np.uint32).max:
        raise InvalidDataError(f"Sparse data may have up to 2**32 - 1 columns. Got {X.shape[1]}.")
    csr = X if scipy.sparse.issparse(X) and X.format == "csr" else scipy.sparse.csr_array(X)
    # A new matrix around the same arrays, because scipy stores what it learns about their order on the matrix.
    csr = scipy.sparse.csr_array((csr.data, csr.indices, csr.indptr), shape=csr.shape, copy=False)
    if csr.indices.dtype.itemsize == 4:
        indices, indptr = _writable(csr.indices.view(np.uint32)), csr.indptr.astype(np.uint64)
        if has_canonical_rows(indices, indptr, csr.shape[1]):
            return SparsePiece(_writable(csr.data.astype(dtype, copy=False)), indices, indptr)
    if csr.nnz and not 0 <= csr.indices.min() <= csr.indices.max() < csr.shape[1]:
        raise InvalidDataError(
            f"X is no valid sparse matrix: it has {csr.shape[1]} columns, and entries in columns {csr.indices.min()} "
            f"to {csr.indices.max()}. Make it anew, as with scipy.sparse.csr_array((values, (rows, columns)), shape)."
        )
    if not csr.has_canonical_format:
        csr = csr.copy()
        csr.sum_duplicates()
    indices = csr.indices.astype(np.uint32, copy=False)
    return SparsePiece(_writable(csr.data.astype(dtype, copy=False)), _writable(indices), csr.indptr.astype(np.uint64))


def as_column(column: ArrayLike, dtype: DTypeLike, n_rows: int, name: str) -> FloatVector:
    """Return `column` as a contiguous vector of `n_rows` entries."""
    vector = np.ascontiguousarray(column, dtype)
    if vector.shape != (n_rows,):
        raise PartitionMismatchError(
            f"{name} must have one entry per row, shape ({n_rows},). Got shape {vector.shape}; cut X, y and "
            "sample_weight in the same places."
        )
    return vector


def as_weights(sample_weight: ArrayLike, n_rows: int) -> FloatVector:
    """Return the weights of a block."""
    weights = as_column(sample_weight, np.float64, n_rows, "sample_weight")
    if not np.all((weights >= 0.0) & np.isfinite(weights)):
        raise InvalidDataError("sample_weight has entries that are negative or not finite; weights must be 0 or more.")
    return weights


def _writable(array: AnyArray) -> AnyArray:
    """Return an array without strides, as of writable memory: for others Numba would compile kernels once more."""
    array = np.ascontiguousarray(array)
    return array if array.flags.writeable else np.asarray(_Opened(array))


class _Opened:
    """The memory of an array, which it keeps, as if it were writable."""

    def __init__(self, array: AnyArray) -> None:
        address, _ = array.__array_interface__["data"]
        self.__array_interface__ = {**array.__array_interface__, "data": (address, False)}
        self._array = array


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
                piece.place(rows[first:last], np.arange(last - first), (shard.values, shard.indices, begins))
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
                window = shard.values[entries].copy(), shard.indices[entries].copy(), starts
                place_sparse(window, came, places, (shard.values, shard.indices, shard.indptr))
            shard.release(first, last)


def _queue(group: IntVector, sizes: IntVector, heads: IntVector) -> tuple[IntVector, IntVector]:
    """Queue items of some sizes behind the heads of their groups."""
    ends = np.r_[0, np.cumsum(sizes)]
    edges = ends[np.searchsorted(group, np.arange(len(heads) + 1))]
    return ends[:-1] - edges[group] + heads[group], heads + np.diff(edges)
