"""The cache of kernel rows: bounded memory, least recently used rows are dropped first.

Rows of variables that have reached a bound leave even earlier: they are needed again much more rarely than those of
free variables. Rows are consecutive in one buffer. When samples are eliminated, the surviving columns of the surviving
rows are moved together in place, so that the same memory then holds more rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dsgd.svm.kernels.buffers import borrow
from dsgd.svm.kernels.cached_rows import compact_rows, move_rows
from dsgd.svm.kernels.threads import Pool
from dsgd.types import AnyArray, IntVector

_LONG_AGO = 2**40  # rounds
_EMPTY = -(2**60)
_MOVED = 2**17  # values that a thread moves at a time


class RowCache:
    """Rows of the kernel matrix by sample, over the active samples of this rank.

    - `n_columns`: active samples of this rank, the length of a row.
    - `n_samples`: samples whose rows may be requested, numbered from 0; None for as many as columns.
    """

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
