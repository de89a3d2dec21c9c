"""A band for the variance of the replicas: longer periods below it, shorter periods above.

Problem: a fixed period lets replicas drift far apart early on, when rates are high, and hardly at all later.

Rule, with S_k the mean squared distance of the replicas from their mean and eta_k the rate, and ``C = S_0 / eta_0``
from the first rounds::

    h <- h + step   where S_k < 0.7 eta_k C
    h <- h - step   where S_k > 1.3 eta_k C

Source: Jiang and Agrawal 2020 (arXiv 2007.06134, adaptive periodic averaging), algorithm 2. They compare after every
synchronisation and move by one minibatch; ours compares whenever ranks decide.
"""

from __future__ import annotations

from dataclasses import dataclass

from dsgd.sync.adaptive.base import AbstractRule, Choice, Measured
from dsgd.validation import check_numbers

__all__ = ["VarianceBand"]


@dataclass(frozen=True)
class VarianceBand(AbstractRule):
    """Keep the variance of the replicas, over the rate, in a band.

    Parameters
    ----------
    first : int or None, default None
        The period at first; None is a sixteenth of the rows of the longest rank.
    step : int, default 64
        Rows by which the period moves.
    low, high : float, default 0.7, 1.3
        The band, as parts of what the variance was at first.

    Raises
    ------
    InvalidParameterError
        A value is out of range.
    """

    first: int | None = None
    step: int = 64
    low: float = 0.7
    high: float = 1.3

    def __post_init__(self) -> None:
        check_numbers(self, "first", low=1, integer=True, optional=True)
        check_numbers(self, "step", low=1, integer=True)
        check_numbers(self, "low", low=0.0)
        check_numbers(self, "high", low=self.low)

    def next(self, now: Measured, start: Measured) -> Choice:
        """Return the period one step longer or shorter, or the same."""
        # S_k / (eta_k C), without a division by what may be zero.
        variance, usual = now.dispersion * start.rate, now.rate * start.dispersion
        if variance < self.low * usual:
            return Choice(now.every + self.step, "dispersion")
        if variance > self.high * usual:
            return Choice(now.every - self.step, "dispersion")
        return Choice(now.every, "dispersion")
