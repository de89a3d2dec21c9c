"""Adaptive tau under a budget: the period that minimises a bound on the loss reached within some seconds.

Problem: with a budget of seconds, rare synchronisation leaves time for more steps, and lets models drift apart.

Rule: with seconds c of a step and b of a synchronisation, a budget of R seconds allows so many steps of period tau::

    T = (R - c - b) tau / (c tau + b)

From the smoothness beta, the Lipschitz constant rho and the divergence delta of the gradients and the rate eta, the gap
between the models and the one that sees all rows is bounded by::

    h(tau) = delta / beta ((eta beta + 1)^tau - 1) - eta delta tau

and the next period is the tau, up to ten times the last one, that makes least::

    (1 + sqrt(1 + 4 T^2 phi rho eta h(tau) / tau)) / (2 T eta phi) + rho h(tau)

Estimates, with w_p the model of a rank before a synchronisation and r the one it began the round with: ``beta =
|grad F_p(w_p) - grad F_p(r)| / |w_p - r|`` and ``rho = |F_p(w_p) - F_p(r)| / |w_p - r|`` on some rows of the rank, and
``delta = sqrt(S) / (eta tau)`` from the mean squared distance S of the models from their mean. Of those of now and of
the first decision the larger beta counts, since a smoothness holds everywhere, and the smaller delta, since over few
steps S is the noise of single rows.

Source: Wang, Tuor, Salonidis, Leung, Makaya, He and Chan 2019 (IEEE JSAC, arXiv 1804.05271), equations 11 and 18 and
algorithm 2. Theirs takes the model after the average in the place of r, and delta from gradients that are sent along.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from dsgd.sync.adaptive.base import AbstractRule, Choice, Measured
from dsgd.validation import check_numbers

__all__ = ["BudgetedPeriod", "drift_bound"]

_MOST_TIMES: Final = 10
_PER_OCTAVE: Final = 4
_TOO_FAR: Final = 1e100


@dataclass(frozen=True)
class BudgetedPeriod(AbstractRule):
    """Take the period with the best bound for a budget of seconds.

    Parameters
    ----------
    budget_s : float or None, default None
        Seconds that training may take; None is what the epochs that are left take at the present period.
    phi : float, default 0.025
        The constant of the bound; the source's for its support vector machine.
    first : int or None, default None
        The period at first; None is a sixteenth of the rows of the longest rank.

    Raises
    ------
    InvalidParameterError
        A value is out of range.
    """

    budget_s: float | None = None
    phi: float = 0.025
    first: int | None = None
    asks_slopes = True
    follows_clocks = True

    def __post_init__(self) -> None:
        check_numbers(self, "budget_s", low=0.0, open_low=True, optional=True)
        check_numbers(self, "phi", low=0.0, open_low=True)
        check_numbers(self, "first", low=1, integer=True, optional=True)

    def next(self, now: Measured, start: Measured) -> Choice:
        """Return the best of some periods between one row and ten times the last period."""
        step_s, sync_s, rate = now.row_s, now.wire_s + now.wait_s, now.rate
        left_s = now.rows_left * (step_s + sync_s / now.every)
        if self.budget_s is not None:
            left_s = self.budget_s - now.seconds
        left_s -= step_s + sync_s
        if left_s <= 0.0 or min(rate, start.rate, now.slope, step_s) <= 0.0:
            return Choice(now.every, "budget")
        delta = min(math.sqrt(seen.dispersion) / (seen.rate * seen.every) for seen in (start, now))
        best, least = now.every, math.inf
        curvature = max(now.curvature, start.curvature)
        for tau in _candidates(min(_MOST_TIMES * now.every, now.cap)):
            drift = drift_bound(tau, rate, curvature, delta)
            steps = left_s * tau / (step_s * tau + sync_s)
            inner = 1.0 + 4.0 * steps * steps * self.phi * now.slope * rate * drift / tau
            bound = (1.0 + math.sqrt(inner)) / (2.0 * steps * rate * self.phi) + now.slope * drift
            if bound < least:
                best, least = float(tau), bound
        return Choice(best, "budget")


def drift_bound(tau: int, rate: float, curvature: float, delta: float) -> float:
    """Return h(tau), how far local steps are from those on all rows, at most.

    Parameters
    ----------
    tau : int
        Steps.
    rate : float
        eta.
    curvature : float
        beta; with none, gradients do not change and the bound is zero.
    delta : float
        How far gradients of ranks are apart.
    """
    if curvature <= 0.0 or delta <= 0.0:
        return 0.0
    # Products only: powers are not rounded alike everywhere.
    power, base, n = 1.0, 1.0 + rate * curvature, tau
    while n and power < _TOO_FAR:
        if n & 1:
            power *= base
        base = min(base * base, _TOO_FAR)
        n >>= 1
    return max(0.0, delta / curvature * (min(power, _TOO_FAR) - 1.0) - rate * delta * tau)


def _candidates(most: float) -> list[int]:
    """Return whole numbers from 1 to `most`: all where they are small, else some with about equal ratios."""
    most = max(1, int(most))
    found = {most}
    step = 1
    while step <= most:
        found.update(range(step, min(2 * step, most + 1), max(1, step // _PER_OCTAVE)))
        step *= 2
    return sorted(found)
