"""Steps, gradients and losses of multinomial logistic regression, in which all classes share one loss.

Problem: with the scores ``s_k = <x, w_k> + b_k`` of a row of class y, minimise ``log(sum_k exp(s_k)) - s_y``, which is
minus the logarithm of the probability ``p_y = exp(s_y) / sum_k exp(s_k)`` that the model gives to the class.

Update: the slope of class k is ``p_k - [y = k]``, and needs the scores of all classes. So a row takes one step for all
of them, where the kernels of `dsgd.kernels.sgd` take one for each class. All else is as there: arguments, layout, order
of the parts of a step, average and L1 penalty. The outputs cannot have orders of their own at the end of an epoch.

Cost: that of one against the rest, with one logarithm a row in place of one a class.

Numbers: the largest score is subtracted before exponentials are taken, so that none overflows. Neither the loss nor the
slope of a row's class is a difference of nearly equal numbers: those of a sure prediction keep their digits, down to 0.

Source: Cox 1966 (Some procedures connected with the logistic qualitative response curve); Bishop 2006, equation 4.109.
"""

from __future__ import annotations

import math

import numpy as np

from dsgd.kernels import scaled, state
from dsgd.kernels.jit import kernel, leaf_kernel, scalar
from dsgd.kernels.order import block_at, rows_ahead
from dsgd.kernels.rows import (
    RowArrays,
    Span,
    Sparse,
    add_columns,
    add_row,
    ask_ahead,
    row_bounds,
    row_dot,
    score_columns,
)
from dsgd.kernels.state import Beside, Steps
from dsgd.types import FloatVector

_ZERO = np.uint64(0)
_ONE = np.uint64(1)


@scalar
def loss_and_slopes(scores: FloatVector, target: np.uint64) -> float:
    """Return the loss of a row, and replace its scores by the derivatives with respect to them."""
    n_outputs, dtype = np.uint64(scores.shape[0]), scores.dtype.type
    winner = _ZERO
    for k in range(_ONE, n_outputs):
        if scores[k] > scores[winner]:
            winner = np.uint64(k)
    best = float(scores[winner])
    behind = best - float(scores[target])
    # Of the largest score the exponential is one: adding the others up alone keeps the digits of small ones.
    rest, others = 0.0, 0.0
    for k in range(n_outputs):
        share = math.exp(float(scores[k]) - best)
        scores[k] = dtype(share)
        rest += 0.0 if k == winner else share
        others += 0.0 if k == target else share
    inverse = 1.0 / (1.0 + rest)
    for k in range(n_outputs):
        scores[k] = dtype(scores[k] * inverse)
    scores[target] = dtype(-others * inverse)
    return behind + math.log1p(rest)


@scalar
def score_row(
    values: FloatVector, sparse: Sparse | None, span: Span, params: FloatVector, scale: float, scores: FloatVector
) -> float:
    """Write the scores of a row into `scores`; return zero, or NaN if one of them is not finite."""
    n_outputs, dtype, guard = np.uint64(scores.shape[0]), scores.dtype.type, 0.0
    n_weights = np.uint64(params.shape[0]) - n_outputs
    n_features = n_weights // n_outputs
    if sparse is not None:
        score_columns(values, sparse, span, params, scores)
    for k in range(n_outputs):
        dot = row_dot(values, sparse, span, params, k * n_features) if sparse is None else scores[k]
        p = scale * dot + params[n_weights + k]
        scores[k] = dtype(p)
        guard += scores[k] * 0.0
    return guard


@leaf_kernel
def run_softmax_rows(
    rows: RowArrays, sparse: Sparse | None, params: FloatVector, beside: Beside, steps: Steps, start: int, stop: int
) -> None:
    """Take one step on each of the rows at the places start..stop, in order.

    - `class_weights`, shape (2, n_outputs): weight of each class in its first row.
    - `counters`, shape (COUNTERS + 1,): behind the counters stands the sum of the losses, as rows have one each.
    """
    values, index, targets, row_weights, class_weights = rows
    factors = beside[2]
    counters, constants, codes, order = steps
    n_outputs, n_features = np.uint64(codes[state.N_OUTPUTS]), np.uint64(codes[state.N_FEATURES])
    n_weights = n_outputs * n_features
    t, n_averaged, owed_total = counters[state.T], counters[state.N_AVERAGED], counters[state.L1_TOTAL]
    loss_sum, guard = 0.0, 0.0
    scale, a, b = 1.0, 0.0, 1.0
    min_scale = scaled.MIN_SCALE_AVERAGING if codes[state.AVERAGE] > 0 else scaled.MIN_SCALE
    before = False, (_ZERO, _ZERO)
    at, block = start, block_at(order, start)
    while at < stop:
        first_row, end_row, at, block = rows_ahead(order, block, at, stop)
        for i in range(first_row, end_row):
            ask_ahead(values, sparse, index, i, n_features)
            span = row_bounds(index, sparse, i, n_features)
            eta = state.rate_now(counters, constants, codes, t)
            guard += score_row(values, sparse, span, params, scale, factors)
            shrink = 1.0 - constants[state.SHRINK_RATE] * eta
            is_wiped = shrink < scaled.MIN_SHRINK
            if is_wiped:
                if sparse is None:
                    scaled.clear(params, beside, a, None, (_ZERO, n_weights), n_outputs)
                else:
                    scaled.wipe(params, beside, a, sparse, before, n_outputs)
                scale = 1.0
            else:
                scale *= shrink
            before = is_wiped, span
            if scale < min_scale:
                scaled.fold(params, beside, scale, a, b, n_weights)
                scale, a, b = 1.0, 0.0, 1.0
            target = np.uint64(targets[i])
            loss_sum += loss_and_slopes(factors, target)
            gain = eta * row_weights[i] * class_weights[0, target]
            inverse = 1.0 / scale
            for k in range(n_outputs):
                slope = float(factors[k])
                params[n_weights + k] -= params.dtype.type(constants[state.INTERCEPT_RATE] * gain * slope)
                step = -slope * (gain * inverse)
                factors[k] = step
                if sparse is None:
                    scaled.add_step(values, sparse, span, params, beside, k * n_features, step, a)
            if sparse is not None:
                scaled.add_steps(values, sparse, span, params, beside, a)
            if constants[state.L1_RATE] > 0.0:
                owed_total += constants[state.L1_RATE] * eta
                scaled.truncate_row(sparse, span, params, beside, owed_total, scale, a)
            if 0 < codes[state.AVERAGE] <= t:
                n_averaged, a, b = scaled.join_average(params, beside, n_weights, scale, (n_averaged, a, b))
            t += 1.0
    scaled.fold(params, beside, scale, a, b, n_weights)
    counters[state.T], counters[state.N_AVERAGED], counters[state.L1_TOTAL] = t, n_averaged, owed_total
    counters[state.COUNTERS] += loss_sum
    state.count_rows(counters, stop - start, loss_sum, guard)


@leaf_kernel
def gradient_softmax_rows(
    rows: RowArrays,
    sparse: Sparse | None,
    params: FloatVector,
    out: FloatVector,
    factors: FloatVector,
    steps: Steps,
    start: int,
    stop: int,
) -> None:
    """Write into `out` the sum of the weighted gradients of the loss over some rows, the penalty left out."""
    values, index, targets, row_weights, class_weights = rows
    counters, constants, codes, order = steps
    n_outputs, n_features = np.uint64(codes[state.N_OUTPUTS]), np.uint64(codes[state.N_FEATURES])
    n_weights = n_outputs * n_features
    for j in range(np.uint64(out.shape[0])):
        out[j] = 0.0
    loss_sum, guard = 0.0, 0.0
    at, block = start, block_at(order, start)
    while at < stop:
        first_row, end_row, at, block = rows_ahead(order, block, at, stop)
        for i in range(first_row, end_row):
            ask_ahead(values, sparse, index, i, n_features)
            span = row_bounds(index, sparse, i, n_features)
            guard += score_row(values, sparse, span, params, 1.0, factors)
            target = np.uint64(targets[i])
            loss_sum += loss_and_slopes(factors, target)
            weight = class_weights[0, target] * row_weights[i]
            for k in range(n_outputs):
                slope = factors[k] * weight
                factors[k] = slope
                if constants[state.INTERCEPT_RATE] > 0.0:
                    out[n_weights + k] += out.dtype.type(slope)
                if sparse is None:
                    add_row(values, sparse, span, out, k * n_features, slope)
            if sparse is not None:
                add_columns(values, sparse, span, out, factors, 1.0)
    counters[state.COUNTERS] += loss_sum
    state.count_rows(counters, stop - start, loss_sum, guard)


@kernel
def evaluate_softmax_rows(
    rows: RowArrays,
    sparse: Sparse | None,
    params: FloatVector,
    scores: FloatVector,
    sums: FloatVector,
    start: int,
    stop: int,
) -> None:
    """Add to `sums` what rows start..stop contribute; as `dsgd.kernels.sgd.evaluate_rows`."""
    values, index, targets, row_weights, class_weights = rows
    width = np.uint64(params.shape[0]) // np.uint64(scores.shape[0]) - _ONE
    for i in range(np.uint64(start), np.uint64(stop)):
        ask_ahead(values, sparse, index, i, width)
        span = row_bounds(index, sparse, i, width)
        guard = score_row(values, sparse, span, params, 1.0, scores)
        target, weight, winner = np.uint64(targets[i]), float(row_weights[i]), _ZERO
        for k in range(_ONE, np.uint64(scores.shape[0])):
            if scores[k] > scores[winner]:
                winner = np.uint64(k)
        if winner == target:
            sums[3] += weight
        sums[0] += (loss_and_slopes(scores, target) + guard) * weight * class_weights[0, target]
        sums[1] += weight
        sums[2] += 1.0
