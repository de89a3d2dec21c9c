"""The kernel matrix, in parts: blocks, cached rows over the active samples, products.

On a gang every rank has the columns of its own samples; features of the others' travel when their rows are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from dsgd.svm.kernels.cache import RowCache, add_rows, read_block, store_rows
from dsgd.svm.kernels.functions import Kernel, Left, add_tile, block_values, is_single, left_form, row_values, tile_rows
from dsgd.svm.kernels.peers import Peers, SampleRows
from dsgd.svm.kernels.products import Held, Slabs, Sums, values_by_slabs
from dsgd.svm.kernels.rows import Rows, concatenate_rows, find, mask_of, places_of, span, take_rows
from dsgd.svm.kernels.threads import Pool, scratch
from dsgd.types import AnyArray, FloatMatrix, FloatVector, IntVector

_SLAB = 256  # columns at a time: a slab of a block stays in the second-level cache
_COLUMNS = 1024  # the same, of rows that are only read
_CHUNK = 256
_LEFT_ROWS = 512
_BLOCK_ROWS = 128
#: Sources up to which each rank computes all that its own sums need: half a million values, at most and seldom that,
#: take no longer than two messages and the wait for the slowest rank.
_FEW = 2048
_FILL_ROWS, _FILL_COST = 16, 200_000  # rows of one product: at least so many, else as many as cost that


@dataclass(frozen=True)
class Picked:
    """Some samples, `ids`, and the rows of their features, `index` of each, wherever they come from."""

    ids: IntVector
    rows: Rows
    index: IntVector

    def take(self, which: IntVector) -> Rows:
        """Return the rows of some of the samples, by number."""
        return take_rows(self.rows, self.index[which])


class KernelMatrix:
    """Kernel values among the samples of one problem: all rows, and the columns of the samples of this rank.

    Methods that need rows of any sample are called by all ranks together, with the same samples.

    - `X`, shape (n, d): rows of this rank; with ``precomputed`` the matrix of all of them, shape (m, m).
    - `samples`, shape (n,): the rows of the samples of this rank, in the order of their numbers (with
      ``precomputed``, rows and columns); None takes all.
    - `shift`, shape (d,): with `peers`, subtracted from dense rows for rbf, the same on all ranks.
    - `sparse`: with `peers`, whether rows are multiplied as CSR.
    """

    def __init__(
        self,
        kernel: Kernel,
        X: Any,
        *,
        samples: IntVector | None,
        dtype: Any,
        cache_bytes: int,
        pool: Pool,
        peers: Peers | None = None,
        shift: FloatVector | None = None,
        sparse: bool | None = None,
    ) -> None:
        self.kernel, self.pool = kernel, pool
        self._features = SampleRows(kernel, X, samples=samples, peers=peers, shift=shift, sparse=sparse)
        self.peers = self._features.peers
        self.n = self.peers.n
        self.n_hits = 0
        self.n_evaluations = 0
        self._seen = np.zeros(self.n, dtype=np.bool_)
        # A given matrix is its own cache.
        self._cache_bytes = 0 if kernel.name == "precomputed" else cache_bytes
        self.active: IntVector = self._features.here
        self.n_active = self.n  # on all ranks
        self.set_dtype(dtype)

    def set_dtype(self, dtype: Any) -> None:
        """Compute rows in another type from now on, and clear the cache."""
        self.dtype = np.dtype(dtype)
        self._rows = self._features.prepared(self.active, self.dtype)
        self.__dict__.pop("_cache", None)  # its memory is lent to the next one
        self._picked: Picked | None = None
        self._number()

    @cached_property
    def _cache(self) -> RowCache:
        """Cached rows; who needs none has no memory set aside for them."""
        return RowCache(self._cache_bytes, len(self.active), self.dtype, self.n)

    @property
    def mine(self) -> IntVector:
        """Samples of this rank."""
        return self._features.here

    @property
    def is_pressed(self) -> bool:
        """Whether narrower rows would pay: the requested rows nearly fill the cache, or cached ones were read often."""
        is_short = self._cache.capacity < self.n_active
        is_near = 2 * int(np.count_nonzero(self._seen)) > self._cache.capacity
        return (is_short and is_near) or self.n_hits > self.n_active

    @property
    def value_cost(self) -> float:
        """What a kernel value costs, in units of a cheap one: what exp takes, and as much for 32 multiplications."""
        return 1.0 + self._features.n_entries / 32.0

    @property
    def is_large(self) -> bool:
        """Whether the rows of all samples do not fit into the cache, or into those of all ranks."""
        needed = self.dtype.itemsize * self.n * self.n
        return self.kernel.name != "precomputed" and needed > self._cache_bytes * self.peers.size

    @property
    def nbytes(self) -> int:
        """Bytes held for rows and cache."""
        return self._rows.nbytes + self._features.nbytes + self._cache.nbytes

    def _number(self) -> None:
        """Note at which position of the active samples each sample of this rank is."""
        self._position = places_of(self.peers.place(self.active), len(self.mine))

    def where(self, ids: IntVector) -> IntVector:
        """Return at which positions of the active samples of this rank some samples are, −1 where at none."""
        if self.peers.is_alone:
            return self._position[ids]
        places, found = self.peers.find(ids), np.full(len(ids), -1, dtype=np.int64)
        found[places >= 0] = self._position[places[places >= 0]]
        return found

    def _prepared(self, ids: IntVector, dtype: Any) -> Rows:
        """Return rows of samples of this rank."""
        if self.kernel.name != "precomputed" and np.dtype(dtype) == self.dtype:
            positions = self.where(ids)
            if len(ids) and (positions >= 0).all():
                return take_rows(self._rows, positions)
        return self._features.prepared(ids, dtype)

    def own_rows(self, dtype: Any) -> Rows:
        """Return the rows of all samples of this rank, active or not."""
        return self._prepared(self.mine, dtype)

    def _rows_of(self, ids: IntVector, dtype: Any) -> Rows:
        """Return rows of any samples; those of other ranks travel, unless all are here."""
        if self._features.are_here:
            return self._prepared(ids, dtype)
        return self.peers.collect_rows(ids, self._prepared(self.peers.mine(ids), dtype))

    def pick(self, ids: IntVector) -> Picked:
        """Return the rows of some active samples, ascending; of other ranks' those travel that were not picked last."""
        if self.peers.is_alone:
            return Picked(ids, self._rows, self.where(ids))
        if self._features.are_here:
            return Picked(ids, self._rows_of(ids, self.dtype), np.arange(len(ids)))
        last, known = self._picked, np.zeros(len(ids), dtype=np.bool_)
        if last is not None:
            known = np.isin(ids, last.ids)
        if last is None or not known.any():
            picked = Picked(ids, self._rows_of(ids, self.dtype), np.arange(len(ids)))
        else:
            old = last.take(np.searchsorted(last.ids, ids[known]))
            index = np.empty(len(ids), dtype=np.int64)
            index[known] = np.arange(old.n)
            index[~known] = old.n + np.arange(len(ids) - old.n)
            picked = Picked(ids, concatenate_rows(old, self._rows_of(ids[~known], self.dtype)), index)
        self._picked = picked
        return picked

    def block(self, picked: Picked) -> FloatMatrix:
        """Return the values among active samples, shape (q, q), in the type of rows, until the next call."""
        q = len(picked.ids)
        out = self.lend(q * q).reshape(q, q)
        slots = self._cache.peek(picked.ids)
        if not self.peers.is_alone or not (slots >= 0).any() or not self._reads_pay(q):
            self._compute_block(out, picked, np.arange(q))
            return out
        args = (self._cache.flat, self._cache.stride, slots, self.where(picked.ids), out)
        self.pool.slabs(lambda start, stop: read_block(*args, start, stop), q, _BLOCK_ROWS)
        self._compute_block(out, picked, np.flatnonzero(slots < 0))
        return out

    def dealt(self, block: FloatMatrix, where: IntVector) -> FloatMatrix:
        """Return the values of a `block`, which are lost, for variables whose samples are at `where`, shape (m, m)."""
        q, m = len(block), len(where)
        out = self.lend(q * q + m * m)[q * q :].reshape(m, m)  # behind the block, in pages that are there
        args = (block.reshape(-1), q, where, where, out)
        self.pool.slabs(lambda start, stop: read_block(*args, start, stop), m, _BLOCK_ROWS)
        return out

    def lend(self, size: int, dtype: Any = None) -> AnyArray:
        """Return memory for so many values, until the next call (`block`, `values`) of any matrix with this pool."""
        dtype = np.dtype(dtype or self.dtype)
        return self.pool.lend(size * dtype.itemsize).view(dtype)

    def fill_rows(self, samples: IntVector, out: FloatMatrix) -> None:
        """Set `out`, shape (q, n_active), to the rows of some active samples, all of them here; none is cached."""
        rows = take_rows(self._rows, self._position[samples])
        self.n_evaluations += out.size

        def work(start: int, stop: int) -> None:
            block_values(self.kernel, span(rows, start, stop), self._rows, self.dtype, out[start:stop])

        self.pool.slabs(work, len(samples), max(_FILL_ROWS, int(_FILL_COST / (len(self.active) * self.value_cost))))

    def _compute_block(self, out: FloatMatrix, picked: Picked, where: IntVector) -> None:
        """Set out[where, where], a few rows at a time; symmetric values are computed once."""
        rows = picked.take(where)
        is_symmetric = self.kernel.name not in {"precomputed", "callable"}
        starts = np.arange(0, rows.n, _BLOCK_ROWS)
        widths = rows.n - starts if is_symmetric else np.full(len(starts), rows.n)
        self.n_evaluations += int((np.minimum(_BLOCK_ROWS, rows.n - starts) * widths).sum())

        def work(start: int, stop: int) -> None:
            first = start if is_symmetric else 0
            some, others = where[start:stop], where[first:]
            values = scratch((stop - start, rows.n - first), self.dtype)
            # A copy of these rows: numpy multiplies a matrix by itself with another routine, which rounds otherwise.
            block_values(self.kernel, picked.take(some), span(rows, first, rows.n), self.dtype, values)
            if len(where) == len(out):
                out[start:stop, first:] = values
                if is_symmetric:
                    out[stop:, start:stop] = values[:, stop - start :].T
            else:
                out[np.ix_(some, others)] = values
                if is_symmetric:
                    out[np.ix_(others, some)] = values.T

        self.pool.slabs(work, rows.n, _BLOCK_ROWS)

    def _reads_pay(self, q: int) -> bool:
        """Return whether reading q columns of a cached row, scattered in memory, costs less than computing them.

        In nanoseconds per value, as measured on one core: a read takes longer the further apart the columns are, until
        each has a cache line of its own; half of the values are computed, and few rows of many columns are densified.
        """
        read = min(9.0, 1.0 + 0.2 * len(self.active) / q)
        densified = 1.0 + 0.4 * self._features.n_columns / q if self._features.is_sparse else 0.0
        return read < 1.8 + 0.5 * self.value_cost + densified

    def add(
        self, u: FloatVector, picked: Picked, which: IntVector, coefs: FloatVector, settled: IntVector | None = None
    ) -> None:
        """Add rows of samples, times coefficients, to `u`, and cache them; those `settled` leave the cache first."""
        cache, ids = self._cache, picked.ids[which]
        slots = cache.find(ids)
        held = slots >= 0
        self.n_hits += int(held.sum())
        missing, missing_coefs = ids[~held], coefs[~held].astype(self.dtype)
        self._seen[missing] = True
        old_slots, old_coefs = slots[held], coefs[held]
        new_slots = cache.reserve(missing)
        self.n_evaluations += len(missing) * len(self.active)
        if len(old_slots):

            def read(start: int, stop: int) -> None:
                add_rows(u, cache.flat, cache.stride, old_slots, old_coefs, start, stop)

            self.pool.slabs(read, len(self.active), _COLUMNS)
        step = _LEFT_ROWS if self._features.is_sparse else max(1, len(missing))  # densified ones come a part at a time
        for first in range(0, len(missing), step):
            some = np.flatnonzero(~held)[first : first + step]
            parts = left_form(self.kernel, picked.take(which[some]))
            self._add_new(u, parts, missing_coefs[first : first + step], new_slots[first : first + step])
        if settled is not None:
            cache.demote(settled)

    def _add_new(
        self, u: FloatVector, parts: list[tuple[int, int, Left]], coefs: FloatVector, slots: IntVector
    ) -> None:
        """Compute rows over the active samples, add them times coefficients to `u`, and cache those that have slots."""
        cache = self._cache

        def work(start: int, stop: int) -> None:
            tile = scratch((len(coefs), stop - start), self.dtype)
            right = span(self._rows, start, stop)
            tiled = tile_rows(self.kernel, parts[0][2], right, tile) if len(parts) == 1 else None
            if tiled is not None:
                where = (u[start:stop], cache.flat, cache.stride, slots, start)
                add_tile(*tiled, coefs, tile, *where, self.kernel.name == "rbf", is_single(self.dtype))
                return
            for begin, end, part in parts:
                row_values(self.kernel, part, right, tile[begin:end])
            # In the type of the tile: its values are rounded by as much as these sums are.
            u[start:stop] += np.dot(coefs, tile)
            store_rows(tile, cache.flat, cache.stride, slots, start)

        self.pool.slabs(work, len(self.active), _SLAB)

    def held(self) -> IntVector:
        """Return the samples whose rows are cached here."""
        return self._cache.held()

    def shrink(self, keep: IntVector, kept: IntVector | None = None, n_gone: int = 0) -> None:
        """Leave only some active samples of this rank active, by position, ascending.

        With peers, `kept` are those of the samples that `held` returns that are still active on some rank, and `n_gone`
        is how many samples no rank has active any more.
        """
        samples = self.active[keep]
        if kept is None:
            kept = samples
            self.n_active = len(samples)
        else:
            self.n_active -= n_gone
        self.active = samples
        self._rows = take_rows(self._rows, keep)
        self._cache.shrink(keep, kept, self.pool)
        self._number()

    def extend(self, ours: IntVector, n_more: int | None = None) -> None:
        """Make samples of this rank active again, `n_more` of all ranks; they come last; all ranks call this."""
        self.n_active += len(ours) if n_more is None else n_more
        self._append(ours)

    def _append(self, ours: IntVector) -> None:
        """Add columns for samples of this rank; called by all ranks together."""
        more = self._prepared(ours, self.dtype)
        # Rows of the cache get the new columns, so the features of their samples are needed everywhere once more.
        wanted = None if self._features.are_here else np.unique(self.peers.join(self._cache.lasting()))
        before = self._rows

        def fill(samples: IntVector, out: AnyArray) -> None:
            self.n_evaluations += out.size
            for first in range(0, len(samples if wanted is None else wanted), _CHUNK):
                if wanted is None:
                    some = samples[first : first + _CHUNK]
                    lines, rows = np.arange(first, first + len(some)), self._rows_of(some, self.dtype)
                else:
                    some = wanted[first : first + _CHUNK]
                    arrived = self._rows_of(some, self.dtype)
                    lines = np.flatnonzero(np.isin(samples, some))
                    rows = take_rows(arrived, np.searchsorted(some, samples[lines]))
                parts = left_form(self.kernel, rows) if rows.n else []

                def work(start: int, stop: int, parts: Any, lines: IntVector) -> None:
                    right = span(more, start, stop)
                    for begin, end, part in parts:
                        tile = scratch((end - begin, stop - start), self.dtype)
                        row_values(self.kernel, part, right, tile)
                        out[lines[begin:end], start:stop] = tile

                self.pool.slabs(partial(work, parts=parts, lines=lines), more.n, _SLAB)

        self._cache.extend(len(ours), fill, self.pool)
        self.active = np.concatenate([self.active, ours])
        if self.kernel.name == "precomputed":
            self._rows = self._prepared(self.active, self.dtype)
        else:
            self._rows = concatenate_rows(before, more)
        self._number()

    def move(self, plan: Sequence[tuple[int, int, IntVector]]) -> None:
        """Hand active samples of some ranks over to others; called by all ranks together with (from, to, samples)."""
        ours, theirs = self._features.move(plan)
        self.shrink(np.flatnonzero(~np.isin(self.active, ours)), self.held())
        self._append(theirs)

    def hold(self, samples: IntVector, n_most: int) -> Held:
        """Return rows of samples of this rank, in float64: prepared once if `n_most` take few bytes, else each time."""
        self._features.keep_exact()
        if self._features.is_light(n_most):
            rows = self._prepared(samples, np.float64)
            return Held(samples, lambda start, stop: span(rows, start, stop))
        return Held(samples, lambda start, stop: self._prepared(samples[start:stop], np.float64))

    def values(self, samples: IntVector, columns: Sequence[Held], coefs: FloatMatrix) -> tuple[Slabs, FloatMatrix]:
        """Return K[samples, columns], shape (m, n), in float64, and coefs K', shape (k, m), for coefs of shape (k, n).

        The first is overwritten by the next call or block. The samples may be on any rank; each rank has its own
        columns, and the sums are over those of all ranks.
        """
        size = len(samples) * sum(len(held.ids) for held in columns)
        self.n_evaluations += size
        memory, rows = self.lend(size, np.float64), self._rows_of(samples, np.float64)
        n_features = self._features.n_columns
        slabs, sums = values_by_slabs(self.kernel, self.pool, rows, columns, coefs, memory, n_features=n_features)
        self.peers.add_up(sums.reshape(-1))
        return slabs, sums

    def product(self, targets: IntVector, sources: IntVector, coefs: FloatVector, dtype: Any) -> FloatVector:
        """Return K[targets, sources] coefs in float64, from values in `dtype`; sources may be on any rank.

        Targets are on this rank. A value between two samples that are both targets and sources is computed once for
        both if the kernel is symmetric to the last bit (a given matrix or a function may not be): within a rank always,
        between ranks if all of them have the rows of all samples and the sources are not few.
        """
        if np.dtype(dtype) == np.float64:
            self._features.keep_exact()
        has_all = self._features.are_here
        is_symmetric = self.kernel.name not in {"precomputed", "callable"}
        if not is_symmetric or not (self.peers.is_alone or self._features.is_light(len(sources))):
            brought = partial(self._rows_of, dtype=dtype)
            return self._weighted(targets, sources, coefs, dtype, brought, together=not self.peers.is_alone)

        def rows(ids: IntVector) -> Rows:
            self.peers.check()  # all sources at once may take long
            return self._prepared(ids, dtype)

        if self.peers.is_alone:
            places = places_of(targets, self.n)[sources]
        else:  # no table over the samples of all ranks
            places = find(sources, targets)
        is_both = places >= 0
        both, others = places[is_both], ~is_both
        is_rest = ~mask_of(both, len(targets))
        out = np.zeros(len(targets))
        sums = Sums(self.kernel, dtype, self.pool)
        found = sums.symmetric(rows, sources[is_both], targets[is_rest], coefs[is_both])
        out[both], out[is_rest], n_values = found
        self.n_evaluations += n_values
        if has_all and not self.peers.is_alone and len(sources) > _FEW:
            met, is_met = self._between_ranks(sources, is_both, coefs, sums, rows)
            out[both] += met
            out[is_rest] += self._weighted(targets[is_rest], sources[is_met], coefs[is_met], dtype, rows)
            others &= ~is_met
        ids = sources[others]
        if not has_all:
            arrived, ids = self._rows_of(sources, dtype), np.flatnonzero(others)
            rows = partial(take_rows, arrived)
        return out + self._weighted(targets, ids, coefs[others], dtype, rows)

    def _between_ranks(
        self, sources: IntVector, is_both: AnyArray, coefs: FloatVector, sums: Sums, rows: Callable[[IntVector], Rows]
    ) -> tuple[FloatVector, AnyArray]:
        """Return what sources that are other ranks' targets add here; of their values each rank computes half."""
        rank, heard = self.peers.rank, self.peers.all_of(is_both.astype(np.uint8)).astype(np.bool_)
        out, ours = np.zeros(len(sources)), np.flatnonzero(is_both)
        for other in range(self.peers.size):
            theirs = np.flatnonzero(heard[other])
            if other == rank:
                continue
            # Of the higher rank's samples the first half is met by the lower rank.
            sides = (ours, theirs[: len(theirs) // 2]) if rank < other else (ours[len(ours) // 2 :], theirs)
            ids = sources[sides[0]], sources[sides[1]]
            found = sums.mutual(rows, ids, (coefs[sides[0]], coefs[sides[1]]))
            for side, values in zip(sides, found, strict=True):
                out[side] += values
            self.n_evaluations += len(sides[0]) * len(sides[1])
        self.peers.add_up(out)
        return out[is_both], heard.any(axis=0) & ~is_both

    def _weighted(
        self,
        targets: IntVector,
        sources: IntVector,
        coefs: FloatVector,
        dtype: Any,
        rows: Callable[[IntVector], Rows],
        *,
        together: bool = False,
    ) -> FloatVector:
        """Return the same, every value computed; ``rows(sources)`` returns prepared rows, maybe of all ranks."""
        out = np.zeros((len(targets), 1))

        def right(start: int, stop: int) -> Rows:
            self.peers.check()
            return self._prepared(targets[start:stop], dtype)

        sums = Sums(self.kernel, dtype, self.pool)
        sums.add_weighted(lambda start, stop: rows(sources[start:stop]), coefs[:, None], right, out, together=together)
        self.n_evaluations += len(targets) * len(sources)
        return out[:, 0]
