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

__all__ = ["add_tile", "fits", "is_single", "sum_tile", "tile_sums", "tile_values"]


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
