"""The learning-rate schedules: a table, and a scalar function that kernels call with the code of a schedule.

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
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np

from dsgd.kernels.jit import kernel, scalar
from dsgd.types import FloatVector

CONSTANT = 0
OPTIMAL = 1
INVSCALING = 2
ADAPTIVE = 3
PEGASOS = 4
PER_EPOCH = 5

# Rates of so many steps are added up one by one; those of later ones hardly differ from one to the next.
_N_FIRST: Final = 32


@dataclass(frozen=True)
class Schedule:
    """A row of the table of schedules.

    - `name`: name; scikit-learn's where it has the schedule.
    - `code`: what kernels are given instead of the name.
    - `needs_alpha`: whether the schedule divides by alpha.
    - `source`: where the schedule comes from.
    """

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

    - `alpha`: strength of the penalty, above zero.
    - returned: t0, such that the first rate ``1 / (alpha t0)`` is typw.
    """
    return float(alpha**-0.75)


@scalar
def learning_rate(code: int, t: float, epoch: float, alpha: float, eta0: float, power_t: float, t0: float) -> float:
    """Return the learning rate of a step.

    - `epoch`: epoch, from 1; what is below counts as 1.
    - `eta0`: first rate, already cut if the schedule is adaptive.
    """
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

    - `starts`, shape (n,): the first steps, from 1.
    - `counts`, shape (n,): how many steps.
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
