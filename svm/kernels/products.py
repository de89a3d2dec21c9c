"""K a: kernel values times coefficients, for decision values, indicators and proofs, without holding the matrix.

**Values and sums in one pass** (`values_by_slabs`). Exact sums want all values between many samples and many more
columns, and at once what coefficients make of them; a matrix of that size is read from memory once more for each
product.

So a slab of columns is computed for a few rows at a time, and multiplied while it is in the second-level cache.
Every thread takes slabs of its own, whose sums are added up in the order of the columns, so that threads change no bit.

**Sums** (`Sums`) in blocks that are not kept, for prediction and proofs. A value between two samples that both have a
coefficient and want a sum serves both: n (n − 1) / 2 values less among n of them, up to the blocks on the diagonal.

**Decision values** (`kernel_sums`) are in float64: f(x) = Σ β_j k(x, z_j) of support vectors z_j has terms of both
signs, so rounding errors of kernel values are multiplied by ``Σ |β_j|`` and compared with the margin. If features are
large and the kernel grows with them, the errors of float32 exceed the width of the margin. With rbf they rarely matter,
but no bound guarantees that: the errors of n products times ``Σ |β_j| k(x, z_j)`` exceed a hundredth of the margin on
usual sets, to save a third of the time.

A linear kernel needs no kernel values: its f is one product with w = Σ β_j z_j.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import scipy.sparse as sp

from dsgd.svm.kernels import functions
from dsgd.svm.kernels.functions import Kernel, Left
from dsgd.svm.kernels.rows import Rows, span
from dsgd.svm.kernels.threads import Pool, scratch
from dsgd.types import AnyArray, FloatMatrix, FloatVector, IntVector

_SLAB = 256  # columns at a time: a slab of some rows stays in the second-level cache
_CHUNK = 256  # left rows at a time

#: Slabs that a thread is given at once, at most, and of how many columns: of long rows one takes long enough.
_LONGEST, _LONG_ENTRIES = 16, 512


class Held(NamedTuple):
    """Samples, and what returns their rows in float64 from one number to another."""

    ids: IntVector
    rows: Callable[[int, int], Rows]


class Slabs(NamedTuple):
    """A matrix of m rows in `flat` by slabs, one after another: slab t has columns bounds[t] to bounds[t + 1]."""

    flat: AnyArray
    m: int
    bounds: IntVector


def values_by_slabs(
    kernel: Kernel,
    pool: Pool,
    rows: Rows,
    columns: Sequence[Held],
    coefs: FloatMatrix,
    memory: FloatVector,
    *,
    n_features: int,
) -> tuple[Slabs, FloatMatrix]:
    """Return K[rows, columns], shape (m, n), written into `memory`, and coefs K', shape (k, m)."""
    edges = np.cumsum([0, *(len(held.ids) for held in columns)])
    bounds = np.array([*(at for a, b in pairwise(edges) for at in range(a, b, _SLAB)), int(edges[-1])])
    slabs, sums = Slabs(memory, rows.n, bounds), np.zeros((len(bounds) - 1, len(coefs), rows.n))
    add = _adds(kernel, rows, coefs, slabs, sums)

    def work(first: int, stop: int) -> None:
        while first < stop:
            number = int(np.searchsorted(edges, bounds[first], "right")) - 1
            last = min(stop, int(np.searchsorted(bounds, edges[number + 1])))
            begin, end = bounds[[first, last]] - edges[number]
            add(columns[number].rows(begin, end), first, last)
            first = last

    pool.slabs(work, len(bounds) - 1, 1, max(1, min(_LONGEST, _LONG_ENTRIES // n_features)))
    return slabs, sums.sum(axis=0)


def _adds(
    kernel: Kernel, rows: Rows, coefs: FloatMatrix, slabs: Slabs, sums: AnyArray
) -> Callable[[Rows, int, int], None]:
    """Return what computes slabs, given the rows of their columns, the number of the first and of the next."""
    whole = functions.left_form(kernel, rows)[0][2] if rows.dense is not None else None

    @cache
    def parts() -> list[tuple[int, int, Left]]:
        # A few rows at a time, so that values are finished and summed while they are in the second-level cache.
        starts = range(0, slabs.m, _CHUNK)
        some = [(begin, span(rows, begin, min(slabs.m, begin + _CHUNK))) for begin in starts]
        return [(begin + a, begin + b, part) for begin, few in some for a, b, part in functions.left_form(kernel, few)]

    def add(right: Rows, number: int, stop: int) -> None:
        tiled = None if whole is None else functions.tile_rows(kernel, whole, right, slabs.flat)
        if tiled is not None:
            functions.sum_tiles(*tiled, coefs, slabs.flat, slabs.bounds, number, sums, _CHUNK, kernel.name == "rbf")
            return
        origin = slabs.bounds[number]
        for t, (first, last) in enumerate(pairwise(slabs.bounds[number : stop + 1]), number):
            tile = slabs.flat[slabs.m * first : slabs.m * last].reshape(slabs.m, -1)
            some = np.ascontiguousarray(coefs[:, first:last])
            for begin, end, part in parts():
                functions.row_values(kernel, part, span(right, first - origin, last - origin), tile[begin:end])
                np.matmul(some, tile[begin:end].T, out=sums[t, :, begin:end])

    return add


_RIGHT_ROWS = 512  # right rows at a time
_STRIP = 2048  # left rows between two passes over the right ones
_HELD_BYTES = 64 * 2**20  # of left rows in a sum
_JOINED_BYTES = 8 * 2**20  # of left rows that are held together, so that one compiled call takes all of them
_RIGHT_BYTES = 4 * 2**20  # of dense right rows in a slab

#: Shares for each thread, and the values of one at least: as many take a few times as long as waking a thread.
_SHARES_EACH, _FEWEST_VALUES = 8, 2**17

#: Parts, times sums of a row, that are added up apart: of so few slabs these are megabytes at most.
_MOST_APART = 128

#: Left rows from one number to another, in the form of products, and the number of their group.
_Parts: TypeAlias = list[tuple[int, int, Left, int]]

#: Returns the rows of samples; and vectors of two sides that meet.
_RowsOf: TypeAlias = Callable[[IntVector], Rows]
_Both: TypeAlias = tuple[FloatVector, FloatVector]


@dataclass(frozen=True)
class Sums:
    """Computes sums of kernel values, by threads over right rows."""

    kernel: Kernel
    dtype: Any
    pool: Pool

    def add_weighted(
        self,
        left: Any,
        coefs: FloatMatrix,
        right: Any,
        out: FloatMatrix,
        groups: tuple[Any, AnyArray] | None = None,
        *,
        together: bool = False,
    ) -> None:
        """Add sum_j K(right_k, left_j) coefs[j] to out[k], a small block of kernel values at a time.

        Left rows are held ready, 64 MB of them at most; right rows are made ready once for each time, a slab per
        thread.

        - `groups`: where each group of left rows ends, and which columns of `out` its sums go to, shape (n_groups,
          m); without, to all m.
        - `together`: whether left rows come from all ranks, so that one without right rows has to ask for them, too.
        """
        if not len(coefs) or not (len(out) or together):  # a rank may hold no rows
            return
        n = len(coefs)
        some = left(0, min(n, _CHUNK))
        width, slab = max(1, functions.left_bytes(some)), _right_rows(some)
        chunk = max(16, min(_CHUNK, _HELD_BYTES // width))
        # Dense rows that are few bytes are made ready together, and each part is given all of them.
        is_joined = some.dense is not None and n * some.nbytes <= some.n * _JOINED_BYTES
        joined = functions.left_form(self.kernel, some if some.n == n else left(0, n))[0][2] if is_joined else None
        parts: _Parts = []
        first = begin = 0
        ends, columns = groups or ([n], np.arange(coefs.shape[1])[None])
        for group, end in enumerate(ends):
            while first < end:
                last = min(end, first + chunk)
                if joined is not None:
                    parts.append((first, last, joined, group))
                else:
                    forms = functions.left_form(self.kernel, left(first, last))
                    parts += [(first + a, first + b, part, group) for a, b, part in forms]
                first = last
                if (first - begin) * width >= _HELD_BYTES:
                    self._add_parts(parts, coefs, right, out, slab, columns, joined)
                    parts, begin = [], first
        self._add_parts(parts, coefs, right, out, slab, columns, joined)

    def _add_parts(
        self,
        parts: _Parts,
        coefs: FloatMatrix,
        right: Any,
        out: FloatMatrix,
        slab: int,
        columns: Any,
        joined: Left | None,
    ) -> None:
        if not (parts and len(out)):
            return
        height = max(end - begin for begin, end, _, _ in parts)
        n, n_slabs = len(out), -(-len(out) // slab)
        n_shares = self._shares(n_slabs, len(parts), n * (parts[-1][1] - parts[0][0]), coefs.shape[1])
        columns = columns[[group for *_, group in parts]]
        target, places = out, columns
        if n_shares > 1:  # slabs are so few that threads share them: what parts add is added up in their order
            target, places = np.zeros((n, columns.size)), np.arange(columns.size).reshape(columns.shape)

        def work(number: int, _: int) -> None:
            start, share = number // n_shares * slab, number % n_shares
            stop = min(n, start + slab)
            rows, tile = right(start, stop), scratch((height, stop - start), self.dtype)
            first, last = share * len(parts) // n_shares, (share + 1) * len(parts) // n_shares
            self._add_some(parts[first:last], joined, rows, tile, coefs, places[first:last], target[start:stop])

        self.pool.slabs(work, n_slabs * n_shares, 1)
        if n_shares > 1:
            for of, those in zip(columns, places, strict=True):
                out[:, of] += target[:, those]

    def _add_some(
        self,
        parts: _Parts,
        whole: Left | None,
        right: Rows,
        tile: AnyArray,
        coefs: FloatMatrix,
        places: AnyArray,
        out: FloatMatrix,
    ) -> None:
        """Add the sums over each part of left rows to columns of `out`; parts of `whole` take one compiled call."""
        tiled = None if whole is None else functions.tile_rows(self.kernel, whole, right, tile)
        if tiled is not None and functions.fits(tile, coefs):
            bounds = np.array([parts[0][0], *(end for _, end, _, _ in parts)])
            # One column is a vector to BLAS, as it is in numpy.
            by = coefs[:, 0] if coefs.shape[1] == 1 else coefs
            sums = np.empty((right.n, *by.shape[1:]))
            is_rbf, single = self.kernel.name == "rbf", functions.is_single(tile.dtype)
            functions.add_parts(*tiled, by, bounds, places, tile, sums, out, is_rbf, single)
            return
        for (begin, end, part, _), of in zip(parts, places, strict=True):
            if self.pool.is_over:  # a slab may take seconds
                return
            left = part if whole is None else Left(span(whole.rows, begin, end))
            out[:, of] += self._of_part(left, right, tile, coefs[begin:end])

    def _of_part(self, left: Left, right: Rows, tile: AnyArray, coefs: FloatMatrix) -> FloatMatrix:
        """Return the sums over one part of left rows, shape (right.n, m)."""
        tiled = functions.tile_rows(self.kernel, left, right, tile)
        if tiled is None or not functions.fits(tile, coefs):
            values = tile[: left.rows.n]
            functions.row_values(self.kernel, left, right, values)
            return np.asarray(np.dot(values.T, coefs))
        out = np.empty((right.n, coefs.shape[1]))
        # One column is a vector to BLAS, as it is in numpy.
        vectors = (coefs[:, 0], out[:, 0]) if coefs.shape[1] == 1 else (coefs, out)
        functions.tile_sums(
            *tiled, vectors[0], tile, vectors[1], self.kernel.name == "rbf", functions.is_single(tile.dtype)
        )
        return out

    def _shares(self, n_slabs: int, n_parts: int, n_values: int, n_columns: int) -> int:
        """Return among how many shares the left rows of a slab are divided: all threads are to have work to the end."""
        if self.pool.n_threads == 1 or n_parts * n_columns > _MOST_APART:
            return 1
        wanted = -(-_SHARES_EACH * self.pool.n_threads // n_slabs)
        return max(1, min(wanted, n_parts, n_values // (n_slabs * _FEWEST_VALUES)))

    def symmetric(
        self, rows: _RowsOf, sources: IntVector, others: IntVector, coefs: FloatVector
    ) -> tuple[FloatVector, FloatVector, int]:
        """Return sum_j K(i, j) coefs[j] over the sources j, for the sources and others, and how many values."""
        m, right, out = len(sources), np.concatenate([sources, others]), np.zeros(len(sources) + len(others))
        slab = self._meet(rows, sources, right, (coefs, coefs), (out, out), is_own=True)
        return out[:m], out[m:], sum(min(slab, m - start) * (len(right) - start) for start in range(0, m, slab))

    def mutual(self, rows: _RowsOf, sides: tuple[IntVector, IntVector], coefs: _Both) -> _Both:
        """Return what samples of either side add to the sums of the other; a value between them is computed once."""
        sums = np.zeros(len(sides[0])), np.zeros(len(sides[1]))
        if len(sides[0]) and len(sides[1]):
            self._meet(rows, *sides, coefs, sums, is_own=False)
        return sums

    def _meet(
        self, rows: _RowsOf, left: IntVector, right: IntVector, coefs: _Both, sums: _Both, *, is_own: bool
    ) -> int:
        """Add what the samples of either side give to the sums of the other; return how many right rows are a slab.

        - `coefs`: those of the left samples, and of the first right ones.
        - `is_own`: whether the first right samples are the left ones: then a slab meets those from its own on.
        """
        one = rows(left[:1])
        # Whole chunks of left rows fit into a slab, and whole slabs into a strip of them.
        slab = _right_rows(one)
        slab -= slab % min(_CHUNK, slab)
        chunk, strip = (
            min(_CHUNK, slab),
            max(slab, min(_STRIP, _HELD_BYTES // max(1, functions.left_bytes(one))) // slab * slab),
        )
        for first in range(0, len(left), strip):
            last, offset = min(len(left), first + strip), first if is_own else 0
            parts = [
                (begin + a, begin + b, part)
                for begin in range(first, last, chunk)
                for a, b, part in functions.left_form(self.kernel, rows(left[begin : min(last, begin + chunk)]))
            ]
            height = max(end - begin for begin, end, _ in parts)
            # Contributions of right rows to left ones are kept by slab and added up in order, whoever computed them.
            back = np.zeros((-(-(len(coefs[1]) - offset) // slab), last - first))

            def work(
                start: int, stop: int, first: int, offset: int, parts: Any, height: int, back: FloatMatrix
            ) -> None:
                stretch = slice(offset + start, offset + stop)
                columns, given = rows(right[stretch]), coefs[1][stretch]
                tile = scratch((height, stop - start), self.dtype)
                for begin, end, part in parts:
                    if is_own and begin - first >= stop:  # met before, from the other side
                        break
                    values = tile[: end - begin]
                    functions.row_values(self.kernel, part, columns, values)
                    sums[1][stretch] += np.dot(values.T, coefs[0][begin:end])
                    # In a slab of their own left rows are met from both sides.
                    if len(given) and (not is_own or begin - first < start):
                        back[start // slab, begin - first : end - first] = np.dot(values[:, : len(given)], given)

            state: dict[str, Any] = {"first": first, "offset": offset, "parts": parts, "height": height, "back": back}
            self.pool.slabs(partial(work, **state), len(right) - offset, slab)
            sums[0][first:last] += back.sum(axis=0)
        return slab


def _right_rows(rows: Rows) -> int:
    """Return how many right rows are taken at a time, by the cost of a row."""
    if rows.sparse is not None:  # their entries are few bytes
        return _RIGHT_ROWS
    return max(16, min(_RIGHT_ROWS, _RIGHT_BYTES // max(1, functions.left_bytes(rows))))


_SLAB_BYTES = 2**22
_SPARSE_ROWS = 8192

#: Weights of a sparse machine are multiplied as a dense matrix up to this size.
_DENSE_BYTES = 2**26


def linear_sums(X: Any, coef: Any) -> FloatMatrix:
    """Return X coef' in float64, shape (n, m), a slab of rows at a time."""
    if sp.issparse(coef) and 8 * coef.shape[0] * coef.shape[1] <= _DENSE_BYTES:
        coef = coef.toarray()
    out = np.empty((X.shape[0], coef.shape[0]))
    step = _SPARSE_ROWS if sp.issparse(X) else max(16, _SLAB_BYTES // (8 * max(1, X.shape[1])))
    for start in range(0, X.shape[0], step):
        found = X[start : start + step].astype(np.float64, copy=False) @ coef.T
        out[start : start + step] = found.toarray() if sp.issparse(found) else found
    return out


def kernel_sums(
    kernel: Kernel, vectors: Any, coefs: FloatMatrix, groups: tuple[Any, AnyArray], X: Any, n_out: int, pool: Pool
) -> FloatMatrix:
    """Return Σ_j k(x_i, z_j) coefs[j], shape (n, n_out), without ever holding that kernel matrix.

    - `groups`: where each group of support vectors ends, and which of the `n_out` columns its sums go to, shape
      (n_groups, m).
    """
    out = np.zeros((X.shape[0], n_out))
    is_sparse = kernel.function is None and functions.prefers_sparse(vectors)
    shift = None if is_sparse or not len(coefs) else functions.centre(kernel, vectors)

    def ready(rows: Any, start: int, stop: int) -> Rows:
        return functions.prepare(kernel, rows[start:stop], np.float64, shift=shift, sparse=is_sparse)

    coefs = np.ascontiguousarray(coefs)
    Sums(kernel, np.float64, pool).add_weighted(partial(ready, vectors), coefs, partial(ready, X), out, groups)
    return out
