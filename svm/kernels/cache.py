"""What is kept of kernel values: rows of the matrix, and squared distances for several widths.

**Rows.** A cache is one flat array of bounded size: the row in slot s begins at s times the stride. The least recently
used rows are dropped first. Rows of variables that have reached a bound leave even earlier: they are needed again much
more rarely than those of free variables. When samples are eliminated, the surviving columns of the surviving rows are
moved together in place, so that the same memory then holds more rows.

**Distances.** Every rbf kernel is exp(−γ ‖x − z‖²), so a grid of gammas needs the distances of a row once. Where rows
are wide they are what costs: a value takes about 1 ns to read and exponentiate, against 17 ns for a product of 780
columns in float32, 35 ns in float64 (one core, AMD EPYC). For rows of 20 columns or 14 nonzeros both cost the same, and
nothing is shared.

Distances are kept in float64, so that the proof at the end of each run is one in float64. To keep kernel values and
raise them to the power γ'/γ would take twice the time, and values that have underflowed could not come back.

Cost: 8 n bytes and n products per row. Rows are kept first come, first served; what finds no room is computed each
time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import scipy.sparse as sp

from dsgd.kernels.jit import kernel
from dsgd.svm.kernels import functions
from dsgd.svm.kernels.threads import Pool, borrow
from dsgd.types import AnyArray, FloatMatrix, IntVector


@kernel
def add_rows(u, flat, stride, slots, coefs, start, stop):  # type: ignore[no-untyped-def]
    """Add coefs[s] times cached row slots[s] to u, columns start..stop, in float64."""
    # Slices: where an index is a sum of signed numbers, the loop is not vectorised, and takes six times as long.
    n, s, out, width = len(slots), 0, u[start:stop], np.uint64(stop - start)
    # Four rows at a time: u is read and written once for all of them.
    while s + 3 < n:
        first, second, third, fourth = (
            slots[s] * stride,
            slots[s + 1] * stride,
            slots[s + 2] * stride,
            slots[s + 3] * stride,
        )
        a, b = flat[first + start : first + stop], flat[second + start : second + stop]
        c, d = flat[third + start : third + stop], flat[fourth + start : fourth + stop]
        w, x, y, z = coefs[s], coefs[s + 1], coefs[s + 2], coefs[s + 3]
        for k in range(width):
            out[k] += (w * a[k] + x * b[k]) + (y * c[k] + z * d[k])
        s += 4
    while s < n:
        first, w = slots[s] * stride, coefs[s]
        a = flat[first + start : first + stop]
        for k in range(width):
            out[k] += w * a[k]
        s += 1


@kernel
def add_rows_of_slabs(u, flat, m, bounds, rows, coefs, start, stop):  # type: ignore[no-untyped-def]
    """Add coefs[s] times row rows[s] to u, of the slabs start..stop of columns, which bounds divide."""
    for t in range(start, stop):
        begin, end = bounds[t], bounds[t + 1]
        add_rows(u[begin:end], flat[m * begin : m * end], end - begin, rows, coefs, np.int64(0), end - begin)


@kernel
def read_block(flat, stride, slots, positions, out, start, stop):  # type: ignore[no-untyped-def]
    """Set rows start..stop of `out` that are cached (slots[a] >= 0), and their mirror images for the others."""
    for a in range(start, stop):
        if slots[a] >= 0:
            source = np.uint64(slots[a] * stride)
            for b in range(len(positions)):
                out[a, b] = flat[source + np.uint64(positions[b])]
                if slots[b] < 0:
                    out[b, a] = out[a, b]


@kernel
def compact_rows(flat, stride, slots, keep, start, stop):  # type: ignore[no-untyped-def]
    """Move the kept columns of the rows in `slots` (ascending), from start to stop, to their new places in `flat`."""
    width = np.uint64(len(keep))
    # In place: slots ascend and rows become shorter, so no row is overwritten before it is read.
    for s in range(np.uint64(start), np.uint64(stop)):
        source, target = np.uint64(slots[s] * stride), s * width
        for k in range(width):
            flat[target + k] = flat[source + np.uint64(keep[k])]


@kernel
def move_rows(flat, n, slots, first, width, start, stop):  # type: ignore[no-untyped-def]
    """Move n values of each slot slots[s], start <= s < stop, to row first + s; each may overlap its own place."""
    for s in range(start, stop):
        source, target = np.uint64(slots[s] * n), np.uint64((first + s) * width)
        if source < target < source + np.uint64(n):
            for k in range(n - 1, -1, -1):
                flat[target + np.uint64(k)] = flat[source + np.uint64(k)]
        else:
            for k in range(np.uint64(n)):
                flat[target + k] = flat[source + k]


@kernel
def store_rows(tile, flat, stride, slots, start):  # type: ignore[no-untyped-def]
    """Copy the first rows of a tile to cached row slots[s], columns start onwards."""
    width = np.uint64(tile.shape[1])
    for s in range(len(slots)):
        target, row = np.uint64(slots[s] * stride + start), tile[s]
        for k in range(width):
            flat[target + k] = row[k]


_LONG_AGO = 2**40  # rounds
_EMPTY = -(2**60)
_MOVED = 2**17  # values that a thread moves at a time


class RowCache:
    """Rows of the kernel matrix over the `n_columns` active samples of this rank, of any of `n_samples`."""

    def __init__(self, max_bytes: int, n_columns: int, dtype: Any, n_samples: int | None = None) -> None:
        dtype = np.dtype(dtype)
        self._n_samples = n_columns if n_samples is None else n_samples
        # More than the whole matrix is never needed; untouched pages of the buffer take no memory.
        n_values = min(max_bytes // dtype.itemsize, self._n_samples * self._n_samples)
        self.flat: AnyArray = borrow(self, n_values * dtype.itemsize).view(dtype)
        self._clock = 0
        # On a rank of many most samples are elsewhere, and few rows fit: no table over all samples then.
        self._has_table = self._n_samples <= n_columns
        self._reset(n_columns)

    def _reset(self, n_columns: int) -> None:
        self.stride = n_columns
        self.capacity = min(self._n_samples, len(self.flat) // n_columns) if n_columns else 0
        self._slot_of = np.full(self._n_samples if self._has_table else 0, -1, dtype=np.int64)
        self._row_in = np.full(self.capacity, -1, dtype=np.int64)
        self._order: IntVector | None = None  # of the slots, by the samples in them
        self._used = np.full(self.capacity, _EMPTY, dtype=np.int64)

    @property
    def nbytes(self) -> int:
        """Bytes of the buffer."""
        return int(self.flat.nbytes)

    def held(self) -> IntVector:
        """Return the samples whose rows are held."""
        samples: IntVector = self._row_in[self._row_in >= 0]
        return samples

    def lasting(self) -> IntVector:
        """Return the samples whose rows are held and not demoted: `extend` keeps as many of them as fit."""
        samples: IntVector = self._row_in[self._lasting_slots()]
        return samples

    def _lasting_slots(self) -> IntVector:
        return np.flatnonzero((self._row_in >= 0) & (self._used >= 0))

    def _slots(self, samples: IntVector) -> IntVector:
        """Return the slot of each row, −1 where it is not held."""
        if self._has_table:
            slots: IntVector = self._slot_of[samples]
            return slots
        if not self.capacity:
            return np.full(len(samples), -1, dtype=np.int64)
        if self._order is None:
            self._order = np.argsort(self._row_in, kind="stable")
        places = np.searchsorted(self._row_in, samples, sorter=self._order)
        found = self._order[np.minimum(places, self.capacity - 1)]
        return np.where(self._row_in[found] == samples, found, -1)

    def find(self, samples: IntVector) -> IntVector:
        """Return the slot of each row, −1 where it is not held; those found count as used now."""
        self._clock += 1
        slots = self._slots(samples)
        self._used[slots[slots >= 0]] = self._clock
        return slots

    def peek(self, samples: IntVector) -> IntVector:
        """Return the slot of each row, −1 where it is not held; nothing counts as used."""
        return self._slots(samples)

    def reserve(self, samples: IntVector) -> IntVector:
        """Give slots to rows that are not held; rows used since the last `find` stay, so there may be fewer slots."""
        free = np.flatnonzero(self._row_in < 0)[: len(samples)]
        if len(free) < len(samples):
            old = np.flatnonzero((self._row_in >= 0) & (self._used < self._clock))
            count = min(len(samples) - len(free), len(old))
            if count < len(old):
                old = old[np.argpartition(self._used[old], count - 1)[:count]] if count else old[:0]
            free = np.concatenate([free, old])
        count = len(free)
        if self._has_table:
            old = self._row_in[free]
            self._slot_of[old[old >= 0]] = -1
            self._slot_of[samples[:count]] = free
        self._row_in[free] = samples[:count]
        self._order = None
        self._used[free] = self._clock
        return free.astype(np.int64)

    def demote(self, samples: IntVector) -> None:
        """Let these rows, where they are held, leave before all that were not demoted since they were last used."""
        slots = self._slots(samples)
        slots = slots[slots >= 0]
        slots = slots[self._used[slots] >= 0]
        self._used[slots] -= _LONG_AGO

    def row(self, slot: int) -> AnyArray:
        """Return a row, a view of shape (n_active,)."""
        return self.flat[slot * self.stride : (slot + 1) * self.stride]

    def shrink(self, keep: IntVector, samples: IntVector, pool: Pool) -> None:
        """Keep only some columns, given by position, ascending, and of the rows only those of `samples`."""
        slots = self._slots(samples)
        order = np.argsort(slots[slots >= 0])
        kept = samples[slots >= 0][order]
        sources = slots[slots >= 0][order]
        used = self._used[sources]
        args = (self.flat, self.stride, sources, keep)
        rows_each, first = 1 + _MOVED // (1 + len(keep)), 0
        while first < len(sources):
            # Where rows go before the first that has not been read, threads may move them in any order; one may always.
            free = int(sources[first]) * self.stride // max(1, len(keep))
            stop = max(first + 1, min(len(sources), free))

            def move(start: int, stop: int, first: int = first) -> None:
                compact_rows(*args, first + start, first + stop)

            pool.slabs(move, stop - first, rows_each)
            first = stop
        self._reset(len(keep))
        self._occupy(kept[: self.capacity], used[: self.capacity])

    def extend(self, n_more: int, fill: Callable[[IntVector, AnyArray], None], pool: Pool) -> None:
        """Add columns at the end; ``fill(samples, out)`` sets those of the rows that stay, shape (m, n_more).

        Demoted rows are dropped: hardly any is needed again, and each would cost as many values as there are columns.
        `fill` is also called if there are no rows.
        """
        n = self.stride
        held = self._lasting_slots()
        room = len(self.flat) // (n + n_more) if n + n_more else 0
        if len(held) > room:
            newest = np.sort(held[np.argsort(self._used[held])[len(held) - room :]])
        else:
            newest = held
        samples, used = self._row_in[newest], self._used[newest]
        self._close(newest, pool)
        self._spread(len(newest), n + n_more, pool)
        self._reset(n + n_more)
        self._occupy(samples, used)
        view = self.flat[: len(samples) * self.stride].reshape(len(samples), self.stride)
        fill(samples, view[:, n:])

    def _close(self, slots: IntVector, pool: Pool) -> None:
        """Move the rows in some slots, ascending, together to the first ones."""
        n, first = self.stride, int(np.count_nonzero(slots == np.arange(len(slots))))  # those stay where they are
        while first < len(slots):
            # As in `shrink`: what goes before the first row that has not been read may go in any order.
            stop = min(len(slots), int(slots[first]))
            some = slots[first:stop]
            self._move(some, n, first, n, pool)
            first = stop

    def _spread(self, n_rows: int, width: int, pool: Pool) -> None:
        """Move the first rows apart, so that each begins at a multiple of `width`; the first stays."""
        n, stop = self.stride, n_rows
        while stop > 1:
            # From the last on: what goes behind all that has not been read may go in any order; one row always may.
            first = min(stop - 1, max(1, -(-stop * n // width)))
            self._move(np.arange(first, stop), n, first, width, pool)
            stop = first

    def _move(self, slots: IntVector, n: int, first: int, width: int, pool: Pool) -> None:
        args = (self.flat, n, slots, first, width)
        pool.slabs(lambda start, stop: move_rows(*args, start, stop), len(slots), 1 + _MOVED // (1 + n))

    def _occupy(self, samples: IntVector, used: IntVector) -> None:
        count = len(samples)
        self._row_in[:count] = samples
        self._used[:count] = used
        if self._has_table:
            self._slot_of[samples] = np.arange(count)
        self._order = None


_UNIT = functions.Kernel("rbf", 1.0)  # rows prepared for it give minus the squared distance
_PLAIN = functions.Kernel("linear")  # leaves products as they are
_SLAB = 512
_CHUNK = 256

#: From so many columns of a dense row, or nonzeros of a sparse one, reading a distance is clearly cheaper.
_WIDE = 64


def share_pays(X: Any) -> bool:
    """Return whether rows are wide enough for distances to be kept."""
    return bool((X.nnz / max(1, X.shape[0]) if sp.issparse(X) else X.shape[1]) >= _WIDE)


class Distances:
    """Minus the squared distances of `samples` with all rows, computed at their first use by `n_threads`."""

    def __init__(self, X: Any, samples: IntVector, max_bytes: int, n_threads: int) -> None:
        n = len(samples)
        self.n_computed = 0
        self._X, self._samples = X, samples
        self._sparse = functions.prefers_sparse(X)
        self._shift = None if self._sparse else functions.centre(_UNIT, X, samples)
        self._n_threads = n_threads
        self._slot_of = np.full(n, -1, dtype=np.int64)
        self._n_kept = 0
        # Untouched pages take no memory.
        self._kept: FloatMatrix = np.empty((min(n, max_bytes // (8 * n)), n))
        self._lock = threading.Lock()

    def kernel(self, gamma: float) -> functions.Kernel:
        """Return the rbf kernel of a width as a function of sample numbers, one per row, shape (q, 1)."""
        return functions.Kernel("callable", function=lambda left, right: self._values(gamma, left[:, 0], right[:, 0]))

    @property
    def rows(self) -> IntVector:
        """The numbers of all samples, int64, shape (n, 1): the rows that `kernel` takes."""
        return np.arange(len(self._samples))[:, None]

    def _values(self, gamma: float, left: IntVector, right: IntVector) -> FloatMatrix:
        with self._lock:
            self._keep(left[self._slot_of[left] < 0])
        slots = self._slot_of[left]
        is_kept = slots >= 0
        out = np.empty((len(left), len(right)))
        is_run = len(right) > 0 and right[-1] - right[0] == len(right) - 1 and bool((np.diff(right) == 1).all())
        columns: Any = slice(right[0], right[-1] + 1) if is_run else right
        out[is_kept] = self._kept[slots[is_kept], columns] if is_run else self._kept[np.ix_(slots[is_kept], right)]
        if not is_kept.all():
            out[~is_kept] = self._compute(left[~is_kept], right)
        out *= gamma
        functions.exponentials(out)
        return out

    def _keep(self, ids: IntVector) -> None:
        """Compute and keep the distances of samples, as far as there is room."""
        ids = np.unique(ids)[: len(self._kept) - self._n_kept]
        n = len(self._samples)
        for first in range(0, len(ids), _CHUNK):
            some = ids[first : first + _CHUNK]
            target = self._kept[self._n_kept : self._n_kept + len(some)]
            parts = self._left(some)

            def work(start: int, parts: Any = parts, target: FloatMatrix = target) -> None:
                stop = min(n, start + _SLAB)
                self._fill(parts, np.arange(start, stop), target[:, start:stop])

            if self._n_threads == 1:
                for start in range(0, n, _SLAB):
                    work(start)
            else:  # threads of its own: those of the solver may be waiting for this
                with ThreadPoolExecutor(self._n_threads, "dsgd-svm") as pool:
                    list(pool.map(work, range(0, n, _SLAB)))
            self._slot_of[some] = np.arange(self._n_kept, self._n_kept + len(some))
            self._n_kept += len(some)
            self.n_computed += len(some) * n

    def _compute(self, left: IntVector, right: IntVector) -> FloatMatrix:
        out = np.empty((len(left), len(right)))
        self._fill(self._left(left), right, out)
        self.n_computed += out.size
        return out

    def _left(self, ids: IntVector) -> list[tuple[int, int, functions.Left]]:
        index = self._samples[ids]
        return functions.left_form(
            _UNIT, functions.prepare(_UNIT, self._X, np.float64, shift=self._shift, sparse=self._sparse, index=index)
        )

    def _fill(self, parts: list[tuple[int, int, functions.Left]], right: IntVector, out: AnyArray) -> None:
        rows = functions.prepare(
            _UNIT, self._X, np.float64, shift=self._shift, sparse=self._sparse, index=self._samples[right]
        )
        for begin, end, part in parts:
            tile = np.empty((end - begin, len(right)))
            functions.row_values(_PLAIN, part, rows, tile)
            np.minimum(tile, 0.0, out=out[begin:end])
