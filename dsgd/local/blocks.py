"""Blocks of rows as kernels read them: of the right type, canonical, converted a piece at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike, DTypeLike

from dsgd.errors import InvalidDataError, PartitionMismatchError
from dsgd.kernels.rows import fingerprint_dense, fingerprint_sparse, place_dense, place_sparse
from dsgd.local.order import Words, word_type
from dsgd.local.shard import Shard
from dsgd.types import AnyArray, FloatMatrix, FloatVector, IndexVector, IntVector, PointerVector

__all__ = ["DensePiece", "Piece", "SparsePiece", "as_column", "as_weights", "cut", "fingerprints"]

#: Rows that need a conversion are converted in pieces of this many bytes, so that no second copy of the data exists.
_PIECE_BYTES = 1 << 20


@dataclass(frozen=True)
class DensePiece:
    """Dense rows of one block; `fits_directly` if kernels can read them as they are."""

    X: AnyArray
    dtype: np.dtype[Any]
    fits_directly: bool

    @property
    def n_rows(self) -> int:
        """Rows of the piece."""
        return int(self.X.shape[0])

    def as_shard(self, targets: FloatVector, weights: FloatVector, n_features: int) -> Shard:
        """Return the rows as a shard, not copied."""
        return Shard(self.X, None, None, targets, weights, n_features)

    def is_in(self, shard: Shard) -> bool:
        """Whether the rows are those of `shard`, and not only like them."""
        return self.X is shard.values

    def rows(self) -> FloatMatrix:
        """Return the rows as kernels read them: contiguous, of the right type, writable."""
        return self.X if self.fits_directly else np.array(self.X, self.dtype, order="C", copy=True)

    def add_fingerprints(self, out: Words) -> None:
        """Add the fingerprint of each row to `out`."""
        fingerprint_dense(self.rows().view(word_type(self.dtype)), out)

    def place(self, rows: IntVector, places: IntVector, values: FloatMatrix) -> None:
        """Copy row ``rows[v]`` to row ``places[v]`` of `values`, for every visit v."""
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

    def as_shard(self, targets: FloatVector, weights: FloatVector, n_features: int) -> Shard:
        """Return the rows as a shard, not copied."""
        return Shard(self.values, self.indices, self.indptr, targets, weights, n_features)

    def is_in(self, shard: Shard) -> bool:
        """Whether the rows are those of `shard`, and not only like them."""
        return self.values is shard.values

    def add_fingerprints(self, out: Words) -> None:
        """Add the fingerprint of each row to `out`."""
        fingerprint_sparse(self.values.view(word_type(self.values.dtype)), self.indices, self.indptr, out)

    def place(
        self,
        rows: IntVector,
        places: IntVector,
        values: FloatVector,
        indices: IndexVector | None,
        indptr: PointerVector | None,
    ) -> None:
        """Copy row ``rows[v]`` to where ``indptr[places[v]]`` says, for every visit v."""
        place_sparse(self.values, self.indices, self.indptr, rows, places, values, indices, indptr)


Piece: TypeAlias = DensePiece | SparsePiece


def cut(X: Any, dtype: np.dtype[Any], *, sparse: bool) -> Iterator[Piece]:
    """Cut a block into pieces to convert one at a time, or into one if there is nothing to convert.

    Parameters
    ----------
    X : array or scipy sparse matrix, shape (n, n_features)
        The block; never changed.
    dtype : dtype
        float32 or float64.
    sparse : bool
        Whether sparse rows are wanted, or dense ones.

    Yields
    ------
    DensePiece or SparsePiece
        Rows in order.
    """
    if sparse:
        yield _sparse_piece(X, dtype)
    else:
        yield from _dense_pieces(X, dtype)


def fingerprints(X: Any) -> Words:
    """Return the fingerprint of each row of an array or scipy sparse matrix; targets are not in it."""
    dtype = np.dtype(np.float32 if X.dtype == np.float32 else np.float64)
    prints = np.zeros(X.shape[0], np.uint64)
    first = 0
    for piece in cut(X, dtype, sparse=scipy.sparse.issparse(X)):
        piece.add_fingerprints(prints[first : first + piece.n_rows])
        first += piece.n_rows
    return prints


def _dense_pieces(X: AnyArray, dtype: np.dtype[Any]) -> Iterator[DensePiece]:
    """Cut a block into pieces to convert one at a time, or into one if there is nothing to convert.

    A read-only array counts as one to convert: numba compiles every kernel once more for read-only arguments, which
    costs more than copying a megabyte at a time.
    """
    if X.dtype == dtype and X.flags.c_contiguous and X.flags.writeable and X.flags.aligned:
        yield DensePiece(X, dtype, True)
        return
    step = max(1, _PIECE_BYTES // max(1, X.shape[1] * dtype.itemsize))
    for start in range(0, X.shape[0], step):
        yield DensePiece(X[start : start + step], dtype, False)


def _sparse_piece(X: Any, dtype: np.dtype[Any]) -> SparsePiece:
    """Return a block as canonical CSR arrays, sharing memory with it where they already are."""
    if X.shape[1] > np.iinfo(np.uint32).max:
        raise InvalidDataError(f"Sparse data may have up to 2**32 - 1 columns. Got {X.shape[1]}.")
    csr = X if scipy.sparse.issparse(X) and X.format == "csr" else scipy.sparse.csr_array(X)
    # A matrix of its own around the same arrays: scipy notes what it finds out about order on the matrix it is asked.
    csr = scipy.sparse.csr_array((csr.data, csr.indices, csr.indptr), shape=csr.shape, copy=False)
    if not csr.has_canonical_format:
        csr = csr.copy()
        csr.sum_duplicates()
    indices = csr.indices.view(np.uint32) if csr.indices.dtype.itemsize == 4 else csr.indices.astype(np.uint32)
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


def _writable(vector: AnyArray) -> AnyArray:
    """Return `vector`, or a copy if kernels would see it as read-only or as strided."""
    return vector if vector.flags.writeable and vector.flags.c_contiguous else vector.copy()
