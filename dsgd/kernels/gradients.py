"""The gradient of the loss over many rows, and a step along it: minibatches, and gradients that ranks exchange.

The problem is that of `dsgd.kernels.sgd`, with the same arguments and layout of the parameters. One step, along the
mean gradient g of a batch: ``w <- (1 - (1 - r) eta alpha) w - eta g``, then the L1 truncation.

Cost: a pass over the rows of a batch, and one over the model in its step, which therefore needs no scale.
"""

from __future__ import annotations

import numpy as np

from dsgd.kernels.epoch_order import block_at, rows_ahead
from dsgd.kernels.jit import leaf_kernel
from dsgd.kernels.penalties import truncate
from dsgd.kernels.state import (
    AVERAGE,
    COUNTERS,
    INTERCEPT_RATE,
    L1_RATE,
    L1_TOTAL,
    N_AVERAGED,
    N_FEATURES,
    N_OUTPUTS,
    SHRINK_RATE,
    T,
    count_rows,
    loss_of_output,
    rate_now,
)
from dsgd.kernels.vector import add_columns, add_row, ask_ahead, row_bounds, row_dot, score_columns
from dsgd.types import FloatMatrix, FloatVector, IndexVector, IntMatrix, IntVector, PointerVector

_ONE = np.uint64(1)


@leaf_kernel
def gradient_rows(
    values: FloatVector,
    indices: IndexVector | None,
    indptr: PointerVector | None,
    index: IndexVector,
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

    - `order`: as in `dsgd.kernels.sgd.run_rows`; params are read only, of the counters the sums of losses and the
      rows seen are updated.
    - `out`, shape (n_params,): the sum, overwritten.
    """
    n_outputs = np.uint64(codes[N_OUTPUTS])
    n_features = np.uint64(codes[N_FEATURES])
    n_weights = n_outputs * n_features
    for j in range(np.uint64(out.shape[0])):
        out[j] = 0.0
    loss_sum = 0.0
    guard = 0.0
    is_wide = indices is not None and n_outputs > _ONE
    at, block = start, block_at(order, start)
    while at < stop:
        first_row, end_row, at, block = rows_ahead(order, block, at, stop)
        for i in range(first_row, end_row):
            ask_ahead(values, indices, indptr, index, i, n_features)
            first, last = row_bounds(index, indptr, i, n_features)
            if indices is not None and is_wide:
                score_columns(values, indices, first, last, params, factors)
            for k in range(n_outputs):
                base = k * n_features
                dot = factors[k] if is_wide else row_dot(values, indices, first, last, params, base)
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
                    add_row(values, indices, first, last, out, base, slope)
            if indices is not None and is_wide:
                add_columns(values, indices, first, last, out, factors, 1.0)
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

    - `params`, shape (n_params,): the model, updated in place.
    - `gradient`, shape (n_params,): mean gradient of the loss.
    - `average`, shape (n_params,) or (0,): the averaged model, updated in place; unused unless averaging is on.
    - `received`, `counters`, `constants`, `codes`: as in `dsgd.kernels.sgd.run_rows`.
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
