"""Targets and weights that are columns of the rows, by their names."""

from __future__ import annotations

from typing import Any

import numpy as np

from dsgd.errors import InvalidDataError
from dsgd.inputs.sources import is_collection
from dsgd.inputs.table_files import TableFiles, are_table_files
from dsgd.inputs.tables import column, is_frame, pop_column

__all__ = ["read_columns", "take_named"]


def take_named(X: Any, y: Any, sample_weight: Any) -> tuple[Any, Any, Any]:
    """Return X, y and sample_weight; where one of the latter is a name, X loses that column.

    Parameters
    ----------
    X : table, dask dataframe, or files of tables
        The rows. Anything else is returned as it is, if there are no names.
    y, sample_weight : str or anything else
        Names of columns, or what ``fit`` takes otherwise.

    Returns
    -------
    X
        Files are returned as `TableFiles`, which keep all columns.
    y, sample_weight
        Columns: a dask series of a dask dataframe, else arrays.

    Raises
    ------
    InvalidDataError
        There is no such column, or X has no columns with names.
    """
    names = [each for each in (y, sample_weight) if isinstance(each, str)]
    if are_table_files(X):
        files = X if isinstance(X, TableFiles) else TableFiles(X)
        found = iter(read_columns(files, names))
        return files, *(next(found) if isinstance(each, str) else each for each in (y, sample_weight))
    if not names:
        return X, y, sample_weight
    values: dict[str, Any] = {}
    for name in dict.fromkeys(names):
        if is_collection(X) and hasattr(X, "columns"):
            if name not in X.columns:
                raise InvalidDataError(f"there is no column {name!r}; X has {', '.join(map(str, X.columns))}.")
            X, values[name] = X.drop(columns=[name]), X[name]
        elif is_frame(X):
            X, values[name] = pop_column(X, name)
        else:
            raise InvalidDataError(
                f"{name!r} would be a column of X, and X is a {type(X).__name__} without names. Pass the values."
            )
    return X, *(values[each] if isinstance(each, str) else each for each in (y, sample_weight))


def read_columns(files: TableFiles, names: list[str]) -> list[Any]:
    """Return some columns of files as arrays.

    Parameters
    ----------
    files : TableFiles
        The files.
    names : list of str
        The columns; only these are read.

    Raises
    ------
    InvalidDataError
        A column is not there, or has missing values.
    """
    if not names:
        return []
    parts = [[column(table, name) for name in names] for table in files.tables(names)]
    return [np.concatenate(of_column) for of_column in zip(*parts, strict=True)]
