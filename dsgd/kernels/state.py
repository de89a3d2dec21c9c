"""The state of training as kernels see it, and schedules of rates.

The learning-rate schedules: a table, and a scalar function that kernels call with the code of a schedule.

t counts steps from 1, e counts epochs from 1, s is the factor by which an adaptive rate has been cut.

============ =============================== ================================================================
name         eta                             source
============ =============================== ================================================================
constant     eta0                            Robbins and Monro 1951, fixed gain
optimal      1 / (alpha (t0 + t - 1))        Bottou 2010; t0 = alpha^(-3/4) as in scikit-learn
invscaling   eta0 / t^power_t                scikit-learn
adaptive     eta0 s                          scikit-learn; s is divided by 5 when an epoch does not help
pegasos      1 / (alpha t)                   Shalev-Shwartz et al. 2007, Figure 1
per_epoch    1 / (alpha e)                   Abeykoon, Fox and Kim 2019: the model synchronisation frequency study
============ =============================== ================================================================

The rates that go up and down: a table, and a scalar function that kernels call with the code of a cycle.

Every rate is eta0 times a factor. With s = t - 1 the steps so far, h half a cycle, x = s / h, and the triangle
``v = 1 - |x - 2 floor(x / 2) - 1|``, which rises from 0 to 1 in h steps and falls again in as many:

============ ======================================================= =====================================
name         factor                                                  source
============ ======================================================= =====================================
triangular   1 + (peak - 1) v                                        Smith 2017
triangular2  1 + (peak - 1) v / 2^floor(x / 2)                       Smith 2017: half as high in each cycle
exp_range    1 + (peak - 1) v decay^s                                Smith 2017: less high with every step
one_cycle    1 + (peak - 1) v while x < 2; then from 1 to `LEAST`,   Smith and Topin 2018
             in a line, in `decay` steps; then that
============ ======================================================= =====================================

In the source of the last the rate falls in the end by several orders of magnitude; here by three.

**What a run of steps keeps from call to call: places in three vectors, and what is read and counted there.**

Problem: Numba passes no record between Python and a kernel without boxing it, and its fields one by one would be two
dozen arguments.

Method: what changes with the steps is in the vector `counters`, what does not in `constants` (numbers) and `codes`
(integers). Every kernel of SGD, whatever its steps are, finds things in the same places.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeAlias

import numpy as np

from dsgd.kernels.jit import kernel, scalar
from dsgd.kernels.losses import SQUARED_ERROR, loss_and_slope
from dsgd.kernels.rows import RowArrays
from dsgd.types import FloatVector, IntMatrix, IntVector

CONSTANT, OPTIMAL, INVSCALING, ADAPTIVE, PEGASOS, PER_EPOCH = range(6)

# Rates of so many steps are added up one by one; those of later ones hardly differ from one to the next.
_N_FIRST: Final = 32


@dataclass(frozen=True)
class Schedule:
    """A row of the table of schedules; kernels are given its code."""

    name: str
    code: int
    needs_alpha: bool
    source: str

    def power(self, power_t: float) -> float:
        """Return p where rates fall like 1 / t^p in the long run, at most 1; `power_t` is that of invscaling."""
        if self.code == INVSCALING:
            return min(max(power_t, 0.0), 1.0)
        return 1.0 if self.code in (OPTIMAL, PEGASOS) else 0.0


SCHEDULES: Mapping[str, Schedule] = MappingProxyType(
    {
        row.name: row
        for row in (
            Schedule("constant", CONSTANT, False, "Robbins and Monro 1951"),
            Schedule("optimal", OPTIMAL, True, "Bottou 2010; scikit-learn"),
            Schedule("invscaling", INVSCALING, False, "scikit-learn"),
            Schedule("adaptive", ADAPTIVE, False, "scikit-learn"),
            Schedule("pegasos", PEGASOS, True, "Shalev-Shwartz et al. 2007"),
            Schedule("per_epoch", PER_EPOCH, True, "Abeykoon et al. 2019, arXiv 1905.01219"),
        )
    }
)


def optimal_t0(alpha: float) -> float:
    """Return t0 of the optimal schedule.

    scikit-learn takes for the first rate the size a typical weight has, ``typw = sqrt(1 / sqrt(alpha))``, over the
    slope of the loss at y = 1, p = -typw, or over 1 if that is more. The slope is negative for every loss, so the rate
    is typw.

    - returned: t0, such that the first rate ``1 / (alpha t0)`` is typw.
    """
    return float(alpha**-0.75)


@scalar
def learning_rate(code: int, t: float, epoch: float, alpha: float, eta0: float, power_t: float, t0: float) -> float:
    """Return the learning rate of a step; `eta0` is already cut if the schedule is adaptive."""
    if code == OPTIMAL:
        return 1.0 / (alpha * (t0 + t - 1.0))
    if code == PEGASOS:
        return 1.0 / (alpha * t)
    if code == PER_EPOCH:
        return 1.0 / (alpha * max(epoch, 1.0))
    if code == INVSCALING:
        return eta0 / math.pow(t, power_t)
    return eta0


def relative_sums(code: int, starts: FloatVector, counts: FloatVector, power_t: float, t0: float) -> FloatVector:
    """Return sums of the rates of steps in a row, up to a factor that all steps of an epoch have in common.

    Rates of the first steps are added up, those of later ones integrated from half a step before to half a step after:
    within 1e-4 of the sum, and in a time that does not depend on the number of steps.
    """
    if code in (CONSTANT, ADAPTIVE, PER_EPOCH):
        return np.array(counts, dtype=np.float64)
    power, offset = (power_t, 0.0) if code == INVSCALING else (1.0, t0 - 1.0 if code == OPTIMAL else 0.0)
    sums: FloatVector = np.zeros(len(counts))
    _add_powers(sums, starts, counts, offset, power)
    return sums


@kernel
def _add_powers(sums: FloatVector, starts: FloatVector, counts: FloatVector, offset: float, power: float) -> None:
    """Add to each sum those of ``(offset + t)^-power`` over as many t from the start on as its count says."""
    for i in range(np.uint64(sums.shape[0])):
        if i > 0 and starts[i] == starts[i - 1] and counts[i] == counts[i - 1]:
            # As of most of a thousand ranks.
            sums[i] += sums[i - 1]
            continue
        first, count = starts[i] + offset, counts[i]
        for j in range(int(min(count, _N_FIRST))):
            sums[i] += 1.0 / (first + j) if power == 1.0 else (first + j) ** -power
        if count > _N_FIRST:
            low, high = first + _N_FIRST - 0.5, first + count - 0.5
            if power == 1.0:
                sums[i] += math.log(high / low)
            else:
                sums[i] += (high ** (1.0 - power) - low ** (1.0 - power)) / (1.0 - power)


TRIANGULAR, TRIANGULAR2, EXP_RANGE, ONE_CYCLE = range(6, 10)

#: From here on codes are those of cycles.
FIRST_CYCLE = TRIANGULAR

#: The factor with which one cycle ends.
LEAST: Final = 1e-3
CYCLES: Mapping[str, Schedule] = MappingProxyType(
    {
        row.name: row
        for row in (
            Schedule("triangular", TRIANGULAR, False, "Smith 2017"),
            Schedule("triangular2", TRIANGULAR2, False, "Smith 2017"),
            Schedule("exp_range", EXP_RANGE, False, "Smith 2017"),
            Schedule("one_cycle", ONE_CYCLE, False, "Smith and Topin 2018"),
        )
    }
)


@scalar
def cycle_factor(code: int, t: float, peak: float, half: float, decay: float) -> float:
    """Return what eta0 is multiplied by at a step."""
    steps = t - 1.0
    x = steps / half
    if code == ONE_CYCLE and x >= 2.0:
        return max(LEAST, 1.0 - (1.0 - LEAST) * (steps - 2.0 * half) / decay)
    cycle = math.floor(0.5 * x)
    height = (peak - 1.0) * (1.0 - abs(x - 2.0 * cycle - 1.0))
    if code == TRIANGULAR2:
        height *= math.pow(0.5, cycle)
    elif code == EXP_RANGE:
        height *= math.pow(decay, steps)
    return 1.0 + height


@kernel
def add_factors(
    sums: FloatVector, starts: FloatVector, counts: FloatVector, code: int, peak: float, half: float, decay: float
) -> None:
    """Add to each sum those of the factors of as many steps from the start on as its count says."""
    for i in range(np.uint64(sums.shape[0])):
        if i > 0 and starts[i] == starts[i - 1] and counts[i] == counts[i - 1]:
            # As of most of a thousand ranks.
            sums[i] += sums[i - 1]
            continue
        for j in range(int(counts[i])):
            sums[i] += cycle_factor(code, starts[i] + j, peak, half, decay)


# What changes: places in the vector `counters` (float64); behind them stands the sum of the losses of each output.
T, EPOCH, ETA_SCALE, LOSS_SUM, N_SEEN, N_AVERAGED, L1_TOTAL, GUARD, RATE_FACTOR = range(9)
COUNTERS = 9

# What does not: places in the vectors `constants` (float64) and `codes` (int64).
ALPHA, SHRINK_RATE, L1_RATE, EPSILON, ETA0, POWER_T, T0, INTERCEPT_RATE, PEAK, HALF_CYCLE, DECAY = range(11)
CONSTANTS = 11
LOSS, SCHEDULE, N_OUTPUTS, N_FEATURES, AVERAGE = range(5)
CODES = 5

#: Counters, constants, codes, and the order in which an epoch walks the rows (`dsgd.kernels.order`).
Steps: TypeAlias = tuple[FloatVector, FloatVector, IntVector, IntMatrix]

#: The averaged model, the L1 penalty that each weight has received, and scratch for a number of each output.
Beside: TypeAlias = tuple[FloatVector, FloatVector, FloatVector]


def is_plain(constants: FloatVector, codes: IntVector) -> bool:
    """Return whether steps need only what the commonest do: most of what kernels could do need not be compiled then."""
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
    schedule, eta0 = codes[SCHEDULE], constants[ETA0] * counters[ETA_SCALE]
    rate: float = learning_rate(schedule, t, counters[EPOCH], constants[ALPHA], eta0, constants[POWER_T], constants[T0])
    rate *= counters[RATE_FACTOR]
    return rate


@scalar
def loss_of_output(rows: RowArrays, steps: Steps, row: np.uint64, k: np.uint64, p: float) -> tuple[float, float, float]:
    """Return loss and slope of an output that predicts p for a row, and the weight of the row's class in it."""
    (_, constants, codes, _), y = steps, float(rows[2][row])
    if codes[N_OUTPUTS] > 1:
        y = 1.0 if y == k else -1.0
    loss, slope = loss_and_slope(codes[LOSS], y, p, constants[EPSILON])
    return loss, slope, rows[4][0 if y > 0.0 else 1, k]


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
