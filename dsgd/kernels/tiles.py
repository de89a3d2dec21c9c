"""Products of a few rows with the columns of a panel, whose sums stay in registers.

The problem: a panel visits a block of rows twice, for the predictions ``X w`` and for ``w += X' s``. Loops that the
compiler makes vectors of load and store a sum for every few products, and took twice as long.

Layout: the weights are (n_features, WIDTH), and `scratch` has the predictions of the rows of a block, their steps from
`STEPS` on, and the products of its rows with each other from `GRAM` on. ``X w`` and ``X' s`` take eight rows and a pair
of vectors of columns (`dsgd.kernels.lanes`) at a time, or four rows and one vector where registers are few.

Arguments are the same everywhere: `values` are the entries of all rows, and `rows` the numbers of the `n` rows of a
block, of `d` features each; `weights` and `scratch` are as above, and `width` columns of them are in use. A single row
may be sparse: it has the entries `first` to `last`, of the features `indices`, and is dense where these are None.

A column has the same bits in any panel and at any place in it: vectors do not mix columns, and sums are taken in the
order that is written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from dsgd.kernels.jit import inlined
from dsgd.kernels.lanes import (
    LANE_BYTES,
    add_up,
    has_many_registers,
    load,
    load_pair,
    multiply_add,
    multiply_add_each,
    store,
    without_first,
    zeros,
    zeros_pair,
)
from dsgd.kernels.rows import Span, Sparse
from dsgd.types import FloatVector, PointerVector

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

#: Entries of dense rows, some of the rows, and how many columns they have.
Block: TypeAlias = tuple[FloatVector, PointerVector, np.uint64]

#: Weights of all columns of a panel, scratch for a block of rows, and how many columns are computed.
Panel: TypeAlias = tuple[FloatVector, FloatVector, np.uint64]

_in_order = inlined({"contract"})
_any_order = inlined({"reassoc", "contract"})


@_in_order
def predict_row(values: FloatVector, sparse: Sparse | None, span: Span, panel: Panel, place: np.uint64) -> None:
    """Write the inner products of one row with all columns to a place of the scratch."""
    (weights, scratch, width), (first, last) = panel, span
    lanes = np.uint64(LANE_BYTES // weights.itemsize)
    c = _ZERO
    while c < width:
        # Four sums, since one would wait for itself.
        u0 = u1 = u2 = u3 = zeros(weights)
        j = first
        while j + _FOUR <= last:
            w0, w1 = _feature(sparse, first, j) * _W, _feature(sparse, first, j + _ONE) * _W
            w2, w3 = _feature(sparse, first, j + _TWO) * _W, _feature(sparse, first, j + _THREE) * _W
            u0 = multiply_add(values[j], load(weights, w0 + c), u0)
            u1 = multiply_add(values[j + _ONE], load(weights, w1 + c), u1)
            u2 = multiply_add(values[j + _TWO], load(weights, w2 + c), u2)
            u3 = multiply_add(values[j + _THREE], load(weights, w3 + c), u3)
            j += _FOUR
        while j < last:
            u0 = multiply_add(values[j], load(weights, _feature(sparse, first, j) * _W + c), u0)
            j += _ONE
        one = weights.dtype.type(1)
        store(scratch, place + c, multiply_add(one, multiply_add(one, u0, u1), multiply_add(one, u2, u3)))
        c += lanes


@_in_order
def _predict_four(block: Block, r: np.uint64, panel: Panel) -> None:
    """Write the inner products of four dense rows of a block, from the one at r on, with all columns to the scratch."""
    (values, rows, d), (weights, scratch, width) = block, panel
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


def _eight_rows(load: Callable[..., Any], zeros: Callable[..., Any]) -> tuple[Any, Any]:
    """Return how a block of eight rows is visited, one value, or pair, of columns at a time: predict, and add."""

    @_in_order
    def predict(block: Block, panel: Panel, c: np.uint64) -> None:
        (values, rows, d), (weights, scratch, _) = block, panel
        x0, x1, x2, x3 = rows[_ZERO] * d, rows[_ONE] * d, rows[_TWO] * d, rows[_THREE] * d
        x4, x5, x6, x7 = rows[_FOUR] * d, rows[_FIVE] * d, rows[_SIX] * d, rows[_SEVEN] * d
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

    @_in_order
    def add(block: Block, panel: Panel, c: np.uint64) -> None:
        (values, rows, d), (weights, scratch, _) = block, panel
        x0, x1, x2, x3 = rows[_ZERO] * d, rows[_ONE] * d, rows[_TWO] * d, rows[_THREE] * d
        x4, x5, x6, x7 = rows[_FOUR] * d, rows[_FIVE] * d, rows[_SIX] * d, rows[_SEVEN] * d
        s = STEPS + c
        s0, s1, s2 = load(scratch, s), load(scratch, s + _W), load(scratch, s + _TWO * _W)
        s3, s4, s5 = load(scratch, s + _THREE * _W), load(scratch, s + _FOUR * _W), load(scratch, s + _FIVE * _W)
        s6, s7 = load(scratch, s + _SIX * _W), load(scratch, s + _SEVEN * _W)
        for j in range(d):
            w = multiply_add(values[x0 + j], s0, load(weights, j * _W + c))
            w = multiply_add(values[x1 + j], s1, w)
            w = multiply_add(values[x2 + j], s2, w)
            w = multiply_add(values[x3 + j], s3, w)
            w = multiply_add(values[x4 + j], s4, w)
            w = multiply_add(values[x5 + j], s5, w)
            w = multiply_add(values[x6 + j], s6, w)
            store(weights, j * _W + c, multiply_add(values[x7 + j], s7, w))

    return predict, add


_predict_eight, _add_eight = _eight_rows(load, zeros)
_predict_eight_pair, _add_eight_pair = _eight_rows(load_pair, zeros_pair)


@_in_order
def predict_dense(block: Block, n: np.uint64, panel: Panel) -> None:
    """Write the inner products of n dense rows with all columns to the front of the scratch."""
    (values, rows, d), (weights, _, width) = block, panel
    if n == _ROWS and has_many_registers():
        lanes, c = np.uint64(LANE_BYTES // weights.itemsize), _ZERO
        while c + lanes < width:
            _predict_eight_pair(block, panel, c)
            c += _TWO * lanes
        if c < width:
            _predict_eight(block, panel, c)
        return
    r = _ZERO
    while r + _FOUR <= n:
        _predict_four(block, r, panel)
        r += _FOUR
    while r < n:
        predict_row(values, None, (rows[r] * d, (rows[r] + _ONE) * d), panel, r * _W)
        r += _ONE


@_in_order
def add_dense(block: Block, n: np.uint64, panel: Panel) -> None:
    """Add n dense rows, times the steps of each column, to the weights."""
    (values, rows, d), (weights, scratch, width) = block, panel
    lanes = np.uint64(LANE_BYTES // weights.itemsize)
    if n == _ROWS and has_many_registers():
        c = _ZERO
        while c + lanes < width:
            _add_eight_pair(block, panel, c)
            c += _TWO * lanes
        if c < width:
            _add_eight(block, panel, c)
        return
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
        add_row(values, None, (rows[r] * d, (rows[r] + _ONE) * d), panel, STEPS + r * _W)
        r += _ONE


@_in_order
def add_row(values: FloatVector, sparse: Sparse | None, span: Span, panel: Panel, place: np.uint64) -> None:
    """Add one row, times the steps at a place of the scratch, to the weights."""
    (weights, scratch, width), (first, last) = panel, span
    lanes = np.uint64(LANE_BYTES // weights.itemsize)
    c = _ZERO
    while c < width:
        s = load(scratch, place + c)
        for j in range(first, last):
            w = _feature(sparse, first, j) * _W + c
            store(weights, w, multiply_add(values[j], s, load(weights, w)))
        c += lanes


@_in_order
def _feature(sparse: Sparse | None, first: np.uint64, j: np.uint64) -> np.uint64:
    """Return the feature of entry j of a row that begins at `first`."""
    return j - first if sparse is None else np.uint64(sparse[0][j])


@_any_order
def _multiply_loops(block: Block, n: np.uint64, scratch: FloatVector) -> None:
    """Do what `multiply_rows` does, four products in a loop at a time."""
    values, rows, d = block
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


@_in_order
def _multiply_square(block: Block, scratch: FloatVector) -> None:
    """Write the inner products of each of the last four rows of eight with the first four."""
    values, rows, d = block
    lanes = np.uint64(LANE_BYTES // values.itemsize)
    x0, x1, x2, x3 = rows[_ZERO] * d, rows[_ONE] * d, rows[_TWO] * d, rows[_THREE] * d
    x4, x5, x6, x7 = rows[_FOUR] * d, rows[_FIVE] * d, rows[_SIX] * d, rows[_SEVEN] * d
    g40 = g41 = g42 = g43 = g50 = g51 = g52 = g53 = zeros(values)
    g60 = g61 = g62 = g63 = g70 = g71 = g72 = g73 = zeros(values)
    j, done = _ZERO, _ZERO
    while j < d:
        a, b, c, e = load(values, x0 + j), load(values, x1 + j), load(values, x2 + j), load(values, x3 + j)
        if done > _ZERO:
            a, b, c, e = (
                without_first(a, done),
                without_first(b, done),
                without_first(c, done),
                without_first(e, done),
            )
        v = load(values, x4 + j)
        g40, g41 = multiply_add_each(a, v, g40), multiply_add_each(b, v, g41)
        g42, g43 = multiply_add_each(c, v, g42), multiply_add_each(e, v, g43)
        v = load(values, x5 + j)
        g50, g51 = multiply_add_each(a, v, g50), multiply_add_each(b, v, g51)
        g52, g53 = multiply_add_each(c, v, g52), multiply_add_each(e, v, g53)
        v = load(values, x6 + j)
        g60, g61 = multiply_add_each(a, v, g60), multiply_add_each(b, v, g61)
        g62, g63 = multiply_add_each(c, v, g62), multiply_add_each(e, v, g63)
        v = load(values, x7 + j)
        g70, g71 = multiply_add_each(a, v, g70), multiply_add_each(b, v, g71)
        g72, g73 = multiply_add_each(c, v, g72), multiply_add_each(e, v, g73)
        j, done = _next(j, d, lanes)
    _write_four(scratch, GRAM + _FOUR * _ROWS, g40, g41, g42, g43)
    _write_four(scratch, GRAM + _FIVE * _ROWS, g50, g51, g52, g53)
    _write_four(scratch, GRAM + _SIX * _ROWS, g60, g61, g62, g63)
    _write_four(scratch, GRAM + _SEVEN * _ROWS, g70, g71, g72, g73)


@_in_order
def _multiply_triangle(block: Block, r: np.uint64, scratch: FloatVector) -> None:
    """Write the inner products of four rows, from the one at r on, with each other."""
    values, rows, d = block
    lanes = np.uint64(LANE_BYTES // values.itemsize)
    x0, x1, x2, x3 = rows[r] * d, rows[r + _ONE] * d, rows[r + _TWO] * d, rows[r + _THREE] * d
    g10 = g20 = g21 = g30 = g31 = g32 = zeros(values)
    j, done = _ZERO, _ZERO
    while j < d:
        a, b, c, e = load(values, x0 + j), load(values, x1 + j), load(values, x2 + j), load(values, x3 + j)
        if done > _ZERO:
            a, b, c = without_first(a, done), without_first(b, done), without_first(c, done)
        g10, g20, g21 = multiply_add_each(a, b, g10), multiply_add_each(a, c, g20), multiply_add_each(b, c, g21)
        g30, g31, g32 = multiply_add_each(a, e, g30), multiply_add_each(b, e, g31), multiply_add_each(c, e, g32)
        j, done = _next(j, d, lanes)
    g = GRAM + r * (_ROWS + _ONE)
    scratch[g + _ROWS] = add_up(g10)
    scratch[g + _TWO * _ROWS], scratch[g + _TWO * _ROWS + _ONE] = add_up(g20), add_up(g21)
    g += _THREE * _ROWS
    scratch[g], scratch[g + _ONE], scratch[g + _TWO] = add_up(g30), add_up(g31), add_up(g32)


@_in_order
def _next(j: np.uint64, d: np.uint64, lanes: np.uint64) -> tuple[np.uint64, np.uint64]:
    """Return where the next value of a row begins, and how many of its numbers an earlier one has had."""
    j += lanes
    if j >= d or j + lanes <= d:
        return j, _ZERO
    return d - lanes, j + lanes - d


@_in_order
def _write_four(scratch: FloatVector, g: np.uint64, a: Any, b: Any, c: Any, e: Any) -> None:
    """Write the sums of four values side by side."""
    scratch[g], scratch[g + _ONE] = add_up(a), add_up(b)
    scratch[g + _TWO], scratch[g + _THREE] = add_up(c), add_up(e)


@_in_order
def multiply_rows(block: Block, n: np.uint64, scratch: FloatVector) -> None:
    """Write the inner products of each of n dense rows with those before it."""
    if n == _ROWS and has_many_registers() and block[2] >= np.uint64(LANE_BYTES // scratch.itemsize):
        _multiply_triangle(block, _ZERO, scratch)
        _multiply_square(block, scratch)
        _multiply_triangle(block, _FOUR, scratch)
    else:
        _multiply_loops(block, n, scratch)
