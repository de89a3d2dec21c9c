"""Mean gradients, and rules of steps on them.

The gradient of the loss over many rows, and a step along it: minibatches, and gradients that ranks exchange.

The problem is that of `dsgd.kernels.sgd`, with the same arguments and layout of the parameters. One step, along the
mean gradient g of a batch: ``w <- (1 - (1 - r) eta alpha) w - eta g``, then the L1 truncation.

Cost: a pass over the rows of a batch, and one over the model in its step, which therefore needs no scale.

Update rules of minibatch steps: from a mean gradient to a step.

With g the mean gradient of a batch, w the weights, mu, b1, b2, c, e constants of the rule, and eta the rate of
`dsgd.kernels.state`; the step is ``w <- w - eta d``. A penalty ``s ||w||^2 / 2`` adds ``s w`` to g, or, decoupled,
``eta s w`` to the step.

=========== ======================================================================= ====================================
rule        direction d                                                             source
=========== ======================================================================= ====================================
plain       d = g                                                                   Cauchy 1847
heavy ball  u <- mu u + g;  d = u                                                   Polyak 1964
Nesterov    u <- mu u + g;  d = g + mu u                                            Nesterov 1983; Sutskever et al. 2013
Adagrad     v <- v + g^2;  d = g / (sqrt(v) + e)                                    Duchi, Hazan and Singer 2011
Adam        u <- b1 u + (1 - b1) g;  v <- b2 v + (1 - b2) g^2;                      Kingma and Ba 2015;
            d = u / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + e)                         Loshchilov and Hutter 2019
LARS        u <- mu u + eta r g;  d = u / eta;  r = c ||w|| / (||g|| + s ||w||)     You, Gitman and Ginsburg 2017
            per slice, an output's weights; r = 1 for intercepts and zero norms
=========== ======================================================================= ====================================
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np

from dsgd.kernels import state
from dsgd.kernels.jit import leaf_kernel, scalar
from dsgd.kernels.order import block_at, rows_ahead
from dsgd.kernels.rows import RowArrays, Sparse, add_columns, add_row, ask_ahead, row_bounds, row_dot, score_columns
from dsgd.kernels.scaled import truncate
from dsgd.kernels.state import Beside, Steps
from dsgd.types import FloatVector, IntVector

_ONE = np.uint64(1)


@leaf_kernel
def gradient_rows(
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
    values, index, _, row_weights, _ = rows
    counters, constants, codes, order = steps
    n_outputs = np.uint64(codes[state.N_OUTPUTS])
    n_features = np.uint64(codes[state.N_FEATURES])
    n_weights = n_outputs * n_features
    for j in range(np.uint64(out.shape[0])):
        out[j] = 0.0
    loss_sum = 0.0
    guard = 0.0
    is_wide = sparse is not None and n_outputs > _ONE
    at, block = start, block_at(order, start)
    while at < stop:
        first_row, end_row, at, block = rows_ahead(order, block, at, stop)
        for i in range(first_row, end_row):
            ask_ahead(values, sparse, index, i, n_features)
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
                if constants[state.INTERCEPT_RATE] > 0.0:
                    out[n_weights + k] += out.dtype.type(slope)
                if is_wide:
                    factors[k] = slope
                elif slope != 0.0:
                    add_row(values, sparse, span, out, base, slope)
            if sparse is not None and is_wide:
                add_columns(values, sparse, span, out, factors, 1.0)
    state.count_rows(counters, stop - start, loss_sum, guard)


@leaf_kernel
def step_all(params: FloatVector, gradient: FloatVector, beside: Beside, steps: Steps) -> None:
    """Take one step along a mean gradient, penalty included, and advance t by one."""
    average, received, _ = beside
    counters, constants, codes, _ = steps
    n_weights = np.uint64(codes[state.N_OUTPUTS] * codes[state.N_FEATURES])
    n_params = np.uint64(params.shape[0])
    t = counters[state.T]
    eta = state.rate_now(counters, constants, codes, t)
    shrink = max(0.0, 1.0 - constants[state.SHRINK_RATE] * eta)
    if constants[state.L1_RATE] > 0.0:
        counters[state.L1_TOTAL] += constants[state.L1_RATE] * eta
    for j in range(n_weights):
        before = shrink * params[j] - eta * gradient[j]
        if constants[state.L1_RATE] > 0.0:
            after = truncate(before, counters[state.L1_TOTAL], received[j])
            received[j] += received.dtype.type(after - before)
            before = after
        params[j] = params.dtype.type(before)
    for j in range(n_weights, n_params):
        params[j] -= params.dtype.type(constants[state.INTERCEPT_RATE] * eta * gradient[j])
    if 0 < codes[state.AVERAGE] <= t:
        counters[state.N_AVERAGED] += 1.0
        for j in range(n_params):
            average[j] += params.dtype.type((params[j] - average[j]) / counters[state.N_AVERAGED])
    counters[state.T] = t + 1.0


HEAVY_BALL, NESTEROV, ADAGRAD, ADAM, LARS, PLAIN = range(6)

# Places in the vector `rule` (float64).
CODE, BETA1, BETA2, EPSILON, TRUST, IS_DECOUPLED, IS_COLUMN_MAJOR, BATCH = range(8)
RULE_CONSTANTS = 8

#: What a rule remembers: velocity, second moments, steps; the constants of its steps, and its own.
Memory: TypeAlias = tuple[FloatVector, FloatVector, FloatVector, FloatVector, FloatVector]


@scalar
def lars_ratios(
    params: FloatVector, gradient: FloatVector, rule: FloatVector, constants: FloatVector, codes: IntVector
) -> None:
    """Multiply the gradient of every output's weights, penalty included, by the trust ratio of that slice."""
    n_outputs, n_features = np.uint64(codes[state.N_OUTPUTS]), np.uint64(codes[state.N_FEATURES])
    # Sparse rows keep weights (n_features, n_outputs): an output's weights lie n_outputs apart.
    stride = n_outputs if rule[IS_COLUMN_MAJOR] > 0.0 else np.uint64(1)
    for k in range(n_outputs):
        first = k if rule[IS_COLUMN_MAJOR] > 0.0 else k * n_features
        of_weights, of_gradient = 0.0, 0.0
        for i in range(n_features):
            j = first + i * stride
            of_weights += float(params[j]) * float(params[j])
            of_gradient += float(gradient[j]) * float(gradient[j])
        of_weights, of_gradient = math.sqrt(of_weights), math.sqrt(of_gradient)
        ratio = 1.0
        if of_weights > 0.0 and of_gradient > 0.0:
            ratio = rule[TRUST] * of_weights / (of_gradient + constants[state.SHRINK_RATE] * of_weights)
        for i in range(n_features):
            j = first + i * stride
            gradient[j] = params.dtype.type(ratio * (gradient[j] + constants[state.SHRINK_RATE] * params[j]))


@scalar
def turn(gradient: FloatVector, memory: Memory, eta: float) -> None:
    """Replace a gradient by the direction of the rule, and update what the rule remembers."""
    velocity, second, steps, _, rule = memory
    code, beta1, beta2, epsilon = int(rule[CODE]), rule[BETA1], rule[BETA2], rule[EPSILON]
    n = np.uint64(gradient.shape[0])
    dtype = gradient.dtype.type
    steps[0] += 1.0
    if code == PLAIN:
        return
    if code == HEAVY_BALL:
        for j in range(n):
            velocity[j] = dtype(beta1 * velocity[j] + gradient[j])
            gradient[j] = velocity[j]
    elif code == NESTEROV:
        for j in range(n):
            velocity[j] = dtype(beta1 * velocity[j] + gradient[j])
            gradient[j] = dtype(gradient[j] + beta1 * velocity[j])
    elif code == ADAGRAD:
        for j in range(n):
            second[j] = dtype(second[j] + float(gradient[j]) * gradient[j])
            gradient[j] = dtype(gradient[j] / (math.sqrt(second[j]) + epsilon))
    elif code == ADAM:
        first_bias, second_bias = 1.0 - beta1 ** steps[0], 1.0 - beta2 ** steps[0]
        for j in range(n):
            velocity[j] = dtype(beta1 * velocity[j] + (1.0 - beta1) * gradient[j])
            second[j] = dtype(beta2 * second[j] + (1.0 - beta2) * float(gradient[j]) * gradient[j])
            gradient[j] = dtype((velocity[j] / first_bias) / (math.sqrt(second[j] / second_bias) + epsilon))
    else:
        for j in range(n):
            velocity[j] = dtype(beta1 * velocity[j] + eta * gradient[j])
            gradient[j] = dtype(velocity[j] / eta)


@leaf_kernel
def step_rule(params: FloatVector, gradient: FloatVector, beside: Beside, steps: Steps, memory: Memory) -> None:
    """Take one step of a rule with a mean gradient, penalty included, and advance t by one.

    - `gradient`, shape (n_params,): mean gradient of the loss; overwritten by the direction.
    - `memory`: u and v of the rule, shape (n_params,) or (0,), and its steps, updated in place; the constants for the
      step along the direction, which holds penalty and rate of the intercept already; the constants of the rule.
    """
    (counters, constants, codes, order), rule = steps, memory[4]
    n_weights = np.uint64(codes[state.N_OUTPUTS] * codes[state.N_FEATURES])
    eta = state.rate_now(counters, constants, codes, counters[state.T])
    if int(rule[CODE]) == LARS:
        lars_ratios(params, gradient, rule, constants, codes)
    elif rule[IS_DECOUPLED] == 0.0 and constants[state.SHRINK_RATE] > 0.0:
        for j in range(n_weights):
            gradient[j] = params.dtype.type(gradient[j] + constants[state.SHRINK_RATE] * params[j])
    for j in range(n_weights, np.uint64(gradient.shape[0])):
        gradient[j] = params.dtype.type(constants[state.INTERCEPT_RATE] * gradient[j])
    turn(gradient, memory, eta)
    step_all(params, gradient, beside, (counters, memory[3], codes, order))


@leaf_kernel
def run_batches(
    rows: RowArrays,
    sparse: Sparse | None,
    params: FloatVector,
    beside: Beside,
    steps: Steps,
    gradient: FloatVector,
    memory: Memory,
    start: int,
    stop: int,
) -> None:
    """Take one step on each batch of the rows start..stop, cut into as few batches of even size as the rule allows."""
    n_rows, batch = stop - start, int(memory[4][BATCH])
    n_batches = (n_rows + batch - 1) // batch
    for k in range(n_batches):
        low, high = start + n_rows * k // n_batches, start + n_rows * (k + 1) // n_batches
        gradient_rows(rows, sparse, params, gradient, beside[2], steps, low, high)
        for j in range(np.uint64(gradient.shape[0])):
            gradient[j] /= params.dtype.type(high - low)
        step_rule(params, gradient, beside, steps, memory)
