"""Products of a few rows with the columns of a panel, whose sums stay in registers.

The problem: a panel visits a block of rows twice, for the predictions ``X w`` and for ``w += X' s``. Loops that the
compiler makes vectors of load and store a sum for every few products, and took twice as long.

Layout: the weights are (n_features, WIDTH), and `scratch` has the predictions of the rows of a block, their steps from
`STEPS` on, and the products of its rows with each other from `GRAM` on. ``X w`` takes eight rows and a vector of
columns (`dsgd.kernels.lanes`) at a time, or four where registers are few, ``X' s`` four.

A column has the same bits in any panel and at any place in it: vectors do not mix columns, and sums are taken in the
order that is written.
"""

from __future__ import annotations

import numpy as np

from dsgd.kernels.jit import inlined
from dsgd.kernels.lanes import LANE_BYTES, has_many_registers, load, multiply_add, store, zeros
from dsgd.types import FloatVector, IndexVector, PointerVector

__all__ = ["GRAM", "ROWS", "STEPS", "WIDTH", "add_dense", "add_row", "multiply_rows", "predict_dense", "predict_row"]

#: Columns of a panel, and rows of a block.
WIDTH = 32
ROWS = 8
#: Where `scratch` has the steps of a block, and the products of its rows.
STEPS = np.uint64(ROWS * WIDTH)
GRAM = np.uint64(2 * ROWS * WIDTH)

_W = np.uint64(WIDTH)
_ROWS = np.uint64(ROWS)
_ZERO = np.uint64(0)
_ONE = np.uint64(1)
_TWO = np.uint64(2)
_THREE = np.uint64(3)
_FOUR = np.uint64(4)
_FIVE = np.uint64(5)
_SIX = np.uint64(6)
_SEVEN = np.uint64(7)

_in_order = inlined({"contract"})
_any_order = inlined({"reassoc", "contract"})


@_in_order
def predict_row(
    values: FloatVector,
    indices: IndexVector | None,
    first: np.uint64,
    last: np.uint64,
    weights: FloatVector,
    scratch: FloatVector,
    place: np.uint64,
    width: np.uint64,
) -> None:
    """Write the inner products of one row, entries first..last, with all columns to a place of `scratch`."""
    lanes = np.uint64(LANE_BYTES // weights.itemsize)
    c = _ZERO
    while c < width:
        # Four sums, since one would wait for itself.
        u0 = u1 = u2 = u3 = zeros(weights)
        j = first
        while j + _FOUR <= last:
            w0, w1 = _feature(indices, first, j) * _W, _feature(indices, first, j + _ONE) * _W
            w2, w3 = _feature(indices, first, j + _TWO) * _W, _feature(indices, first, j + _THREE) * _W
            u0 = multiply_add(values[j], load(weights, w0 + c), u0)
            u1 = multiply_add(values[j + _ONE], load(weights, w1 + c), u1)
            u2 = multiply_add(values[j + _TWO], load(weights, w2 + c), u2)
            u3 = multiply_add(values[j + _THREE], load(weights, w3 + c), u3)
            j += _FOUR
        while j < last:
            u0 = multiply_add(values[j], load(weights, _feature(indices, first, j) * _W + c), u0)
            j += _ONE
        one = weights.dtype.type(1)
        store(scratch, place + c, multiply_add(one, multiply_add(one, u0, u1), multiply_add(one, u2, u3)))
        c += lanes


@_in_order
def _predict_four(
    values: FloatVector,
    rows: PointerVector,
    r: np.uint64,
    d: np.uint64,
    weights: FloatVector,
    scratch: FloatVector,
    width: np.uint64,
) -> None:
    """Write the inner products of four dense rows of a block, from the one at r on, with all columns to `scratch`."""
    lanes = np.uint64(LANE_BYTES // weights.itemsize)
    x0, x1, x2, x3 = rows[r] * d, rows[r + _ONE] * d, rows[r + _TWO] * d, rows[r + _THREE] * d
    c = _ZERO
    while c < width:
        u0 = u1 = u2 = u3 = zeros(weights)
        for j in range(d):
            w = load(weights, j * _W + c)
            u0 = multiply_add(values[x0 + j], w, u0)
            u1 = multiply_add(values[x1 + j], w, u1)
            u2 = multiply_add(values[x2 + j], w, u2)
            u3 = multiply_add(values[x3 + j], w, u3)
        u = r * _W + c
        store(scratch, u, u0)
        store(scratch, u + _W, u1)
        store(scratch, u + _TWO * _W, u2)
        store(scratch, u + _THREE * _W, u3)
        c += lanes


@_in_order
def _predict_eight(
    values: FloatVector,
    rows: PointerVector,
    d: np.uint64,
    weights: FloatVector,
    scratch: FloatVector,
    width: np.uint64,
) -> None:
    """Do what `_predict_four` does for eight rows at once: where there are registers for that, in 0.6 of the time."""
    lanes = np.uint64(LANE_BYTES // weights.itemsize)
    x0, x1, x2, x3 = rows[_ZERO] * d, rows[_ONE] * d, rows[_TWO] * d, rows[_THREE] * d
    x4, x5, x6, x7 = rows[_FOUR] * d, rows[_FIVE] * d, rows[_SIX] * d, rows[_SEVEN] * d
    c = _ZERO
    while c < width:
        u0 = u1 = u2 = u3 = u4 = u5 = u6 = u7 = zeros(weights)
        for j in range(d):
            w = load(weights, j * _W + c)
            u0 = multiply_add(values[x0 + j], w, u0)
            u1 = multiply_add(values[x1 + j], w, u1)
            u2 = multiply_add(values[x2 + j], w, u2)
            u3 = multiply_add(values[x3 + j], w, u3)
            u4 = multiply_add(values[x4 + j], w, u4)
            u5 = multiply_add(values[x5 + j], w, u5)
            u6 = multiply_add(values[x6 + j], w, u6)
            u7 = multiply_add(values[x7 + j], w, u7)
        store(scratch, c, u0)
        store(scratch, c + _W, u1)
        store(scratch, c + _TWO * _W, u2)
        store(scratch, c + _THREE * _W, u3)
        store(scratch, c + _FOUR * _W, u4)
        store(scratch, c + _FIVE * _W, u5)
        store(scratch, c + _SIX * _W, u6)
        store(scratch, c + _SEVEN * _W, u7)
        c += lanes


@_in_order
def predict_dense(
    values: FloatVector,
    rows: PointerVector,
    n: np.uint64,
    d: np.uint64,
    weights: FloatVector,
    scratch: FloatVector,
    width: np.uint64,
) -> None:
    """Write the inner products of n dense rows with all columns to the front of `scratch`."""
    if n == _ROWS and has_many_registers():
        _predict_eight(values, rows, d, weights, scratch, width)
        return
    r = _ZERO
    while r + _FOUR <= n:
        _predict_four(values, rows, r, d, weights, scratch, width)
        r += _FOUR
    while r < n:
        predict_row(values, None, rows[r] * d, (rows[r] + _ONE) * d, weights, scratch, r * _W, width)
        r += _ONE


@_in_order
def add_dense(
    values: FloatVector,
    rows: PointerVector,
    n: np.uint64,
    d: np.uint64,
    weights: FloatVector,
    scratch: FloatVector,
    width: np.uint64,
) -> None:
    """Add n dense rows, times the steps of each column, to the weights."""
    lanes = np.uint64(LANE_BYTES // weights.itemsize)
    r = _ZERO
    while r + _FOUR <= n:
        x0, x1, x2, x3 = rows[r] * d, rows[r + _ONE] * d, rows[r + _TWO] * d, rows[r + _THREE] * d
        c = _ZERO
        while c < width:
            s = STEPS + r * _W + c
            s0, s1 = load(scratch, s), load(scratch, s + _W)
            s2, s3 = load(scratch, s + _TWO * _W), load(scratch, s + _THREE * _W)
            for j in range(d):
                w = multiply_add(values[x0 + j], s0, load(weights, j * _W + c))
                w = multiply_add(values[x1 + j], s1, w)
                w = multiply_add(values[x2 + j], s2, w)
                store(weights, j * _W + c, multiply_add(values[x3 + j], s3, w))
            c += lanes
        r += _FOUR
    while r < n:
        add_row(values, None, rows[r] * d, (rows[r] + _ONE) * d, weights, scratch, STEPS + r * _W, width)
        r += _ONE


@_in_order
def add_row(
    values: FloatVector,
    indices: IndexVector | None,
    first: np.uint64,
    last: np.uint64,
    weights: FloatVector,
    scratch: FloatVector,
    place: np.uint64,
    width: np.uint64,
) -> None:
    """Add one row, entries first..last, times the steps at a place of `scratch`, to the weights."""
    lanes = np.uint64(LANE_BYTES // weights.itemsize)
    c = _ZERO
    while c < width:
        s = load(scratch, place + c)
        for j in range(first, last):
            w = _feature(indices, first, j) * _W + c
            store(weights, w, multiply_add(values[j], s, load(weights, w)))
        c += lanes


@_in_order
def _feature(indices: IndexVector | None, first: np.uint64, j: np.uint64) -> np.uint64:
    """Return the feature of entry j of a row that begins at `first`."""
    return j - first if indices is None else np.uint64(indices[j])


@_any_order
def multiply_rows(values: FloatVector, rows: PointerVector, n: np.uint64, d: np.uint64, scratch: FloatVector) -> None:
    """Write the inner products of each of n dense rows with those before it."""
    zero = values.dtype.type(0)
    for r in range(_ONE, n):
        x, g = rows[r] * d, GRAM + r * _ROWS
        q = _ZERO
        while q + _FOUR <= r:
            y0, y1, y2, y3 = rows[q] * d, rows[q + _ONE] * d, rows[q + _TWO] * d, rows[q + _THREE] * d
            g0 = g1 = g2 = g3 = zero
            for j in range(d):
                v = values[x + j]
                g0 += v * values[y0 + j]
                g1 += v * values[y1 + j]
                g2 += v * values[y2 + j]
                g3 += v * values[y3 + j]
            scratch[g + q], scratch[g + q + _ONE], scratch[g + q + _TWO], scratch[g + q + _THREE] = g0, g1, g2, g3
            q += _FOUR
        while q < r:
            y0, g0 = rows[q] * d, zero
            for j in range(d):
                g0 += values[x + j] * values[y0 + j]
            scratch[g + q] = g0
            q += _ONE
