"""Dynamic averaging: synchronise when the models have moved too far from their last average.

Problem: while models hardly move, averages change nothing.

Rule: ranks synchronise once ``|w_p - r|^2 > Delta``, with r the last average. Models that take h rows to move by that
much are to synchronise every h rows::

    h <- h sqrt(Delta / D),  at most twice and at least half of h

with D the mean of ``|w_p - r|^2`` just before a synchronisation.

Source: Kamp, Boley, Keren, Schuster and Sharfman 2014 and Kamp et al. 2018 (arXiv 1807.03210). There each rank watches
its own condition and calls the others. Ranks that all-reduce cannot call: so ours find the period at which the
condition is met, for the mean over ranks, and Delta is measured in squared norms of the model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dsgd.sync.adaptive.base import AbstractRule, Choice, Measured
from dsgd.validation import check_numbers

__all__ = ["DynamicAveraging"]

_MOST = 2.0


@dataclass(frozen=True)
class DynamicAveraging(AbstractRule):
    """Let models move by a given distance between two synchronisations.

    Parameters
    ----------
    delta : float, default 0.1
        Delta, the squared distance of a model from the last average, over the squared norm of the average.
    first : int or None, default None
        The period at first; None is a sixteenth of the rows of the longest rank.

    Raises
    ------
    InvalidParameterError
        A value is out of range.
    """

    delta: float = 0.1
    first: int | None = None

    def __post_init__(self) -> None:
        check_numbers(self, "delta", low=0.0, open_low=True)
        check_numbers(self, "first", low=1, integer=True, optional=True)

    def next(self, now: Measured, start: Measured) -> Choice:
        """Return the period in which models move by `delta`."""
        allowed = self.delta * now.norm_sq
        factor = math.sqrt(allowed / now.drift_sq) if now.drift_sq > 0.0 else _MOST
        return Choice(math.ceil(now.every * min(_MOST, max(1.0 / _MOST, factor))), "dispersion")
