"""Tables of pandas, anything as a table, and tables as arrays of numbers.

A column of pandas may be of numpy, nullable, sparse, of categories, of Arrow memory or of Python objects, and each says
in its own way what is missing: pandas decides what a column is, and factorizes it. Objects of several types are coded
one by one, because its hash table takes True for 1. One function chooses the reader of what a user has; a column leaves
as it would from any other library: whole numbers are integers, and dates are written by ISO 8601.

Tables become arrays column by column, of the narrowest floats or integers that hold all of them, as in scikit-learn;
numpy alone, without missing integers, would make objects of them. Missing values and texts are refused, and the error
names the column.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, final

import numpy as np

from dsgd.errors import InvalidDataError
from dsgd.inputs import tables
from dsgd.types import AnyArray


@final
class PandasTable:
    """A data frame of pandas."""

    def __init__(self, frame: Any) -> None:
        self._frame = frame
        self.names: list[Any] = list(frame.columns)

    def __len__(self) -> int:
        return len(self._frame)

    def kind(self, name: Any) -> tables.Kind:
        """Return what a column holds; a column of objects is what its values are."""
        values = self._column(name)
        if tables.number_dtype(values.dtype) is not None:
            return "number"
        of_values = getattr(values.dtype, "categories", values).dtype  # those of categories, if it holds these
        if getattr(of_values, "kind", "") == "M":
            return "date"
        if hasattr(of_values, "pyarrow_dtype") and tables.is_of_numbers(of_values.pyarrow_dtype):
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

    def value_kind(self, name: Any) -> tables.Kind:
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
            raise tables.wrong_kind(name, "numbers", "dates")
        if self._holds_durations(name):
            raise tables.wrong_kind(name, "numbers", "durations")
        import pandas as pd

        if hasattr(values.dtype, "pyarrow_dtype"):
            import pyarrow as pa

            return tables.ArrowTable(pa.table([pa.chunked_array([pa.array(values)])], names=[str(name)])).numbers(
                str(name)
            )
        try:
            if tables.number_dtype(values.dtype) is None:
                values = pd.to_numeric(values.where(values.notna(), None))
            return np.asarray(values.to_numpy(np.float64, na_value=np.nan))
        except (TypeError, ValueError) as error:
            raise tables.wrong_kind(name, "numbers", error) from error

    def coded(self, name: Any) -> tables.Coded:
        """Return a column as codes."""
        values = self._column(name)
        if self._holds_durations(name):
            raise tables.no_categories(name)
        if hasattr(values, "cat"):
            return tables.Coded(values.cat.codes.to_numpy().astype(np.int32), values.cat.categories.tolist())
        if values.dtype == object and _inferred(values).startswith("mixed"):
            return tables.coded_one_by_one(name, values.tolist())
        codes, found = values.factorize()
        return tables.Coded(codes.astype(np.int32), found.tolist())

    def microseconds(self, name: Any) -> tuple[AnyArray, AnyArray]:
        """Return a column of dates as microseconds since 1970, and where it is missing."""
        import pandas as pd

        values = self._column(name)
        of_values = getattr(values.dtype, "categories", values).dtype
        if (self.kind(name) == "number" or tables.number_dtype(of_values) is not None) and values.notna().any():
            raise tables.wrong_kind(name, "dates", "numbers")
        try:
            values = pd.to_datetime(values, utc=True, format="ISO8601")
        except (TypeError, ValueError) as error:
            raise tables.wrong_kind(name, "dates", error) from error
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
    if tables.is_table(X):
        return True
    return hasattr(X, "__arrow_c_stream__") or (hasattr(X, "__dataframe__") and not hasattr(X, "__dask_graph__"))


def as_table(X: Any) -> tables.Table:
    """Return X for reading its columns; those of an array are named by scikit-learn's rule, x0, x1 and so on."""
    if isinstance(X, (PandasTable, tables.ArrowTable, tables.ArrayTable)):
        return X
    tables.refuse_queries(X)
    if tables.is_table(X):
        return PandasTable(X)
    if is_frame(X):
        return tables.ArrowTable(tables.arrow_table(X))
    if hasattr(X, "tocsr"):
        raise InvalidDataError("X is a sparse matrix: its columns are numbers already, and have no names.")
    array = np.asarray(X)
    if array.ndim != 2:
        raise InvalidDataError(
            f"X must be a table, or an array of two dimensions. Got {array.ndim}. Reshape your data."
        )
    if array.dtype.kind == "c":
        raise InvalidDataError(f"Complex data not supported: X has the dtype {array.dtype}.")
    return tables.ArrayTable(array)


def pop_column(X: Any, name: str) -> tuple[Any, Any]:
    """Return a table of any library without a column, and that column as an array."""
    table = as_table(X)
    if name not in table.names:
        raise InvalidDataError(f"there is no column {name!r}; the table has {', '.join(map(str, table.names))}.")
    values = column(table, name)
    if isinstance(table, tables.ArrowTable):
        rest = table.without(name)
        return (rest if isinstance(X, tables.ArrowTable) else rest.columns), values
    return X.drop(columns=[name]), values


def column(table: tables.Table, name: str) -> AnyArray:
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


def column_without_numbers(table: tables.Table) -> Any:
    """Return the name of the first column that cannot become numbers, dates last; None if there is none."""
    others = [name for name in table.names if table.kind(name) != "number"]
    for name in sorted(others, key=lambda name: table.kind(name) != "category"):
        if table.kind(name) != "category" or not _are_numbers(table, name):
            return name
    return None


def _are_numbers(table: tables.Table, name: Any) -> bool:
    """Return whether the categories of a column are numbers, maybe in text, as numpy reads them."""
    try:
        np.asarray(table.coded(name).listed(), np.float64)
    except (TypeError, ValueError):  # also where values are no categories
        return False
    return True


def categories(table: tables.Table, name: Any, kind: tables.Kind | None = None) -> tables.Coded:
    """Return a column as codes of categories; dates are ISO 8601 in UTC, as no model file holds a library's objects."""
    if "date" not in (kind, table.kind(name)):
        coded = table.coded(name)
        if kind != "number" or table.value_kind(name) == "number":
            return coded
        # Different texts may be one number.
        again = tables.coded_one_by_one(name, [tables.parsed(v) if isinstance(v, str) else v for v in coded.listed()])
        places: AnyArray = np.append(again.codes, np.int32(-1))
        return tables.Coded(places[coded.codes], again.values)
    us, missing = table.microseconds(name)
    codes: AnyArray = np.full(len(us), -1, np.int32)
    found, codes[~missing] = np.unique(us[~missing], return_inverse=True)
    return tables.Coded(codes, np.datetime_as_string(found.astype("datetime64[us]"), unit="auto").tolist())


def utf8(values: Any) -> tuple[AnyArray, AnyArray]:
    """Return the bytes of strings, and where each begins; other values are written as Python writes them."""
    if not isinstance(values, list):
        found = tables.utf8_buffers(values)
        if found is not None:
            return found
    values = tables.Coded(np.empty(0, np.int32), values).listed()
    encoded = [str(value).encode("utf-8", "surrogatepass") for value in values]
    offsets = np.zeros(len(encoded) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, encoded), np.int64, len(encoded)), out=offsets[1:])
    return np.frombuffer(b"".join(encoded), np.uint8), offsets


def batches(table: tables.Table, n_rows: int) -> Iterator[tables.Table]:
    """Yield a table in parts of at most so many rows; nothing is copied."""
    for start in range(0, len(table), n_rows):
        yield table.rows(start, min(start + n_rows, len(table)))


# How numpy begins to say that a value is no number.
_NOT_CONVERTED = ("could not convert string", "setting an array element with a sequence")


def table_values(X: Any) -> AnyArray:
    """Return the rows of a table as an array of numbers or bools."""
    kinds = [tables.number_dtype(dtype) for dtype in X.dtypes]
    if not kinds:
        return np.asarray(X)
    for name, dtype, kind in zip(X.columns, X.dtypes, kinds, strict=True):
        if kind is None:
            raise InvalidDataError(
                f"column {name!r} has dtype {dtype}, expected numbers. Convert or encode it: SGDClassifier and "
                "SGDRegressor take encoder='auto', or a dsgd.preprocessing.ColumnEncoder."
            )
    if len(set(X.dtypes)) == 1 and isinstance(X.dtypes.iloc[0], np.dtype):
        values = np.asarray(X)
        if values.dtype.kind == "f" and np.isnan(values).any():
            raise InvalidDataError(missing_column(X))
        return values
    values = np.empty(X.shape, np.result_type(*kinds))
    for k, name in enumerate(X.columns):
        column = X.iloc[:, k]
        if column.isna().any():
            raise InvalidDataError(_missing(name))
        values[:, k] = column.to_numpy(dtype=kinds[k])
    return values


def column_values(y: Any, name: str) -> AnyArray:
    """Return a column as an array, of numbers or bools if it has only these."""
    if tables.is_table(y):
        return np.column_stack([column_values(y.iloc[:, k], name) for k in range(y.shape[1])])
    _refuse_nulls(y, name)
    kind = tables.number_dtype(getattr(y, "dtype", None))
    if kind is None or not hasattr(y, "isna"):
        return np.asarray(y)
    if y.isna().any():
        raise InvalidDataError(_no_value(name))
    return np.asarray(y.to_numpy(dtype=kind))


def validated(estimator: Any, X: Any, *y: Any, **options: Any) -> Any:
    """Call `sklearn.utils.validation.validate_data`; errors about values of a table name the column."""
    if _is_checked(estimator, X, y, **options):
        return X if not y or y[0] is None else (X, *y)
    tables.refuse_queries(X)
    for values in y:
        _refuse_nulls(values, "y")
    # Not with this module: a worker that packs columns checks no rows.
    from sklearn.utils.validation import validate_data

    try:
        if isinstance(options.get("dtype"), list) and hasattr(X, "__arrow_c_stream__") and hasattr(X, "slice"):
            # scikit-learn knows the common type of columns where pandas holds them, and takes the first of the list
            # else.
            dtype = np.asarray(X.slice(0, 0)).dtype
            options |= {"dtype": dtype} if dtype in options["dtype"] else {}
        return validate_data(estimator, X, *map(in_memory, y), **options)
    except (TypeError, ValueError) as error:
        text = missing_column(X) if "contains NaN" in str(error) else _no_numbers(estimator, X, error)
        if text:
            raise InvalidDataError(text) from error
        raise


def _is_checked(
    estimator: Any,
    X: Any,
    y: tuple[Any, ...],
    *,
    dtype: Any = None,
    order: str | None = None,
    reset: bool = True,
    accept_sparse: Any = None,
    y_numeric: bool = False,
    ensure_all_finite: bool = True,
    **others: Any,
) -> bool:
    """Return whether arrays are what `validate_data` would return, and set the features of the estimator if so.

    Its checks of all other kinds of input take as long as a small fit. What they would refuse or convert is left to
    them, and so are options that are not named here.
    """
    if type(X) is not np.ndarray or X.ndim != 2 or not X.size or others or not isinstance(dtype, list):
        return False
    if X.dtype not in dtype or not (order is None or (order == "C" and X.flags.c_contiguous)):
        return False
    names = getattr(estimator, "feature_names_in_", None)
    if not reset and (names is not None or getattr(estimator, "n_features_in_", None) != X.shape[1]):
        return False
    if y and y[0] is None:
        from sklearn.utils import get_tags  # as in `validated`

        if get_tags(estimator).target_tags.required:
            return False
        y = ()
    for values in y:
        if type(values) is not np.ndarray or values.shape != X.shape[:1] or values.dtype.kind not in "biufU":
            return False
        if not values.flags.c_contiguous or (values.dtype.kind == "U" and y_numeric):
            return False
    with np.errstate(over="ignore", invalid="ignore"):
        read = (X, *y) if ensure_all_finite else y
        if not all(np.isfinite(values.sum()) for values in read if values.dtype.kind == "f"):
            return False
    if reset:
        estimator.n_features_in_ = X.shape[1]
        if names is not None:
            del estimator.feature_names_in_
    return True


def in_memory(values: Any) -> Any:
    """Return values; those of a dask collection are computed."""
    return values.compute() if hasattr(values, "__dask_graph__") else values


def missing_column(X: Any) -> str:
    """Return the error text for the first column of a table with missing values; empty if there is none."""
    if tables.is_table(X):
        for k, name in enumerate(X.columns):
            if X.iloc[:, k].isna().any():
                return _missing(name)
        return ""

    if not is_frame(X):
        return ""
    table = as_table(X)
    for name in table.names:
        if table.kind(name) == "number" and np.isnan(table.numbers(name)).any():
            return f"Input X contains NaN: column {name!r} has missing values. Fill them, or drop these rows."
    return ""


def _refuse_nulls(values: Any, name: str) -> None:
    """Raise if a column of Polars or Arrow has missing values, which numpy would hold as objects, or is a query."""
    tables.refuse_queries(values, name)
    count = getattr(values, "null_count", 0)
    n_missing = count() if callable(count) else count
    if isinstance(n_missing, int) and n_missing:  # of a frame it is another frame
        raise InvalidDataError(_no_value(name))


def _no_value(name: str) -> str:
    return f"{name} has missing values (NaN or NA). Drop the rows without a value."


def _missing(name: object) -> str:
    return (
        f"Input X contains NaN: column {name!r} has missing values. Fill them with X.fillna(...), or drop these rows "
        "with X.dropna()."
    )


def _no_numbers(estimator: Any, X: Any, error: Exception) -> str:
    """Return the error text for the first column of a table that holds no numbers; empty if the error is another."""
    if not is_frame(X) or not (isinstance(error, TypeError) or str(error).startswith(_NOT_CONVERTED)):
        return ""
    name = column_without_numbers(as_table(X))
    if name is None:
        return ""
    if hasattr(estimator, "encoder"):
        advice = "Pass encoder='auto', or a dsgd.preprocessing.ColumnEncoder that says what becomes of it"
    elif estimator.__sklearn_tags__().input_tags.sparse:
        advice = f"Encode it: make_pipeline(dsgd.preprocessing.ColumnEncoder(), {type(estimator).__name__}(...))"
    else:
        advice = "Encode it, or drop it"
    return f"column {name!r} holds no numbers. {advice}."
