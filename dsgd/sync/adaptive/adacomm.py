"""AdaComm: infrequent averages at first, frequent ones as the loss falls.

Problem: rare averages make quick progress while the loss is high, and leave a higher floor of error in the end.

Rule, for interval l of training, with the loss F and the rate eta at its beginning::

    tau_l = ceil(sqrt((eta_0 / eta_l) (F_l / F_0)) tau_0)
            and half of tau_{l-1} where that is not smaller

Source: Wang and Joshi 2019 (MLSys, arXiv 1810.08313), their basic rule with the variable rate. They cut wall-clock time
into intervals of a minute and find tau_0 by search; ours are passes over the rows, since a fit may take milliseconds,
and tau_0 is the floor of communication (`dsgd.sync.adaptive.comm_floor`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dsgd.sync.adaptive.base import AbstractRule, Choice, Measured
from dsgd.validation import check_numbers

__all__ = ["AdaComm"]


@dataclass(frozen=True)
class AdaComm(AbstractRule):
    """Shorten the period with the square root of the loss.

    Parameters
    ----------
    first : int or None, default None
        tau_0; None is the floor of communication, as soon as it is measured.
    interval : float, default 1.0
        Passes over the rows for which a period holds.

    Raises
    ------
    InvalidParameterError
        A value is out of range.
    """

    first: int | None = None
    interval: float = 1.0

    def __post_init__(self) -> None:
        check_numbers(self, "first", low=1, integer=True, optional=True)
        check_numbers(self, "interval", low=0.0, open_low=True)

    needs_loss = True

    def next(self, now: Measured, start: Measured) -> Choice:
        """Return tau_l; at first tau_0."""
        longest = float(self.first) if self.first is not None else min(start.floor, start.cap)
        if now == start:
            return Choice(longest, "start" if self.first is not None else "communication")
        if now.age < self.interval or start.loss <= 0.0 or now.rate <= 0.0:
            return Choice(now.every, "loss")
        ratio = (start.rate / now.rate) * (now.loss / start.loss)
        wanted = math.ceil(math.sqrt(ratio) * longest)
        return Choice(wanted if wanted < now.every else now.every / 2.0, "loss")
