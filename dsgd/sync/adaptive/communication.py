"""The communication floor: the shortest period that keeps communication below a share of the time.

Problem: the best period depends on the machine more than on the data: on the time of a synchronisation relative to that
of a row. Both can be measured within a few rounds, so nobody should have to guess.

Rule, with Y seconds of a row, D of a synchronisation on the wire, the target e and the floor
``f = ceil(D (1 - e) / (e Y))``::

    h <- h / 2         where the replicas are apart, or the loss has doubled
    h <- max(h, 2 f)   where they are close
    h <- f             else

They are apart where ``S > apart |wbar|^2``, with S the mean squared distance of the models from their mean wbar, and
close where S is a quarter of that. Averages of replicas that are close change little: their period need not be shorter
than it is, nor than twice the floor, at which the wire takes half of the share e. A change of less than a quarter is
left out. On shared machines the time of a synchronisation changes by a factor of ten from one moment to the next, and
the first few rounds see only one such moment. A decision therefore at most halves the period, because too short a
period costs much, and at most quadruples it.

D does not include waiting. The longer a round is, the further apart its ranks finish, and a disturbed rank is disturbed
as often per second in long rounds as in short ones. So a longer period does not reduce waiting.

Source: Abeykoon, Fox and Kim 2019 (arXiv 1905.01219), whose synchronisations cost less with every doubling of h up to
a floor of waiting; theirs is a sweep, the floor by a target is ours. That averages may be left out while replicas are
close is Kamp et al. 2014; halving and doubling are ours.
"""

from __future__ import annotations

from dataclasses import dataclass

from dsgd.sync.adaptive.base import AbstractRule, Choice, Measured
from dsgd.validation import check_numbers

__all__ = ["CommFloor"]

_WORTH = 1.25
_DIVERGED = 2.0
_CLOSE = 4.0
_FLOORS = 2.0
_MOST_TIMES = 4.0


@dataclass(frozen=True)
class CommFloor(AbstractRule):
    """Take the smallest period whose share of communication is under the target; none shorter while replicas are close.

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
    follows_clocks = True

    def __post_init__(self) -> None:
        check_numbers(self, "apart", low=0.0, open_low=True)
        check_numbers(self, "first", low=1, integer=True, optional=True)

    def next(self, now: Measured, start: Measured) -> Choice:
        """Return half the period, the floor, or the period or twice the floor while replicas are close."""
        limit = self.apart * now.norm_sq
        if now.dispersion > limit:
            return Choice(now.every / 2.0, "dispersion")
        if now.loss > _DIVERGED * start.loss:
            return Choice(now.every / 2.0, "loss")
        wanted = now.wire_floor
        if _CLOSE * now.dispersion <= limit:
            wanted = max(now.every, _FLOORS * now.wire_floor)
        wanted = min(max(wanted, now.every / 2.0), _MOST_TIMES * now.every)
        is_worth = not now.every / _WORTH < min(wanted, now.cap) < now.every * _WORTH
        return Choice(wanted if is_worth else now.every, "communication")
