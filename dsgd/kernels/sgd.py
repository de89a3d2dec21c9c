"""Steps of SGD on rows, one after another, dense and sparse and of any number of outputs, and sums of losses over them.

The problem: minimise ``(1/n) sum_i w_i loss(<x_i, w> + b, y_i) + alpha ((1 - r) ||w||^2 / 2 + r ||w||_1)``. One step on
row i, at rate eta: ``w <- max(0, 1 - (1 - r) eta alpha) w - eta slope x_i``, ``b <- b - eta slope``, then the
cumulative L1 truncation of `dsgd.kernels.scaled`. Order and constants are scikit-learn's (`_sgd_fast.pyx.tp`).

A step costs the entries of its row, although the penalties change every weight: `dsgd.kernels.scaled` says how. What is
kept from call to call is in three vectors (`dsgd.kernels.state`); steps along the gradient of many rows are in
`dsgd.kernels.rules`.

Layout of the parameters: weights, then one intercept per output. Weights are (n_outputs, n_features) for dense rows, so
that each output is a contiguous inner product, and (n_features, n_outputs) for sparse rows, so that an entry of a row
meets the weights of all outputs in one cache line.
"""

from __future__ import annotations

import numpy as np

from dsgd.kernels import scaled, state
from dsgd.kernels.jit import kernel, leaf_kernel, scalar
from dsgd.kernels.losses import POISSON, TWEEDIE, least_loss, loss_and_slope, plain_loss
from dsgd.kernels.order import BEGINS, SHIFTS, block_at, row_of_output, rows_ahead, tail_at
from dsgd.kernels.rows import RowArrays, Sparse, ask_ahead, row_bounds, row_dot, score_columns
from dsgd.kernels.state import Beside, Steps
from dsgd.types import FloatVector

#: Dense rows up to this long are always added.
SHORT_ROW = np.uint64(64)
_ZERO = np.uint64(0)
_ONE = np.uint64(1)


@leaf_kernel
def run_rows(
    rows: RowArrays,
    sparse: Sparse | None,
    params: FloatVector,
    beside: Beside | None,
    steps: Steps,
    start: int,
    stop: int,
) -> None:
    """Take one step on each of the rows at the places start..stop, in order, for all outputs.

    - `rows`: entries, shape (nnz,) or (n_rows * n_features,); the row, the target and the weight of each place, shape
      (n_places,), the class code being the target of several outputs; the weights of the positive and the negative
      class of each output, shape (2, n_outputs).
    - `sparse`: columns, shape (nnz,), and row starts, shape (n_rows + 1,), of entries; None for dense rows.
    - `params`, shape (n_params,): the model, updated in place.
    - `beside`: the averaged model, shape (n_params,) or (0,); the L1 penalty each weight has received, shape
      (n_weights,) or (0,), updated in place; scratch, shape (n_outputs,). None for plain steps
      (`dsgd.kernels.state.is_plain`).
    - `steps`: see `dsgd.kernels.state`; counters are updated in place.
    """
    values, index, targets, row_weights, class_weights = rows
    counters, constants, codes, order = steps
    n_outputs = np.uint64(codes[state.N_OUTPUTS])
    n_features = np.uint64(codes[state.N_FEATURES])
    n_weights = n_outputs * n_features
    t = counters[state.T]
    n_averaged = counters[state.N_AVERAGED]
    owed_total = counters[state.L1_TOTAL]
    loss_sum = 0.0
    guard = 0.0
    scale, a, b = 1.0, 0.0, 1.0
    min_scale = scaled.MIN_SCALE_AVERAGING if codes[state.AVERAGE] > 0 else scaled.MIN_SCALE
    is_wide = sparse is not None and beside is not None and n_outputs > _ONE
    # Adding zero times a short row costs less than guessing wrong, row by row, whether there is something to add.
    is_short = sparse is None and n_features <= SHORT_ROW
    tail, apart, blocks_per_row = stop, 0, 0.0
    if sparse is None and beside is not None and n_outputs > _ONE:
        n_places = order[BEGINS, order.shape[1] - 1]
        tail = tail_at(order, n_outputs, n_features)
        apart, blocks_per_row = (n_places - tail) // np.int64(n_outputs), (order.shape[1] - 1) / max(1, n_places)
    before = False, (_ZERO, _ZERO)
    at, block = start, block_at(order, start)
    while at < stop:
        is_apart = at >= tail
        lead = order[SHIFTS, block]
        first_row, end_row, at, block = rows_ahead(order, block, at, stop if is_apart else min(stop, tail))
        for i in range(first_row, end_row):
            row = i
            ask_ahead(values, sparse, index, i, n_features)
            span = row_bounds(index, sparse, i, n_features)
            if beside is None:
                eta = state.plain_rate(counters, constants, codes, t)
            else:
                eta = state.rate_now(counters, constants, codes, t)
            averages = 0 < codes[state.AVERAGE] <= t
            score_scale = scale
            shrink = 1.0 - constants[state.SHRINK_RATE] * eta
            is_wiped = shrink < scaled.MIN_SHRINK
            scale = 1.0 if is_wiped else scale * shrink
            score = params.dtype.type(0)
            if sparse is not None:
                if beside is not None and is_wide:
                    score_columns(values, sparse, span, params, beside[2])
                else:
                    score = row_dot(values, sparse, span, params, _ZERO)
                if is_wiped:
                    scaled.wipe(params, beside, a, sparse, before, n_outputs)
                before = is_wiped, span
            if scale < min_scale:
                scaled.fold(params, beside, scale, a, b, n_weights)
                if sparse is None:
                    score_scale /= scale
                scale, a, b = 1.0, 0.0, 1.0
            # One step waits for the other on the path from a prediction to the weights: what can be known before the
            # prediction, divisions above all, is kept off it.
            inverse = 1.0 / scale
            for k in range(n_outputs):
                base = k * n_features
                if beside is not None and is_wide:
                    score = beside[2][k]
                if sparse is None:
                    if beside is not None and is_apart:
                        row = row_of_output(order, np.int64(i) - lead, tail, np.int64(k) * apart, blocks_per_row)
                        span = row_bounds(index, sparse, row, n_features)
                    p = score_scale * row_dot(values, sparse, span, params, base) + params[n_weights + k]
                    if is_wiped:
                        scaled.clear(params, beside, a, None, (base, base + n_features), n_outputs)
                else:
                    p = score_scale * score + params[n_weights + k]
                if beside is None:
                    y = float(targets[row])
                    loss, slope = plain_loss(codes[state.LOSS], y, p)
                    class_weight = class_weights[0 if y > 0.0 else 1, k]
                else:
                    loss, slope, class_weight = state.loss_of_output(rows, steps, row, k, p)
                loss_sum += loss
                if beside is not None and n_outputs > _ONE:
                    counters[np.uint64(state.COUNTERS) + k] += loss
                guard += p * 0.0
                gain = eta * row_weights[row] * class_weight
                params[n_weights + k] -= params.dtype.type(constants[state.INTERCEPT_RATE] * gain * slope)
                step = -slope * (gain * inverse)
                if beside is not None and is_wide:
                    beside[2][k] = step
                elif is_short or step != 0.0:
                    scaled.add_step(values, sparse, span, params, beside, base, step, a)
            if sparse is not None and beside is not None and is_wide:
                scaled.add_steps(values, sparse, span, params, beside, a)
            if beside is not None and constants[state.L1_RATE] > 0.0:
                owed_total += constants[state.L1_RATE] * eta
                scaled.truncate_row(sparse, span, params, beside, owed_total, scale, a)
            if beside is not None and averages:
                n_averaged, a, b = scaled.join_average(params, beside, n_weights, scale, (n_averaged, a, b))
            t += 1.0
    scaled.fold(params, beside, scale, a, b, n_weights)
    counters[state.T] = t
    counters[state.N_AVERAGED] = n_averaged
    counters[state.L1_TOTAL] = owed_total
    if n_outputs == _ONE:
        counters[state.COUNTERS] += loss_sum
    state.count_rows(counters, stop - start, loss_sum, guard)


@kernel
def evaluate_rows(
    rows: RowArrays,
    sparse: Sparse | None,
    params: FloatVector,
    scores: FloatVector,
    sums: FloatVector,
    loss: tuple[int, float],
    start: int,
    stop: int,
) -> None:
    """Add to `sums` what rows start..stop contribute.

    - `rows`, `sparse`, `params`: as in `dsgd.kernels.sgd.run_rows`.
    - `scores`, shape (n_outputs,): scratch.
    - `sums`, shape (7,): loss (times row and class weight), row weight, rows, weight of the rows classified
      correctly, squared error, target and squared target (each times row weight). Of a loss with a log link there
      is half the deviance in place of the squared error, and minus the least loss in place of the squared target.
    """
    values, index, targets, row_weights, class_weights = rows
    loss_code, epsilon = loss
    n_outputs = np.uint64(scores.shape[0])
    n_weights = np.uint64(params.shape[0]) - n_outputs
    width = n_weights // n_outputs
    has_log_link = POISSON <= loss_code <= TWEEDIE
    for i in range(np.uint64(start), np.uint64(stop)):
        ask_ahead(values, sparse, index, i, width)
        span = row_bounds(index, sparse, i, width)
        target = float(targets[i])
        weight = float(row_weights[i])
        if sparse is not None and n_outputs > _ONE:
            score_columns(values, sparse, span, params, scores)
        best = -np.inf
        winner = np.uint64(0)
        for k in range(n_outputs):
            if sparse is None or n_outputs == _ONE:
                p = float(row_dot(values, sparse, span, params, k * width)) + params[n_weights + k]
            else:
                p = float(scores[k]) + params[n_weights + k]
            y = target
            if n_outputs > _ONE:
                y = 1.0 if target == k else -1.0
            if p > best:
                best = p
                winner = np.uint64(k)
            value, _ = loss_and_slope(loss_code, y, p, epsilon)
            sums[0] += value * weight * class_weights[0 if y > 0.0 else 1, k]
        # One output predicts the positive class where its score is above zero, several the first of the largest score.
        if n_outputs > _ONE:
            is_hit = winner == target
        else:
            is_hit = (best > 0.0) == (target > 0.0)
        if is_hit:
            sums[3] += weight
        sums[1] += weight
        sums[2] += 1.0
        sums[5] += weight * target
        if has_log_link:
            _add_deviance(target, best, weight, loss_code, epsilon, sums)
        else:
            sums[4] += weight * (best - target) ** 2
            sums[6] += weight * target * target


@kernel
def add_deviances(
    targets: FloatVector, scores: FloatVector, weights: FloatVector, loss_code: int, epsilon: float, sums: FloatVector
) -> None:
    """Add to `sums` what `evaluate_rows` adds for a loss with a log link, but loss and correct predictions.

    - `targets`, `scores`, `weights`, shape (n,): targets, predicted logarithms of means, and weights of rows.
    """
    for i in range(np.uint64(targets.shape[0])):
        sums[1] += weights[i]
        sums[2] += 1.0
        sums[5] += weights[i] * targets[i]
        _add_deviance(targets[i], scores[i], weights[i], loss_code, epsilon, sums)


@scalar
def _add_deviance(target: float, p: float, weight: float, loss_code: int, epsilon: float, sums: FloatVector) -> None:
    """Add half the deviance of a row, and minus its least loss."""
    loss, _ = loss_and_slope(loss_code, target, p, epsilon)
    least = least_loss(loss_code, target, epsilon)
    sums[4] += weight * (loss - least)
    sums[6] -= weight * least
