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
side by side, and then no operation depends on the column. Those that are not used have class weights of zero, and so
take no steps.

The two products are those of `dsgd.kernels.tiles`.

Cost: for each row and column, twice the entries of the row, and (ROWS - 1) / 2 / WIDTH times the entries for inner
products of rows. Memory: ``(n_features + 60) * WIDTH`` numbers.

Source: delayed updates by the Gram matrix of a block of samples are Block Kaczmarz / s-step SGD (Devarakonda et al.
2016, "Avoiding communication in primal and dual block coordinate descent methods", there to save messages).
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np

from dsgd.kernels.jit import inlined, leaf_kernel, scalar
from dsgd.kernels.losses import HINGE, LOG_LOSS, SQUARED_ERROR, loss_and_slope
from dsgd.kernels.order import block_at, rows_ahead
from dsgd.kernels.rows import Span, Sparse
from dsgd.kernels.scaled import MIN_SCALE, MIN_SHRINK, truncate
from dsgd.kernels.state import FIRST_CYCLE, INVSCALING, OPTIMAL, PEGASOS, PER_EPOCH, cycle_factor
from dsgd.kernels.tiles import (
    GRAM,
    ROWS,
    STEPS,
    WIDTH,
    Panel,
    add_dense,
    add_row,
    multiply_rows,
    predict_dense,
    predict_row,
)
from dsgd.types import AnyArray, FloatVector, IntMatrix, IntVector, PointerVector

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

#: Entries of all rows, targets, and weights of rows.
PanelRows: TypeAlias = tuple[FloatVector, FloatVector, FloatVector]

#: Weights, shape (n_features * WIDTH,), those of a feature side by side; the L1 penalty each has received, or (0,);
#: what columns have of their own, shape (TABLE * WIDTH,), its rows `ALPHA` to `SLOPE`; scratch for a block and for its
#: rows; clock; codes and sizes, as in `dsgd.kernels.state`, and whether there is an L1 penalty; of every loss its code,
#: its first column, and the one behind its last, in the order of the columns, shape (3 * n_losses,).
OfPanel: TypeAlias = tuple[
    FloatVector, FloatVector, FloatVector, FloatVector, PointerVector, FloatVector, IntVector, IntVector
]

_W = np.uint64(WIDTH)
_ROWS = np.uint64(ROWS)
_ZERO = np.uint64(0)
_ONE = np.uint64(1)
_THREE = np.uint64(3)
# The bits of a column's number, and of a number of columns.
_COLUMN_BITS, _COUNT_BITS = np.uint64(WIDTH - 1), np.uint64(2 * WIDTH - 1)

# Sums in the order written, so that a column has the same bits in any panel and at any place in it.
_in_order = inlined({"contract"})


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
def _add_earlier(scratch: FloatVector, r: np.uint64, width: np.uint64) -> None:
    """Add to the predictions for row r of a block what the steps on the rows before it change."""
    for q in range(r):
        g = scratch[GRAM + r * _ROWS + q]
        for c in range(width):
            scratch[r * _W + c] += g * scratch[STEPS + q * _W + c]


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
def _fold(panel: Panel, table: FloatVector, r: np.uint64, n: np.uint64, d: np.uint64) -> None:
    """Fold the scale into the weights of the columns, and into what is in their units, where it is too small."""
    weights, scratch, width = panel
    dtype = weights.dtype.type
    for c in range(width):
        scale = table[SCALE * _W + c]
        is_wiped = table[SHRINK * _W + c] < MIN_SHRINK
        if is_wiped or scale < MIN_SCALE:
            factor = dtype(0.0 if is_wiped else scale)
            for j in range(d):
                weights[j * _W + c] *= factor
            for q in range(r):
                scratch[STEPS + q * _W + c] *= factor
            for q in range(r + _ONE, n):
                scratch[q * _W + c] *= factor
            table[SCALE * _W + c] = 1.0


@_in_order
def _set_slopes(
    loss_code: int, table: FloatVector, scratch: FloatVector, r: np.uint64, first: np.uint64, last: np.uint64
) -> None:
    """Write loss and slope of the columns first..last on row r of a block; the loss is ``LOSS + log(FACTOR)``."""
    # The masks change nothing, but without them the compiler takes places for ones that could wrap around: one column
    # after the other, which takes eight times as long.
    first &= _COLUMN_BITS
    for k in range((last - first) & _COUNT_BITS):
        c = first + k
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
        scratch[STEPS + r * _W + c] = dtype(-step / table[SCALE * _W + c])


@scalar
def _take_logs(table: FloatVector, width: np.uint64) -> None:
    """Add the logarithms of the products to the sums of losses."""
    for c in range(width):
        table[LOSS_SUM * _W + c] += math.log(table[LOSS_PRODUCT * _W + c])
        table[LOSS_PRODUCT * _W + c] = 1.0


@scalar
def _truncate(sparse: Sparse | None, span: Span, panel: Panel, received: FloatVector, table: FloatVector) -> None:
    """Apply the L1 penalty still owed to the weights of the entries of a row, of all columns."""
    (weights, _, width), (first, last) = panel, span
    dtype = weights.dtype.type
    for c in range(width):
        table[L1_TOTAL * _W + c] += table[L1_RATE * _W + c] * table[RATE * _W + c]
    for j in range(last - first):
        w = (j if sparse is None else np.uint64(sparse[0][first + j])) * _W
        for c in range(width):
            scale = table[SCALE * _W + c]
            before = scale * weights[w + c]
            after = truncate(before, table[L1_TOTAL * _W + c], received[w + c])
            if after != before:
                received[w + c] += dtype(after - before)
                weights[w + c] = dtype(after / scale)


@leaf_kernel
def run_panel(
    rows: PanelRows, sparse: Sparse | None, kept: AnyArray, of_panel: OfPanel, order: IntMatrix, start: int, stop: int
) -> None:
    """Take one step of every column on each of the kept rows at the places start..stop, in order.

    - `of_panel`: see `OfPanel`. Weights and table are updated in place.
    """
    (values, targets, row_weights), (weights, received, table, scratch, chosen, clock, codes, losses) = rows, of_panel
    d, width = np.uint64(codes[N_FEATURES]), np.uint64(codes[N_COLUMNS])
    dense, panel = (values, chosen, d), (weights, scratch, width)
    most = _ROWS if sparse is None and codes[HAS_L1] == 0 else _ONE
    at, block = start, block_at(order, start)
    while at < stop:
        i, end_row, at, block = rows_ahead(order, block, at, stop)
        while i < end_row:
            n = _ZERO
            while i < end_row and n < most:
                if kept[i] != 0:
                    chosen[n] = i
                    n += _ONE
                i += _ONE
            if n == _ZERO:
                break
            span = _ZERO, d
            if sparse is None:
                predict_dense(dense, n, panel)
                multiply_rows(dense, n, scratch)
            else:
                span = sparse[1][chosen[_ZERO]], sparse[1][chosen[_ZERO] + _ONE]
                predict_row(values, sparse, span, panel, _ZERO)
            for r in range(n):
                target = float(targets[chosen[r]])
                row_weight = float(row_weights[chosen[r]])
                _add_earlier(scratch, r, width)
                if _set_rates(table, clock, codes[SCHEDULE], width) > 0:
                    _fold(panel, table, r, n, d)
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
            if sparse is None:
                add_dense(dense, n, panel)
            else:
                add_row(values, sparse, span, panel, STEPS)
            if codes[HAS_L1] != 0:
                _truncate(sparse, span, panel, received, table)
    dtype = weights.dtype.type
    for j in range(d):
        for c in range(width):
            weights[j * _W + c] *= dtype(table[SCALE * _W + c])
    for c in range(width):
        table[SCALE * _W + c] = 1.0
