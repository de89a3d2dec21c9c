"""The kernel matrix of a training set, never held as a whole: blocks, cached rows over the active samples, products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dsgd.svm.cache import RowCache
from dsgd.svm.kernel_functions import (
    Kernel,
    Left,
    Rows,
    block_values,
    centre,
    left_form,
    prefers_sparse,
    prepare,
    row_values,
    span,
    take_rows,
)
from dsgd.svm.smo import add_rows, read_block, store_rows
from dsgd.svm.threads import Pool
from dsgd.types import AnyArray, FloatMatrix, FloatVector, IntVector

__all__ = ["KernelMatrix", "weighted_sums"]

_SLAB = 256  # columns at a time: a slab of a block stays in the second-level cache
_CHUNK = 256
_HELD_BYTES = 64 * 2**20  # of left rows in a sum
_RIGHT_BYTES = 4 * 2**20  # of dense right rows in a slab
_NEAR = 8  # columns of a row that lie this close come by the cache line
_WIDE = 64  # features from which on a value costs more than a cache line


def _concatenate(rows: Rows, more: Rows) -> Rows:
    """Return rows of two kinds alike, one after the other."""
    n = rows.n + more.n
    if rows.dense is not None and more.dense is not None:
        return Rows(n, dense=np.concatenate([rows.dense, more.dense]))
    if rows.sparse is not None and more.sparse is not None and rows.offsets is not None and more.offsets is not None:
        values, indices, indptr = (np.concatenate([a, b]) for a, b in zip(rows.sparse, more.sparse, strict=True))
        indptr = np.concatenate([rows.sparse[2], more.sparse[2][1:] + rows.sparse[2][-1]])
        offsets = np.concatenate([rows.offsets, more.offsets])
        return Rows(n, sparse=(values, indices, indptr), n_columns=rows.n_columns, offsets=offsets)
    raise ValueError("rows of different kinds")


class KernelMatrix:
    """Kernel values among the samples of one problem.

    Parameters
    ----------
    kernel : Kernel
        The kernel.
    X : array or CSR matrix, shape (n, d)
        Rows; with ``precomputed`` the matrix of all of them, shape (m, m).
    samples : int64 array, shape (n,), or None
        Which rows the samples are (with ``precomputed``, which rows and columns); None takes all.
    dtype : dtype
        Of cached rows.
    cache_bytes : int
        Bytes of cached rows at most.
    pool : Pool
        Threads.
    """

    def __init__(
        self, kernel: Kernel, X: Any, *, samples: IntVector | None, dtype: Any, cache_bytes: int, pool: Pool
    ) -> None:
        self.kernel = kernel
        self.X = X
        self.n = len(samples) if samples is not None else int(X.shape[0])
        self.pool = pool
        self.n_hits = 0
        self.n_evaluations = 0
        self._seen = np.zeros(self.n, dtype=np.bool_)
        self.samples = samples
        self._n_columns = int(X.shape[1])
        self._sparse = kernel.name in {"linear", "rbf", "poly", "sigmoid"} and prefers_sparse(X)
        self._shift = None if self._sparse else centre(kernel, X, samples)
        # A given matrix is its own cache.
        self._cache_bytes = 0 if kernel.name == "precomputed" else cache_bytes
        self.active: IntVector = np.arange(self.n)
        self.set_dtype(dtype)

    def set_dtype(self, dtype: Any) -> None:
        """Compute rows in another type from now on; what is cached goes."""
        self.dtype = np.dtype(dtype)
        self._is_whole = False
        self._rows = self._prepared(self.active, self.dtype)
        self._is_whole = len(self.active) == self.n and bool((np.diff(self.active) == 1).all())
        self._cache = RowCache(self._cache_bytes, len(self.active), self.dtype)

    @property
    def is_pressed(self) -> bool:
        """Whether narrower rows would pay: the rows asked for come near to what the cache holds, or were read often."""
        is_short = self._cache.capacity < len(self.active)
        is_near = 2 * int(np.count_nonzero(self._seen)) > self._cache.capacity
        return (is_short and is_near) or self.n_hits > len(self.active)

    @property
    def nbytes(self) -> int:
        """Bytes held for rows and cache."""
        return self._rows.nbytes + self._cache.nbytes

    def _prepared(self, ids: IntVector, dtype: Any) -> Rows:
        index = ids if self.samples is None else self.samples[ids]
        if self.kernel.name == "precomputed":
            return Rows(len(ids), plain=self.X, ids=index)
        if self._is_whole and np.dtype(dtype) == self.dtype:
            return take_rows(self._rows, ids)
        return prepare(self.kernel, self.X, dtype, shift=self._shift, sparse=self._sparse, index=index)

    def block(self, positions: IntVector) -> FloatMatrix:
        """Return the values among some active samples, shape (q, q), float64; those of cached rows are read."""
        out = np.empty((len(positions), len(positions)))
        slots = self._cache.peek(positions)
        if not (slots >= 0).any() or not self._reads_pay(len(positions)):
            self._compute_block(out, positions, np.arange(len(positions)))
            return out
        read_block(self._cache.flat, self._cache.stride, slots, positions, out)
        self._compute_block(out, positions, np.flatnonzero(slots < 0))
        return out

    def _compute_block(self, out: FloatMatrix, positions: IntVector, where: IntVector) -> None:
        """Set out[where, where], a few rows at a time, so that no second block is held in the type of rows."""
        rows = take_rows(self._rows, positions[where])
        self.n_evaluations += rows.n * rows.n
        for start in range(0, rows.n, _CHUNK):
            some = where[start : start + _CHUNK]
            part = take_rows(self._rows, positions[some])
            out[np.ix_(some, where)] = block_values(self.kernel, part, rows, self.dtype)

    def _reads_pay(self, q: int) -> bool:
        """Return whether reading q columns of a cached row, scattered in memory, costs less than computing them."""
        return len(self.active) <= _NEAR * q or self._n_columns >= _WIDE

    def add(self, u: FloatVector, positions: IntVector, coefs: FloatVector, settled: IntVector | None = None) -> None:
        """Add the rows of some active samples, times coefficients, to `u`, shape (n_active,); new rows are cached.

        Rows of the `settled` samples, which may not be asked for again, are the first to leave the cache.
        """
        cache = self._cache
        slots = cache.find(positions)
        held = slots >= 0
        self.n_hits += int(held.sum())
        missing, missing_coefs = positions[~held], coefs[~held].astype(self.dtype)
        ids = self.active[missing]
        self._seen[ids] = True
        old_slots, old_coefs = slots[held], coefs[held]
        new_slots = cache.reserve(missing)
        parts = left_form(self.kernel, take_rows(self._rows, missing)) if len(missing) else []
        self.n_evaluations += len(missing) * len(self.active)

        def work(start: int, stop: int) -> None:
            if len(old_slots):
                add_rows(u, cache.flat, cache.stride, old_slots, old_coefs, start, stop)
            if parts:
                width = stop - start
                tile = np.empty((len(missing), width), dtype=self.dtype)
                right = span(self._rows, start, stop)
                for begin, end, part in parts:
                    row_values(self.kernel, part, right, tile[begin:end])
                # In the type of the tile: its values are rounded by as much as these sums are.
                u[start:stop] += missing_coefs @ tile
                store_rows(tile, cache.flat, cache.stride, new_slots, start)

        self.pool.slabs(work, len(self.active), _SLAB if parts else 4096)
        if settled is not None:
            cache.demote(settled)

    def shrink(self, keep: IntVector) -> None:
        """Leave only some active samples active, by position, ascending."""
        self.active, self._is_whole = self.active[keep], False
        self._rows = take_rows(self._rows, keep)
        self._cache.shrink(keep)

    def extend(self, ids: IntVector) -> None:
        """Make samples active again, at the end."""
        before, more = self._rows, self._prepared(ids, self.dtype)
        self.active = np.concatenate([self.active, ids])
        if self.kernel.name == "precomputed" or self.kernel.function is not None:
            self._rows = self._prepared(self.active, self.dtype)
        else:
            self._rows = _concatenate(before, more)

        def fill(rows: IntVector, out: AnyArray) -> None:
            self.n_evaluations += out.size
            for begin, end, part in left_form(self.kernel, take_rows(before, rows)):
                tile = np.empty((end - begin, more.n), dtype=self.dtype)
                row_values(self.kernel, part, more, tile)
                out[begin:end] = tile

        self._cache.extend(len(ids), fill)

    def product(self, targets: IntVector, sources: IntVector, coefs: FloatVector, dtype: Any) -> FloatVector:
        """Return K[targets, sources] coefs in float64, kernel values in `dtype`, shape (n_targets,)."""
        out = np.zeros((len(targets), 1))
        self.n_evaluations += len(targets) * len(sources)
        weighted_sums(
            self.kernel,
            lambda start, stop: self._prepared(sources[start:stop], dtype),
            coefs[:, None],
            lambda start, stop: self._prepared(targets[start:stop], dtype),
            out,
            dtype,
            self.pool,
        )
        return out[:, 0]


def weighted_sums(
    kernel: Kernel,
    left: Any,
    coefs: FloatMatrix,
    right: Any,
    out: FloatMatrix,
    dtype: Any,
    pool: Pool,
    groups: Sequence[tuple[int, Any]] = (),
) -> None:
    """Add sum_j K(right_k, left_j) coefs[j] to out[k], a small block of kernel values at a time.

    Left rows are held ready, 64 MB of them at most; right rows are made ready once for each time, a slab per thread.

    Parameters
    ----------
    kernel : Kernel
        The kernel.
    left, right : callable
        ``left(start, stop)`` returns prepared rows.
    coefs : array, shape (n_left, m)
        Coefficients.
    out : array, shape (n_right, n_out)
        Sums, float64.
    dtype : dtype
        Of kernel values.
    pool : Pool
        Threads, over right rows.
    groups : sequence of (int, index), default ()
        Where each group of left rows ends, and the m columns of `out` its sums go to; without, to all m.
    """
    if not len(coefs):
        return
    width = max(1, _row_bytes(left(0, 1)))
    chunk = max(16, min(_CHUNK, _HELD_BYTES // width))
    slab = max(16, min(2 * _SLAB, _RIGHT_BYTES // width))
    parts: list[tuple[int, int, Left, Any]] = []
    first = 0
    for end, columns in groups or [(len(coefs), slice(None))]:
        while first < end:
            last = min(end, first + chunk)
            parts += [(first + a, first + b, part, columns) for a, b, part in left_form(kernel, left(first, last))]
            first = last
            if sum(b - a for a, b, _, _ in parts) * width >= _HELD_BYTES:
                _add_sums(kernel, parts, coefs, right, out, dtype, pool, slab)
                parts = []
    _add_sums(kernel, parts, coefs, right, out, dtype, pool, slab)


def _add_sums(
    kernel: Kernel,
    parts: Sequence[tuple[int, int, Left, Any]],
    coefs: FloatMatrix,
    right: Any,
    out: FloatMatrix,
    dtype: Any,
    pool: Pool,
    slab: int,
) -> None:
    if not parts:
        return
    height = max(end - begin for begin, end, _, _ in parts)

    def work(start: int, stop: int) -> None:
        rows = right(start, stop)
        tile = np.empty((height, stop - start), dtype=dtype)
        for begin, end, part, columns in parts:
            values = tile[: end - begin]
            row_values(kernel, part, rows, values)
            out[start:stop, columns] += values.T @ coefs[begin:end]

    pool.slabs(work, len(out), slab)


def _row_bytes(rows: Rows) -> int:
    """Return the bytes of a row in the form that products want."""
    if rows.sparse is not None:
        return rows.n_columns * int(rows.sparse[0].itemsize)
    if rows.ids is not None:
        return 8
    held = rows.dense if rows.dense is not None else rows.plain
    return 8 * int(held.shape[1])
