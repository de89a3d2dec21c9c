"""Sequential SGD over rows, minibatch gradients and steps, for dense and sparse rows and any number of outputs.

The problem: minimise ``(1/n) sum_i w_i loss(<x_i, w> + b, y_i) + alpha ((1 - r) ||w||^2 / 2 + r ||w||_1)``.
One step on row i, at rate eta: ``w <- max(0, 1 - (1 - r) eta alpha) w - eta slope x_i``, ``b <- b - eta slope``, then
the cumulative L1 truncation of `dsgd.kernels.penalties`. Order and constants are scikit-learn's (`_sgd_fast.pyx.tp`).

Weights are stored as ``scale * stored``, so that shrinking all of them is one multiplication; every call folds the
scale back, so between calls the parameters are the true model. Averaged SGD keeps ``(sum_aux + a * stored) / b``
(Bottou, Stochastic Gradient Tricks, section 5.4): a step costs one more pass over the entries of the row only.
scikit-learn truncates after it has averaged and loses the correction; here the average is that of the iterates.

Layout of the parameters: weights, then one intercept per output. Weights are (n_outputs, n_features) for dense rows, so
that each output is a contiguous inner product, and (n_features, n_outputs) for sparse rows, so that an entry of a row
meets the weights of all outputs in one cache line.

Kernels get places in the order of an epoch (`dsgd.kernels.epoch_order`).
"""

from __future__ import annotations

import numpy as np

from dsgd.kernels.cycles import FIRST_CYCLE, cycle_factor
from dsgd.kernels.epoch_order import BEGINS, SHIFTS, block_at, row_of_output, rows_ahead, tail_at
from dsgd.kernels.halves import entries_of, open_row
from dsgd.kernels.jit import kernel, leaf_kernel, scalar
from dsgd.kernels.losses import loss_and_slope
from dsgd.kernels.penalties import truncate
from dsgd.kernels.schedules import learning_rate
from dsgd.kernels.vector import add_columns, add_row, row_dot, score_columns
from dsgd.types import FloatMatrix, FloatVector, IndexVector, IntMatrix, IntVector, PointerVector

__all__ = [
    "CODES",
    "CONSTANTS",
    "COUNTERS",
    "all_finite",
    "gradient_rows",
    "rate_sum",
    "run_rows",
    "step_all",
]

# What changes: places in the vector `counters` (float64); behind them stands the sum of the losses of each output.
T, EPOCH, ETA_SCALE, LOSS_SUM, N_SEEN, N_AVERAGED, L1_TOTAL, GUARD, RATE_FACTOR = range(9)
COUNTERS = 9
# What does not: places in the vectors `constants` (float64) and `codes` (int64).
ALPHA, SHRINK_RATE, L1_RATE, EPSILON, ETA0, POWER_T, T0, INTERCEPT_RATE, PEAK, HALF_CYCLE, DECAY = range(11)
CONSTANTS = 11
LOSS, SCHEDULE, N_OUTPUTS, N_FEATURES, AVERAGE = range(5)
CODES = 5

#: Below this the scale is folded into the weights: far from underflow, and 1 / scale is far from overflow in float32.
MIN_SCALE = 1e-9
#: With averaging, earlier: ``auxiliary`` and ``a * stored`` nearly cancel when the scale has fallen since a was set.
MIN_SCALE_AVERAGING = 0.25
#: A factor below this is taken for zero: it is what rounding leaves of ``1 - alpha * (1 / alpha)``.
MIN_SHRINK = 1e-12

#: Dense rows up to this long are always added.
SHORT_ROW = np.uint64(64)

_ZERO = np.uint64(0)
_ONE = np.uint64(1)
_NO_ROW = np.uint64(2**63)


@scalar
def row_bounds(indptr: PointerVector | None, row: np.uint64, n_features: np.uint64) -> tuple[np.uint64, np.uint64]:
    """Return where a row starts and ends in the entries of all rows."""
    if indptr is None:
        return row * n_features, (row + _ONE) * n_features
    return indptr[row], indptr[row + _ONE]


@scalar
def rate_now(counters: FloatVector, constants: FloatVector, codes: IntVector, t: float) -> float:
    """Return the learning rate of step `t`."""
    if codes[SCHEDULE] >= FIRST_CYCLE:
        factor: float = cycle_factor(codes[SCHEDULE], t, constants[PEAK], constants[HALF_CYCLE], constants[DECAY])
        factor *= constants[ETA0] * counters[ETA_SCALE] * counters[RATE_FACTOR]
        return factor
    rate: float = learning_rate(
        codes[SCHEDULE],
        t,
        counters[EPOCH],
        constants[ALPHA],
        constants[ETA0] * counters[ETA_SCALE],
        constants[POWER_T],
        constants[T0],
    )
    rate *= counters[RATE_FACTOR]
    return rate


@scalar
def fold(weights: FloatVector, auxiliary: FloatVector, scale: float, a: float, b: float, n_weights: np.uint64) -> None:
    """Make stored weights and their average true: ``auxiliary = (auxiliary + a stored) / b``, ``stored *= scale``."""
    dtype = weights.dtype.type
    if b != 1.0 or a != 0.0:
        for j in range(n_weights):
            auxiliary[j] = dtype((auxiliary[j] + a * weights[j]) / b)
    if scale != 1.0:
        factor = dtype(scale)
        for j in range(n_weights):
            weights[j] *= factor


@scalar
def clear(
    weights: FloatVector,
    auxiliary: FloatVector,
    a: float,
    indices: IndexVector | None,
    first: np.uint64,
    last: np.uint64,
    n_outputs: np.uint64,
) -> None:
    """Set the weights of a sparse row's columns, or all weights where `indices` is None, to zero."""
    dtype = weights.dtype.type
    if indices is None:
        for j in range(first, last):
            if a != 0.0:
                auxiliary[j] += dtype(a * weights[j])
            weights[j] = dtype(0)
    else:
        for j in range(first, last):
            base = np.uint64(indices[j]) * n_outputs
            for k in range(n_outputs):
                if a != 0.0:
                    auxiliary[base + k] += dtype(a * weights[base + k])
                weights[base + k] = dtype(0)


@scalar
def wipe(
    weights: FloatVector,
    auxiliary: FloatVector,
    a: float,
    indices: IndexVector,
    indptr: PointerVector,
    row: np.uint64,
    wiped_at: np.uint64,
    n_outputs: np.uint64,
    n_weights: np.uint64,
) -> None:
    """Set all weights to zero, before the step on a sparse row.

    The schedule of the frequency study shrinks by zero on *every* row of its first epoch. After a wipe on the row
    before, only that row's columns differ from zero, so the cost stays that of a row and not that of the model.
    """
    if wiped_at + _ONE == row:
        clear(weights, auxiliary, a, indices, indptr[wiped_at], indptr[row], n_outputs)
    else:
        clear(weights, auxiliary, a, None, _ZERO, n_weights, n_outputs)


@scalar
def truncate_row(
    indices: IndexVector | None,
    first: np.uint64,
    last: np.uint64,
    weights: FloatVector,
    received: FloatVector,
    auxiliary: FloatVector,
    owed_total: float,
    scale: float,
    a: float,
    n_outputs: np.uint64,
) -> None:
    """Apply the L1 penalty still owed to the weights of the columns of a row, for every output."""
    dtype = weights.dtype.type
    width = last - first
    for k in range(n_outputs):
        for j in range(width):
            if indices is None:
                place = k * width + j
            else:
                place = np.uint64(indices[first + j]) * n_outputs + k
            stored = weights[place]
            before = scale * stored
            after = truncate(before, owed_total, received[place])
            if after != before:
                received[place] += dtype(after - before)
                weights[place] = dtype(after / scale)
                if a != 0.0:
                    auxiliary[place] -= dtype(a * (weights[place] - stored))


@scalar
def loss_of_output(
    targets: FloatVector,
    class_weights: FloatMatrix,
    constants: FloatVector,
    codes: IntVector,
    row: np.uint64,
    k: np.uint64,
    p: float,
) -> tuple[float, float, float]:
    """Return loss and slope of an output that predicts p for a row, and the weight of the row's class in it."""
    y = float(targets[row])
    if codes[N_OUTPUTS] > 1:
        y = 1.0 if y == k else -1.0
    loss, slope = loss_and_slope(codes[LOSS], y, p, constants[EPSILON])
    return loss, slope, class_weights[0 if y > 0.0 else 1, k]


@scalar
def add_step(
    values: FloatVector,
    indices: IndexVector | None,
    first: np.uint64,
    last: np.uint64,
    params: FloatVector,
    auxiliary: FloatVector,
    base: np.uint64,
    step: float,
    a: float,
) -> None:
    """Add `step` times a row to the stored weights of an output, so that the average of the iterates stays true."""
    add_row(values, indices, first, last, params, base, step)
    if a != 0.0:
        add_row(values, indices, first, last, auxiliary, base, -a * step)


@scalar
def add_steps(
    values: FloatVector,
    indices: IndexVector,
    first: np.uint64,
    last: np.uint64,
    params: FloatVector,
    auxiliary: FloatVector,
    steps: FloatVector,
    a: float,
) -> None:
    """Do what `add_step` does for all outputs of a sparse row."""
    add_columns(values, indices, first, last, params, steps, 1.0)
    if a != 0.0:
        add_columns(values, indices, first, last, auxiliary, steps, -a)


@scalar
def owe(
    indices: IndexVector | None,
    first: np.uint64,
    last: np.uint64,
    params: FloatVector,
    received: FloatVector,
    auxiliary: FloatVector,
    constants: FloatVector,
    owed_total: float,
    eta: float,
    scale: float,
    a: float,
    n_outputs: np.uint64,
) -> float:
    """Return the L1 penalty that each weight owes after a step, and apply it to those of a row."""
    if constants[L1_RATE] > 0.0:
        owed_total += constants[L1_RATE] * eta
        truncate_row(indices, first, last, params, received, auxiliary, owed_total, scale, a, n_outputs)
    return owed_total


@scalar
def join_average(
    params: FloatVector,
    auxiliary: FloatVector,
    n_weights: np.uint64,
    n_averaged: float,
    scale: float,
    a: float,
    b: float,
) -> tuple[float, float, float]:
    """Add the present model to the average; return the models in it, and a and b."""
    n_averaged += 1.0
    if n_averaged > 1.0:
        b *= n_averaged / (n_averaged - 1.0)
    a += b * scale / n_averaged
    for k in range(n_weights, np.uint64(params.shape[0])):
        auxiliary[k] += params.dtype.type((params[k] - auxiliary[k]) / n_averaged)
    return n_averaged, a, b


@scalar
def count_rows(counters: FloatVector, n_rows: int, loss_sum: float, guard: float) -> None:
    """Count rows that were seen, and what was found on them."""
    counters[LOSS_SUM] += loss_sum
    counters[GUARD] += guard
    counters[N_SEEN] += n_rows


@leaf_kernel
def run_rows(
    values: FloatVector,
    indices: IndexVector | None,
    indptr: PointerVector | None,
    targets: FloatVector,
    row_weights: FloatVector,
    class_weights: FloatMatrix,
    params: FloatVector,
    auxiliary: FloatVector,
    received: FloatVector,
    factors: FloatVector,
    counters: FloatVector,
    constants: FloatVector,
    codes: IntVector,
    order: IntMatrix,
    start: int,
    stop: int,
) -> None:
    """Take one step on each of the rows at the places start..stop, in order, for all outputs.

    Parameters
    ----------
    values : array, shape (nnz,) or (n_rows * n_features,), or a tuple
        Entries of all rows; of dense rows in 16 bits, what `dsgd.kernels.halves` says.
    indices : array of uint32, shape (nnz,), or None
        Their columns; None for dense rows.
    indptr : array of uint64, shape (n_rows + 1,), or None
        Row starts; None for dense rows.
    targets, row_weights : array, shape (n_rows,)
        Target and weight of each row. With several outputs the target is the class code.
    class_weights : array of float64, shape (2, n_outputs)
        Weight of the positive and of the negative class of each output.
    params : array, shape (n_params,)
        The model, updated in place.
    auxiliary : array, shape (n_params,) or (0,)
        The averaged model, updated in place; unused unless averaging is on.
    received : array, shape (n_weights,) or (0,)
        L1 penalty each weight has received; unused without L1.
    factors : array, shape (n_outputs,)
        Scratch.
    counters, constants, codes : array
        See `COUNTERS`, `CONSTANTS` and `CODES`; counters are updated in place.
    order : array of int64, shape (2, n_blocks + 1)
        See `dsgd.kernels.epoch_order`.
    start, stop : int
        Places of the walk.
    """
    n_outputs = np.uint64(codes[N_OUTPUTS])
    n_features = np.uint64(codes[N_FEATURES])
    n_weights = n_outputs * n_features
    entries, held, end_held = entries_of(values), _ZERO, _ZERO
    t = counters[T]
    n_averaged = counters[N_AVERAGED]
    owed_total = counters[L1_TOTAL]
    loss_sum = 0.0
    guard = 0.0
    scale, a, b = 1.0, 0.0, 1.0
    min_scale = MIN_SCALE_AVERAGING if codes[AVERAGE] > 0 else MIN_SCALE
    is_wide = indices is not None and n_outputs > _ONE
    # Adding zero times a short row costs less than guessing wrong, row by row, whether there is something to add.
    is_short = indices is None and n_features <= SHORT_ROW
    tail, apart, blocks_per_row = stop, 0, 0.0
    if indices is None and n_outputs > _ONE:
        n_places = order[BEGINS, order.shape[1] - 1]
        tail = tail_at(order, n_outputs, n_features)
        apart, blocks_per_row = (n_places - tail) // np.int64(n_outputs), (order.shape[1] - 1) / max(1, n_places)
    at, block = start, block_at(order, start)
    while at < stop:
        is_apart = at >= tail
        lead = order[SHIFTS, block]
        first_row, end_row, at, block = rows_ahead(order, block, at, stop if is_apart else min(stop, tail))
        # Of the block before, no row is the row before.
        wiped_at = _NO_ROW
        for i in range(first_row, end_row):
            row = i
            end = i + _ONE if is_apart else end_row
            first, last, held, end_held = open_row(values, indptr, i, end, n_features, held, end_held)
            eta = rate_now(counters, constants, codes, t)
            averages = 0 < codes[AVERAGE] <= t
            score_scale = scale
            shrink = 1.0 - constants[SHRINK_RATE] * eta
            is_wiped = shrink < MIN_SHRINK
            scale = 1.0 if is_wiped else scale * shrink
            if indices is not None:
                if is_wide:
                    score_columns(entries, indices, first, last, params, factors)
                else:
                    factors[0] = row_dot(entries, indices, first, last, params, _ZERO)
                if is_wiped:
                    wipe(params, auxiliary, a, indices, indptr, i, wiped_at, n_outputs, n_weights)
                    wiped_at = np.uint64(i)
            if scale < min_scale:
                fold(params, auxiliary, scale, a, b, n_weights)
                if indices is None:
                    score_scale /= scale
                scale, a, b = 1.0, 0.0, 1.0
            # One step waits for the other on the path from a prediction to the weights: what can be known before the
            # prediction, divisions above all, is kept off it.
            inverse = 1.0 / scale
            for k in range(n_outputs):
                base = k * n_features
                if indices is None:
                    if is_apart:
                        row = row_of_output(order, np.int64(i) - lead, tail, np.int64(k) * apart, blocks_per_row)
                        first, last, held, end_held = open_row(
                            values, indptr, row, row + _ONE, n_features, held, end_held
                        )
                    p = score_scale * row_dot(entries, indices, first, last, params, base) + params[n_weights + k]
                    if is_wiped:
                        clear(params, auxiliary, a, None, base, base + n_features, n_outputs)
                else:
                    p = score_scale * factors[k] + params[n_weights + k]
                loss, slope, class_weight = loss_of_output(targets, class_weights, constants, codes, row, k, p)
                loss_sum += loss
                if n_outputs > _ONE:
                    counters[np.uint64(COUNTERS) + k] += loss
                guard += p * 0.0
                gain = eta * row_weights[row] * class_weight
                params[n_weights + k] -= params.dtype.type(constants[INTERCEPT_RATE] * gain * slope)
                step = -slope * (gain * inverse)
                if is_wide:
                    factors[k] = step
                elif is_short or step != 0.0:
                    add_step(entries, indices, first, last, params, auxiliary, base, step, a)
            if indices is not None and is_wide:
                add_steps(entries, indices, first, last, params, auxiliary, factors, a)
            owed_total = owe(
                indices, first, last, params, received, auxiliary, constants, owed_total, eta, scale, a, n_outputs
            )
            if averages:
                n_averaged, a, b = join_average(params, auxiliary, n_weights, n_averaged, scale, a, b)
            t += 1.0
    fold(params, auxiliary, scale, a, b, n_weights)
    counters[T] = t
    counters[N_AVERAGED] = n_averaged
    counters[L1_TOTAL] = owed_total
    if n_outputs == _ONE:
        counters[COUNTERS] += loss_sum
    count_rows(counters, stop - start, loss_sum, guard)


@leaf_kernel
def gradient_rows(
    values: FloatVector,
    indices: IndexVector | None,
    indptr: PointerVector | None,
    targets: FloatVector,
    row_weights: FloatVector,
    class_weights: FloatMatrix,
    params: FloatVector,
    out: FloatVector,
    factors: FloatVector,
    counters: FloatVector,
    constants: FloatVector,
    codes: IntVector,
    order: IntMatrix,
    start: int,
    stop: int,
) -> None:
    """Write into `out` the sum of the weighted gradients of the loss over some rows, the penalty left out.

    Parameters
    ----------
    values, indices, indptr, targets, row_weights, class_weights, params, factors, counters, constants, codes, order
        As in `run_rows`; params are read only, of the counters the sums of losses and the rows seen are updated.
    out : array, shape (n_params,)
        The sum, overwritten.
    start, stop : int
        Places of the walk.
    """
    n_outputs = np.uint64(codes[N_OUTPUTS])
    n_features = np.uint64(codes[N_FEATURES])
    n_weights = n_outputs * n_features
    entries, held, end_held = entries_of(values), _ZERO, _ZERO
    for j in range(np.uint64(out.shape[0])):
        out[j] = 0.0
    loss_sum = 0.0
    guard = 0.0
    is_wide = indices is not None and n_outputs > _ONE
    at, block = start, block_at(order, start)
    while at < stop:
        first_row, end_row, at, block = rows_ahead(order, block, at, stop)
        for i in range(first_row, end_row):
            first, last, held, end_held = open_row(values, indptr, i, end_row, n_features, held, end_held)
            if indices is not None and is_wide:
                score_columns(entries, indices, first, last, params, factors)
            for k in range(n_outputs):
                base = k * n_features
                dot = factors[k] if is_wide else row_dot(entries, indices, first, last, params, base)
                p = float(dot) + params[n_weights + k]
                loss, slope, class_weight = loss_of_output(targets, class_weights, constants, codes, i, k, p)
                loss_sum += loss
                counters[np.uint64(COUNTERS) + k] += loss
                guard += p * 0.0
                slope *= class_weight * row_weights[i]
                if constants[INTERCEPT_RATE] > 0.0:
                    out[n_weights + k] += out.dtype.type(slope)
                if is_wide:
                    factors[k] = slope
                elif slope != 0.0:
                    add_row(entries, indices, first, last, out, base, slope)
            if indices is not None and is_wide:
                add_columns(entries, indices, first, last, out, factors, 1.0)
    count_rows(counters, stop - start, loss_sum, guard)


@leaf_kernel
def step_all(
    params: FloatVector,
    gradient: FloatVector,
    average: FloatVector,
    received: FloatVector,
    counters: FloatVector,
    constants: FloatVector,
    codes: IntVector,
) -> None:
    """Take one step along a mean gradient, penalty included, and advance t by one.

    Parameters
    ----------
    params : array, shape (n_params,)
        The model, updated in place.
    gradient : array, shape (n_params,)
        Mean gradient of the loss.
    average : array, shape (n_params,) or (0,)
        The averaged model, updated in place; unused unless averaging is on.
    received, counters, constants, codes
        As in `run_rows`.
    """
    n_weights = np.uint64(codes[N_OUTPUTS] * codes[N_FEATURES])
    n_params = np.uint64(params.shape[0])
    t = counters[T]
    eta = rate_now(counters, constants, codes, t)
    shrink = max(0.0, 1.0 - constants[SHRINK_RATE] * eta)
    if constants[L1_RATE] > 0.0:
        counters[L1_TOTAL] += constants[L1_RATE] * eta
    for j in range(n_weights):
        before = shrink * params[j] - eta * gradient[j]
        if constants[L1_RATE] > 0.0:
            after = truncate(before, counters[L1_TOTAL], received[j])
            received[j] += received.dtype.type(after - before)
            before = after
        params[j] = params.dtype.type(before)
    for j in range(n_weights, n_params):
        params[j] -= params.dtype.type(constants[INTERCEPT_RATE] * eta * gradient[j])
    if 0 < codes[AVERAGE] <= t:
        counters[N_AVERAGED] += 1.0
        for j in range(n_params):
            average[j] += params.dtype.type((params[j] - average[j]) / counters[N_AVERAGED])
    counters[T] = t + 1.0


@kernel
def rate_sum(counters: FloatVector, constants: FloatVector, codes: IntVector, t_start: float) -> float:
    """Return the sum of the rates of the steps from `t_start` up to that which comes next."""
    total, t = 0.0, t_start
    while t < counters[T]:
        total += rate_now(counters, constants, codes, t)
        t += 1.0
    return total


@kernel
def all_finite(vector: FloatVector) -> bool:
    """Return whether every entry of `vector`, shape (n,), is finite."""
    guard = 0.0
    for j in range(np.uint64(vector.shape[0])):
        guard += vector[j] * 0.0
    return guard == 0.0
