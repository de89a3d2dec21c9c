"""Rows of single runs put together: the median over repetitions and the range between the lowest and the highest.

Medians, because a run on a busy machine is now and then far slower than its repetitions, never far faster.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Stat"]


@dataclass(frozen=True)
class Stat:
    """One quantity over the repetitions of a run.

    Parameters
    ----------
    median, low, high : float
        Median, lowest and highest value.
    """

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Stat | None:
        """Return the quantity of some values, or None where there is none; those that are None are left out."""
        known = [float(value) for value in values if value is not None]
        return cls(statistics.median(known), min(known), max(known)) if known else None
