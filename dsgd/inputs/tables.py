"""Tables column by column: numbers, codes of categories, texts and dates, whichever library holds them.

Problem: pandas, Polars, Arrow, DuckDB and others hold mixed columns each in its own way, and numpy holds them as
objects.

Method: two readers. One reads pandas with pandas. The other reads Arrow memory, which all others hand out without a
copy through ``__arrow_c_stream__`` (or else the data frame protocol). Neither library is loaded for anybody who has
none of its objects. Categories are coded by the library's own hash table, and each distinct value becomes a Python
object once.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, final

import numpy as np

from dsgd.errors import InvalidDataError, MissingPackageError
from dsgd.inputs.frames import is_table, number_dtype, refuse_queries
from dsgd.types import AnyArray, IntVector

__all__ = [
    "Coded",
    "Kind",
    "Table",
    "as_table",
    "batches",
    "categories",
    "column",
    "is_frame",
    "pop_column",
    "pyarrow_for",
    "utf8",
]

#: What a column holds. Strings are categories; whether they are texts is for the user to say.
Kind: TypeAlias = Literal["number", "category", "date", "unknown"]


@dataclass(frozen=True)
class Coded:
    """A column as codes.

    Parameters
    ----------
    codes : array of int32, shape (n,)
        Numbers of values; -1 where one is missing.
    values : list or pyarrow.Array
        The distinct values.
    """

    codes: IntVector
    values: Any

    def listed(self) -> list[Any]:
        """Return the values as Python objects; whole numbers are integers, however the library had to store them."""
        # Not to_pylist, which takes ten times as long.
        values: list[Any] = self.values if isinstance(self.values, list) else _plain(self.values)
        if float in set(map(type, values)):
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

    def numbers(self, name: Any) -> AnyArray:
        """Return a column as float64, NaN where it is missing."""

    def coded(self, name: Any) -> Coded:
        """Return a column as codes."""

    def microseconds(self, name: Any) -> tuple[AnyArray, AnyArray]:
        """Return a column of dates as int64 microseconds since 1970, and where it is missing."""


def is_frame(X: object) -> bool:
    """Return whether X is a table in memory: of pandas, Arrow, or anything that hands out Arrow memory."""
    if is_table(X):
        return True
    return hasattr(X, "__arrow_c_stream__") or (hasattr(X, "__dataframe__") and not hasattr(X, "__dask_graph__"))


def as_table(X: Any) -> Table:
    """Return X for reading its columns.

    Parameters
    ----------
    X : table, or array of shape (n, d)
        See `is_frame`. Columns of an array are named by scikit-learn's rule, x0, x1 and so on.

    Raises
    ------
    InvalidDataError
        X is neither.
    MissingPackageError
        X needs pyarrow, which is not installed.
    """
    if isinstance(X, (PandasTable, ArrowTable, ArrayTable)):
        return X
    refuse_queries(X)
    if is_table(X):
        return PandasTable(X)
    if is_frame(X):
        return ArrowTable(_arrow(X))
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
    """Return a table of any library without a column, and that column as an array.

    Raises
    ------
    InvalidDataError
        There is no such column, or it has missing values.
    """
    table = as_table(X)
    if name not in table.names:
        raise InvalidDataError(f"there is no column {name!r}; the table has {', '.join(map(str, table.names))}.")
    values = column(table, name)
    if isinstance(table, ArrowTable):
        rest = table.without(name)
        return (rest if isinstance(X, ArrowTable) else rest.columns), values
    return X.drop(columns=[name]), values


def column(table: Table, name: str) -> AnyArray:
    """Return a column as an array, of numbers or of whatever its values are.

    Raises
    ------
    InvalidDataError
        A value is missing.
    """
    if table.kind(name) == "number":
        values = table.numbers(name)
        if np.isnan(values).any():
            raise InvalidDataError(f"column {name!r} has missing values. Drop the rows that have none.")
        whole = values.astype(np.int64) if len(values) and (np.abs(values) < 2**53).all() else None
        # As the labels of a table of integers and of one that had to store them as floats.
        return whole if whole is not None and (whole == values).all() else values
    found = table.coded(name)
    if (found.codes < 0).any():
        raise InvalidDataError(f"column {name!r} has missing values. Drop the rows that have none.")
    labels: AnyArray = np.asarray(found.listed())[found.codes] if len(found.codes) else np.empty(0, dtype=object)
    return labels


def categories(table: Table, name: Any) -> Coded:
    """Return a column as codes of categories, of which dates are written by ISO 8601, in UTC.

    Libraries write them differently, and no file of a model holds their objects.
    """
    if table.kind(name) != "date":
        return table.coded(name)
    us, missing = table.microseconds(name)
    codes: AnyArray = np.full(len(us), -1, np.int32)
    found, codes[~missing] = np.unique(us[~missing], return_inverse=True)
    return Coded(codes, np.datetime_as_string(found.astype("datetime64[us]"), unit="auto").tolist())


def utf8(values: Any) -> tuple[AnyArray, AnyArray]:
    """Return the bytes of strings, and where each begins; other values are written as Python writes them.

    Parameters
    ----------
    values : list or pyarrow.Array
        Without missing ones.

    Returns
    -------
    array of uint8
        UTF-8 of all of them.
    array of int64, shape (n + 1,)
        Where they begin.
    """
    if not isinstance(values, list):
        found = _arrow_utf8(values)
        if found is not None:
            return found
    values = Coded(np.empty(0, np.int32), values).listed()
    encoded = [str(value).encode("utf-8", "surrogatepass") for value in values]
    offsets = np.zeros(len(encoded) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, encoded), np.int64, len(encoded)), out=offsets[1:])
    return np.frombuffer(b"".join(encoded), np.uint8), offsets


def pyarrow_for(what: str) -> Any:
    """Return the module pyarrow.

    Raises
    ------
    MissingPackageError
        It is not installed; says that `what` needs it.
    """
    try:
        import pyarrow
    except ImportError as error:
        raise MissingPackageError(f"{what} needs pyarrow: pip install 'dsgd[frames]'") from error
    return pyarrow


@final
class PandasTable:
    """A data frame of pandas.

    Parameters
    ----------
    frame : pandas.DataFrame
        The frame.
    """

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
        if hasattr(of_values, "pyarrow_dtype") and _is_of_numbers(of_values.pyarrow_dtype):
            return "number"  # such as decimals
        if getattr(values.dtype, "kind", "") in {"c", "m"}:
            return "unknown"
        if values.dtype != object:
            return "category"
        found = _inferred(values)
        if found in {"floating", "integer", "mixed-integer-float", "decimal", "boolean"}:
            return "number"
        if found in {"time", "timedelta", "timedelta64"}:
            return "unknown"
        return "date" if found in {"date", "datetime", "datetime64"} else "category"

    def numbers(self, name: Any) -> AnyArray:
        """Return a column as float64, NaN where it is missing."""
        values = self._column(name)
        if isinstance(values.dtype, np.dtype) and values.dtype.kind in "fiub":
            return np.asarray(values, np.float64)
        if self.kind(name) == "date":
            raise _not(name, "numbers", "dates")
        if self._holds_durations(name):
            raise _not(name, "numbers", "durations")
        import pandas as pd

        try:
            if number_dtype(values.dtype) is None:
                values = pd.to_numeric(values.where(values.notna(), None))
            return np.asarray(values.to_numpy(np.float64, na_value=np.nan))
        except (TypeError, ValueError) as error:
            raise _not(name, "numbers", error) from error

    def coded(self, name: Any) -> Coded:
        """Return a column as codes."""
        values = self._column(name)
        if self._holds_durations(name):
            raise _no_categories(name)
        if hasattr(values, "cat"):
            return Coded(values.cat.codes.to_numpy().astype(np.int32), values.cat.categories.tolist())
        if values.dtype == object and _inferred(values).startswith("mixed"):
            return _coded_one_by_one(name, values.tolist())
        codes, found = values.factorize()
        return Coded(codes.astype(np.int32), found.tolist())

    def microseconds(self, name: Any) -> tuple[AnyArray, AnyArray]:
        """Return a column of dates as microseconds since 1970, and where it is missing."""
        import pandas as pd

        values = self._column(name)
        of_values = getattr(values.dtype, "categories", values).dtype
        if (self.kind(name) == "number" or number_dtype(of_values) is not None) and values.notna().any():
            raise _not(name, "dates", "numbers")
        try:
            values = pd.to_datetime(values, utc=True, format="ISO8601")
        except (TypeError, ValueError) as error:
            raise _not(name, "dates", error) from error
        return values.dt.tz_localize(None).to_numpy("datetime64[us]").astype(np.int64), values.isna().to_numpy()

    def _holds_durations(self, name: Any) -> bool:
        values = self._column(name)
        kind = getattr(getattr(values.dtype, "categories", values).dtype, "kind", "")
        return kind == "m" or (kind == "O" and values.dtype == object and _inferred(values).startswith("timedelta"))

    def _column(self, name: Any) -> Any:
        values = self._frame[name]
        return values.sparse.to_dense() if hasattr(values, "sparse") else values


@final
class ArrowTable:
    """A table in Arrow memory.

    Parameters
    ----------
    table : pyarrow.Table
        The table.
    """

    def __init__(self, table: Any) -> None:
        self._table = table
        self.names: list[Any] = list(table.column_names)

    def __len__(self) -> int:
        return int(self._table.num_rows)

    @property
    def columns(self) -> Any:
        """The pyarrow.Table."""
        return self._table

    def without(self, name: str) -> ArrowTable:
        """Return the table without a column."""
        return ArrowTable(self._table.drop_columns([name]))

    def kind(self, name: Any) -> Kind:
        """Return what a column holds."""
        import pyarrow.types as types

        kind = _value_type(self._table.schema.field(name).type)
        if _is_of_numbers(kind):
            return "number" if kind == self._table.schema.field(name).type else "category"
        if types.is_date(kind) or types.is_timestamp(kind):
            return "date"
        tests = (
            types.is_string,
            types.is_large_string,
            types.is_string_view,
            types.is_binary,
            types.is_binary_view,
            types.is_large_binary,
            types.is_fixed_size_binary,
            types.is_null,
        )
        return "category" if any(test(kind) for test in tests) else "unknown"

    def numbers(self, name: Any) -> AnyArray:
        """Return a column as float64, NaN where it is missing."""
        import pyarrow as pa
        import pyarrow.compute as pc

        values = self._column(name)
        if self.kind(name) == "date":
            raise _not(name, "numbers", "dates")
        try:
            values = pc.cast(values, pa.int8()) if pa.types.is_boolean(values.type) else values
            return np.asarray(pc.cast(values, pa.float64(), safe=False).to_numpy())
        except pa.ArrowException as error:
            raise _not(name, "numbers", error) from error

    def coded(self, name: Any) -> Coded:
        """Return a column as codes."""
        import pyarrow as pa
        import pyarrow.compute as pc

        values = self._column(name)
        if pa.types.is_duration(_value_type(values.type)):
            raise _no_categories(name)
        if pa.types.is_floating(values.type):
            values = pc.if_else(pc.is_nan(values), None, values)  # missing too, as in `numbers`
        try:
            values = values.unify_dictionaries() if pa.types.is_dictionary(values.type) else values.dictionary_encode()
        except pa.ArrowException as error:
            raise InvalidDataError(f"column {name!r} has values that are no categories ({error}).") from error
        if values.num_chunks == 0:
            return Coded(np.empty(0, np.int32), [])
        coded = values.chunk(0) if values.num_chunks == 1 else values.combine_chunks()
        codes = coded.indices.cast(pa.int32())
        codes = codes.fill_null(-1) if codes.null_count else codes
        return Coded(codes.to_numpy(zero_copy_only=False), coded.dictionary)

    def microseconds(self, name: Any) -> tuple[AnyArray, AnyArray]:
        """Return a column of dates as microseconds since 1970, and where it is missing."""
        import pyarrow as pa
        import pyarrow.compute as pc

        values = self._column(name)
        if pa.types.is_dictionary(values.type):
            values = pc.cast(values, values.type.value_type)
        if _is_of_numbers(values.type):
            if not np.isnan(self.numbers(name)).all():
                raise _not(name, "dates", "numbers")
            return np.zeros(len(self), np.int64), np.ones(len(self), np.bool_)
        try:
            if not pa.types.is_timestamp(values.type):
                values = pc.cast(values, pa.timestamp("us"))
            elif values.type.unit != "us":
                values = pc.cast(values, pa.timestamp("us", values.type.tz), safe=False)
        except pa.ArrowException as error:
            raise _not(name, "dates", error) from error
        whole = pc.cast(values, pa.int64()).fill_null(0).to_numpy()
        return whole, values.is_null().to_numpy()

    def _column(self, name: Any) -> Any:
        """Return a column in which strings are no views, as those of Polars are: Arrow computes little with these."""
        import pyarrow as pa

        values = self._table.column(name)
        kind = _value_type(values.type)
        if not (pa.types.is_string_view(kind) or pa.types.is_binary_view(kind)):
            return values
        plain = pa.large_string() if pa.types.is_string_view(kind) else pa.large_binary()
        if pa.types.is_dictionary(values.type):
            return values.cast(pa.dictionary(values.type.index_type, plain, values.type.ordered))
        return values.cast(plain)


@final
class ArrayTable:
    """An array of two dimensions.

    Parameters
    ----------
    array : array, shape (n, d)
        Of numbers, or of objects.
    names : list or None, default None
        Names of its columns; x0, x1 and so on by default.
    """

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
        values = [v for v in self._column(name) if not _is_missing(v)]
        return "number" if all(isinstance(v, (int, float, np.number, np.bool_)) for v in values) else "category"

    def numbers(self, name: Any) -> AnyArray:
        """Return a column as float64, NaN where it is missing."""
        values: Any = self._column(name)
        if values.dtype.kind == "O":
            values = [np.nan if _is_missing(value) else value for value in values]
        try:
            return np.asarray(values, np.float64)
        except (TypeError, ValueError) as error:
            raise _not(name, "numbers", error) from error

    def coded(self, name: Any) -> Coded:
        """Return a column as codes."""
        return _coded_one_by_one(name, self._column(name).tolist())

    def microseconds(self, name: Any) -> tuple[AnyArray, AnyArray]:
        """Return a column of dates as microseconds since 1970, and where it is missing."""
        if self.kind(name) == "number" and not all(map(_is_missing, self._column(name))):
            raise _not(name, "dates", "numbers")
        try:
            values = self._column(name).astype("datetime64[us]")
        except (TypeError, ValueError) as error:
            raise _not(name, "dates", error) from error
        return values.astype(np.int64), np.isnat(values)

    def named(self, names: list[Any]) -> ArrayTable:
        """Return the array with other names of its columns."""
        return ArrayTable(self._array, names)

    def _column(self, name: Any) -> AnyArray:
        found: AnyArray = self._array[:, self.names.index(name)]
        return found


def batches(table: Table, n_rows: int) -> Iterator[Table]:
    """Yield a table in parts of at most so many rows; nothing is copied."""
    for start in range(0, len(table), n_rows):
        stop = min(start + n_rows, len(table))
        if isinstance(table, PandasTable):
            yield PandasTable(table._frame.iloc[start:stop])
        elif isinstance(table, ArrowTable):
            yield ArrowTable(table._table.slice(start, stop - start))
        elif isinstance(table, ArrayTable):
            yield ArrayTable(table._array[start:stop], table.names)


def _arrow(X: Any) -> Any:
    """Return the Arrow table of an object that hands one out."""
    what = f"a table of {type(X).__module__.partition('.')[0]}"
    pa = pyarrow_for(what)
    if isinstance(X, pa.Table):
        return X
    if isinstance(X, pa.RecordBatch):
        return pa.Table.from_batches([X])
    polars = sys.modules.get("polars")
    if polars is not None and isinstance(X, polars.DataFrame) and polars.Object in X.dtypes:
        name = X.columns[X.dtypes.index(polars.Object)]
        raise InvalidDataError(
            f"column {name!r} has the dtype Object of Polars, whose values are addresses in memory to others. Cast it, "
            "or leave it out of X."
        )
    if hasattr(X, "__arrow_c_stream__"):
        try:
            return pa.table(X)
        except pa.ArrowException as error:
            raise InvalidDataError(f"{what} has a column that pyarrow cannot read ({error}). Cast it.") from error
    import pyarrow.interchange

    return pyarrow.interchange.from_dataframe(X)


def _arrow_utf8(values: Any) -> tuple[AnyArray, AnyArray] | None:
    """Return the buffers of an array of strings, as `utf8` does; None if it holds something else."""
    import pyarrow as pa

    wide = pa.types.is_large_string(values.type)
    if not wide and not pa.types.is_string(values.type):
        return None
    _, starts, data = values.buffers()
    offsets = np.frombuffer(starts, np.int64 if wide else np.int32)[values.offset : values.offset + len(values) + 1]
    return np.frombuffer(data if data is not None else b"", np.uint8), offsets.astype(np.int64)


def _is_of_numbers(kind: Any) -> bool:
    """Return whether values of an Arrow type are numbers or bools."""
    import pyarrow.types as types

    tests = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal)
    return any(test(kind) for test in tests)


def _value_type(kind: Any) -> Any:
    """Return the Arrow type of values; of categories, that of theirs."""
    import pyarrow.types as types

    return kind.value_type if types.is_dictionary(kind) else kind


def _plain(values: Any) -> list[Any]:
    """Return an Arrow array as a list."""
    plain: list[Any] = values.to_numpy(zero_copy_only=False).tolist()
    return plain


def _is_missing(value: Any) -> bool:
    # The missing value of pandas neither equals itself nor does not.
    return value is None or type(value).__name__ == "NAType" or bool(value != value)


def _inferred(values: Any) -> str:
    """Return what a column of objects of pandas holds, by the name that pandas has for it."""
    import pandas as pd

    return str(pd.api.types.infer_dtype(values, skipna=True))


def _coded_one_by_one(name: object, values: list[Any]) -> Coded:
    """Return objects as codes, in which True is not 1 though Python says that they are equal."""
    found: dict[Any, int] = {}
    try:
        codes = [-1 if _is_missing(v) else found.setdefault((v, isinstance(v, bool)), len(found)) for v in values]
    except (TypeError, ValueError) as error:  # a list, say, or an array
        raise InvalidDataError(f"column {name!r} has values that are no categories ({error}).") from error
    return Coded(np.array(codes, np.int32), [value for value, _ in found])


def _no_categories(name: object) -> InvalidDataError:
    return InvalidDataError(f"column {name!r} holds durations, which are no categories. Make them numbers of seconds.")


def _not(name: object, what: str, why: object) -> InvalidDataError:
    return InvalidDataError(f"column {name!r} was taken for {what}, and some of its values are none ({why}).")
