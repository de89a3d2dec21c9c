"""Successive halving within a budget of seconds.

Problem: many candidates, little time. Most of them show early that they are no good.

Method: all candidates run for an equal slice of a rung's time; the best third advances to the next rung, whose slices
are three times as long, until two or three are left. Each rung gets an equal share of the budget that remains when it
begins, so that a rung that took too long shortens the later ones but does not prevent an answer.

Candidates are compared by the seconds of training until their held-out score has reached the target for good. The
target is the best score that any of them has reached for good, less a margin; those that never reach it come after
those that do, by score.

Source: Jamieson and Talwalkar 2016 (successive halving); Karnin, Koren and Somekh 2013.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

#: Of how many candidates one survives a rung.
FACTOR: Final = 3
_FINALISTS: Final = 3


class Point(NamedTuple):
    """What a fit had reached at the end of an epoch."""

    seconds: float
    score: float


class Standing(NamedTuple):
    """What candidates are sorted by: seconds to the target, then score; less is better."""

    seconds: float
    loss: float


def rung_sizes(n: int) -> list[int]:
    """Return how many candidates each rung has: n, and a third of those before until three or fewer are left.

    Examples
    --------
    >>> rung_sizes(40)
    [40, 14, 5, 2]
    """
    sizes = [n] if n else []
    while sizes and sizes[-1] > _FINALISTS:
        sizes.append(-(-sizes[-1] // FACTOR))
    return sizes


def slice_s(left_s: float, sizes: Sequence[int]) -> float:
    """Return the seconds that each candidate of the next rung may take."""
    return max(0.0, left_s) / len(sizes) / sizes[0]


def epochs_within(seconds: float, overhead_s: float, epoch_s: float, most: int) -> int:
    """Return how many epochs fit into some seconds, less the cost of a fit without epochs; 0 if none does."""
    if epoch_s <= 0.0:
        return most
    return max(0, min(most, math.floor((seconds - overhead_s) / epoch_s)))


def held_score(curve: Sequence[Point]) -> float:
    """Return the best score of a curve that is not a lucky epoch; minus infinity if there is none.

    It is the largest over epochs of the score, or of the mean of all scores from there on where that is less: the
    highest target that the curve has reached for good.
    """
    rest, held = 0.0, -math.inf
    for n, point in enumerate(reversed(curve), 1):
        rest += point.score
        held = max(held, min(point.score, rest / n))
    return held


def seconds_to(curve: Sequence[Point], target: float) -> float:
    """Return the seconds after which a curve has reached a target for good; infinite if it never does.

    For good means that the scores from there on are not below it in the mean: of a curve that jumps up and down, one
    lucky epoch does not count.
    """
    rest, reached = 0.0, math.inf
    for n, point in enumerate(reversed(curve), 1):
        rest += point.score
        # A score that is not a number makes the sum one for all epochs before.
        if point.score >= target and rest / n >= target:
            reached = point.seconds
    return reached


def standing(curve: Sequence[Point], target: float) -> Standing:
    """Return the sort key of a curve."""
    return Standing(seconds_to(curve, target), -held_score(curve))
