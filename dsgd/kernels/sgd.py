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
from dsgd.kernels.rows import ask_ahead, row_bounds, row_dot, score_columns
from dsgd.types import FloatMatrix, FloatVector, IndexVector, IntMatrix, IntVector, PointerVector

#: Dense rows up to this long are always added.
SHORT_ROW = np.uint64(64)
_ZERO = np.uint64(0)
_ONE = np.uint64(1)


@leaf_kernel
def run_rows(
    values: FloatVector,
    indices: IndexVector | None,
    indptr: PointerVector | None,
    index: IndexVector,
    targets: FloatVector,
    row_weights: FloatVector,
    class_weights: FloatMatrix,
    params: FloatVector,
    auxiliary: FloatVector | None,
    received: FloatVector | None,
    factors: FloatVector | None,
    counters: FloatVector,
    constants: FloatVector,
    codes: IntVector,
    order: IntMatrix,
    start: int,
    stop: int,
) -> None:
    """Take one step on each of the rows at the places start..stop, in order, for all outputs.

    - `values`, shape (nnz,) or (n_rows * n_features,): entries of all rows.
    - `indices`, shape (nnz,): their columns; None for dense rows.
    - `indptr`, shape (n_rows + 1,): row starts; None for dense rows.
    - `index`, shape (n_places,): the row of each place.
    - `targets`, `row_weights`, shape (n_places,): target and weight of each. With several outputs the target is the
      class code.
    - `class_weights`, shape (2, n_outputs): weight of the positive and of the negative class of each output.
    - `params`, shape (n_params,): the model, updated in place.
    - `auxiliary`, shape (n_params,) or (0,): the averaged model, updated in place; unused unless averaging is on.
    - `received`, shape (n_weights,) or (0,): L1 penalty each weight has received; unused without L1.
    - `factors`, shape (n_outputs,): scratch. None, as then the two above, for plain steps
      (`dsgd.kernels.state.is_plain`).
    - `counters`, `constants`, `codes`: see `dsgd.kernels.state`; counters are updated in place.
    - `order`, shape (2, n_blocks + 1): see `dsgd.kernels.order`.
    """
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
    is_wide = indices is not None and factors is not None and n_outputs > _ONE
    # Adding zero times a short row costs less than guessing wrong, row by row, whether there is something to add.
    is_short = indices is None and n_features <= SHORT_ROW
    tail, apart, blocks_per_row = stop, 0, 0.0
    if indices is None and factors is not None and n_outputs > _ONE:
        n_places = order[BEGINS, order.shape[1] - 1]
        tail = tail_at(order, n_outputs, n_features)
        apart, blocks_per_row = (n_places - tail) // np.int64(n_outputs), (order.shape[1] - 1) / max(1, n_places)
    was_wiped, before = False, (_ZERO, _ZERO)
    at, block = start, block_at(order, start)
    while at < stop:
        is_apart = at >= tail
        lead = order[SHIFTS, block]
        first_row, end_row, at, block = rows_ahead(order, block, at, stop if is_apart else min(stop, tail))
        for i in range(first_row, end_row):
            row = i
            ask_ahead(values, indices, indptr, index, i, n_features)
            first, last = row_bounds(index, indptr, i, n_features)
            if factors is None:
                eta = state.plain_rate(counters, constants, codes, t)
            else:
                eta = state.rate_now(counters, constants, codes, t)
            averages = 0 < codes[state.AVERAGE] <= t
            score_scale = scale
            shrink = 1.0 - constants[state.SHRINK_RATE] * eta
            is_wiped = shrink < scaled.MIN_SHRINK
            scale = 1.0 if is_wiped else scale * shrink
            score = params.dtype.type(0)
            if indices is not None:
                if factors is not None and is_wide:
                    score_columns(values, indices, first, last, params, factors)
                else:
                    score = row_dot(values, indices, first, last, params, _ZERO)
                if is_wiped:
                    scaled.wipe(params, auxiliary, a, indices, was_wiped, *before, n_outputs, n_weights)
                was_wiped, before = is_wiped, (first, last)
            if scale < min_scale:
                scaled.fold(params, auxiliary, scale, a, b, n_weights)
                if indices is None:
                    score_scale /= scale
                scale, a, b = 1.0, 0.0, 1.0
            # One step waits for the other on the path from a prediction to the weights: what can be known before the
            # prediction, divisions above all, is kept off it.
            inverse = 1.0 / scale
            for k in range(n_outputs):
                base = k * n_features
                if factors is not None and is_wide:
                    score = factors[k]
                if indices is None:
                    if factors is not None and is_apart:
                        row = row_of_output(order, np.int64(i) - lead, tail, np.int64(k) * apart, blocks_per_row)
                        first, last = row_bounds(index, indptr, row, n_features)
                    p = score_scale * row_dot(values, indices, first, last, params, base) + params[n_weights + k]
                    if is_wiped:
                        scaled.clear(params, auxiliary, a, None, base, base + n_features, n_outputs)
                else:
                    p = score_scale * score + params[n_weights + k]
                if factors is None:
                    y = float(targets[row])
                    loss, slope = plain_loss(codes[state.LOSS], y, p)
                    class_weight = class_weights[0 if y > 0.0 else 1, k]
                else:
                    loss, slope, class_weight = state.loss_of_output(
                        targets, class_weights, constants, codes, row, k, p
                    )
                loss_sum += loss
                if factors is not None and n_outputs > _ONE:
                    counters[np.uint64(state.COUNTERS) + k] += loss
                guard += p * 0.0
                gain = eta * row_weights[row] * class_weight
                params[n_weights + k] -= params.dtype.type(constants[state.INTERCEPT_RATE] * gain * slope)
                step = -slope * (gain * inverse)
                if factors is not None and is_wide:
                    factors[k] = step
                elif is_short or step != 0.0:
                    scaled.add_step(values, indices, first, last, params, auxiliary, base, step, a)
            if indices is not None and factors is not None and is_wide:
                scaled.add_steps(values, indices, first, last, params, auxiliary, factors, a)
            if received is not None:
                owed_total = scaled.owe(
                    indices, first, last, params, received, auxiliary, constants, owed_total, eta, scale, a, n_outputs
                )
            if auxiliary is not None and averages:
                n_averaged, a, b = scaled.join_average(params, auxiliary, n_weights, n_averaged, scale, a, b)
            t += 1.0
    scaled.fold(params, auxiliary, scale, a, b, n_weights)
    counters[state.T] = t
    counters[state.N_AVERAGED] = n_averaged
    counters[state.L1_TOTAL] = owed_total
    if n_outputs == _ONE:
        counters[state.COUNTERS] += loss_sum
    state.count_rows(counters, stop - start, loss_sum, guard)


@kernel
def evaluate_rows(
    values: FloatVector,
    indices: IndexVector | None,
    indptr: PointerVector | None,
    index: IndexVector,
    targets: FloatVector,
    row_weights: FloatVector,
    class_weights: FloatMatrix,
    params: FloatVector,
    scores: FloatVector,
    sums: FloatVector,
    loss_code: int,
    epsilon: float,
    n_features: int,
    start: int,
    stop: int,
) -> None:
    """Add to `sums` what rows start..stop contribute.

    - `values`, `indices`, `indptr`, `index`, `targets`, `row_weights`, `class_weights`, `params`: as in
      `dsgd.kernels.sgd.run_rows`.
    - `scores`, shape (n_outputs,): scratch.
    - `sums`, shape (7,): loss (times row and class weight), row weight, rows, weight of the rows classified
      correctly, squared error, target and squared target (each times row weight). Of a loss with a log link there
      is half the deviance in place of the squared error, and minus the least loss in place of the squared target.
    """
    width = np.uint64(n_features)
    n_outputs = np.uint64(scores.shape[0])
    n_weights = n_outputs * width
    has_log_link = POISSON <= loss_code <= TWEEDIE
    for i in range(np.uint64(start), np.uint64(stop)):
        ask_ahead(values, indices, indptr, index, i, width)
        first, last = row_bounds(index, indptr, i, width)
        target = float(targets[i])
        weight = float(row_weights[i])
        if indices is not None and n_outputs > _ONE:
            score_columns(values, indices, first, last, params, scores)
        best = -np.inf
        winner = np.uint64(0)
        for k in range(n_outputs):
            if indices is None or n_outputs == _ONE:
                p = float(row_dot(values, indices, first, last, params, k * width)) + params[n_weights + k]
            else:
                p = float(scores[k]) + params[n_weights + k]
            y = target
            if n_outputs > _ONE:
                y = 1.0 if target == k else -1.0
            if p > best:
                best = p
                winner = np.uint64(k)
            loss, _ = loss_and_slope(loss_code, y, p, epsilon)
            sums[0] += loss * weight * class_weights[0 if y > 0.0 else 1, k]
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
