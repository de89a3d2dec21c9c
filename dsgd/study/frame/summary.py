"""Summary of rows: the median over repetitions, and the range.

Medians, because a run on a busy machine is sometimes far slower than its repetitions, but never far faster.
"""

from __future__ import annotations

import statistics
from abc import ABC
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dsgd.study.frame.rows import Row

__all__ = ["AbstractCell", "Stat", "grouped", "pareto"]


@dataclass(frozen=True)
class Stat:
    """One quantity over the repetitions of a run.

    Parameters
    ----------
    median, low, high : float
        Median, lowest and highest value.
    """

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Stat | None:
        """Return the quantity of the values that are not None, or None if there are none."""
        known = [float(value) for value in values if value is not None]
        return cls(statistics.median(known), min(known), max(known)) if known else None

    def under(self, above: float = 1.0) -> Stat | None:
        """Return `above` over the quantity; None where it is not positive."""
        return Stat(above / self.median, above / self.high, above / self.low) if self.low > 0 else None


class AbstractCell(ABC):
    """Runs that differ only in the seed or the repetition; `rows` has their rows."""

    rows: Sequence[Row]

    def stat(self, name: str) -> Stat | None:
        """Return a column over the repetitions, or None if no row has it."""
        return Stat.of(row.get(name) for row in self.rows)

    def column(self, name: str, by: str = "seed") -> dict[Any, float]:
        """Return a column by the seed or repetition of its row, where it is known."""
        return {row[by]: float(row[name]) for row in self.rows if row.get(name) is not None}

    def median(self, name: str) -> float:
        """Return the median of a column.

        Raises
        ------
        KeyError
            If no row has it.
        """
        stat = self.stat(name)
        if stat is None:
            raise KeyError(name)
        return stat.median

    def medians(self, *names: str) -> dict[str, float | None]:
        """Return the medians of columns by name, None for those that no row has."""
        stats = {name: self.stat(name) for name in names}
        return {name: stat.median if stat else None for name, stat in stats.items()}

    def curve(self) -> list[dict[str, float]]:
        """Return the ``curve`` of the rows point by point, medians over the repetitions."""
        points = zip(*(row["curve"] for row in self.rows), strict=True)
        return [{name: statistics.median(point[name] for point in seeds) for name in seeds[0]} for seeds in points]


def grouped(rows: Iterable[Row], *names: str) -> dict[tuple[Any, ...], list[Row]]:
    """Group rows by the values of these columns, in order of first appearance."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row[name] for name in names), []).append(row)
    return found


def pareto(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """Return the names of the points that no other beats in both numbers (the Pareto front), in rising order."""

    def is_beaten(own: tuple[float, float]) -> bool:
        return any(other != own and other[0] <= own[0] and other[1] <= own[1] for other in points.values())

    return sorted((name for name, point in points.items() if not is_beaten(point)), key=lambda name: points[name])
