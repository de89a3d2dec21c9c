"""Cells: rows of a study that agree in some columns, with medians over the repetitions.

Medians, because a run on a busy machine is sometimes far slower than its repetitions, but never far faster.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, overload

from dsgd.study.frame.rows import Row

CellT = TypeVar("CellT", bound="Cell")


class Stat(NamedTuple):
    """One quantity over the repetitions of a run: median, lowest and highest value."""

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


class Cell:
    """Rows that differ only in the seed or the repetition; what they agree in is an attribute.

    Parameters
    ----------
    rows : sequence of dict
        The rows.
    value : callable, optional
        Takes a row and the name of a column; returns what counts as its value.
    """

    def __init__(self, rows: Sequence[Row], value: Callable[[Row, str], float | None] = Row.get) -> None:
        self.rows, self._value = rows, value

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["rows"][0][name]
        except KeyError:
            raise AttributeError(name) from None

    def stat(self, name: str) -> Stat | None:
        """Return a column over the repetitions, or None if no row has it."""
        return Stat.of(self._value(row, name) for row in self.rows)

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

    def column(self, name: str, by: str = "seed") -> dict[Any, float]:
        """Return a column by the seed or repetition of its row, where it is known."""
        values = {row[by]: self._value(row, name) for row in self.rows}
        return {key: float(value) for key, value in values.items() if value is not None}

    def curve(self) -> list[dict[str, float]]:
        """Return the ``curve`` of the rows point by point, medians over the repetitions."""
        points = zip(*(row["curve"] for row in self.rows), strict=True)
        return [{name: statistics.median(point[name] for point in seeds) for name in seeds[0]} for seeds in points]


@overload
def cells_of(rows: Iterable[Row], *by: str) -> list[Cell]: ...


@overload
def cells_of(rows: Iterable[Row], *by: str, make: Callable[[list[Row]], CellT]) -> list[CellT]: ...


def cells_of(rows: Iterable[Row], *by: str, make: Callable[[list[Row]], Any] = Cell) -> list[Any]:
    """Return the cells of the rows that agree in the columns `by`, in order of first appearance."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row[name] for name in by), []).append(row)
    return [make(own) for own in found.values()]


def only(cells: Iterable[CellT], **columns: Any) -> list[CellT]:
    """Return the cells that have these values."""
    return [cell for cell in cells if all(getattr(cell, name, None) == value for name, value in columns.items())]


def one_of(cells: Iterable[CellT], **columns: Any) -> CellT | None:
    """Return the first cell that has these values, or None."""
    return next(iter(only(cells, **columns)), None)


def pareto(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """Return the names of the points that no other beats in both numbers (the Pareto front), in rising order."""

    def is_beaten(own: tuple[float, float]) -> bool:
        return any(other != own and other[0] <= own[0] and other[1] <= own[1] for other in points.values())

    return sorted((name for name, point in points.items() if not is_beaten(point)), key=lambda name: points[name])
