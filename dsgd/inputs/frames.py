"""Tables as arrays of numbers: numeric, boolean and nullable columns.

Problem: numpy has no missing integers and no common type for bools and floats, so it converts such tables to objects.

Method: columns are converted one by one, to the narrowest floats or integers that hold all of them, as in scikit-learn.
Missing values and texts are refused, and the error names the column.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dsgd.errors import InvalidDataError
from dsgd.inputs.tables.base import is_table, number_dtype, refuse_queries
from dsgd.types import AnyArray

# How numpy begins to say that a value is no number.
_NOT_CONVERTED = ("could not convert string", "setting an array element with a sequence")


def table_values(X: Any) -> AnyArray:
    """Return the rows of a table as an array of numbers or bools."""
    kinds = [number_dtype(dtype) for dtype in X.dtypes]
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
    if is_table(y):
        return np.column_stack([column_values(y.iloc[:, k], name) for k in range(y.shape[1])])
    _refuse_nulls(y, name)
    kind = number_dtype(getattr(y, "dtype", None))
    if kind is None or not hasattr(y, "isna"):
        return np.asarray(y)
    if y.isna().any():
        raise InvalidDataError(_no_value(name))
    return np.asarray(y.to_numpy(dtype=kind))


def validated(estimator: Any, X: Any, *y: Any, **options: Any) -> Any:
    """Call `sklearn.utils.validation.validate_data`; errors about values of a table name the column."""
    if _is_checked(estimator, X, y, **options):
        return X if not y or y[0] is None else (X, *y)
    refuse_queries(X)
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
    if is_table(X):
        for k, name in enumerate(X.columns):
            if X.iloc[:, k].isna().any():
                return _missing(name)
        return ""
    from dsgd.inputs.tables.reading import as_table, is_frame

    if not is_frame(X):
        return ""
    table = as_table(X)
    for name in table.names:
        if table.kind(name) == "number" and np.isnan(table.numbers(name)).any():
            return f"Input X contains NaN: column {name!r} has missing values. Fill them, or drop these rows."
    return ""


def _refuse_nulls(values: Any, name: str) -> None:
    """Raise if a column of Polars or Arrow has missing values, which numpy would hold as objects, or is a query."""
    refuse_queries(values, name)
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
    from dsgd.inputs.tables.reading import as_table, column_without_numbers, is_frame

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
