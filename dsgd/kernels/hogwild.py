"""SGD steps on one model that several threads update at once, without locks.

Threads may read a weight that another one is about to change, and of two that change the same weight at the same moment
one may be lost; a word is never torn. So a step may touch the weights of its row's columns and no other one: the
penalty of a step goes to these alone, divided by how often a row has them, which adds up to the penalty on all weights.

Source: Recht, Re, Wright and Niu 2011 (their equation 5 for the penalty).
"""

from __future__ import annotations

import numpy as np

from dsgd.kernels.jit import kernel, scalar
from dsgd.kernels.order import block_at, rows_ahead
from dsgd.kernels.softmax import loss_and_slopes
from dsgd.kernels.state import (
    COUNTERS,
    INTERCEPT_RATE,
    L1_RATE,
    N_FEATURES,
    N_OUTPUTS,
    SHRINK_RATE,
    T,
    count_rows,
    loss_of_output,
    rate_now,
)
from dsgd.kernels.vector import ask_ahead, row_bounds
from dsgd.types import FloatMatrix, FloatVector, IndexVector, IntMatrix, IntVector, PointerVector


@scalar
def shared_score(
    values: FloatVector,
    indices: IndexVector | None,
    first: np.uint64,
    last: np.uint64,
    params: FloatVector,
    n_features: np.uint64,
    n_outputs: np.uint64,
    k: np.uint64,
) -> float:
    """Return the score of an output."""
    dot = 0.0
    for j in range(first, last):
        column = j - first if indices is None else np.uint64(indices[j])
        place = k * n_features + column if indices is None else column * n_outputs + k
        dot += values[j] * params[place]
    p: float = dot + params[n_outputs * n_features + k]
    return p


@scalar
def shared_step(
    values: FloatVector,
    indices: IndexVector | None,
    first: np.uint64,
    last: np.uint64,
    params: FloatVector,
    n_features: np.uint64,
    n_outputs: np.uint64,
    k: np.uint64,
    frequencies: FloatVector,
    constants: FloatVector,
    eta: float,
    step: float,
) -> None:
    """Take a step of an output, penalty included; `step` is the rate times the weighted slope."""
    dtype = params.dtype.type
    for j in range(first, last):
        column = j - first if indices is None else np.uint64(indices[j])
        place = k * n_features + column if indices is None else column * n_outputs + k
        share = eta / frequencies[column]
        before = params[place]  # read again: other threads have stepped since the score was computed
        after = max(0.0, 1.0 - constants[SHRINK_RATE] * share) * before - step * values[j]
        owed = constants[L1_RATE] * share
        if owed > 0.0:
            after = max(0.0, after - owed) if after > 0.0 else min(0.0, after + owed)
        params[place] = dtype(after)
    params[n_outputs * n_features + k] -= dtype(constants[INTERCEPT_RATE] * step)


@kernel
def run_shared_rows(
    values: FloatVector,
    indices: IndexVector | None,
    indptr: PointerVector | None,
    index: IndexVector,
    targets: FloatVector,
    row_weights: FloatVector,
    class_weights: FloatMatrix,
    params: FloatVector,
    frequencies: FloatVector,
    factors: FloatVector | None,
    counters: FloatVector,
    constants: FloatVector,
    codes: IntVector,
    order: IntMatrix,
    stride: float,
    start: int,
    stop: int,
) -> None:
    """Take one step on each of the rows at the places start..stop, in order, on a model that others step on too.

    - `values`, `indices`, `indptr`, `index`, `targets`, `row_weights`, `class_weights`, `counters`, `constants`,
      `codes`, `order`: as in `dsgd.kernels.sgd.run_rows`.
    - `params`, shape (n_params,): the model, shared, updated in place.
    - `frequencies`, shape (n_features,): share of all rows that have an entry in each column.
    - `factors`, shape (n_outputs,): scratch of this thread for the loss of all classes (`dsgd.kernels.softmax`),
      whose weights of classes and losses are as in `run_softmax_rows`; None for all others.
    - `stride`: by how much each row advances the step counter: one for each thread.
    - `start`, `stop`: places of the rows to visit.
    """
    n_outputs = np.uint64(codes[N_OUTPUTS])
    n_features = np.uint64(codes[N_FEATURES])
    t = counters[T]
    loss_sum = 0.0
    guard = 0.0
    at, block = start, block_at(order, start)
    while at < stop:
        first_row, end_row, at, block = rows_ahead(order, block, at, stop)
        for i in range(first_row, end_row):
            ask_ahead(values, indices, indptr, index, i, n_features)
            first, last = row_bounds(index, indptr, i, n_features)
            eta = rate_now(counters, constants, codes, t)
            gain = 0.0
            if factors is not None:
                for k in range(n_outputs):
                    p = shared_score(values, indices, first, last, params, n_features, n_outputs, k)
                    guard += p * 0.0
                    factors[k] = p
                target = np.uint64(targets[i])
                loss_sum += loss_and_slopes(factors, target)
                gain = eta * row_weights[i] * class_weights[0, target]
            for k in range(n_outputs):
                if factors is None:
                    p = shared_score(values, indices, first, last, params, n_features, n_outputs, k)
                    loss, slope, class_weight = loss_of_output(targets, class_weights, constants, codes, i, k, p)
                    loss_sum += loss
                    counters[np.uint64(COUNTERS) + k] += loss
                    guard += p * 0.0  # NaN once a score was not finite
                    step = eta * slope * row_weights[i] * class_weight
                else:
                    step = gain * factors[k]
                shared_step(
                    values, indices, first, last, params, n_features, n_outputs, k, frequencies, constants, eta, step
                )
            t += stride
    counters[T] = t
    if factors is not None:
        counters[COUNTERS] += loss_sum
    count_rows(counters, stop - start, loss_sum, guard)
