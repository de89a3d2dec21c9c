"""Rates that go up and down during training, and one cycle of them.

Problem: a good rate is found by trying several, and one that is good at first is not later. A rate that goes up and
down between two bounds is good some of the time, whatever the problem; and one long way up and down, to rates that
would diverge from the start, trains some models in fewer epochs.

Update: the rate of step t is eta0 times the factor of `dsgd.kernels.state`, whose table has the formulas.

Cost: a few operations in every step.

Source: Smith 2017 (cyclical rates); Smith and Topin 2018 (one cycle).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, TypeAlias

from dsgd.kernels.state import CYCLES, SCHEDULES, Schedule
from dsgd.validation import Checked, check_choice, number


class AbstractCycle(Checked, ABC):
    """A schedule of rates that is eta0 times a factor which rises and falls.

    Attributes
    ----------
    peak : float
        The highest factor.
    half_cycle : int
        Steps of half a cycle.
    """

    peak: float
    half_cycle: int

    @property
    @abstractmethod
    def name(self) -> str:
        """Its name in `dsgd.kernels.state.CYCLES`."""

    @property
    @abstractmethod
    def third(self) -> float:
        """What the kernel takes for ``decay``."""


@dataclass(frozen=True)
class Cyclical(AbstractCycle):
    """Rates that go up and down between eta0 and ``peak`` times eta0, again and again.

    Parameters
    ----------
    shape : {"triangular", "triangular2", "exp_range"}, default "triangular"
        ``"triangular"``: all cycles are as high. ``"triangular2"``: each is half as high as the one before.
        ``"exp_range"``: the height is multiplied by `decay` in every step.
    peak : float, default 6.0
        The highest rate over eta0, above one.
    half_cycle : int, default 2000
        Steps on the way up, and on the way down: samples of a rank, or its minibatches with an ``optimizer=`` or
        exchanged gradients. The source recommends two to ten epochs.
    decay : float, default 0.99994
        Of ``"exp_range"``, in (0, 1].

    Raises
    ------
    InvalidParameterError
        A value is out of range.
    """

    shape: Literal["triangular", "triangular2", "exp_range"] = "triangular"
    peak: float = number(6.0, low=1, open_low=True)
    half_cycle: int = number(2000, low=1)
    decay: float = number(0.99994, low=0, high=1, open_low=True)

    @property
    def name(self) -> str:
        """The shape."""
        return self.shape

    @property
    def third(self) -> float:
        """The decay."""
        return self.decay


@dataclass(frozen=True)
class OneCycle(AbstractCycle):
    """Rates that go up to ``peak`` times eta0 and down once, and then fall to a thousandth of eta0.

    Parameters
    ----------
    peak : float, default 10.0
        The highest rate over eta0, above one.
    half_cycle : int, default 2000
        Steps on the way up, and on the way down: samples of a rank, or its minibatches with an ``optimizer=`` or
        exchanged gradients. The cycle should be a little shorter than training.
    tail : int, default 400
        Steps of the fall after it.

    Raises
    ------
    InvalidParameterError
        A value is out of range.
    """

    peak: float = number(10.0, low=1, open_low=True)
    half_cycle: int = number(2000, low=1)
    tail: int = number(400, low=1)

    @property
    def name(self) -> str:
        """``"one_cycle"``."""
        return "one_cycle"

    @property
    def third(self) -> float:
        """The steps of the tail."""
        return float(self.tail)


#: What ``learning_rate=`` may be: a name of `dsgd.kernels.state.SCHEDULES` or of a cycle with its defaults, or a cycle.
LearningRate: TypeAlias = str | AbstractCycle


def cycle_of(learning_rate: LearningRate) -> AbstractCycle | None:
    """Return the cycle that a value means, with its defaults where it is a name; None where it is none."""
    if isinstance(learning_rate, AbstractCycle):
        return learning_rate
    if learning_rate == "one_cycle":
        return OneCycle()
    return Cyclical(learning_rate) if learning_rate in CYCLES else None  # type: ignore[arg-type]


def schedule_of(learning_rate: LearningRate) -> Schedule:
    """Return the row of the schedule that a value of ``learning_rate=`` means."""
    cycle = cycle_of(learning_rate)
    return CYCLES[cycle.name] if cycle else SCHEDULES[str(learning_rate)]


def check_learning_rate(where: str, value: object) -> None:
    """Raise `InvalidParameterError` unless a value is a cycle or a known name; `where` is how it was written."""
    if not isinstance(value, AbstractCycle):
        check_choice(where, value, [*SCHEDULES, *CYCLES])
