"""Data frames of pandas, read column by column with pandas.

Problem: a column of pandas may be of numpy, nullable, sparse, of categories, of Arrow memory or of Python objects, and
each says in its own way what is missing.

Method: pandas decides what a column is, and factorizes it. Objects of several types are coded one by one, because its
hash table takes True for 1.
"""

from __future__ import annotations

from typing import Any, final

import numpy as np

from dsgd.inputs.frames import number_dtype
from dsgd.inputs.tables.arrow_table import ArrowTable, is_of_numbers
from dsgd.inputs.tables.base import Coded, Kind, coded_one_by_one, no_categories, wrong_kind
from dsgd.types import AnyArray


@final
class PandasTable:
    """A data frame of pandas."""

    def __init__(self, frame: Any) -> None:
        self._frame = frame
        self.names: list[Any] = list(frame.columns)

    def __len__(self) -> int:
        return len(self._frame)

    def kind(self, name: Any) -> Kind:
        """Return what a column holds; a column of objects is what its values are."""
        values = self._column(name)
        if number_dtype(values.dtype) is not None:
            return "number"
        of_values = getattr(values.dtype, "categories", values).dtype  # those of categories, if it holds these
        if getattr(of_values, "kind", "") == "M":
            return "date"
        if hasattr(of_values, "pyarrow_dtype") and is_of_numbers(of_values.pyarrow_dtype):
            return "number"  # such as decimals
        if getattr(values.dtype, "kind", "") in {"c", "m"}:
            return "unknown"
        if values.dtype != object:
            return "category"
        found = _inferred(values)
        if found in {"floating", "integer", "mixed-integer-float", "decimal", "boolean", "empty"}:
            return "number"
        if found in {"time", "timedelta", "timedelta64"}:
            return "unknown"
        return "date" if found in {"date", "datetime", "datetime64"} else "category"

    def value_kind(self, name: Any) -> Kind:
        """Return what the values of a column are, which of categories may be numbers."""
        values = self._column(name)
        if hasattr(values, "cat"):
            values = values.cat.categories
            return PandasTable(values.to_frame(name="")).kind("")
        return self.kind(name)

    def numbers(self, name: Any) -> AnyArray:
        """Return a column as float64, NaN where it is missing."""
        values = self._column(name)
        if isinstance(values.dtype, np.dtype) and values.dtype.kind in "fiub":
            return np.asarray(values, np.float64)
        if self.kind(name) == "date":
            raise wrong_kind(name, "numbers", "dates")
        if self._holds_durations(name):
            raise wrong_kind(name, "numbers", "durations")
        import pandas as pd

        if hasattr(values.dtype, "pyarrow_dtype"):
            import pyarrow as pa

            return ArrowTable(pa.table([pa.chunked_array([pa.array(values)])], names=[str(name)])).numbers(str(name))
        try:
            if number_dtype(values.dtype) is None:
                values = pd.to_numeric(values.where(values.notna(), None))
            return np.asarray(values.to_numpy(np.float64, na_value=np.nan))
        except (TypeError, ValueError) as error:
            raise wrong_kind(name, "numbers", error) from error

    def coded(self, name: Any) -> Coded:
        """Return a column as codes."""
        values = self._column(name)
        if self._holds_durations(name):
            raise no_categories(name)
        if hasattr(values, "cat"):
            return Coded(values.cat.codes.to_numpy().astype(np.int32), values.cat.categories.tolist())
        if values.dtype == object and _inferred(values).startswith("mixed"):
            return coded_one_by_one(name, values.tolist())
        codes, found = values.factorize()
        return Coded(codes.astype(np.int32), found.tolist())

    def microseconds(self, name: Any) -> tuple[AnyArray, AnyArray]:
        """Return a column of dates as microseconds since 1970, and where it is missing."""
        import pandas as pd

        values = self._column(name)
        of_values = getattr(values.dtype, "categories", values).dtype
        if (self.kind(name) == "number" or number_dtype(of_values) is not None) and values.notna().any():
            raise wrong_kind(name, "dates", "numbers")
        try:
            values = pd.to_datetime(values, utc=True, format="ISO8601")
        except (TypeError, ValueError) as error:
            raise wrong_kind(name, "dates", error) from error
        return values.dt.tz_localize(None).to_numpy("datetime64[us]").astype(np.int64), values.isna().to_numpy()

    def _holds_durations(self, name: Any) -> bool:
        values = self._column(name)
        kind = getattr(getattr(values.dtype, "categories", values).dtype, "kind", "")
        return kind == "m" or (kind == "O" and values.dtype == object and _inferred(values).startswith("timedelta"))

    def rows(self, start: int, stop: int) -> PandasTable:
        """Return the rows from start up to stop, of which nothing is copied."""
        return PandasTable(self._frame.iloc[start:stop])

    def _column(self, name: Any) -> Any:
        values = self._frame[name]
        return values.sparse.to_dense() if hasattr(values, "sparse") else values


def _inferred(values: Any) -> str:
    """Return what a column of objects of pandas holds, by the name that pandas has for it."""
    import pandas as pd

    return str(pd.api.types.infer_dtype(values, skipna=True))
