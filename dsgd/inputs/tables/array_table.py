"""Arrays of two dimensions as tables: of numbers, or of Python objects of any kind.

Problem: rows of mixed columns without a library of tables are an array of objects, whose columns have no types.

Method: a column is what all its values are; objects are coded one by one. Columns are named by scikit-learn's rule.
"""

from __future__ import annotations

from typing import Any, final

import numpy as np

from dsgd.inputs.tables.base import Coded, Kind, coded_one_by_one, is_missing, wrong_kind
from dsgd.types import AnyArray


@final
class ArrayTable:
    """An array of two dimensions."""

    def __init__(self, array: AnyArray, names: list[Any] | None = None) -> None:
        self._array = array
        self.names: list[Any] = [f"x{k}" for k in range(array.shape[1])] if names is None else names

    def __len__(self) -> int:
        return int(self._array.shape[0])

    def kind(self, name: Any) -> Kind:
        """Return what a column holds."""
        if self._array.dtype.kind in "fiub":
            return "number"
        if self._array.dtype.kind != "O":
            return "category" if self._array.dtype.kind in "US" else "unknown"
        values = [v for v in self._column(name) if not is_missing(v)]
        return "number" if all(isinstance(v, (int, float, np.number, np.bool_)) for v in values) else "category"

    def value_kind(self, name: Any) -> Kind:
        """Return what the values of a column are."""
        return self.kind(name)

    def numbers(self, name: Any) -> AnyArray:
        """Return a column as float64, NaN where it is missing."""
        values: Any = self._column(name)
        if values.dtype.kind == "O":
            values = [np.nan if is_missing(value) else value for value in values]
        try:
            return np.asarray(values, np.float64)
        except (TypeError, ValueError) as error:
            raise wrong_kind(name, "numbers", error) from error

    def coded(self, name: Any) -> Coded:
        """Return a column as codes."""
        return coded_one_by_one(name, self._column(name).tolist())

    def microseconds(self, name: Any) -> tuple[AnyArray, AnyArray]:
        """Return a column of dates as microseconds since 1970, and where it is missing."""
        if self.kind(name) == "number" and not all(map(is_missing, self._column(name))):
            raise wrong_kind(name, "dates", "numbers")
        try:
            values = self._column(name).astype("datetime64[us]")
        except (TypeError, ValueError) as error:
            raise wrong_kind(name, "dates", error) from error
        return values.astype(np.int64), np.isnat(values)

    def named(self, names: list[Any]) -> ArrayTable:
        """Return the array with other names of its columns."""
        return ArrayTable(self._array, names)

    def rows(self, start: int, stop: int) -> ArrayTable:
        """Return the rows from start up to stop, of which nothing is copied."""
        return ArrayTable(self._array[start:stop], self.names)

    def _column(self, name: Any) -> AnyArray:
        found: AnyArray = self._array[:, self.names.index(name)]
        return found
