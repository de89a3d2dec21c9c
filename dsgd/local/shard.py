"""The rows of a rank: in memory or in mapped files, and the order of an epoch.

**Arrays in memory-mapped files**, for rows that exceed memory. The file has no name from the start (or loses it at
once, where the file system knows no nameless files), so nothing is left of it when the process is killed. Its room on
disk is taken before anything is written: a full disk is an error here, and not a bus error in the middle of an epoch.

A mapping counts as memory of the process only while its pages are in the page table, and Dask's nannies count exactly
that. `release` takes pages out of the table; the system keeps their contents and writes them to disk when it needs the
memory. A pass that releases the rows behind it needs a bounded amount of memory for a file of any size.

**The order in which a rank walks its rows**: drawn once, and shuffled in blocks in each epoch. Where rows stay in the
memory of the caller, to visit one after another from anywhere costs three times as much as to read them in order
(pages, not lines, are what is waited for), and a copy more than several epochs. So the order has two levels: chunks of
32 neighbours in a random order, and of every 32 such chunks, which lie in a cache together, the rows are shuffled. It
costs half as much again as the order of the listing, and 15 ns a row to be drawn.

The order depends on (seed, number of the row in the listing of a rank, class) and on nothing else: not on whether rows
are dense or sparse, in memory or in a file, in one block or in many.

Classes are spread evenly: each has an order of its own, in which its members come at equal distances. So any first m
rows have m p of a class whose share is p, to less than 1 + K (p + 1) with K classes: without runs of one class the
model after the last step is less noisy. Targets that are not whole numbers in a small range count as values.

The mean of the models of all steps has no such noise to lose, and is biased by classes that come when they fit it least
(Bach and Moulines 2013 on constant steps; docs/estimators.rst has numbers). So rows that are trained on with
``average`` stay in an order without classes.

An epoch walks blocks of 256 neighbours at most, in an order that (seed, epoch) draw. A model that has seen its rows in
one order again and again fits the order too: scikit-learn's defaults then reach 89.7 % on usps in place of 90.5 %.
Blocks are as good as single rows there, and cost nothing.

Sample weights are copies, as scikit-learn demands: a row of weight w is visited as often as the nearest whole number
from 1 to 16 says, with equal parts of w. The listing has the first visit to each row, then all second ones, and so on.
Every visit takes a step on the penalty, too, so estimators scale weights to a mean of one over all visits.

Cost: 12 bytes a visit while the order is made, 4 after. The order of an epoch is 4 kB and takes 3 us.

Source: two levels of shuffling, of blocks and in blocks: Xu et al. 2022 (CorgiPile). Strata: Zhao and Zhang 2014
(stratified sampling removes the variance between strata), here by systematic sampling from each.
"""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dsgd.errors import DiskSpaceError, InvalidDataError
from dsgd.kernels.order import BEGINS, CHUNK, SHIFTS, draw_each, draw_order, lay_out, mix64_each
from dsgd.kernels.rows import RowArrays, Sparse, count_entries, fingerprint_dense, fingerprint_sparse
from dsgd.local.base import AbstractRows
from dsgd.types import AnyArray, FloatMatrix, FloatVector, IndexVector, IntMatrix, IntVector, PointerVector

_PAGE = mmap.PAGESIZE

#: What is read or written once is released this much at a time: a call costs as much as reading some 20 kB.
STRIDE_BYTES = 8 << 20

# Not all systems have all of these.
_WILLNEED = getattr(mmap, "MADV_WILLNEED", None)
_DONTNEED = getattr(mmap, "MADV_DONTNEED", None)


class MappedFile:
    """One nameless file, mapped into this process; arrays are cut out of it and keep it alive."""

    def __init__(self, folder: str, nbytes: int) -> None:
        self.nbytes = max(nbytes, 1)
        self._taken = 0
        free = shutil.disk_usage(folder).free
        if self.nbytes > free:
            raise _no_room(folder, self.nbytes, free)
        with tempfile.TemporaryFile(dir=folder, prefix="dsgd-") as file:
            try:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, self.nbytes)
                else:
                    file.truncate(self.nbytes)
            except OSError as error:
                raise _no_room(folder, self.nbytes, shutil.disk_usage(folder).free) from error
            self._map = mmap.mmap(file.fileno(), self.nbytes)
        self._start = np.frombuffer(self._map, np.uint8, 1).ctypes.data

    def empty(self, shape: int | tuple[int, ...], dtype: Any) -> AnyArray:
        """Cut the next array out of the file."""
        array: AnyArray = np.ndarray(shape, dtype, buffer=self._map, offset=self._taken)
        self._taken += _rounded(array.nbytes)
        return array

    def put(self, array: AnyArray) -> AnyArray:
        """Copy an array into the file, releasing it on the way; return the copy."""
        copy = self.empty(array.shape, array.dtype)
        step = max(1, STRIDE_BYTES * len(array) // max(1, array.nbytes))
        for start in range(0, len(array), step):
            copy[start : start + step] = array[start : start + step]
            self.release(copy[start : start + step])
        return copy

    def release(self, array: AnyArray | None = None) -> None:
        """Take the pages of an array, or of all, out of this process; it stays usable, and nothing is lost."""
        if _DONTNEED is not None:
            self._advise(_DONTNEED, array)

    def prefetch(self, array: AnyArray) -> None:
        """Ask the system to read an array from disk meanwhile."""
        if _WILLNEED is not None:
            self._advise(_WILLNEED, array)

    def _advise(self, advice: int, array: AnyArray | None) -> None:
        begin, nbytes = (0, self.nbytes) if array is None else (array.ctypes.data - self._start, array.nbytes)
        first = begin // _PAGE * _PAGE
        if nbytes:
            self._map.madvise(advice, first, begin + nbytes - first)


def mapped_bytes(*sizes: int) -> int:
    """Return the size of a file for arrays of these sizes in bytes, each beginning on a page of its own."""
    return sum(_rounded(size) for size in sizes)


def _rounded(nbytes: int) -> int:
    return -(-nbytes // _PAGE) * _PAGE


def _no_room(folder: str, needed: int, free: int) -> DiskSpaceError:
    return DiskSpaceError(
        f"rows that do not fit into memory need {needed:,} bytes of disk in {folder}, which has {free:,} bytes free. "
        "Make room, or give Dask a larger disk (its setting temporary-directory, or dask worker --local-directory)."
    )


#: Into how many blocks an epoch is cut at most. Few rows are a block each.
EPOCH_BLOCKS = 256

#: As many are enough; where there are more, none has fewer than so many rows: at each, memory is read from a new place.
LEAST_BLOCKS, LEAST_ROWS = 64, 32

#: Targets are classes if they are whole numbers, of which the largest and the smallest are at most so far apart.
MOST_STRATA = 4096

#: A row is visited at most this many times an epoch, however large its weight.
MAX_COPIES = 16
Words = NDArray[np.uint64]


def visits(weights: FloatVector) -> tuple[IntVector, FloatVector] | None:
    """Return the row of every visit and its weight; None if every row is visited once with weight one."""
    if np.all(weights == 1.0):
        return None
    counts = count_visits(weights)
    # The first visit to every row, then the second ones, and so on.
    source = np.concatenate([np.flatnonzero(counts > copy) for copy in range(max(1, counts.max(initial=0)))])
    return source, (weights / np.maximum(counts, 1))[source]


def count_visits(weights: FloatVector) -> IntVector:
    """Return how many visits `visits` makes of each row of these weights."""
    counts: IntVector = np.where(weights > 0.0, np.clip(np.rint(weights), 1, MAX_COPIES), 0).astype(np.int64)
    return counts


def walking_order(targets: FloatVector, seed: int, *, spread_classes: bool = True) -> tuple[IndexVector, FloatVector]:
    """Return the visits in walking order, and their targets."""
    n = targets.shape[0]
    low, high = (float(targets.min()), float(targets.max())) if n and spread_classes else (0.0, 0.0)
    has_classes = 0.0 < high - low < MOST_STRATA and low.is_integer() and high.is_integer()
    key = mix64_each(np.full(1, seed % 2**64, np.uint64))
    order, scratch = np.empty(n, np.uint32), np.empty(n, np.uint32)
    ordered, chunks = np.empty_like(targets), np.empty(n // CHUNK + 1, np.uint32)

    def drawn(n_classes: int) -> bool:
        offsets = (draw_each(key, np.arange(n_classes, dtype=np.uint64)) >> np.uint64(40)) / 2.0**24
        begins, heads = np.zeros(n_classes + 1, np.int64), np.empty(n_classes, np.int64)
        ends = np.zeros(n + 1 if n_classes > 1 else 0, np.uint32)
        classes = begins, heads, offsets, np.argsort(offsets)
        return bool(draw_order(targets, low, classes, key[0], (order, ordered), (scratch, chunks, ends)))

    if not (has_classes and drawn(int(high - low) + 1)):
        drawn(1)
    return order, ordered


def epoch_order(n_rows: int, seed: int | None, epoch: int) -> IntMatrix:
    """Return where each block of an epoch begins, and the number that leads from a place in it to its row."""
    n_blocks = n_rows if n_rows <= EPOCH_BLOCKS else min(max(n_rows // LEAST_ROWS, LEAST_BLOCKS), EPOCH_BLOCKS)
    order: IntMatrix = np.empty((2, max(1, n_blocks) + 1), np.int64)
    arrange(order, n_rows, seed, epoch)
    return order


def arrange(order: IntMatrix, n_rows: int, seed: int | None, epoch: int) -> None:
    """Make an order, as `epoch_order` returned one for so many rows, that of another epoch."""
    lay_out(order, n_rows, np.uint64((seed or 0) % 2**64), epoch, seed is not None)


def spans(order: IntMatrix, start: int, stop: int) -> list[tuple[int, int]]:
    """Return the rows (first, last) that the places start..stop of a walk are, as runs of neighbours."""
    begins, shifts = order[BEGINS], order[SHIFTS]
    touched = np.flatnonzero((begins[:-1] < stop) & (begins[1:] > start))
    first = np.maximum(begins[touched], start) + shifts[touched]
    last = np.minimum(begins[touched + 1], stop) + shifts[touched]
    return list(zip(first.tolist(), last.tolist(), strict=True))


def word_type(dtype: np.dtype[Any]) -> type[np.unsignedinteger[Any]]:
    """Return the unsigned integer as wide as `dtype`."""
    return np.uint32 if dtype.itemsize == 4 else np.uint64


# A digest reads this many entries of the rows, spread over all of them.
_SAMPLE: Final = 65_536

# Stands for the numbers of rows that lie in walking order.
_IN_ORDER: Final = np.empty(0, np.uint32)

# Memory of a pass over rows that are in a file.
_ROWS_AT_A_TIME: Final = 65_536


@dataclass(frozen=True)
class Shard(AbstractRows):
    """Rows of a rank, in walking order.

    Parameters
    ----------
    values : array, shape (n_stored, n_features) or (nnz,)
        Dense rows, C-contiguous, or the entries of sparse rows; other ranks may have some of them.
    indices : array of uint32, shape (nnz,), or None
        Columns of the entries, ascending in a row, none twice; None for dense rows.
    indptr : array of uint64, shape (n_stored + 1,), or None
        Row starts in `values` and `indices`.
    targets : array, shape (n_rows,)
        +1 or -1 (one output), class code from 0 (one-vs-rest) or value (regression); dtype of the arithmetic.
    weights : array, shape (n_rows,)
        Weight of each visit; dtype of the arithmetic.
    n_features : int
        Columns.
    mapping : MappedFile or None, default None
        The file that holds the arrays, if they are not in memory.
    seed : int or None, default None
        Seed of the orders of epochs (`dsgd.kernels.order`); None visits rows in their walking order in every epoch.
    index : array of uint32, shape (n_rows,)
        Which of the stored rows is visited at each place; by default they lie in walking order. Those in a file do.
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

    @property
    def sparse(self) -> Sparse | None:
        """Columns and row starts as kernels take them; None of dense rows."""
        return None if self.indices is None or self.indptr is None else (self.indices, self.indptr)

    def row_arrays(self, class_weights: FloatMatrix) -> RowArrays:
        """Return all else of the rows as kernels take it."""
        return self.values.reshape(-1), self.index, self.targets, self.weights, class_weights

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

    Parameters
    ----------
    shard : Shard
        The rows; nothing is done for those in memory.
    start : int, default 0
        The place where it begins.
    order : array of int64, shape (2, n_blocks + 1), or None, default None
        Which rows are at which places, see `dsgd.kernels.order`; None where they are the same.
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
