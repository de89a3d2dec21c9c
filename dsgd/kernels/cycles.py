"""The rates that go up and down: a table, and a scalar function that kernels call with the code of a cycle.

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
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import numpy as np

from dsgd.kernels.jit import kernel, scalar
from dsgd.kernels.schedules import Schedule
from dsgd.types import FloatVector

TRIANGULAR = 6
TRIANGULAR2 = 7
EXP_RANGE = 8
ONE_CYCLE = 9
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
    """Return what eta0 is multiplied by at a step.

    - `decay`: of `exp_range` what the height is multiplied by in every step; of `one_cycle` the steps after the
      cycle.
    """
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
