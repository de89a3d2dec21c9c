"""Steps of reduced variance on linear models: SAGA and SVRG.

Problem: at a constant rate plain SGD stays at a distance from the minimum, since the gradients of single rows differ
there; at falling rates it takes ever smaller steps.

Update: with the slope ``s_i`` of row i (the derivative of its loss, times weights), the slope ``y_i`` that is
remembered of it, and ``m = (1/n) sum_i y_i x_i``::

    w <- (1 - eta alpha) w - eta ((s_i - y_i) x_i + m)

so that the expected step is that of the mean gradient for whatever is remembered, and its noise vanishes as ``y_i``
comes near ``s_i`` at the minimum. SAGA remembers ``s_i`` after each step and moves m along; SVRG computes all ``y_i``
and m at once, at the model at the end of an epoch, and keeps them for the next. The penalty and its gradient are exact,
and no part of what is remembered.

SAGA draws its rows, as in the source: if it visited each once an epoch, what it remembers would be older, and at the
steps that the source allows it would diverge where n eta times the strength of convexity is large. What SVRG remembers
does not depend on the order, so it visits every row once an epoch, which reads memory faster. In a batch of exchanged
gradients a row that is drawn twice counts once.

For linear models a gradient is its slope times the row: memory is one number per row and output, and one model. Sparse
rows cost what they have entries: the part of m in columns that a row has not is subtracted when a row that has them
comes, ``m_j`` times the sum of the steps since. Weights are ``scale`` times what is stored (`dsgd.kernels.scaled`).

Source: Defazio, Bach and Lacoste-Julien 2014 (SAGA; section 4 on lazy updates); Johnson and Zhang 2013 (SVRG).
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from dsgd.kernels import state
from dsgd.kernels.importance import AHEAD, any_row, ask_for, walk_rows
from dsgd.kernels.jit import kernel, leaf_kernel, scalar
from dsgd.kernels.order import draw, mix64
from dsgd.kernels.rows import (
    RowArrays,
    Span,
    Sparse,
    add_columns,
    add_row,
    row_bounds,
    row_dot,
    row_square,
    score_columns,
)
from dsgd.kernels.scaled import MIN_SCALE
from dsgd.kernels.state import Steps
from dsgd.types import FloatVector, IndexVector, WordVector

#: What is remembered of rows; see `run_reduced`.
Kept: TypeAlias = tuple[FloatVector, FloatVector, FloatVector, WordVector, np.uint64, float]

_ONE = np.uint64(1)
_ZERO = np.uint64(0)


@scalar
def next_rows(kept: Kept, steps: Steps, start: int, stop: int) -> None:
    """Write into the scratch the rows of the places start..stop: drawn for SAGA, those of the walk for SVRG."""
    counters, order, chosen, key, refresh = steps[0], steps[3], kept[3], kept[4], kept[5]
    if refresh > 0.0:
        stream, n_rows = draw(mix64(key), np.uint64(counters[state.EPOCH])), order[0, order.shape[1] - 1]
        for j in range(np.uint64(stop - start)):
            chosen[j] = any_row(draw(stream, np.uint64(start) + j), n_rows)
    else:
        walk_rows(order, chosen, start, stop)


@scalar
def catch_up(
    sparse: Sparse, span: Span, weights: FloatVector, mean: FloatVector, reached: FloatVector, now: float
) -> None:
    """Subtract from the weights of the columns of a row what of the mean they lack."""
    n_outputs = np.uint64(weights.shape[0]) // np.uint64(reached.shape[0] + 1)
    for j in range(span[0], span[1]):
        column = np.uint64(sparse[0][j])
        lag = now - reached[column]
        if lag != 0.0:
            for k in range(column * n_outputs, (column + _ONE) * n_outputs):
                weights[k] -= weights.dtype.type(lag * mean[k])
            reached[column] = now


@scalar
def catch_up_all(
    weights: FloatVector, mean: FloatVector, reached: FloatVector, now: float, scale: float, n_outputs: np.uint64
) -> None:
    """Make all stored weights true."""
    for column in range(np.uint64(reached.shape[0])):
        lag = now - reached[column]
        for k in range(column * n_outputs, (column + _ONE) * n_outputs):
            weights[k] = weights.dtype.type(scale * (weights[k] - lag * mean[k]))
        reached[column] = 0.0


@leaf_kernel
def run_reduced(
    rows: RowArrays,
    sparse: Sparse | None,
    params: FloatVector,
    factors: FloatVector,
    steps: Steps,
    kept: Kept,
    start: int,
    stop: int,
) -> None:
    """Take one step on each of the rows at the places start..stop, in order, for all outputs.

    - `kept`: y of each row, shape (n_rows * n_outputs,), and m, shape (n_params,), laid out as the parameters, both
      updated in place by SAGA; of sparse rows, up to which sum of steps the weights of each column have the mean, shape
      (n_features,), zeros between calls; scratch for rows; the stream of draws; one over the number of rows that m is
      the mean of, for SAGA, 0 for SVRG.
    """
    values, index, _, row_weights, _ = rows
    counters, constants, codes, _ = steps
    slopes, mean, reached, chosen, _, refresh = kept
    n_outputs = np.uint64(codes[state.N_OUTPUTS])
    n_features = np.uint64(codes[state.N_FEATURES])
    n_weights = n_outputs * n_features
    dtype = params.dtype.type
    loss_sum, guard, scale, now = 0.0, 0.0, 1.0, 0.0
    is_wide = sparse is not None and n_outputs > _ONE
    eta = state.rate_now(counters, constants, codes, counters[state.T])
    shrink = 1.0 - constants[state.SHRINK_RATE] * eta
    for at in range(start, stop, AHEAD):
        end = min(stop, at + AHEAD)
        n_chosen = np.uint64(end - at)
        next_rows(kept, steps, at, end)
        if refresh > 0.0:
            ask_for(rows, sparse, n_features, chosen, n_chosen)
        for j in range(n_chosen):
            i = chosen[j]
            span = row_bounds(index, sparse, i, n_features)
            score_scale = scale
            if sparse is not None:
                catch_up(sparse, span, params, mean, reached, now)
                if is_wide:
                    score_columns(values, sparse, span, params, factors)
                else:
                    factors[0] = row_dot(values, sparse, span, params, _ZERO)
                scale *= shrink
                now += eta / scale
            for k in range(n_outputs):
                base = k * n_features
                if sparse is None:
                    p = float(row_dot(values, sparse, span, params, base)) + params[n_weights + k]
                else:
                    p = score_scale * factors[k] + params[n_weights + k]
                loss, slope, class_weight = state.loss_of_output(rows, steps, i, k, p)
                loss_sum += loss
                counters[np.uint64(state.COUNTERS) + k] += loss
                guard += p * 0.0
                slope *= class_weight * row_weights[i]
                change = slope - slopes[i * n_outputs + k]
                params[n_weights + k] -= dtype(constants[state.INTERCEPT_RATE] * eta * (change + mean[n_weights + k]))
                mean[n_weights + k] += refresh * change
                if refresh > 0.0:
                    slopes[i * n_outputs + k] = slope
                if sparse is None:
                    for m in range(n_features):
                        value = change * values[span[0] + m]
                        step = eta * (value + mean[base + m])
                        params[base + m] = dtype(shrink * params[base + m] - step)
                        mean[base + m] += refresh * value
                else:
                    factors[k] = change
            if sparse is not None:
                for m in range(span[0], span[1]):
                    column = np.uint64(sparse[0][m])
                    for k in range(n_outputs):
                        value, place = values[m] * float(factors[k]), column * n_outputs + k
                        params[place] -= dtype(eta / scale * (value + mean[place]))
                        mean[place] += refresh * value
                    reached[column] = now
                if scale < MIN_SCALE:
                    catch_up_all(params, mean, reached, now, scale, n_outputs)
                    scale, now = 1.0, 0.0
    if sparse is not None:
        catch_up_all(params, mean, reached, now, scale, n_outputs)
    counters[state.T] += stop - start
    state.count_rows(counters, stop - start, loss_sum, guard)


@leaf_kernel
def gradient_reduced(
    rows: RowArrays,
    sparse: Sparse | None,
    params: FloatVector,
    out: FloatVector,
    factors: FloatVector,
    steps: Steps,
    kept: Kept,
    start: int,
    stop: int,
) -> None:
    """Write into `out` the sum of ``(s_i - y_i) x_i`` over some rows."""
    values, index, _, row_weights, _ = rows
    counters, constants, codes, _ = steps
    slopes, _, _, chosen, _, refresh = kept
    n_outputs = np.uint64(codes[state.N_OUTPUTS])
    n_features = np.uint64(codes[state.N_FEATURES])
    n_weights = n_outputs * n_features
    for j in range(np.uint64(out.shape[0])):
        out[j] = 0.0
    loss_sum, guard = 0.0, 0.0
    is_wide = sparse is not None and n_outputs > _ONE
    for at in range(start, stop, AHEAD):
        end = min(stop, at + AHEAD)
        n_chosen = np.uint64(end - at)
        next_rows(kept, steps, at, end)
        if refresh > 0.0:
            ask_for(rows, sparse, n_features, chosen, n_chosen)
        for j in range(n_chosen):
            i = chosen[j]
            span = row_bounds(index, sparse, i, n_features)
            if sparse is not None and is_wide:
                score_columns(values, sparse, span, params, factors)
            for k in range(n_outputs):
                base = k * n_features
                dot = factors[k] if is_wide else row_dot(values, sparse, span, params, base)
                p = float(dot) + params[n_weights + k]
                loss, slope, class_weight = state.loss_of_output(rows, steps, i, k, p)
                loss_sum += loss
                counters[np.uint64(state.COUNTERS) + k] += loss
                guard += p * 0.0
                slope *= class_weight * row_weights[i]
                change = slope - slopes[i * n_outputs + k]
                if refresh > 0.0:
                    slopes[i * n_outputs + k] = slope
                if constants[state.INTERCEPT_RATE] > 0.0:
                    out[n_weights + k] += out.dtype.type(change)
                if is_wide:
                    factors[k] = change
                else:
                    add_row(values, sparse, span, out, base, change)
            if sparse is not None and is_wide:
                add_columns(values, sparse, span, out, factors, 1.0)
    state.count_rows(counters, stop - start, loss_sum, guard)


@kernel
def remember_slopes(
    rows: RowArrays,
    sparse: Sparse | None,
    params: FloatVector,
    steps: Steps,
    slopes: FloatVector,
    sums: FloatVector,
    start: int,
    stop: int,
) -> None:
    """Remember the slopes of rows start..stop at a model, and add their gradients to `sums`."""
    values, index, _, row_weights, _ = rows
    _, constants, codes, _ = steps
    n_outputs = np.uint64(codes[state.N_OUTPUTS])
    n_features = np.uint64(codes[state.N_FEATURES])
    n_weights = n_outputs * n_features
    for i in range(np.uint64(start), np.uint64(stop)):
        first, last = row_bounds(index, sparse, i, n_features)
        for k in range(n_outputs):
            p = float(params[n_weights + k])
            for j in range(first, last):
                if sparse is None:
                    place = k * n_features + (j - first)
                else:
                    place = np.uint64(sparse[0][j]) * n_outputs + k
                p += float(values[j]) * params[place]
            _, slope, class_weight = state.loss_of_output(rows, steps, i, k, p)
            slope *= class_weight * row_weights[i]
            slopes[i * n_outputs + k] = slope
            # As it is remembered: the mean must be that of what is.
            slope = float(slopes[i * n_outputs + k])
            if constants[state.INTERCEPT_RATE] > 0.0:
                sums[n_weights + k] += slope
            for j in range(first, last):
                if sparse is None:
                    place = k * n_features + (j - first)
                else:
                    place = np.uint64(sparse[0][j]) * n_outputs + k
                sums[place] += slope * values[j]


@kernel
def largest_square(
    values: FloatVector,
    sparse: Sparse | None,
    index: IndexVector,
    row_weights: FloatVector,
    n_features: int,
    beside: float,
) -> tuple[float, float]:
    """Return the largest of ``weight (|x|^2 + beside)`` over all rows, and the sum of the others; 0 without rows."""
    largest, others, width = 0.0, 0.0, np.uint64(n_features)
    for i in range(np.uint64(row_weights.shape[0])):
        span = row_bounds(index, sparse, i, width)
        square = row_weights[i] * (float(row_square(values, span)) + beside)
        others += min(square, largest)
        largest = max(largest, square)
    return largest, others
