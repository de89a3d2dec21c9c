"""What stands out in the columns of a table, so that somebody should look at them before they trust a model.

Only columns whose roles nobody chose are spoken of, and none of a small table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from dsgd.preprocessing.statistics import Categories, Moments, Statistics

_LEAST_ROWS: Final = 100
#: A share of the rows with different values that is nearly all of them, and one of values that are nearly all alike.
_NEARLY_ALL: Final = 0.9
#: Of so many values it can be said what they look like.
_LEAST_VALUES: Final = 20
#: A number so many standard deviations from the mean moves the mean of all gradients.
_EXTREME: Final = 50.0
_NUMBER: Final = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*")
_DATE: Final = re.compile(r"\s*(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.](\d{4}|\d\d))([ T].*)?")
_SHOWN: Final = 8


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
    more = f" and {len(columns) - _SHOWN} more" if len(columns) > _SHOWN else ""
    noun = "Column" if len(columns) == 1 else "Each of the columns"
    return [f"{noun} {', '.join(columns[:_SHOWN])}{more} {what}. {advice}".strip()]


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
