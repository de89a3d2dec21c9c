"""Targets and weights that are columns of the rows, by their names, and rows of numbers in files of tables."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dsgd.errors import InvalidDataError
from dsgd.inputs.blocks import Block
from dsgd.inputs.frames import column, is_frame, pop_column
from dsgd.inputs.shared import is_simulated
from dsgd.inputs.sources import is_collection
from dsgd.inputs.table_files import TableFiles, are_table_files, with_files_opened
from dsgd.inputs.table_pieces import Piece
from dsgd.inputs.tables import ArrowTable, Kind, refuse_queries, saved_index
from dsgd.runtime.deployment import as_gang
from dsgd.stages import stage
from dsgd.types import AnyArray


def take_named(X: Any, y: Any, sample_weight: Any, *, classes: AnyArray | None = None) -> tuple[Any, Any, Any]:
    """Return X, y and sample_weight; where one of the latter is a name, X loses that column."""
    names = [each for each in (y, sample_weight) if isinstance(each, str)]
    if are_table_files(X):
        files = with_files_opened(X).with_targets(names)
        likes: dict[str, Kind] = {}
        if classes is not None and isinstance(y, str):
            likes = {y: kind_of_labels(classes)}
        read = dict(zip(names, read_columns(files, names, likes), strict=True))
        if classes is not None and isinstance(y, str):
            read[y] = _as_labels(read[y], classes)
        return files, *(read[each] if isinstance(each, str) else each for each in (y, sample_weight))
    X = _without_index(X)
    if not names:
        return X, y, sample_weight
    values: dict[str, Any] = {}
    for name in dict.fromkeys(names):
        if is_collection(X) and hasattr(X, "columns"):
            if name not in X.columns:
                raise InvalidDataError(
                    f"there is no column {name!r}; X has {', '.join(map(str, X.columns)) or 'none'}."
                )
            X, values[name] = X.drop(columns=[name]), X[name]
        elif is_frame(X):
            X, values[name] = pop_column(X, name)
            if name == y and classes is not None:
                values[name] = _as_labels(values[name], classes)
        elif isinstance(X, (str, os.PathLike)):
            raise InvalidDataError(
                f"{os.fspath(X)!r} is read as svmlight, by its name, and has no column {name!r}: leave it out. "
                "Tables are files that end with .parquet, .csv, .tsv, .arrow, .feather or .ipc."
            )
        else:
            raise InvalidDataError(
                f"{name!r} would be a column of X, and X is a {type(X).__name__} without names. Pass the values."
            )
    return X, *(values[each] if isinstance(each, str) else each for each in (y, sample_weight))


def read_columns(files: TableFiles, names: list[str], kinds: Mapping[str, Kind] | None = None) -> list[Any]:
    """Return some columns of files as arrays."""
    if not names:
        return []
    kinds = dict(kinds or {})
    kinds |= files.kinds([name for name in names if name not in kinds])
    parts = [[column(table, name) for name in names] for table in files.tables(names, kinds)]
    return [np.concatenate(of_column) for of_column in zip(*parts, strict=True)] or [np.empty(0)] * len(names)


def kind_of_labels(classes: AnyArray) -> Kind:
    """Return what a column of labels of a model holds."""
    return "number" if classes.dtype.kind in "fiub" else "category"


def _as_labels(y: AnyArray, classes: AnyArray) -> AnyArray:
    """Return labels of a column as those of a model, which may be text where these are numbers."""
    if y.dtype.kind in "fiub" and kind_of_labels(classes) == "category":
        return y.astype(str)
    return y


def check_names(y: Any, sample_weight: Any, *, supervised: bool = True) -> None:
    """Raise `InvalidDataError` unless these name columns of files that workers read; unsupervised, y may be None."""
    is_known = isinstance(y, str) or (y is None and not supervised)
    if not is_known or not isinstance(sample_weight, (str, type(None))):
        raise InvalidDataError(
            "workers read the rows from files, so y and sample_weight must be names of columns of these files. Got "
            f"y={type(y).__name__}, sample_weight={type(sample_weight).__name__}."
        )


def takes_tables(fit: Callable[..., Any]) -> Callable[..., Any]:
    """Return a ``fit(X, y, sample_weight)`` that also takes files, and names of columns; see `take_tables`."""

    @functools.wraps(fit)
    def fit_tables(self: Any, X: Any, y: Any = None, sample_weight: Any = None) -> Any:
        given, names = take_tables(self, X, y, sample_weight)
        fit(self, *given)
        if names is not None:
            self.feature_names_in_ = np.asarray(names, dtype=object)
        return self

    return fit_tables


def take_tables(
    estimator: Any, X: Any, y: Any, sample_weight: Any, *, here: bool = False
) -> tuple[tuple[Any, Any, Any], Sequence[str] | None]:
    """Return (X, y, sample_weight) for an estimator without an encoder; files become a table or delayed blocks."""
    if callable(getattr(estimator, "kernel", None)) and not is_frame(X):
        return (X, y, sample_weight), None
    if not are_table_files(X):
        return take_named(X, y, sample_weight), None
    files: TableFiles = with_files_opened(X)
    named = list(dict.fromkeys(each for each in (y, sample_weight) if isinstance(each, str)))
    files.check(named)
    files = files.with_targets(named)
    features = [name for name in files.names if name not in named]
    client = as_gang(getattr(estimator, "client", None)).client
    if client is not None and not is_simulated(client) and not here:
        return (_delayed_blocks(files, features, y, sample_weight), None, None), features
    with stage("encode"):
        rows, found = _loaded(files, features, named, files.kinds([*features, *named]))
    return (rows, *(found[each] if isinstance(each, str) else each for each in (y, sample_weight))), None


def known_columns(estimator: Any, X: Any) -> Any:
    """Return X itself or, of files, a pyarrow.Table of the columns that an estimator was fitted on."""
    if not are_table_files(X):
        return _without_index(X)
    names = getattr(estimator, "feature_names_in_", None)
    if names is None:
        raise InvalidDataError(
            f"this {type(estimator).__name__} was fitted on rows without names of columns, so that it cannot find them "
            f"in files: load {X!r} first."
        )
    files = with_files_opened(X)
    files.check(names)
    return _loaded(files, list(names), [], dict.fromkeys(names, "number"))[0]


def _without_index(X: Any) -> Any:
    """Return X; a table of Arrow without the index that pandas saved with it."""
    refuse_queries(X)  # of which Polars warns where its schema is asked for
    schema = getattr(X, "schema", None)
    hidden = saved_index(schema) if hasattr(schema, "metadata") and hasattr(X, "drop_columns") else ()
    return X.drop_columns(list(hidden)) if hidden else X


def _loaded(
    files: TableFiles, features: list[str], named: list[str], kinds: Mapping[str, Kind]
) -> tuple[Any, dict[str, AnyArray]]:
    """Return a pyarrow.Table of some columns of files, and others as arrays."""
    import pyarrow as pa

    parts: list[Any] = [files.head({name: kinds[name] for name in features}).columns]
    found: dict[str, list[AnyArray]] = {name: [] for name in named}
    for table in files.tables([*features, *named], kinds):
        for name in named:
            found[name].append(column(table, name))
        parts.append(table.columns.select(features))
    if len(parts) == 1:
        return parts[0], {name: np.empty(0) for name in named}
    rows = pa.concat_tables(parts[1:], promote_options="permissive")
    return rows, {name: np.concatenate(values) for name, values in found.items()}


def _delayed_blocks(files: TableFiles, features: Sequence[str], y: Any, sample_weight: Any) -> list[Any]:
    """Return a delayed block for each piece of the files."""
    import dask

    def over(f: Callable[[Piece], Any], pieces: Sequence[Piece]) -> Any:
        return dask.compute(*[dask.delayed(f, pure=False)(piece) for piece in pieces])

    check_names(y, sample_weight, supervised=False)
    named = [each for each in (y, sample_weight) if each is not None]
    kinds = files.kinds([*features, *named], over=over)
    read = dask.delayed(_block_of, pure=False)
    return [read(piece, features, kinds, y, sample_weight) for piece in files.pieces]


def _block_of(
    piece: Piece, features: Sequence[str], kinds: Mapping[str, Kind], y: str | None, sample_weight: str | None
) -> Block:
    """Return the rows of a piece as float64, with targets and weights."""
    named = [name for name in (y, sample_weight) if name is not None]
    tables = list(piece.tables([*features, *named], kinds))
    rows = [np.column_stack([_numbers(table, name) for name in features]) for table in tables]
    X = np.concatenate(rows) if rows else np.empty((0, len(features)))
    found = {name: np.concatenate([column(table, name) for table in tables]) for name in named}
    return X, None if y is None else found[y], None if sample_weight is None else found[sample_weight]


def _numbers(table: ArrowTable, name: str) -> AnyArray:
    if table.kind(name) != "number":
        raise InvalidDataError(f"column {name!r} holds no numbers. Encode it before.")
    values = table.numbers(name)
    if np.isnan(values).any():
        raise InvalidDataError(f"column {name!r} has missing values. Fill them, or drop these rows.")
    return values
