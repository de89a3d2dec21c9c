"""Tables of pandas, and anything as a table.

**Data frames of pandas, read column by column with pandas.**

Problem: a column of pandas may be of numpy, nullable, sparse, of categories, of Arrow memory or of Python objects, and
each says in its own way what is missing.

Method: pandas decides what a column is, and factorizes it. Objects of several types are coded one by one, because its
hash table takes True for 1.

From whatever a user has to a table, and from its columns to labels, categories and texts.

Method: one function chooses the reader, and those below ask it what `Table` answers. A column leaves as it would from
any other library: whole numbers are integers, and dates are written by ISO 8601.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, final

import numpy as np

from dsgd.errors import InvalidDataError
from dsgd.inputs.tables.arrow_table import ArrowTable, arrow_table, is_of_numbers, utf8_buffers
from dsgd.inputs.tables.base import (
    ArrayTable,
    Coded,
    Kind,
    Table,
    coded_one_by_one,
    is_table,
    no_categories,
    number_dtype,
    parsed,
    refuse_queries,
    wrong_kind,
)
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


def is_frame(X: object) -> bool:
    """Return whether X is a table in memory: of pandas, Arrow, or anything that hands out Arrow memory."""
    if is_table(X):
        return True
    return hasattr(X, "__arrow_c_stream__") or (hasattr(X, "__dataframe__") and not hasattr(X, "__dask_graph__"))


def as_table(X: Any) -> Table:
    """Return X for reading its columns.

    - `X`, shape (n, d): see `is_frame`. Columns of an array are named by scikit-learn's rule, x0, x1 and so on.
    """
    if isinstance(X, (PandasTable, ArrowTable, ArrayTable)):
        return X
    refuse_queries(X)
    if is_table(X):
        return PandasTable(X)
    if is_frame(X):
        return ArrowTable(arrow_table(X))
    if hasattr(X, "tocsr"):
        raise InvalidDataError("X is a sparse matrix: its columns are numbers already, and have no names.")
    array = np.asarray(X)
    if array.ndim != 2:
        raise InvalidDataError(
            f"X must be a table, or an array of two dimensions. Got {array.ndim}. Reshape your data."
        )
    if array.dtype.kind == "c":
        raise InvalidDataError(f"Complex data not supported: X has the dtype {array.dtype}.")
    return ArrayTable(array)


def pop_column(X: Any, name: str) -> tuple[Any, Any]:
    """Return a table of any library without a column, and that column as an array."""
    table = as_table(X)
    if name not in table.names:
        raise InvalidDataError(f"there is no column {name!r}; the table has {', '.join(map(str, table.names))}.")
    values = column(table, name)
    if isinstance(table, ArrowTable):
        rest = table.without(name)
        return (rest if isinstance(X, ArrowTable) else rest.columns), values
    return X.drop(columns=[name]), values


def column(table: Table, name: str) -> AnyArray:
    """Return a column as an array, of numbers or of whatever its values are."""
    if table.kind(name) == "number":
        values = table.numbers(name)
        if np.isnan(values).any():
            raise InvalidDataError(f"column {name!r} has missing values. Drop the rows without a value.")
        whole = values.astype(np.int64) if len(values) and (np.abs(values) < 2**53).all() else None
        # As the labels of a table of integers and of one that had to store them as floats.
        return whole if whole is not None and (whole == values).all() else values
    found = table.coded(name)
    if (found.codes < 0).any():
        raise InvalidDataError(f"column {name!r} has missing values. Drop the rows without a value.")
    labels: AnyArray = np.asarray(found.listed())[found.codes] if len(found.codes) else np.empty(0, dtype=object)
    return labels


def column_without_numbers(table: Table) -> Any:
    """Return the name of the first column that cannot become numbers, dates last; None if there is none."""
    others = [name for name in table.names if table.kind(name) != "number"]
    for name in sorted(others, key=lambda name: table.kind(name) != "category"):
        if table.kind(name) != "category" or not _are_numbers(table, name):
            return name
    return None


def _are_numbers(table: Table, name: Any) -> bool:
    """Return whether the categories of a column are numbers, maybe in text, as numpy reads them."""
    try:
        np.asarray(table.coded(name).listed(), np.float64)
    except (TypeError, ValueError):  # also where values are no categories
        return False
    return True


def categories(table: Table, name: Any, kind: Kind | None = None) -> Coded:
    """Return a column as codes of categories, of which dates are written by ISO 8601, in UTC.

    Libraries write them differently, and no file of a model holds their objects.
    """
    if "date" not in (kind, table.kind(name)):
        coded = table.coded(name)
        if kind != "number" or table.value_kind(name) == "number":
            return coded
        # Different texts may be one number.
        again = coded_one_by_one(name, [parsed(v) if isinstance(v, str) else v for v in coded.listed()])
        places: AnyArray = np.append(again.codes, np.int32(-1))
        return Coded(places[coded.codes], again.values)
    us, missing = table.microseconds(name)
    codes: AnyArray = np.full(len(us), -1, np.int32)
    found, codes[~missing] = np.unique(us[~missing], return_inverse=True)
    return Coded(codes, np.datetime_as_string(found.astype("datetime64[us]"), unit="auto").tolist())


def utf8(values: Any) -> tuple[AnyArray, AnyArray]:
    """Return the bytes of strings, and where each begins; other values are written as Python writes them."""
    if not isinstance(values, list):
        found = utf8_buffers(values)
        if found is not None:
            return found
    values = Coded(np.empty(0, np.int32), values).listed()
    encoded = [str(value).encode("utf-8", "surrogatepass") for value in values]
    offsets = np.zeros(len(encoded) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, encoded), np.int64, len(encoded)), out=offsets[1:])
    return np.frombuffer(b"".join(encoded), np.uint8), offsets


def batches(table: Table, n_rows: int) -> Iterator[Table]:
    """Yield a table in parts of at most so many rows; nothing is copied."""
    for start in range(0, len(table), n_rows):
        yield table.rows(start, min(start + n_rows, len(table)))
