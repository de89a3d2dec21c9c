"""The rows a rank owns, packed once, in the order in which training walks them (`dsgd.local.order`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dsgd.errors import InvalidDataError
from dsgd.local.mapped import STRIDE_BYTES, MappedFile
from dsgd.types import AnyArray, FloatMatrix, FloatVector, IndexVector, PointerVector

__all__ = ["Shard", "Walk", "split"]


@dataclass(frozen=True)
class Shard:
    """Rows of a rank, in walking order.

    Parameters
    ----------
    values : array, shape (n_rows, n_features) or (nnz,)
        Dense rows, C-contiguous, or the entries of sparse rows.
    indices : array of uint32, shape (nnz,), or None
        Columns of the entries, ascending in a row, none twice; None for dense rows.
    indptr : array of uint64, shape (n_rows + 1,), or None
        Row starts in `values` and `indices`; a view made by `rows` starts above zero.
    targets : array, shape (n_rows,)
        +1 or -1 (one output), class code from 0 (one-vs-rest) or value (regression); dtype of `values`.
    weights : array, shape (n_rows,)
        Weight of each visit; dtype of `values`.
    n_features : int
        Columns.
    mapping : MappedFile or None, default None
        The file that the arrays lie in, if they do not lie in memory.
    """

    values: FloatMatrix | FloatVector
    indices: IndexVector | None
    indptr: PointerVector | None
    targets: FloatVector
    weights: FloatVector
    n_features: int
    mapping: MappedFile | None = None

    @property
    def n_rows(self) -> int:
        """Visits an epoch makes: rows, counted as often as their weight says."""
        return int(self.targets.shape[0])

    @property
    def is_sparse(self) -> bool:
        """Whether rows are sparse."""
        return self.indptr is not None

    @property
    def dtype(self) -> np.dtype[Any]:
        """float32 or float64."""
        return self.values.dtype

    @property
    def nnz(self) -> int:
        """Entries stored."""
        if self.indptr is None:
            return self.n_rows * self.n_features
        return int(self.indptr[-1] - self.indptr[0])

    @property
    def nbytes(self) -> int:
        """Bytes that an epoch reads: entries, columns, row starts, targets and weights."""
        size = self.dtype.itemsize
        if self.indptr is None:
            return self.nnz * size + 2 * self.n_rows * size
        return self.nnz * (size + 4) + self.n_rows * (8 + 2 * size)

    def rows(self, start: int, stop: int) -> Shard:
        """Return rows start..stop as views: nothing is copied, so threads can share one shard."""
        if not 0 <= start <= stop <= self.n_rows:
            raise InvalidDataError(f"Shard.rows({start}, {stop}): the shard has rows 0 to {self.n_rows}.")
        if self.indptr is None:
            values, indptr = self.values[start:stop], None
        else:
            values, indptr = self.values, self.indptr[start : stop + 1]
        targets, weights = self.targets[start:stop], self.weights[start:stop]
        return Shard(values, self.indices, indptr, targets, weights, self.n_features, self.mapping)

    def release(self, start: int, stop: int) -> None:
        """Let rows start..stop of a mapped shard take no memory; they stay where they are, on disk."""
        if self.mapping is not None:
            for part in self._parts(start, stop):
                self.mapping.release(part)

    def prefetch(self, start: int, stop: int) -> None:
        """Have rows start..stop of a mapped shard read from disk in the background."""
        if self.mapping is not None:
            for part in self._parts(start, stop):
                self.mapping.prefetch(part)

    def _parts(self, start: int, stop: int) -> list[AnyArray]:
        """Return the arrays that rows start..stop, which may end beyond the last, consist of."""
        rows = slice(start, stop)
        if self.indptr is None or self.indices is None:
            return [self.values[rows], self.targets[rows], self.weights[rows]]
        pointers = self.indptr[start : stop + 1]
        entries = slice(int(pointers[0]), int(pointers[-1]))
        return [self.values[entries], self.indices[entries], pointers, self.targets[rows], self.weights[rows]]


class Walk:
    """Keeps what a walk over a mapped shard has in memory small: rows behind it are released, those ahead prefetched.

    Parameters
    ----------
    shard : Shard
        The rows; nothing is done for those in memory.
    """

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._stride = max(1, STRIDE_BYTES * shard.n_rows // max(1, shard.nbytes))
        self._left = 0

    def at(self, row: int) -> None:
        """Note that the walk has come to `row`; at the last it starts anew."""
        shard = self._shard
        is_over = row == shard.n_rows
        if shard.mapping is None or (row - self._left < self._stride and not is_over):
            return
        shard.release(self._left, row)
        self._left = 0 if is_over else row
        shard.prefetch(self._left, self._left + 2 * self._stride)


def split(n_rows: int, parts: int, k: int) -> tuple[int, int]:
    """Return the rows (start, stop) of part k of `parts`: ``n k // parts`` to ``n (k + 1) // parts``."""
    return n_rows * k // parts, n_rows * (k + 1) // parts
