"""From whatever a user has to a table, and from its columns to labels, categories and texts.

Method: one function chooses the reader, and those below ask it what `Table` answers. A column leaves as it would from
any other library: whole numbers are integers, and dates are written by ISO 8601.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from dsgd.errors import InvalidDataError
from dsgd.inputs.frames import is_table, refuse_queries
from dsgd.inputs.tables.array_table import ArrayTable
from dsgd.inputs.tables.arrow_table import ArrowTable, arrow_table, utf8_buffers
from dsgd.inputs.tables.base import Coded, Kind, Table, coded_one_by_one
from dsgd.inputs.tables.pandas_table import PandasTable
from dsgd.inputs.tables.written import parsed
from dsgd.types import AnyArray


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
