"""A fixed period.

Problem: what other rules gain shows beside a period that stays.

Rule: ``h = every``. Nothing is measured and nothing is added to any message: training is that of
``LocalSGD(every)``, bit for bit.

Source: Stich 2019 (local SGD); Abeykoon, Fox and Kim 2019, arXiv 1905.01219, where h is the model synchronisation
frequency.
"""

from __future__ import annotations

from dataclasses import dataclass

from dsgd.sync.adaptive.base import AbstractRule, Choice, Measured
from dsgd.validation import check_numbers

__all__ = ["FixedPeriod"]


@dataclass(frozen=True)
class FixedPeriod(AbstractRule):
    """Synchronise every `first` rows.

    Parameters
    ----------
    first : int, default 1024
        Rows of the rank with the most rows between two synchronisations; beyond them it is once per epoch.

    Raises
    ------
    InvalidParameterError
        It is not a positive integer.
    """

    first: int = 1024
    decides = False

    def __post_init__(self) -> None:
        check_numbers(self, "first", low=1, integer=True)

    def next(self, now: Measured, start: Measured) -> Choice:
        """Return `first`."""
        return Choice(self.first, "start")
