"""Post-local: frequent averages until the rate has dropped, infrequent ones afterwards.

Problem: averages matter most while models move fast; later on, rare ones cost less and, on some problems, lead to
models that generalise better than those of large batches.

Rule: ``h = first`` while ``eta > drop eta_0``, then the floor of communication (`dsgd.sync.adaptive.comm_floor`).

Source: Lin, Stich, Patel and Jaggi 2020 (arXiv 1808.07217), algorithm 2, which averages after every step and switches
at the first cut of the rate to a fixed period. `dsgd.sync.PostLocalSGD` switches after a number of epochs.
"""

from __future__ import annotations

from dataclasses import dataclass

from dsgd.sync.adaptive.base import AbstractRule, Choice, Measured
from dsgd.validation import check_numbers

__all__ = ["PostLocal"]


@dataclass(frozen=True)
class PostLocal(AbstractRule):
    """Synchronise every `first` rows until the rate has dropped.

    Parameters
    ----------
    first : int, default 128
        The period at first.
    drop : float, default 0.5
        To what part of the first rate.

    Raises
    ------
    InvalidParameterError
        A value is out of range.
    """

    first: int = 128
    drop: float = 0.5

    def __post_init__(self) -> None:
        check_numbers(self, "first", low=1, integer=True)
        check_numbers(self, "drop", low=0.0, high=1.0)

    def next(self, now: Measured, start: Measured) -> Choice:
        """Return `first`, or the floor once the rate has dropped."""
        if now.every == float(self.first) and now.rate > self.drop * start.rate:
            return Choice(self.first, "start")
        # The floor as it was measured when the rate had dropped.
        return Choice(now.floor if now.every == float(self.first) else now.every, "switch")
