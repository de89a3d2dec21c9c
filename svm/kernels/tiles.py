"""Tiles of kernel values of dense rows: product, exp, sum and store in one compiled call.

Problem: a tile of 256 by 256 values of rows with 20 columns takes a tenth of a millisecond, of which the calls of numpy
in it hold the interpreter lock for ten microseconds. That is little on one thread. Two threads wait for each other
there, and the one that waits goes to sleep and is woken again: they took a sixth more processor time than one.

Method: one call for each tile. The product in it is that of BLAS, which numba calls in
scipy's library: sums of products are those of ``numpy.dot``, in the same order. A loop of our own over registers would
have to use vectors of 512 bits to be as fast there, which LLVM does not choose by itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.linalg.cython_blas  # noqa: F401  loaded before the threads of all BLAS libraries are limited

from dsgd.kernels.jit import kernel
from dsgd.svm.kernels.exponential import exp_double, exp_single
from dsgd.types import AnyArray


def fits(*arrays: AnyArray) -> bool:
    """Return whether arrays are as these kernels want them: of one type, contiguous, and not read-only.

    For each other kind of array numba would compile a kernel once more.
    """
    dtype = arrays[0].dtype
    return all(a.dtype == dtype and a.flags.c_contiguous and a.flags.writeable for a in arrays)


def is_single(dtype: Any) -> bool | None:
    """Return what kernels take as `single`: None for float64, true for float32, of which each has code of its own."""
    return True if np.dtype(dtype) == np.float32 else None


@kernel
def tile_values(left, right, out, is_rbf, single):  # type: ignore[no-untyped-def]
    """Set out, shape (q, n), to the products of left and right rows, or to their exp."""
    np.dot(left, right.T, out)
    if is_rbf:
        if single is None:
            exp_double(out.reshape(out.size))
        else:
            exp_single(out.reshape(out.size))


@kernel
def tile_sums(left, right, coefs, tile, out, is_rbf, single):  # type: ignore[no-untyped-def]
    """Set out[k] to the sum over left rows of their values with right row k times coefs, shape (q,) or (q, m)."""
    values = tile[: len(left)]
    tile_values(left, right, values, is_rbf, single)
    np.dot(values.T, coefs, out)


@kernel
def sum_tile(left, right, coefs, tile, out, is_rbf):  # type: ignore[no-untyped-def]
    """Set tile to values in float64, and out[c, i] to the sum over right rows k of coefs[c, k] tile[i, k]."""
    tile_values(left, right, tile, is_rbf, None)
    out[:] = np.dot(coefs, tile.T)


@kernel
def sum_tiles(left, right, coefs, slabs, bounds, number, sums, height, is_rbf):  # type: ignore[no-untyped-def]
    """Do as `sum_tile` for consecutive slabs of right rows, of which the first is `number`.

    Slab t has columns bounds[t] to bounds[t + 1]; in `slabs` they lie one after another, each a matrix with all left
    rows, and sums has the shape (n_slabs, c, n_left). Left rows are taken `height` at a time, so that their values are
    summed while they are in the second-level cache.
    """
    m, origin = len(left), bounds[number]
    while bounds[number] < origin + len(right):
        first, last = bounds[number], bounds[number + 1]
        tile, some = slabs[m * first : m * last].reshape(m, last - first), np.ascontiguousarray(coefs[:, first:last])
        for a in range(0, m, height):
            b = min(m, a + height)
            part, found = right[first - origin : last - origin], sums[number, :, a:b]
            sum_tile(left[a:b], part, some, tile[a:b], found, is_rbf)
        number += 1


@kernel
def part_sums(left, right, coefs, bounds, tile, out, is_rbf, single):  # type: ignore[no-untyped-def]
    """Do as `tile_sums` for parts of left rows: part t, whose sums out[t] is set to, are bounds[t] to bounds[t + 1]."""
    for t in range(len(bounds) - 1):
        first, last = bounds[t], bounds[t + 1]
        tile_sums(left[first:last], right, coefs[first:last], tile, out[t], is_rbf, single)


@kernel
def part_values(left, right, bounds, out, is_rbf, single):  # type: ignore[no-untyped-def]
    """Do as `tile_values` for parts of left rows, as `part_sums` has them."""
    for t in range(len(bounds) - 1):
        first, last = bounds[t], bounds[t + 1]
        tile_values(left[first:last], right, out[first:last], is_rbf, single)


@kernel
def add_tile(left, right, coefs, tile, u, flat, stride, slots, start, is_rbf, single):  # type: ignore[no-untyped-def]
    """Set tile to values, add coefs times tile to u, and store the first rows in the cache, from column start on."""
    tile_values(left, right, tile, is_rbf, single)
    sums, width = np.dot(coefs, tile), np.uint64(tile.shape[1])
    for k in range(width):
        u[k] += sums[k]
    for s in range(np.uint64(len(slots))):
        target, row = np.uint64(slots[s] * stride + start), tile[s]
        for k in range(width):
            flat[target + k] = row[k]
