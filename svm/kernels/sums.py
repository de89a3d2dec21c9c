"""Sums of kernel values times coefficients, in blocks that are not kept.

Prediction and proofs are such sums. A value between two samples that both have a coefficient and want a sum serves
both: n (n − 1) / 2 values less among n of them, up to the blocks on the diagonal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from dsgd.svm.kernels.functions import Kernel
from dsgd.svm.kernels.rows import Rows, span
from dsgd.svm.kernels.threads import Pool, scratch
from dsgd.svm.kernels.tiles import fits, is_single, part_sums, part_values, tile_sums
from dsgd.svm.kernels.values import Left, left_bytes, left_form, row_values, tile_rows
from dsgd.types import AnyArray, FloatMatrix, FloatVector, IntVector

_SLAB = 512  # right rows at a time
_CHUNK = 256
_STRIP = 2048  # left rows between two passes over the right ones
_HELD_BYTES = 64 * 2**20  # of left rows in a sum
_JOINED_BYTES = 8 * 2**20  # of left rows that are held together, so that one compiled call takes all of them
_RIGHT_BYTES = 4 * 2**20  # of dense right rows in a slab
_FEW_VALUES = 2**14  # that one compiled call computes for all parts, so that they are in the second-level cache
#: Shares for each thread, and the values of one at least: as many take a few times as long as waking a thread.
_SHARES_EACH, _FEWEST_VALUES = 8, 2**17
#: Parts, times sums of a row, that are added up apart: of so few slabs these are megabytes at most.
_MOST_APART = 128


@dataclass(frozen=True)
class Sums:
    """Computes sums of kernel values.

    - `pool`: threads, over right rows.
    """

    kernel: Kernel
    dtype: Any
    pool: Pool

    def add_weighted(
        self, left: Any, coefs: FloatMatrix, right: Any, out: FloatMatrix, groups: Sequence[tuple[int, Any]] = ()
    ) -> None:
        """Add sum_j K(right_k, left_j) coefs[j] to out[k], a small block of kernel values at a time.

        Left rows are held ready, 64 MB of them at most; right rows are made ready once for each time, a slab per
        thread.

        - `left`, `right`: ``left(start, stop)`` returns prepared rows.
        - `coefs`, shape (n_left, m): coefficients.
        - `out`, shape (n_right, n_out): sums, float64.
        - `groups`: where each group of left rows ends, and the m columns of `out` its sums go to; without, to
          all m.
        """
        if not (len(coefs) and len(out)):  # a rank may hold no rows
            return
        one = left(0, 1)
        width, slab = max(1, left_bytes(one)), _right_rows(one)
        chunk = max(16, min(_CHUNK, _HELD_BYTES // width))
        # Dense rows that are few bytes are made ready together, and each part is given all of them.
        is_joined = one.dense is not None and len(coefs) * one.nbytes <= _JOINED_BYTES
        joined = left_form(self.kernel, left(0, len(coefs)))[0][2] if is_joined else None
        parts: list[tuple[int, int, Left, Any]] = []
        first = begin = 0
        for end, columns in groups or [(len(coefs), slice(None))]:
            while first < end:
                last = min(end, first + chunk)
                if joined is not None:
                    parts.append((first, last, joined, columns))
                else:
                    forms = left_form(self.kernel, left(first, last))
                    parts += [(first + a, first + b, part, columns) for a, b, part in forms]
                first = last
                if (first - begin) * width >= _HELD_BYTES:
                    self._add_parts(parts, coefs, right, out, slab, joined)
                    parts, begin = [], first
        self._add_parts(parts, coefs, right, out, slab, joined)

    def _add_parts(
        self,
        parts: Sequence[tuple[int, int, Left, Any]],
        coefs: FloatMatrix,
        right: Any,
        out: FloatMatrix,
        slab: int,
        joined: Left | None = None,
    ) -> None:
        if not parts:
            return
        height = max(end - begin for begin, end, _, _ in parts)
        n, n_slabs = len(out), -(-len(out) // slab)
        n_shares = self._shares(n_slabs, len(parts), n * (parts[-1][1] - parts[0][0]), coefs.shape[1])
        # What each part adds, where slabs are so few that threads share them: it is added up in the order of the parts.
        apart = np.zeros((len(parts) if n_shares > 1 else 0, n, coefs.shape[1]))

        def work(number: int, _: int) -> None:
            start, share = number // n_shares * slab, number % n_shares
            stop = min(n, start + slab)
            rows, tile = right(start, stop), scratch((height, stop - start), self.dtype)
            first, last = share * len(parts) // n_shares, (share + 1) * len(parts) // n_shares
            for k, found in self._of_parts(parts[first:last], joined, rows, tile, coefs):
                if n_shares > 1:
                    apart[first + k, start:stop] = found
                else:
                    out[start:stop, parts[first + k][-1]] += found

        self.pool.slabs(work, n_slabs * n_shares, 1)
        for added, (_, _, _, columns) in zip(apart, parts, strict=False):
            out[:, columns] += added

    def _of_parts(
        self,
        parts: Sequence[tuple[int, int, Left, Any]],
        whole: Left | None,
        right: Rows,
        tile: AnyArray,
        coefs: FloatMatrix,
    ) -> Iterator[tuple[int, FloatMatrix]]:
        """Yield the number of each part of left rows and the sums over it, until others want none any more.

        Parts of `whole`, which has all left rows, take one compiled call.
        """
        tiled = None if whole is None else tile_rows(self.kernel, whole, right, tile)
        bounds = np.array([parts[0][0], *(end for _, end, _, _ in parts)])
        if tiled is not None and coefs.shape[1] == 1 and fits(tile, coefs):
            found, is_rbf = np.empty((len(parts), right.n)), self.kernel.name == "rbf"
            part_sums(*tiled, coefs[:, 0], bounds, tile, found, is_rbf, is_single(tile.dtype))
            yield from enumerate(found[:, :, None])
            return
        if tiled is not None and len(tiled[0]) * right.n <= _FEW_VALUES:
            values = np.empty((bounds[-1], right.n), self.dtype)
            part_values(*tiled, bounds, values, self.kernel.name == "rbf", is_single(self.dtype))
            for k, (begin, end, _, _) in enumerate(parts):
                yield k, np.dot(values[begin:end].T, coefs[begin:end])
            return
        for k, (begin, end, part, _) in enumerate(parts):
            if self.pool.is_over:  # a slab may take seconds
                return
            left = part if whole is None else Left(span(whole.rows, begin, end))
            yield k, self._of_part(left, right, tile, coefs[begin:end])

    def _of_part(self, left: Left, right: Rows, tile: AnyArray, coefs: FloatMatrix) -> FloatMatrix:
        """Return the sums over one part of left rows, shape (right.n, m)."""
        tiled = tile_rows(self.kernel, left, right, tile)
        if tiled is None or not fits(tile, coefs):
            values = tile[: left.rows.n]
            row_values(self.kernel, left, right, values)
            return np.asarray(np.dot(values.T, coefs))
        out = np.empty((right.n, coefs.shape[1]))
        # One column is a vector to BLAS, as it is in numpy.
        vectors = (coefs[:, 0], out[:, 0]) if coefs.shape[1] == 1 else (coefs, out)
        tile_sums(*tiled, vectors[0], tile, vectors[1], self.kernel.name == "rbf", is_single(tile.dtype))
        return out

    def _shares(self, n_slabs: int, n_parts: int, n_values: int, n_columns: int) -> int:
        """Return among how many shares the left rows of a slab are divided: all threads are to have work to the end."""
        if self.pool.n_threads == 1 or n_parts * n_columns > _MOST_APART:
            return 1
        wanted = -(-_SHARES_EACH * self.pool.n_threads // n_slabs)
        return max(1, min(wanted, n_parts, n_values // (n_slabs * _FEWEST_VALUES)))

    def symmetric(
        self, rows: Callable[[IntVector], Rows], sources: IntVector, others: IntVector, coefs: FloatVector
    ) -> tuple[FloatVector, FloatVector, int]:
        """Return sum_j K(i, j) coefs[j] over the sources j, for the sources and for other samples.

        - `rows`: ``rows(ids)`` returns prepared rows.
        - `sources`, `others`, shape (m,) and (n,): samples, none in both.
        - `coefs`, shape (m,): coefficients of the sources.
        """
        m, out = len(sources), np.zeros(len(sources) + len(others))
        right, n_values = np.concatenate([sources, others]), 0
        slab = _slab_of(rows, sources)
        for first, last, height, parts in self._strips(rows, sources, slab):
            # Contributions of right rows to left ones are kept by slab and added up in order, whoever computed them.
            back = np.zeros((-(-(m - first) // slab), last - first))

            def work(start: int, stop: int, first: int, parts: Any, height: int, back: FloatMatrix) -> None:
                columns, stretch = rows(right[first + start : first + stop]), slice(first + start, first + stop)
                given = coefs[first + start : first + stop]  # as many of the right rows as are sources
                tile = scratch((height, stop - start), self.dtype)
                for begin, end, part in parts:
                    if begin - first >= stop:  # met before, from the other side
                        break
                    values = tile[: end - begin]
                    row_values(self.kernel, part, columns, values)
                    out[stretch] += np.dot(values.T, coefs[begin:end])
                    if len(given) and begin - first < start:  # in a slab of their own left rows are met from both sides
                        back[start // slab, begin - first : end - first] = np.dot(values[:, : len(given)], given)

            one = partial(work, first=first, parts=parts, height=height, back=back)
            self.pool.slabs(one, len(right) - first, slab)
            out[first:last] += back.sum(axis=0)
            n_values += sum(min(slab, last - start) * (len(right) - start) for start in range(first, last, slab))
        return out[:m], out[m:], n_values

    def mutual(
        self,
        rows: Callable[[IntVector], Rows],
        sides: tuple[IntVector, IntVector],
        coefs: tuple[FloatVector, FloatVector],
    ) -> tuple[FloatVector, FloatVector]:
        """Return what the samples of either side add to the sums of the other; a value between them is computed once.

        - `rows`: ``rows(ids)`` returns prepared rows.
        - `sides`, shape (m,) and (n,): samples, none on both sides.
        - `coefs`, shape (m,) and (n,): their coefficients.
        """
        (left, right), (of_left, of_right) = sides, (np.zeros(len(sides[0])), np.zeros(len(sides[1])))
        if not len(left) or not len(right):
            return of_left, of_right
        slab = _slab_of(rows, left)
        for first, last, height, parts in self._strips(rows, left, slab):
            back = np.zeros((-(-len(right) // slab), last - first))

            def work(start: int, stop: int, first: int, parts: Any, height: int, back: FloatMatrix) -> None:
                columns, tile = rows(right[start:stop]), scratch((height, stop - start), self.dtype)
                for begin, end, part in parts:
                    values = tile[: end - begin]
                    row_values(self.kernel, part, columns, values)
                    of_right[start:stop] += np.dot(values.T, coefs[0][begin:end])
                    back[start // slab, begin - first : end - first] = np.dot(values, coefs[1][start:stop])

            self.pool.slabs(partial(work, first=first, parts=parts, height=height, back=back), len(right), slab)
            of_left[first:last] = back.sum(axis=0)
        return of_left, of_right

    def _strips(
        self, rows: Callable[[IntVector], Rows], sources: IntVector, slab: int
    ) -> Iterator[tuple[int, int, int, list[tuple[int, int, Left]]]]:
        """Yield left rows in strips: first and last, the most in one part, and the parts multiplied at once."""
        width = max(1, left_bytes(rows(sources[:1])))
        chunk, strip = min(_CHUNK, slab), max(slab, min(_STRIP, _HELD_BYTES // width) // slab * slab)
        for first in range(0, len(sources), strip):
            last = min(len(sources), first + strip)
            parts = [
                (begin + a, begin + b, part)
                for begin in range(first, last, chunk)
                for a, b, part in left_form(self.kernel, rows(sources[begin : min(last, begin + chunk)]))
            ]
            yield first, last, max(end - begin for begin, end, _ in parts), parts


def _slab_of(rows: Callable[[IntVector], Rows], sources: IntVector) -> int:
    """Return how many right rows are taken at a time; whole chunks of left rows fit into as many."""
    slab = _right_rows(rows(sources[:1]))
    return slab - slab % min(_CHUNK, slab)


def _right_rows(rows: Rows) -> int:
    """Return how many right rows are taken at a time, by the cost of a row."""
    if rows.sparse is not None:  # their entries are few bytes
        return _SLAB
    return max(16, min(_SLAB, _RIGHT_BYTES // max(1, left_bytes(rows))))
