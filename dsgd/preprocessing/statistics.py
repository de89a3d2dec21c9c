"""Statistics of columns, and advice from them.

**What an encoder has to know of all rows: moments of numbers, and how often each category comes.**

Problem: rows come in parts, on one machine or on many, and the encoder must be the same however they are cut.

Method: statistics of parts are merged. Sums of numbers and of their squares are kept in twice the precision, and mean
and variance follow from them in exact rational arithmetic: but for rare ties of rounding, they are those of all rows to
the last bit. Categories are counted until there are more than a limit; a column that exceeds it in all rows is the same
one however they are cut.

Source: T. J. Dekker, "A floating-point technique for extending the available precision", 1971.

What stands out in the columns of a table, so that somebody should look at them before they trust a model.

Only columns whose roles nobody chose are spoken of, and none of a small table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from dsgd.errors import InvalidDataError
from dsgd.inputs.tables.base import Kind, Table
from dsgd.inputs.tables.reading import categories
from dsgd.preprocessing.kernels import add_moments
from dsgd.types import FloatVector

#: What becomes of a column; "auto" is one-hot or hashed, as it has few or many categories.
Role: TypeAlias = Literal["numeric", "passthrough", "auto", "onehot", "hash", "text", "date", "drop"]

#: Roles of columns whose values are names.
CATEGORICAL: Final = frozenset({"auto", "onehot", "hash", "text"})
_US_PER_DAY = 86_400_000_000

#: So large may sums of parts be, of which many are added up.
_LARGEST_SUM = 1e298

#: So many values are kept of a column that has too many, to be shown.
_STATISTICS_SHOWN = 100


@dataclass
class Moments:
    """Moments of a column of numbers."""

    n: int = 0
    n_missing: int = 0
    sums: FloatVector = field(default_factory=lambda: np.zeros(4))
    low: float = np.inf
    high: float = -np.inf

    def add(self, values: FloatVector, name: object) -> None:
        """Add numbers; NaN is missing."""
        n, n_infinite = add_moments(values, self.sums)
        if n_infinite:
            raise InvalidDataError(f"column {name!r} has infinite values. Replace them, or make them missing (NaN).")
        self.n, self.n_missing = self.n + n, self.n_missing + len(values) - n
        self.low = float(np.fmin.reduce(values, initial=self.low))
        self.high = float(np.fmax.reduce(values, initial=self.high))

    def merge(self, other: Moments) -> None:
        """Add those of other rows."""
        self.n, self.n_missing = self.n + other.n, self.n_missing + other.n_missing
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        for k in (0, 2):
            total = Fraction(self.sums[k]) + Fraction(self.sums[k + 1])
            total += Fraction(other.sums[k]) + Fraction(other.sums[k + 1])
            self.sums[k] = float(total)
            self.sums[k + 1] = float(total - Fraction(self.sums[k]))

    def mean_and_scale(self) -> tuple[float, float]:
        """Return the mean and the standard deviation, 1 in place of 0, as `StandardScaler` does."""
        if not self.n:
            return 0.0, 1.0
        total, squares = (Fraction(self.sums[k]) + Fraction(self.sums[k + 1]) for k in (0, 2))
        mean = total / self.n
        variance = float(max(squares / self.n - mean * mean, Fraction(0)))
        # What rounding leaves of equal numbers is no variance.
        floor = (self.n * np.finfo(np.float64).eps ** 2) * float(mean) ** 2
        return float(mean), float(np.sqrt(variance)) if variance > floor else 1.0


@dataclass
class Categories:
    """Distinct values of a column."""

    n_most: int | None
    counts: dict[Any, int] | None = field(default_factory=dict)
    n_missing: int = 0
    kind: Kind | None = None
    some: frozenset[str] = frozenset()

    def add(self, table: Table, name: Any) -> None:
        """Add the values of a column."""
        coded = categories(table, name, self.kind)
        counts = np.bincount(coded.codes + 1, minlength=1)
        self.n_missing += int(counts[0])
        if self.counts is None:
            return
        mine = self.counts
        if self._are_too_many(int(np.count_nonzero(counts[1:]))):
            self._give_up([*mine, *coded.listed()])
            return
        for value, n in zip(coded.listed(), counts[1:].tolist(), strict=False):
            if n:
                mine[value] = mine.get(value, 0) + n
        if self._are_too_many(len(mine)):
            self._give_up(mine)

    def merge(self, other: Categories) -> None:
        """Add those of other rows."""
        self.n_missing += other.n_missing
        if self.counts is None or other.counts is None:
            self._give_up([*(self.counts or self.some), *(other.counts or other.some)])
            return
        for value, n in other.counts.items():
            self.counts[value] = self.counts.get(value, 0) + n
        if self._are_too_many(len(self.counts)):
            self._give_up(self.counts)

    def _give_up(self, values: Iterable[Any]) -> None:
        self.counts, self.some = None, frozenset(sorted(set(map(str, values)))[:_STATISTICS_SHOWN])

    def _are_too_many(self, n: int) -> bool:
        return self.n_most is not None and n > self.n_most


class Statistics:
    """Statistics of the columns of some rows."""

    def __init__(self, roles: Mapping[Any, Role], n_most: int, kinds: Mapping[Any, Kind]) -> None:
        self.roles, self.n_most, self.kinds = dict(roles), n_most, dict(kinds)
        self.n_rows = 0
        self.moments = {
            name: Moments() for name, role in self.roles.items() if role in {"numeric", "date", "passthrough"}
        }
        limits = {
            name: n_most if role == "auto" else None for name, role in self.roles.items() if role in {"auto", "onehot"}
        }
        self.categories = {name: Categories(limit, kind=self.kinds[name]) for name, limit in limits.items()}

    @property
    def columns(self) -> list[Any]:
        """Names of the columns that are looked at; of all, one says how many rows there are."""
        return [*self.moments, *self.categories] or [name for name, role in self.roles.items() if role != "drop"][:1]

    def empty(self) -> Statistics:
        """Return the statistics of no rows, for the same columns."""
        return Statistics(self.roles, self.n_most, self.kinds)

    def add(self, table: Table) -> Statistics:
        """Add the rows of a table; return these statistics."""
        self.n_rows += len(table)
        for name, moments in self.moments.items():
            moments.add(days_of(table, name) if self.roles[name] == "date" else table.numbers(name), name)
            if self.roles[name] == "passthrough":
                if moments.n_missing:
                    raise InvalidDataError(missing_text(name))
                moments.sums[:] = 0.0  # which nobody asks for, and which may overflow
            elif not (np.abs(moments.sums) <= _LARGEST_SUM).all():
                raise InvalidDataError(f"column {name!r} has numbers whose squares overflow. Scale it.")
        for name, found in self.categories.items():
            found.add(table, name)
        return self

    def merge(self, other: Statistics) -> Statistics:
        """Add those of other rows; return these statistics."""
        self.n_rows += other.n_rows
        for name, moments in self.moments.items():
            moments.merge(other.moments[name])
        for name, found in self.categories.items():
            found.merge(other.categories[name])
        return self


def wanted_of(roles: Mapping[Any, Role], kinds: Mapping[Any, Kind]) -> dict[Any, Kind]:
    """Return what files are to make of columns with some roles; names stay text, which `categories` reads further."""
    return {
        name: "date" if "date" in (role, kinds.get(name)) else "category" if role in CATEGORICAL else "number"
        for name, role in roles.items()
        if role != "drop"
    }


def missing_text(name: object) -> str:
    """Return what an error says about a missing number that may not be missing."""
    return (
        f"column {name!r} has missing values, and is taken as it is ('passthrough'). Standardised ('numeric', or "
        "encoder='auto' of an estimator) it may miss some."
    )


def days_of(table: Table, name: Any) -> FloatVector:
    """Return a column of dates as days since 1970, NaN where one is missing."""
    us, missing = table.microseconds(name)
    return np.where(missing, np.nan, us / _US_PER_DAY)


_LEAST_ROWS: Final = 100

#: A share of the rows with different values that is nearly all of them, and one of values that are nearly all alike.
_NEARLY_ALL: Final = 0.9

#: Of so many values it can be said what they look like.
_LEAST_VALUES: Final = 20

#: A number so many standard deviations from the mean moves the mean of all gradients.
_EXTREME: Final = 50.0
_NUMBER: Final = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*")
_DATE: Final = re.compile(r"\s*(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.](\d{4}|\d\d))([ T].*)?")
_ADVICE_SHOWN: Final = 8


def stands_out(statistics: Statistics, *, given: Mapping[Any, Any], clips: bool) -> list[str]:
    """Return a sentence for each way in which columns stand out."""
    n = statistics.n_rows
    if n < _LEAST_ROWS:
        return []
    numbers = {name: found for name, found in statistics.moments.items() if name not in given}
    names = {name: found for name, found in statistics.categories.items() if name not in given}
    constant = [name for name, found in numbers.items() if not found.n or (found.low == found.high and found.n == n)]
    constant += [name for name, f in names.items() if f.counts is not None and len(f.counts) + (f.n_missing > 0) <= 1]
    texts: list[str] = []
    dates: list[str] = []
    unique: list[str] = []
    for name, found in names.items():
        values = _values(found)
        if len(values) >= _LEAST_VALUES and _share(_DATE, values) >= _NEARLY_ALL:
            dates.append(repr(name))
        elif len(values) >= _LEAST_VALUES and _NEARLY_ALL <= _share(_NUMBER, values) < 1:
            texts.append(f"{name!r} ({', '.join(repr(v) for v in values if not _NUMBER.fullmatch(v))[:40]})")
        elif found.counts is not None and len(values) > _NEARLY_ALL * (n - found.n_missing):
            unique.append(f"{name!r} ({len(values)} of {n})")
    extreme = [
        f"{name!r} ({size:.0f})" for name, size in _extremes(statistics, numbers) if size > _EXTREME and not clips
    ]
    return [
        *_said("is different in nearly every row", unique, "Drop what identifies rows: columns={...: 'drop'}."),
        *_said(
            "looks like numbers but for some texts",
            texts,
            "Name these in TableFiles(..., na_values=...), or convert it.",
        ),
        *_said(
            "looks like dates and is taken for names",
            dates,
            "Dates by ISO 8601 are read with columns={...: 'date'}; convert others.",
        ),
        *_said("is constant", [repr(name) for name in constant], ""),
        *_said(
            f"has values more than {_EXTREME:.0f} standard deviations from the mean",
            extreme,
            "Look at them, or limit them: ColumnEncoder(clip=10).",
        ),
    ]


def _said(what: str, columns: list[str], advice: str) -> list[str]:
    if not columns:
        return []
    more = f" and {len(columns) - _ADVICE_SHOWN} more" if len(columns) > _ADVICE_SHOWN else ""
    noun = "Column" if len(columns) == 1 else "Each of the columns"
    return [f"{noun} {', '.join(columns[:_ADVICE_SHOWN])}{more} {what}. {advice}".strip()]


def _values(found: Categories) -> list[str]:
    """Return the texts of a column, some of them where there are too many; none if its values are no texts."""
    values = list(found.counts if found.counts is not None else found.some)
    return values if found.kind == "category" and all(isinstance(value, str) for value in values) else []


def _share(pattern: re.Pattern[str], values: list[str]) -> float:
    return sum(pattern.fullmatch(value) is not None for value in values) / len(values)


def _extremes(statistics: Statistics, numbers: Mapping[Any, Moments]) -> Iterable[tuple[Any, float]]:
    """Yield how far the farthest number of each column is from the mean, in standard deviations."""
    for name, found in numbers.items():
        if found.n and statistics.roles[name] == "numeric":
            mean, scale = found.mean_and_scale()
            yield name, max(found.high - mean, mean - found.low) / scale
