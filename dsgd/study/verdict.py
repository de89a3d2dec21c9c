"""The verdict on a claim: holds, exceeds, fails, undecided, or no claim.

Problem: a figure on the right side of a margin says little if the next run may lie on the other side.

Every measured figure has a 95 % interval over the seeds or repetitions that both sides of a comparison share: Student's
t of the paired differences, or of the logarithms of the paired ratios. Few repetitions make it wide, and one run has
none. Computed figures, such as counts of bytes, are points. A resampled median would be narrower: of three runs it
covers three cases in four.

The verdict is that of the whole interval. It *holds* inside the published range, *exceeds* above it and *fails* below
it; an interval that crosses a margin is *undecided*, and so are seconds of a machine that was busy with other work. A
model that is no better than always predicting the commonest label makes no claim.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from scipy.special import stdtrit

from dsgd.report import is_busy

_SHARE: Final = 0.95


@dataclass(frozen=True)
class Interval:
    """A figure with its confidence interval."""

    estimate: float
    low: float
    high: float
    n: int = 0

    def mapped(self, change: Callable[[float], float]) -> Interval:
        """Return the figure after a monotonic change."""
        ends = sorted((change(self.low), change(self.high)))
        return Interval(change(self.estimate), ends[0], ends[1], self.n)

    def text(self, form: Callable[[float], str]) -> str:
        """Return the figure with its interval, ``4.6x (4.1x to 5.2x)``."""
        if self.n < 2 or form(self.low) == form(self.high):
            return form(self.estimate)
        return f"{form(self.estimate)} ({form(self.low)} to {form(self.high)})"


@dataclass(frozen=True)
class Margin:
    """The range of figures in which a claim holds."""

    least: float = -math.inf
    published: float = math.inf
    most: float = math.inf

    def verdict(self, found: Interval) -> str:
        """Return ``"holds"``, ``"exceeds"``, ``"fails"`` or ``"undecided"``."""
        if found.n == 1:
            return "undecided"
        if found.high < self.least or found.low > self.most:
            return "fails"
        if found.low < self.least or found.high > self.most:
            return "undecided"
        if found.low > self.published:
            return "exceeds"
        return "holds" if found.high <= self.published else "undecided"


def exact(value: float) -> Interval:
    """Return a figure that is the same in every run, such as a count."""
    return Interval(value, value, value)


def average(found: Mapping[Any, float]) -> Interval | None:
    """Return the mean of a figure over its repetitions; None if there are none."""
    return _mean(list(found.values()))


def difference(ours: Mapping[Any, float], other: Mapping[Any, float]) -> Interval | None:
    """Return a figure minus another over their common repetitions; None if they share none."""
    return _mean([ours[run] - other[run] for run in ours if run in other])


def ratio(above: Mapping[Any, float], below: Mapping[Any, float]) -> Interval | None:
    """Return the ratio of two figures over the common repetitions in which both are positive and finite."""
    pairs = [(above[run], below[run]) for run in above if run in below]
    logs = [math.log(ours / other) for ours, other in pairs if 0 < ours < math.inf and 0 < other < math.inf]
    found = _mean(logs)
    return None if found is None else found.mapped(_exp)


def largest(found: Iterable[Interval]) -> Interval:
    """Return the largest of several figures: it is above each of their lower ends, and below the highest upper end."""
    figures = list(found)
    estimate, low, high = (max(getattr(one, name) for one in figures) for name in ("estimate", "low", "high"))
    return Interval(estimate, low, high, max(one.n for one in figures))


def were_busy(rows: Sequence[dict[str, Any]]) -> bool:
    """Return whether the machine was busy with other work while it made rows whose seconds count."""
    return rows[-1].get("cluster", "local") == "local" and is_busy(rows)


def _mean(values: Sequence[float]) -> Interval | None:
    n = len(values)
    if not n:
        return None
    mean = float(np.mean(values))
    if n == 1:
        return Interval(mean, -math.inf, math.inf, 1)
    half = float(stdtrit(n - 1, 0.5 + _SHARE / 2) * np.std(values, ddof=1) / math.sqrt(n))
    return Interval(mean, mean - half, mean + half, n)


def _exp(value: float) -> float:
    return math.exp(min(value, 700.0))
