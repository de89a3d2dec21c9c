"""Kernel values in float64 by slabs of columns, and their products with coefficients in the same pass.

Problem: exact sums want all values between many samples and many more columns, and at once what coefficients make of
them; a matrix of that size is read from memory once more for each product.

Method: a slab of columns is computed for a few rows at a time, and multiplied while it is in the second-level cache.
Every thread takes slabs of its own, whose sums are added up in the order of the columns, so that threads change no bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from dsgd.svm.kernels.functions import Kernel
from dsgd.svm.kernels.rows import Rows, span
from dsgd.svm.kernels.threads import Pool
from dsgd.svm.kernels.tiles import sum_tiles
from dsgd.svm.kernels.values import Left, left_form, row_values, tile_rows
from dsgd.types import AnyArray, FloatMatrix, FloatVector, IntVector

_SLAB = 256  # columns at a time: a slab of some rows stays in the second-level cache
_CHUNK = 256  # rows at a time
#: Slabs that a thread is given at once, at most, and of how many columns: of long rows one takes long enough.
_LONGEST, _LONG_ENTRIES = 16, 512


class Held(NamedTuple):
    """Samples, and what returns their rows in float64 from one number to another."""

    ids: IntVector
    rows: Callable[[int, int], Rows]


class Slabs(NamedTuple):
    """A matrix of m rows by slabs of columns, each of them a matrix and one after another in `flat`.

    Slab t has the columns from ``bounds[t]`` to ``bounds[t + 1]``.
    """

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
    """Return K[rows, columns], shape (m, n), and coefs K', shape (k, m).

    - `columns`: whose n samples the columns are.
    - `coefs`, shape (k, n): coefficients of the columns.
    - `memory`, shape (m * n,): where the values are written.
    """
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
    whole = left_form(kernel, rows)[0][2] if rows.dense is not None else None

    @cache
    def parts() -> list[tuple[int, int, Left]]:
        # A few rows at a time, so that values are finished and summed while they are in the second-level cache.
        starts = range(0, slabs.m, _CHUNK)
        some = [(begin, span(rows, begin, min(slabs.m, begin + _CHUNK))) for begin in starts]
        return [(begin + a, begin + b, part) for begin, few in some for a, b, part in left_form(kernel, few)]

    def add(right: Rows, number: int, stop: int) -> None:
        tiled = None if whole is None else tile_rows(kernel, whole, right, slabs.flat)
        if tiled is not None:
            sum_tiles(*tiled, coefs, slabs.flat, slabs.bounds, number, sums, _CHUNK, kernel.name == "rbf")
            return
        origin = slabs.bounds[number]
        for t, (first, last) in enumerate(pairwise(slabs.bounds[number : stop + 1]), number):
            tile = slabs.flat[slabs.m * first : slabs.m * last].reshape(slabs.m, -1)
            some = np.ascontiguousarray(coefs[:, first:last])
            for begin, end, part in parts():
                row_values(kernel, part, span(right, first - origin, last - origin), tile[begin:end])
                np.matmul(some, tile[begin:end].T, out=sums[t, :, begin:end])

    return add
