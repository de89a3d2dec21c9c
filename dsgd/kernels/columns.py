"""SGD on many models in one pass over the rows: a panel of columns, each with an objective and rates of its own.

The problem: minimise, for every column c, the objective of `dsgd.kernels.sgd` with penalty, rates, threshold and class
weights of c, on the rows that its fold trains on. One at a time, models read all rows each, and a step waits for the
one before it: for its inner product, the loss, and the sum into the weights. Columns do not wait for each other.

Update: that of `dsgd.kernels.sgd`, of up to 32 columns at once. The weights are (n_features, WIDTH), so that an entry
of a row meets those of all columns in a vector of the processor. Dense rows without an L1 penalty are taken eight at a
time::

    u = X w,   for r = 1..8:  u_r += sum_{q<r} <x_r, x_q> s_q,  s_r = step(u_r),   then  w += X' s

with the steps s in units of the stored weights. This is the same sequence of steps, as ``<x_r, w + sum_q s_q x_q> =
u_r``: only sums are taken in another order. Every weight is read and written once for eight rows, and what is left
between two steps is a few operations on a vector.

Columns of a panel have one fold and one schedule, so they all have taken as many steps. Those with the same loss stand
side by side, and then no operation depends on the column. Those that are not used have slopes of zero.

The two products keep their sums in registers (`dsgd.kernels.lanes`): eight rows and a vector of columns for ``X w``,
the steps of four rows for ``X' s``. Loops that compilers made vectors of took twice as long.

Cost: for each row and column, twice the entries of the row, and (ROWS - 1) / 2 / WIDTH times the entries for inner
products of rows. Memory: ``(n_features + 60) * WIDTH`` numbers.

Source: delayed updates by the Gram matrix of a block of samples are Block Kaczmarz / s-step SGD (Devarakonda et al.
2016, "Avoiding communication in primal and dual block coordinate descent methods", there to save messages).
"""

from __future__ import annotations

import math

import numpy as np

from dsgd.kernels.cycles import FIRST_CYCLE, cycle_factor
from dsgd.kernels.epoch_order import block_at, rows_ahead
from dsgd.kernels.jit import inlined, leaf_kernel, scalar
from dsgd.kernels.lanes import LANE_BYTES, has_many_registers, load, multiply_add, store, zeros
from dsgd.kernels.losses import HINGE, LOG_LOSS, SQUARED_ERROR, loss_and_slope
from dsgd.kernels.penalties import truncate
from dsgd.kernels.schedules import INVSCALING, OPTIMAL, PEGASOS, PER_EPOCH
from dsgd.kernels.sgd import MIN_SCALE, MIN_SHRINK, row_bounds
from dsgd.types import AnyArray, FloatVector, IndexVector, IntMatrix, IntVector, PointerVector

__all__ = ["CLOCK", "PANEL_CODES", "ROWS", "SCRATCH", "TABLE", "WIDTH", "run_panel"]

#: Columns of a panel, and rows of a block.
WIDTH = 32
ROWS = 8

# Rows of `table`, (TABLE, WIDTH): what a column is given, what changes, and scratch.
ALPHA, SHRINK_RATE, L1_RATE, EPSILON, ETA0, T0, INTERCEPT_RATE, POSITIVE, NEGATIVE, OUTPUT = range(10)
INTERCEPT, SCALE, L1_TOTAL, LOSS_SUM, LOSS_PRODUCT = range(10, 15)
RATE, SHRINK, BEFORE, TARGET, LOSS, FACTOR, SLOPE = range(15, 22)
TABLE = 22
# Places in `clock` (float64), which all columns share: what changes, and the constants of the schedule.
T, EPOCH, N_SEEN, POWER_T, PEAK, HALF_CYCLE, DECAY = range(7)
CLOCK = 7
# Places in `codes` (int64).
SCHEDULE, N_OUTPUTS, N_FEATURES, HAS_L1, N_COLUMNS = range(5)
PANEL_CODES = 5
#: Numbers of `scratch`: predictions and steps of a block, and inner products of its rows.
SCRATCH = 2 * ROWS * WIDTH + ROWS * ROWS

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
_STEPS = np.uint64(ROWS * WIDTH)
_GRAM = np.uint64(2 * ROWS * WIDTH)

# Sums in the order written, so that a column has the same bits in any panel and at any place in it.
_in_order = inlined({"contract"})
_any_order = inlined({"reassoc", "contract"})


# 2^-k for the exponential of a negative number. Margins beyond the largest have a slope of zero here and not of 1e-28,
# which in float32 would soon be steps that the processor takes a hundred times as long for.
_POWERS = 0.5 ** np.arange(94.0)
_MOST_MARGIN = 64.0
_LOG2_E = 1.4426950408889634
# ln 2 in two parts, of which the first has few enough digits that k times it is exact (Cody and Waite 1980).
_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
# Rows after which the logarithm of a product of numbers up to 2 is taken: it must not overflow.
_ROWS_PER_LOG = 512


@_in_order
def _log_loss(y: float, p: float) -> tuple[float, float, float]:
    """Return log loss and slope as `loss_and_slope` does, without a call: the loss as ``first + log(second)``.

    Calls of exp and log1p for every column take longer than the inner products of a short row. Here the exponential is
    2^-k times its Taylor series on [-ln 2 / 2, ln 2 / 2], and the second number, from 1 to 2, is for a product over
    rows, of which one logarithm is taken. The slope is exact to three units in the last place, the sum of losses to one
    rounding for each row.
    """
    z = p * y
    a = min(abs(z), _MOST_MARGIN)
    k = math.floor(a * _LOG2_E + 0.5)
    r = (k * _LN2_HIGH - a) + k * _LN2_LOW
    series = 1.0 / 479001600.0
    series = series * r + 1.0 / 39916800.0
    series = series * r + 1.0 / 3628800.0
    series = series * r + 1.0 / 362880.0
    series = series * r + 1.0 / 40320.0
    series = series * r + 1.0 / 5040.0
    series = series * r + 1.0 / 720.0
    series = series * r + 1.0 / 120.0
    series = series * r + 1.0 / 24.0
    series = series * r + 1.0 / 6.0
    series = series * r + 0.5
    series = series * r + 1.0
    series = series * r + 1.0
    decay = series * (_POWERS[np.uint64(k)] if a < _MOST_MARGIN else 0.0)
    return max(-z, 0.0), 1.0 + decay, -y * (decay if z > 0.0 else 1.0) / (1.0 + decay)


@_in_order
def _predict_row(
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
def _predict_dense(
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
        _predict_row(values, None, rows[r] * d, (rows[r] + _ONE) * d, weights, scratch, r * _W, width)
        r += _ONE


@_in_order
def _add_dense(
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
            s = _STEPS + r * _W + c
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
        _add_row(values, None, rows[r] * d, (rows[r] + _ONE) * d, weights, scratch, _STEPS + r * _W, width)
        r += _ONE


@_in_order
def _add_row(
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
def _multiply_rows(values: FloatVector, rows: PointerVector, n: np.uint64, d: np.uint64, scratch: FloatVector) -> None:
    """Write the inner products of each of n dense rows with those before it."""
    zero = values.dtype.type(0)
    for r in range(_ONE, n):
        x, g = rows[r] * d, _GRAM + r * _ROWS
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
def _add_earlier(scratch: FloatVector, r: np.uint64, width: np.uint64) -> None:
    """Add to the predictions for row r of a block what the steps on the rows before it change."""
    for q in range(r):
        g = scratch[_GRAM + r * _ROWS + q]
        for c in range(width):
            scratch[r * _W + c] += g * scratch[_STEPS + q * _W + c]


@_in_order
def _set_rates(table: FloatVector, clock: FloatVector, schedule: int, width: np.uint64) -> np.int64:
    """Write rates, shrinking factors and scales of all columns; return how many columns need their weights folded."""
    t = clock[T]
    if schedule == OPTIMAL:
        for c in range(width):
            table[RATE * _W + c] = 1.0 / (table[ALPHA * _W + c] * (table[T0 * _W + c] + t - 1.0))
    elif schedule in (PEGASOS, PER_EPOCH):
        t = t if schedule == PEGASOS else max(clock[EPOCH], 1.0)
        for c in range(width):
            table[RATE * _W + c] = 1.0 / (table[ALPHA * _W + c] * t)
    else:
        factor = 1.0
        if schedule == INVSCALING:
            factor = math.pow(t, clock[POWER_T])
        elif schedule >= FIRST_CYCLE:
            factor = 1.0 / cycle_factor(schedule, t, clock[PEAK], clock[HALF_CYCLE], clock[DECAY])
        for c in range(width):
            table[RATE * _W + c] = table[ETA0 * _W + c] / factor
    n_low = np.int64(0)
    for c in range(width):
        scale = table[SCALE * _W + c]
        shrink = 1.0 - table[SHRINK_RATE * _W + c] * table[RATE * _W + c]
        table[BEFORE * _W + c] = scale
        table[SHRINK * _W + c] = shrink
        table[SCALE * _W + c] = scale * shrink
        # Not `or`: a branch, and a sum of floats, would keep this from being vectors.
        n_low += np.int64(scale * shrink < MIN_SCALE) | np.int64(shrink < MIN_SHRINK)
    return n_low


@scalar
def _fold(
    weights: FloatVector,
    table: FloatVector,
    scratch: FloatVector,
    r: np.uint64,
    n: np.uint64,
    d: np.uint64,
    width: np.uint64,
) -> None:
    """Fold the scale into the weights of the columns where it is too small, in the middle of a block.

    Predictions for later rows and the steps on earlier ones, which are not in the weights yet, are in their units.
    """
    dtype = weights.dtype.type
    for c in range(width):
        scale = table[SCALE * _W + c]
        is_wiped = table[SHRINK * _W + c] < MIN_SHRINK
        if is_wiped or scale < MIN_SCALE:
            factor = dtype(0.0 if is_wiped else scale)
            for j in range(d):
                weights[j * _W + c] *= factor
            for q in range(r):
                scratch[_STEPS + q * _W + c] *= factor
            for q in range(r + _ONE, n):
                scratch[q * _W + c] *= factor
            table[SCALE * _W + c] = 1.0


@_in_order
def _set_slopes(
    loss_code: int, table: FloatVector, scratch: FloatVector, r: np.uint64, first: np.uint64, last: np.uint64
) -> None:
    """Write loss and slope of the columns first..last on row r of a block; the loss is ``LOSS + log(FACTOR)``."""
    for c in range(first, last):
        y = table[TARGET * _W + c]
        p = table[BEFORE * _W + c] * scratch[r * _W + c] + table[INTERCEPT * _W + c]
        if loss_code == LOG_LOSS:
            loss, factor, slope = _log_loss(y, p)
        else:
            loss, slope = loss_and_slope(loss_code, y, p, table[EPSILON * _W + c])
            factor = 1.0
        table[LOSS * _W + c] = loss
        table[FACTOR * _W + c] = factor
        table[SLOPE * _W + c] = slope


@_in_order
def _set_all_slopes(
    losses: IntVector, table: FloatVector, scratch: FloatVector, r: np.uint64, width: np.uint64
) -> None:
    """Write loss and slope of all columns on row r of a block."""
    for k in range(len(losses) // 3):
        code, first, last = losses[3 * k], np.uint64(losses[3 * k + 1]), np.uint64(losses[3 * k + 2])
        # Losses that are known when this is compiled have no branches. They go on to the end of a vector, into columns
        # that the next loss then overwrites: the last ones would be taken one by one.
        end = min(width, (last + _THREE) & ~_THREE)
        if code == HINGE:
            _set_slopes(HINGE, table, scratch, r, first, end)
        elif code == LOG_LOSS:
            _set_slopes(LOG_LOSS, table, scratch, r, first, end)
        elif code == SQUARED_ERROR:
            _set_slopes(SQUARED_ERROR, table, scratch, r, first, end)
        else:
            _set_slopes(code, table, scratch, r, first, last)


@_in_order
def _set_steps(table: FloatVector, scratch: FloatVector, r: np.uint64, row_weight: float, width: np.uint64) -> None:
    """Write the steps of all columns on row r of a block, and take those of the intercepts."""
    dtype = scratch.dtype.type
    for c in range(width):
        # Both are read, as a vector can choose among numbers but not among reads.
        positive, negative = table[POSITIVE * _W + c], table[NEGATIVE * _W + c]
        class_weight = positive if table[TARGET * _W + c] > 0.0 else negative
        step = table[RATE * _W + c] * row_weight * class_weight * table[SLOPE * _W + c]
        table[LOSS_SUM * _W + c] += table[LOSS * _W + c]
        table[LOSS_PRODUCT * _W + c] *= table[FACTOR * _W + c]
        table[INTERCEPT * _W + c] -= table[INTERCEPT_RATE * _W + c] * step
        scratch[_STEPS + r * _W + c] = dtype(-step / table[SCALE * _W + c])


@scalar
def _take_logs(table: FloatVector, width: np.uint64) -> None:
    """Add the logarithms of the products to the sums of losses."""
    for c in range(width):
        table[LOSS_SUM * _W + c] += math.log(table[LOSS_PRODUCT * _W + c])
        table[LOSS_PRODUCT * _W + c] = 1.0


@scalar
def _truncate(
    indices: IndexVector | None,
    first: np.uint64,
    last: np.uint64,
    weights: FloatVector,
    received: FloatVector,
    table: FloatVector,
    width: np.uint64,
) -> None:
    """Apply the L1 penalty still owed to the weights of the entries of a row, of all columns."""
    dtype = weights.dtype.type
    for c in range(width):
        table[L1_TOTAL * _W + c] += table[L1_RATE * _W + c] * table[RATE * _W + c]
    for j in range(last - first):
        w = (j if indices is None else np.uint64(indices[first + j])) * _W
        for c in range(width):
            scale = table[SCALE * _W + c]
            before = scale * weights[w + c]
            after = truncate(before, table[L1_TOTAL * _W + c], received[w + c])
            if after != before:
                received[w + c] += dtype(after - before)
                weights[w + c] = dtype(after / scale)


@leaf_kernel
def run_panel(
    values: FloatVector,
    indices: IndexVector | None,
    indptr: PointerVector | None,
    targets: FloatVector,
    row_weights: FloatVector,
    kept: AnyArray,
    weights: FloatVector,
    received: FloatVector,
    table: FloatVector,
    scratch: FloatVector,
    rows: PointerVector,
    clock: FloatVector,
    codes: IntVector,
    losses: IntVector,
    order: IntMatrix,
    start: int,
    stop: int,
) -> None:
    """Take one step of every column on each of the kept rows at the places start..stop, in order.

    Parameters
    ----------
    values, indices, indptr, targets, row_weights, order, start, stop
        As in `dsgd.kernels.sgd.run_rows`; rows are not in 16 bits.
    kept : array of uint8, shape (n_rows,)
        Which rows these columns train on: not 0.
    weights : array, shape (n_features * WIDTH,)
        Those of a feature side by side; updated in place.
    received : array, shape (n_features * WIDTH,) or (0,)
        L1 penalty each weight has received; unused without L1.
    table : array of float64, shape (TABLE * WIDTH,)
        What the columns have of their own; its rows are `ALPHA` to `TARGET`. Updated in place.
    scratch : array, shape (SCRATCH,)
        Of the dtype of the weights.
    rows : array of uint64, shape (ROWS,)
        Scratch.
    clock : array of float64, shape (CLOCK,)
        What they share; updated in place.
    codes : array of int64, shape (PANEL_CODES,)
        Codes and sizes, as in `dsgd.kernels.sgd`, and whether there is an L1 penalty.
    losses : array of int64, shape (3 * n_losses,)
        Of every loss its code, its first column, and the one behind its last, in the order of the columns.
    """
    d = np.uint64(codes[N_FEATURES])
    width = np.uint64(codes[N_COLUMNS])
    most = _ROWS if indices is None and codes[HAS_L1] == 0 else _ONE
    at, block = start, block_at(order, start)
    while at < stop:
        i, end_row, at, block = rows_ahead(order, block, at, stop)
        while i < end_row:
            n = _ZERO
            while i < end_row and n < most:
                if kept[i] != 0:
                    rows[n] = i
                    n += _ONE
                i += _ONE
            if n == _ZERO:
                break
            first, last = row_bounds(indptr, rows[_ZERO], d)
            if indices is None:
                _predict_dense(values, rows, n, d, weights, scratch, width)
                _multiply_rows(values, rows, n, d, scratch)
            else:
                _predict_row(values, indices, first, last, weights, scratch, _ZERO, width)
            for r in range(n):
                target = float(targets[rows[r]])
                row_weight = float(row_weights[rows[r]])
                _add_earlier(scratch, r, width)
                if _set_rates(table, clock, codes[SCHEDULE], width) > 0:
                    _fold(weights, table, scratch, r, n, d, width)
                if codes[N_OUTPUTS] > 1:
                    for c in range(width):
                        table[TARGET * _W + c] = 1.0 if table[OUTPUT * _W + c] == target else -1.0
                else:
                    for c in range(width):
                        table[TARGET * _W + c] = target
                _set_all_slopes(losses, table, scratch, r, width)
                _set_steps(table, scratch, r, row_weight, width)
                clock[T] += 1.0
                clock[N_SEEN] += 1.0
                if clock[N_SEEN] % _ROWS_PER_LOG == 0.0:
                    _take_logs(table, width)
            if indices is None:
                _add_dense(values, rows, n, d, weights, scratch, width)
            else:
                _add_row(values, indices, first, last, weights, scratch, _STEPS, width)
            if codes[HAS_L1] != 0:
                _truncate(indices, first, last, weights, received, table, width)
    dtype = weights.dtype.type
    for j in range(d):
        for c in range(width):
            weights[j * _W + c] *= dtype(table[SCALE * _W + c])
    for c in range(width):
        table[SCALE * _W + c] = 1.0
