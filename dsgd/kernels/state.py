"""What a run of steps keeps from call to call: places in three vectors, and what is read and counted there.

Problem: Numba passes no record between Python and a kernel without boxing it, and its fields one by one would be two
dozen arguments.

Method: what changes with the steps is in the vector `counters`, what does not in `constants` (numbers) and `codes`
(integers). Every kernel of SGD, whatever its steps are, finds things in the same places.
"""

from __future__ import annotations

import numpy as np

from dsgd.kernels.cycles import FIRST_CYCLE, cycle_factor
from dsgd.kernels.jit import kernel, scalar
from dsgd.kernels.losses import SQUARED_ERROR, loss_and_slope
from dsgd.kernels.schedules import learning_rate
from dsgd.types import FloatMatrix, FloatVector, IntVector

# What changes: places in the vector `counters` (float64); behind them stands the sum of the losses of each output.
T, EPOCH, ETA_SCALE, LOSS_SUM, N_SEEN, N_AVERAGED, L1_TOTAL, GUARD, RATE_FACTOR = range(9)
COUNTERS = 9
# What does not: places in the vectors `constants` (float64) and `codes` (int64).
ALPHA, SHRINK_RATE, L1_RATE, EPSILON, ETA0, POWER_T, T0, INTERCEPT_RATE, PEAK, HALF_CYCLE, DECAY = range(11)
CONSTANTS = 11
LOSS, SCHEDULE, N_OUTPUTS, N_FEATURES, AVERAGE = range(5)
CODES = 5


def is_plain(constants: FloatVector, codes: IntVector) -> bool:
    """Return whether steps need only what the commonest do: most of what kernels could do need not be compiled then.

    That is: one output, no average, no L1, no cycle of rates, and a loss without a parameter.
    """
    is_common = codes[LOSS] <= SQUARED_ERROR and codes[SCHEDULE] < FIRST_CYCLE
    return bool(is_common and codes[N_OUTPUTS] == 1 and codes[AVERAGE] == 0 and constants[L1_RATE] == 0.0)


@scalar
def rate_now(counters: FloatVector, constants: FloatVector, codes: IntVector, t: float) -> float:
    """Return the learning rate of step `t`."""
    if codes[SCHEDULE] >= FIRST_CYCLE:
        factor: float = cycle_factor(codes[SCHEDULE], t, constants[PEAK], constants[HALF_CYCLE], constants[DECAY])
        factor *= constants[ETA0] * counters[ETA_SCALE] * counters[RATE_FACTOR]
        return factor
    rate: float = plain_rate(counters, constants, codes, t)
    return rate


@scalar
def plain_rate(counters: FloatVector, constants: FloatVector, codes: IntVector, t: float) -> float:
    """Return the learning rate of step `t` where rates are no cycle."""
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
def count_rows(counters: FloatVector, n_rows: int, loss_sum: float, guard: float) -> None:
    """Count rows that were seen, and what was found on them."""
    counters[LOSS_SUM] += loss_sum
    counters[GUARD] += guard
    counters[N_SEEN] += n_rows


@kernel
def rate_sum(counters: FloatVector, constants: FloatVector, codes: IntVector, t_start: float) -> float:
    """Return the sum of the rates of the steps from `t_start` up to that which comes next."""
    total, t = 0.0, t_start
    while t < counters[T]:
        total += rate_now(counters, constants, codes, t)
        t += 1.0
    return total
