"""The communication floor: as often as the wire allows, and more rarely once the replicas stay together.

Problem: how often is worth it depends on the machine more than on the data: on what a synchronisation takes beside a
row. Both are known after a few rounds, and nobody should have to guess.

Rule, with Y seconds of a row, D of a synchronisation (wire and wait), the target e and the floor
``f = ceil(D (1 - e) / (e Y))``::

    h <- h / 2                        where the replicas are apart, or the loss has doubled
    h <- max(h, f, min(2 h, 4 f))     where they are close
    h <- max(h / 2, f)                else

They are apart where ``S > apart |wbar|^2``, with S the mean squared distance of the models from their mean wbar, and
close where S is a quarter of that. Averaging more often brings replicas that are close nothing, so their period is
never shortened, and grows from the floor, at which communication takes the share e, to where it takes about a quarter
of that; more is not worth the drift. A change of less than a quarter is left out. On shared machines what a
synchronisation takes changes by a factor of ten from one moment to the next: a period that is too long for a while
costs little, one that is too short much, so it is at most halved.

Source: Abeykoon, Fox and Kim 2019 (arXiv 1905.01219), whose synchronisations cost less with every doubling of h up to
a floor of waiting; theirs is a sweep, the floor by a target is ours. That averages may be left out while replicas are
close is Kamp et al. 2014; halving and doubling are ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dsgd.sync.adaptive.base import AbstractRule, Choice, Measured
from dsgd.validation import check_number

__all__ = ["CommFloor"]

_WORTH = 1.25
_DIVERGED = 2.0
_CLOSE = 4.0
_FLOORS = 4.0


@dataclass(frozen=True)
class CommFloor(AbstractRule):
    """Take the smallest period whose share of communication is under the target, a longer one while replicas are close.

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
    follows_clocks: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_number("CommFloor(apart=...)", self.apart, low=0.0, open_low=True)
        if self.first is not None:
            check_number("CommFloor(first=...)", self.first, low=1, integer=True)

    def next(self, now: Measured, start: Measured) -> Choice:
        """Return half the period, the floor, or one beyond it while the replicas are close; at least half of it."""
        limit = self.apart * now.norm_sq
        if now.dispersion > limit:
            return Choice(now.every / 2.0, "dispersion")
        if now.loss > _DIVERGED * start.loss:
            return Choice(now.every / 2.0, "loss")
        wanted = max(now.floor, now.every / 2.0)
        if _CLOSE * now.dispersion <= limit:
            wanted = max(now.every, now.floor, min(2.0 * now.every, _FLOORS * now.floor))
        is_worth = not now.every / _WORTH < min(wanted, now.cap) < now.every * _WORTH
        return Choice(wanted if is_worth else now.every, "communication")
