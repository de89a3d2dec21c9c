"""The interface of a rule for the period: a pure function of what all ranks have measured.

All ranks call it with the same numbers, which are sums over ranks, and must compute the same period on any machine. So
rules only add, multiply, divide and take square roots, whose rounding IEEE 754 defines. They avoid powers and
logarithms, which libraries round differently.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar, Final, Literal, NamedTuple, get_args

from dsgd.validation import Checked

#: Reasons for a period.
Why = Literal["start", "communication", "dispersion", "loss", "rate", "budget", "switch", "cap"]
#: Why a period was chosen.
WHYS: Final[tuple[Why, ...]] = get_args(Why)


class Measured(NamedTuple):
    """The measurements of all ranks since the last decision: means, with the weights of their models.

    Parameters
    ----------
    every : float
        The period up to now, in rows of the rank with the most rows, as all periods are.
    epochs : float
        Passes over the rows so far.
    age : float
        For how many passes over the rows it has held.
    seconds : float
        Since training began.
    row_s : float
        Seconds of local steps per row.
    wire_s, wait_s : float
        Seconds of a synchronisation without those of waiting for a peer, and those.
    loss : float
        Mean loss of the rows visited.
    rate : float
        Rate of the last step.
    drift_sq : float
        Mean squared distance of the models before the synchronisation from the one they began the round with.
    dispersion : float
        Mean squared distance of these models from their mean.
    norm_sq : float
        Squared norm of that mean.
    curvature, slope : float
        How much the gradient and the loss of a rank change from one of these models to the other, over their distance;
        measured for rules that ask for it.
    rows_left : float
        Rows of a rank until training ends, if nothing ends it sooner.
    floor : float
        The period of `CommFloor`, of wire and wait.
    wire_floor : float
        That of the wire alone, which is what a longer period saves: waiting grows with the period.
    cap : float
        The longest period, which depends on the rows and on how far the models are apart.
    """

    every: float
    epochs: float
    age: float
    seconds: float
    row_s: float
    wire_s: float
    wait_s: float
    loss: float
    rate: float
    drift_sq: float
    dispersion: float
    norm_sq: float
    curvature: float
    slope: float
    rows_left: float
    floor: float
    wire_floor: float
    cap: float


class Choice(NamedTuple):
    """A period, and why; where it is longer than the cap, the cap is meant, and where below one row, one."""

    every: float
    why: Why


class AbstractRule(Checked, ABC):
    """A rule for the next period, given what was measured.

    Attributes
    ----------
    first : int or None
        The period until ranks have measured anything; None is a sixteenth of the rows of the longest rank.
    decides : bool
        Whether it ever changes the period.
    asks_slopes : bool
        Whether `Measured.curvature` and `Measured.slope` are to be measured.
    needs_loss : bool
        Whether it follows `Measured.loss`.
    follows_clocks : bool
        Whether every period depends on seconds, so that those between two decisions may too.
    """

    first: int | None
    decides: ClassVar[bool] = True
    asks_slopes: ClassVar[bool] = False
    needs_loss: ClassVar[bool] = False
    follows_clocks: ClassVar[bool] = False

    @abstractmethod
    def next(self, now: Measured, start: Measured) -> Choice:
        """Return the next period; a pure function.

        Parameters
        ----------
        now : Measured
            Since the last decision.
        start : Measured
            What `now` was at the first decision; there they are the same.
        """


def comm_floor(row_s: float, sync_s: float, target: float) -> float:
    """Return the smallest period with a share of communication of at most `target`.

    A round of h rows takes ``h Y + D`` seconds, of which D is communication, so ``h = ceil(D (1 - e) / (e Y))``.

    Parameters
    ----------
    row_s, sync_s : float
        Y and D, seconds of a row and of a synchronisation.
    target : float
        e, above 0 and below 1.

    Examples
    --------
    >>> comm_floor(1e-6, 50e-6, 0.1)
    450.0
    """
    if sync_s <= 0.0:
        return 1.0
    if row_s <= 0.0:
        return math.inf
    # A product of rounded numbers that is an integer in truth must not become the next one.
    return float(max(1, math.ceil(sync_s * (1.0 - target) / (target * row_s) * (1.0 - 1e-9))))
