"""The quadratic synchronisation rule: periods that grow as the rate falls.

Problem: with a small rate replicas drift little, so averages may be rarer; and on some problems rarer ones lead to
models that generalise better.

Rule, with the rate eta::

    h = max(base, floor((a / eta)^2))

Source: Gu, Lyu, Arora, Zhang and Huang 2024 (ICLR, arXiv 2310.14423), equation 2. Their a is tuned; by default ours is
the one with which the rule begins at `base`. With a rate like 1 / t the period grows like t^2, up to the cap.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dsgd.sync.adaptive.base import AbstractRule, Choice, Measured
from dsgd.validation import check_numbers

__all__ = ["QSR"]


@dataclass(frozen=True)
class QSR(AbstractRule):
    """Lengthen the period with the inverse square of the rate.

    Parameters
    ----------
    first : int or None, default None
        The smallest period; None is the floor of communication, as soon as it is measured.
    a : float or None, default None
        Growth; None is ``eta sqrt(base)`` with the rate at the first decision.

    Raises
    ------
    InvalidParameterError
        A value is out of range.
    """

    first: int | None = None
    a: float | None = None

    def __post_init__(self) -> None:
        check_numbers(self, "first", low=1, integer=True, optional=True)
        check_numbers(self, "a", low=0.0, open_low=True, optional=True)

    def next(self, now: Measured, start: Measured) -> Choice:
        """Return the period for the present rate."""
        base = float(self.first) if self.first is not None else min(start.floor, start.cap)
        growth = self.a / now.rate if self.a is not None else math.sqrt(base) * (start.rate / now.rate)
        # Not a floor of a product that rounding has left below an integer.
        wanted = float(math.floor(growth * growth * (1.0 + 1e-9)))
        return Choice(wanted, "rate") if wanted > base else Choice(base, "communication")
