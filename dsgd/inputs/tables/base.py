"""What every table answers about its columns, and columns as codes.

Problem: the encoder of columns reads tables of several libraries, and should not know which one it has.

Method: a protocol of few questions, each about one column: what it holds, and its numbers, codes or dates as arrays of
numpy. Distinct values become Python objects once; rows are numbers only.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal, Protocol, Self, TypeAlias

import numpy as np

from dsgd.errors import InvalidDataError
from dsgd.types import AnyArray, IntVector

#: What a column holds. Strings are categories; whether they are texts is for the user to say.
Kind: TypeAlias = Literal["number", "category", "date", "unknown"]


@dataclass(frozen=True)
class Coded:
    """A column as codes."""

    codes: IntVector
    values: Any

    def listed(self) -> list[Any]:
        """Return the values as Python objects; whole numbers are integers, however the library had to store them."""
        # Not to_pylist, which takes ten times as long.
        values: list[Any] = (
            self.values if isinstance(self.values, list) else self.values.to_numpy(zero_copy_only=False).tolist()
        )
        types = set(map(type, values))
        if Decimal in types:
            values = [float(v) if isinstance(v, Decimal) else v for v in values]
        if float in types or Decimal in types:
            return [int(v) if isinstance(v, float) and v.is_integer() else v for v in values]
        return values


class Table(Protocol):
    """Named columns in memory."""

    @property
    def names(self) -> list[Any]:
        """Names of the columns, in order."""

    def __len__(self) -> int: ...

    def kind(self, name: Any) -> Kind:
        """Return what a column holds."""

    def value_kind(self, name: Any) -> Kind:
        """Return what the values of a column are, which of categories may be numbers."""

    def numbers(self, name: Any) -> AnyArray:
        """Return a column as float64, NaN where it is missing."""

    def coded(self, name: Any) -> Coded:
        """Return a column as codes."""

    def microseconds(self, name: Any) -> tuple[AnyArray, AnyArray]:
        """Return a column of dates as int64 microseconds since 1970, and where it is missing."""

    def rows(self, start: int, stop: int) -> Self:
        """Return the rows from start up to stop, of which nothing is copied."""


def coded_one_by_one(name: object, values: list[Any]) -> Coded:
    """Return objects as codes, in which True is not 1 though Python says that they are equal."""
    found: dict[Any, int] = {}
    try:
        codes = [-1 if is_missing(v) else found.setdefault((v, isinstance(v, bool)), len(found)) for v in values]
    except (TypeError, ValueError) as error:  # a list, say, or an array
        raise InvalidDataError(f"column {name!r} has values that are no categories ({error}).") from error
    return Coded(np.array(codes, np.int32), [value for value, _ in found])


def is_missing(value: Any) -> bool:
    """Return whether a Python object stands for a missing value."""
    # The missing value of pandas neither equals itself nor does not.
    return value is None or type(value).__name__ == "NAType" or bool(value != value)


def no_categories(name: object) -> InvalidDataError:
    """Return the error of a column of durations that was taken for categories."""
    return InvalidDataError(f"column {name!r} holds durations, which are no categories. Make them numbers of seconds.")


def wrong_kind(name: object, what: str, why: object) -> InvalidDataError:
    """Return the error of a column that was taken for something else than it is."""
    return InvalidDataError(f"column {name!r} was taken for {what}, and some of its values are none ({why}).")
