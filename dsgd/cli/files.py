"""The files that a command reads and writes: rows and models."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dsgd.errors import InvalidDataError, InvalidParameterError, ModelFileError
from dsgd.files import replacing

_TABLE_SUFFIXES = (".npz",)
# Names of models that are written as pickles.
_PICKLES = (".joblib", ".pickle", ".pkl")
# Formats that people have their rows in and that are not read here, each with the call that reads them.
_FOREIGN = {
    ".arrow": "pandas.read_feather",
    ".csv": "pandas.read_csv",
    ".feather": "pandas.read_feather",
    ".json": "pandas.read_json",
    ".jsonl": "pandas.read_json",
    ".npy": "numpy.load",
    ".parquet": "pandas.read_parquet",
    ".pq": "pandas.read_parquet",
    ".tsv": "pandas.read_csv",
    ".xlsx": "pandas.read_excel",
}


def check_inputs(paths: Sequence[str], option: str = "--data") -> None:
    """Find a missing file before a cluster is started for it; `option` named the files."""
    from dsgd.inputs.table_files import are_table_files

    for path in paths:
        if are_table_files(path):
            continue  # may be a glob, and is looked at before any process is started
        if "://" not in path and not Path(path).exists():
            raise FileNotFoundError(2, f"no such file; {option} takes the paths of files", path)


def is_svmlight(path: str) -> bool:
    """Return whether a file is read as svmlight: every name that says nothing else."""
    name = path.lower()
    plain = name.removesuffix(".gz").removesuffix(".bz2")
    for suffix, reader in _FOREIGN.items():
        if plain.endswith(suffix):
            raise InvalidParameterError(
                f"--data {path}: {suffix} files are not read here, but svmlight files and .npz archives (dsgd fit, "
                f"predict and score read .parquet, .csv and .arrow). In Python: table = {reader}(...), and fit an "
                "estimator of dsgd on it; numpy.savez('rows.npz', X=..., y=...) writes what this command reads."
            )
    return not name.endswith(_TABLE_SUFFIXES)


def tables_in(paths: Sequence[str], read: Sequence[str] | None = None) -> Any:
    """Return files of tables, read with these options of `dsgd.TableFiles`; None for svmlight files or archives."""
    from dsgd.inputs.table_files import TableFiles, are_table_files

    found = {are_table_files(path) for path in paths}
    if found == {True}:
        return TableFiles(paths, **_reading(read or []))
    if len(found) > 1:
        raise InvalidParameterError("--data mixes tables and other files: give files of one format")
    if read:
        raise InvalidParameterError(f"--read {read[0]} applies to tables: these files are read in one way only")
    return None


def _reading(texts: Sequence[str]) -> dict[str, Any]:
    """Return the keywords of `dsgd.TableFiles` that ``--read`` names."""
    found: dict[str, Any] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        column, colon, dtype = value.rpartition(":")
        if name in ("sep", "encoding") and value:
            found[name] = "\t" if value == "\\t" else value
        elif name == "na_values" and sign:
            found[name] = [*found.get(name, []), value]
        elif name == "dtype" and colon:
            found[name] = found.get(name, {}) | {column: dtype}
        elif text == "drop_missing_target":
            found[name] = True
        else:
            raise InvalidParameterError(
                f"--read {text}: must be sep=CHARACTER, na_values=TEXT, dtype=COLUMN:TYPE, encoding=NAME or "
                "drop_missing_target"
            )
    return found


def tables_with_target(paths: Sequence[str], target: str | None, read: Sequence[str] | None = None) -> Any:
    """Return files of tables, None where these are others; raise if there is no target, or no column of that name."""
    tables = tables_in(paths, read)
    if (tables is None) != (target is None):
        raise InvalidParameterError(
            f"--target names the column with the targets: files of tables ({tables.names[:9]}) need it"
            if tables is not None
            else f"--target {target}: svmlight files and .npz archives hold their targets; leave it out"
        )
    if tables is not None:
        tables.check([target])
    return tables


def read_rows(paths: Sequence[str], n_features: int | None = None) -> tuple[Any, Any]:
    """Return the rows and targets of svmlight files or ``.npz`` archives, with as many columns as the model has."""
    kinds = {is_svmlight(path) for path in paths}
    if len(kinds) > 1:
        raise InvalidParameterError("--data mixes svmlight files and .npz archives: give files of one format")
    if kinds == {True}:
        from dsgd.datasets import load_svmlight
        from dsgd.inputs.blocks import widen

        X, y = load_svmlight(list(paths))
        if n_features is not None and X.shape[1] > n_features:
            raise InvalidDataError(
                f"--data has columns up to number {X.shape[1]}, and the model was trained on {n_features} features: "
                "leave out the columns that it does not know, or train it on rows that have them"
            )
        return (X if n_features is None else widen(X, n_features)), y
    import numpy as np
    from scipy import sparse

    from dsgd.datasets.files import read_npz

    blocks = [read_npz(path) for path in paths]
    widths = {block.shape[1] for block, _ in blocks}
    if len(widths) > 1 or (n_features is not None and widths != {n_features}):
        wanted = f"{n_features} features" if n_features is not None else "files with the same number of features"
        raise InvalidDataError(f"--data has {sorted(widths)} features where the command needs {wanted}")
    stack = sparse.vstack if sparse.issparse(blocks[0][0]) else np.concatenate
    return stack([block for block, _ in blocks]), np.concatenate([targets for _, targets in blocks])


def check_model_path(path: Path) -> None:
    """Refuse a place where the model could not be written, before time is spent on training it."""
    folder = path.resolve().parent
    if path.is_dir():
        raise InvalidParameterError(f"--model {path} is a folder: name a file, such as {path / 'model.dsgd'}")
    if path.exists() and not path.is_file():
        raise InvalidParameterError(f"--model {path} is no regular file, which a model would replace: name another")
    if not folder.is_dir():
        raise InvalidParameterError(f"--model {path}: there is no folder {folder}: create it first")
    if not os.access(folder, os.W_OK):
        raise InvalidParameterError(f"--model {path}: the folder {folder} cannot be written to")


def savable_model(model: Any, path: Path) -> Any:
    """Return a model, if it can be written; refuse another before time is spent on training it."""
    if path.suffix in _PICKLES:
        return model
    from dsgd.saving.models import packed

    try:
        packed(model)
    except ModelFileError as error:
        raise InvalidParameterError(
            f"--model {path}: {error} With --model {path.with_suffix('.joblib')} this command does that."
        ) from error
    return model


def save_model(model: Any, path: Path) -> None:
    """Write a model, whole or not at all: as a pickle if its name ends like one, else without code (`dsgd.load`)."""
    if path.suffix not in _PICKLES:
        model.save(path)
        return
    import joblib

    with replacing(path) as aside, aside.open("wb") as file:
        joblib.dump(model, file)


def load_model(path: Path) -> Any:
    """Read a model that ``dsgd fit``, ``save`` or `joblib.dump` wrote, with a warning before a pickle is opened."""
    from dsgd.saving import is_model_file, load

    if is_model_file(path):
        return _predictor(load(path), path)
    import joblib

    warnings.warn(
        f"{path} is no file of model.save: it is read as a pickle, which runs the code that it holds. Use only files "
        "of your own; `dsgd fit --model model.dsgd` writes models without code.",
        UserWarning,
        stacklevel=2,
    )
    try:
        model = joblib.load(path)
    except FileNotFoundError:
        raise
    except Exception as error:  # a pickle of something else may raise anything at all
        raise InvalidDataError(
            f"{path}: not a model ({type(error).__name__}: {error}); `dsgd fit --model` writes one"
        ) from error
    return _predictor(model, path)


def _predictor(model: Any, path: Path) -> Any:
    from sklearn.base import BaseEstimator

    if not isinstance(model, BaseEstimator) or not hasattr(model, "predict"):
        raise InvalidDataError(
            f"{path}: holds a {type(model).__name__}, which predicts nothing; `dsgd fit --model` writes an estimator"
        )
    return model


def rows_or_dataset(
    command: str, paths: list[str], dataset: str | None, n_rows: int | None = None, *, reads: bool = True
) -> tuple[Any, Any]:
    """Return the rows and targets of files, or of a dataset by its name; errors begin with the `command`.

    If it does not read, files are only checked, and (None, None) is returned.
    """
    if bool(paths) == (dataset is not None):
        raise InvalidParameterError(f"{command} needs rows: give --data FILES or --dataset NAME, one of the two")
    if dataset is not None:
        from dsgd.datasets import load_or_generate

        found = load_or_generate(dataset, n_rows=n_rows)
        return found.X, found.y
    if n_rows is not None:
        raise InvalidParameterError(f"--rows {n_rows} applies to --dataset: of files all rows are used")
    check_inputs(paths)
    return read_rows(paths) if reads else (None, None)
