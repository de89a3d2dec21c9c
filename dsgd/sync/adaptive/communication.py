"""The communication floor: as often as the wire allows, and more rarely once the replicas stay together.

Problem: how often is worth it depends on the machine more than on the data: on what a synchronisation takes beside a
row. Both are known after a few rounds, and nobody should have to guess.

Rule, with Y seconds of a row, D of a synchronisation (wire and wait) and the target e::

    h <- ceil(D (1 - e) / (e Y))             after the first few rounds, where the replicas are close
    h <- h / 2                               where they are apart, or the loss has doubled
    h <- 2 h                                 where they are four times as close as that
    h <- a quarter of the floor              where h is below that, as after the wire has become slower

They are apart where ``S > apart |wbar|^2``, with S the mean squared distance of the models from their mean wbar.
Distances fall with the rate, so periods grow as training goes on. A change of less than a quarter is left out.

Source: Abeykoon, Fox and Kim 2019 (arXiv 1905.01219), whose synchronisations cost less with every doubling of h up to
a floor of waiting; theirs is a sweep, the floor by a target is ours. That averages may be left out while replicas are
close is Kamp et al. 2014; halving and doubling are ours.
"""

from __future__ import annotations

from dataclasses import dataclass

from dsgd.sync.adaptive.base import AbstractRule, Choice, Measured
from dsgd.validation import check_number

__all__ = ["CommFloor"]

_WORTH = 1.25
_DIVERGED = 2.0
_CLOSE = 4.0


@dataclass(frozen=True)
class CommFloor(AbstractRule):
    """Take the smallest period whose share of communication is under the target; then go by the dispersion.

    Parameters
    ----------
    apart : float, default 0.5
        Squared distance of the replicas from their mean, over that of the mean from zero, above which they are apart.
    first : int or None, default None
        The period at first; None is a sixteenth of the rows of the longest rank.

    Raises
    ------
    InvalidParameterError
        A value is out of range.
    """

    apart: float = 0.5
    first: int | None = None

    def __post_init__(self) -> None:
        check_number("CommFloor(apart=...)", self.apart, low=0.0, open_low=True)
        if self.first is not None:
            check_number("CommFloor(first=...)", self.first, low=1, integer=True)

    def next(self, now: Measured, start: Measured) -> Choice:
        """Return the period of the floor at first, and half or twice the last one later."""
        limit = self.apart * now.norm_sq
        if now.dispersion > limit:
            return Choice(now.every / 2.0, "dispersion")
        if now.loss > _DIVERGED * start.loss:
            return Choice(now.every / 2.0, "loss")
        if now == start:
            wanted = Choice(now.floor, "communication")
        elif now.every < now.floor / _CLOSE:
            wanted = Choice(now.floor / _CLOSE, "communication")
        elif _CLOSE * now.dispersion <= limit:
            wanted = Choice(2.0 * now.every, "dispersion")
        else:
            wanted = Choice(now.every, "dispersion")
        worth = not now.every / _WORTH < min(wanted.every, now.cap) < now.every * _WORTH
        return wanted if worth else Choice(now.every, wanted.why)
