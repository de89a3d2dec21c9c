"""The rows of a rank, where they lie, and their places in the order of training (`dsgd.local.order`)."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import numpy as np

from dsgd.errors import InvalidDataError
from dsgd.kernels.rng import mix64_each
from dsgd.kernels.rows import count_entries, fingerprint_dense, fingerprint_sparse
from dsgd.local.base import AbstractRows
from dsgd.local.mapped import STRIDE_BYTES, MappedFile
from dsgd.local.order import epoch_order, spans, word_type
from dsgd.types import AnyArray, FloatMatrix, FloatVector, IndexVector, IntMatrix, PointerVector

# A digest reads this many entries of the rows, spread over all of them.
_SAMPLE: Final = 65_536
# Stands for the numbers of rows that lie in walking order.
_IN_ORDER: Final = np.empty(0, np.uint32)
# Memory of a pass over rows that are in a file.
_ROWS_AT_A_TIME: Final = 65_536


@dataclass(frozen=True)
class Shard(AbstractRows):
    """Rows of a rank, in walking order.

    - `values`, shape (n_stored, n_features) or (nnz,): dense rows, C-contiguous, or the entries of sparse rows;
      other ranks may have some of them.
    - `indices`, shape (nnz,): columns of the entries, ascending in a row, none twice; None for dense rows.
    - `targets`, shape (n_rows,): +1 or -1 (one output), class code from 0 (one-vs-rest) or value (regression);
      dtype of the arithmetic.
    - `index`, shape (n_rows,): which of the stored rows is visited at each place; by default they lie in walking
      order. Those in a file do.
    """

    values: FloatMatrix | FloatVector
    indices: IndexVector | None
    indptr: PointerVector | None
    targets: FloatVector
    weights: FloatVector
    n_features: int
    mapping: MappedFile | None = None
    seed: int | None = None
    index: IndexVector = field(default_factory=lambda: _IN_ORDER)

    def __post_init__(self) -> None:
        if self.index is _IN_ORDER:
            object.__setattr__(self, "index", np.arange(self.n_rows, dtype=np.uint32))

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
        return self.targets.dtype

    @cached_property
    def nnz(self) -> int:
        """Entries of all visits."""
        return self._entries(slice(None))

    @property
    def nbytes(self) -> int:
        """Bytes that an epoch reads: entries, columns, row starts, targets, weights and numbers of rows."""
        size = self.dtype.itemsize
        of_rows = self.n_rows * (2 * size + 4)
        return of_rows + (self.nnz * size if self.indptr is None else self.nnz * (size + 4) + self.n_rows * 8)

    def rows(self, start: int, stop: int) -> Shard:
        """Return rows start..stop as views: nothing is copied, so threads can share one shard."""
        if not 0 <= start <= stop <= self.n_rows:
            raise InvalidDataError(f"Shard.rows({start}, {stop}): the shard has rows 0 to {self.n_rows}.")
        mine = slice(start, stop)
        return replace(self, targets=self.targets[mine], weights=self.weights[mine], index=self.index[mine])

    def packed(self, start: int, stop: int) -> Shard:
        """Return rows start..stop one behind the other: views where they lie so, else a copy."""
        rows = self.rows(start, stop)
        index = rows.index
        if self.indptr is None or self.indices is None:
            values = self.values[slice(index[0], index[-1] + 1) if _is_run(index) else index]
            return replace(rows, values=values, index=_IN_ORDER)
        if _is_run(index):
            entries = slice(*self.indptr[[index[0], index[-1] + 1]].tolist())
            indptr = self.indptr[index[0] : int(index[-1]) + 2] - np.uint64(entries.start)
            values, indices = self.values[entries], self.indices[entries]
        else:
            lengths = self.indptr[index + np.uint32(1)] - self.indptr[index]
            indptr = np.zeros(rows.n_rows + 1, np.uint64)
            np.cumsum(lengths, out=indptr[1:])
            places = np.repeat(self.indptr[index] - indptr[:-1], lengths.astype(np.int64))
            places += np.arange(places.shape[0], dtype=np.uint64)
            values, indices = self.values[places], self.indices[places]
        return replace(rows, values=values, indices=indices, indptr=indptr, index=_IN_ORDER)

    def sample(self, n_most: int) -> Shard:
        """Return rows from everywhere, as many at most."""
        step = max(1, -(-self.n_rows // n_most))
        targets, weights = np.ascontiguousarray(self.targets[::step]), np.ascontiguousarray(self.weights[::step])
        return replace(self, targets=targets, weights=weights, index=np.ascontiguousarray(self.index[::step]))

    def entries(self, start: int, stop: int) -> int:
        """Return how many entries rows start..stop have."""
        return self.nnz if stop - start == self.n_rows else self._entries(slice(start, stop))

    def _entries(self, rows: slice) -> int:
        index = self.index[rows]
        if self.indptr is None:
            return int(index.shape[0]) * self.n_features
        return int(count_entries(self.indptr, index))

    def digest(self) -> int:
        """Return a checksum over targets and weights, and a sample of values."""
        code = zlib.crc32(self.weights.tobytes(), zlib.crc32(self.targets.tobytes()))
        rows = self.sample(_SAMPLE)
        values = rows.packed(0, rows.n_rows).values.reshape(-1)
        return zlib.crc32(values[:: max(1, values.size // _SAMPLE)].tobytes(), code)

    def content(self) -> int:
        """Return the wrap-around sum of a hash of (row, target, weight) over all visits."""
        total, stride = 0, _ROWS_AT_A_TIME
        for start in range(0, self.n_rows, stride):
            stop = min(self.n_rows, start + stride)
            rows = self.packed(start, stop)
            prints = np.zeros(stop - start, np.uint64)
            bits = rows.values.view(word_type(self.dtype))
            if rows.indptr is None:
                fingerprint_dense(bits.reshape(stop - start, -1), prints)
            else:
                fingerprint_sparse(bits, rows.indices, rows.indptr, prints)
            for vector in (rows.targets, rows.weights):
                prints = mix64_each(prints ^ mix64_each(vector.view(bits.dtype).astype(np.uint64)))
            total += int(prints.sum(dtype=np.uint64))
            self.release(start, stop)
        return total % 2**64

    def mean_square(self, n_most: int = 4096) -> float:
        """Return the mean squared length of the first rows, so many at most; zero if there are none."""
        n_rows = min(n_most, self.n_rows)
        entries = self.packed(0, n_rows).values.reshape(-1).astype(np.float64)
        return float(entries @ entries) / max(1, n_rows)

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
        beside, index = [self.targets[rows], self.weights[rows]], self.index[rows]
        if not index.size:
            return beside
        first, last = int(index[0]), int(index[-1]) + 1
        if self.indptr is None or self.indices is None:
            return [self.values[first:last], *beside]
        pointers = self.indptr[first : last + 1]
        entries = slice(int(pointers[0]), int(pointers[-1]))
        return [self.values[entries], self.indices[entries], pointers, *beside]


class Residency:
    """Bounds the memory of a pass over a mapped shard: rows behind it are released, those ahead prefetched.

    - `order`, shape (2, n_blocks + 1): which rows are at which places, see `dsgd.local.order`; None where they are
      the same.
    """

    def __init__(self, shard: Shard, start: int = 0, order: IntMatrix | None = None) -> None:
        self._shard = shard
        self._order = epoch_order(shard.n_rows, None, 0) if order is None else order
        #: Rows that are released at a time.
        self.stride = max(1, STRIDE_BYTES * shard.n_rows // max(1, shard.nbytes))
        self._left = start

    def at(self, place: int) -> None:
        """Note that the pass has reached `place`; after the last row it starts from the first again."""
        shard = self._shard
        if shard.mapping is None or 0 <= place - self._left < min(self.stride, shard.n_rows - self._left):
            return
        if place < self._left:
            self._release(self._left, shard.n_rows)
            self._left = 0
        self._release(self._left, place)
        self._left = place % max(1, shard.n_rows)
        for first, last in spans(self._order, self._left, self._left + 2 * self.stride):
            shard.prefetch(first, last)

    def _release(self, start: int, stop: int) -> None:
        for first, last in spans(self._order, start, stop):
            self._shard.release(first, last)

    def bound(self, walk: Callable[[int, int], object]) -> Callable[[int, int], None]:
        """Return a function that walks over the places start..stop, as `walk` does, and notes it."""

        def walk_and_release(start: int, stop: int) -> None:
            walk(start, stop)
            self.at(stop)

        return walk_and_release


def _is_run(index: IndexVector) -> bool:
    """Return whether rows lie one behind the other."""
    n = index.shape[0]
    return n > 0 and int(index[-1]) - int(index[0]) == n - 1 and bool((index[1:] > index[:-1]).all())


def split(n_rows: int, parts: int, k: int) -> tuple[int, int]:
    """Return the rows (start, stop) of part k of `parts`: ``n k // parts`` to ``n (k + 1) // parts``."""
    return n_rows * k // parts, n_rows * (k + 1) // parts
