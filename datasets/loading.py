"""Loading a data set by name: published rows, a deterministic split if none is published, or a generated twin."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import DTypeLike, NDArray

from dsgd.datasets.files import DataFile, DatasetInfo, cache_folder, fetch_part, find, locate, read_npz, write_npz
from dsgd.datasets.generators import TWINS, make_like
from dsgd.datasets.svmlight import load_svmlight
from dsgd.errors import DatasetError, InvalidDataError, InvalidParameterError
from dsgd.files import read_arrays, replacing
from dsgd.validation import check_choice, check_number

DEFAULT_HOLDOUT = 0.2
_SPLIT_SEED = 20190505
_PARSED_VERSION = 1  # part of the name of parsed files: raise it when parsing changes


@dataclass(frozen=True, eq=False)
class Dataset:
    """Rows, targets and where they come from.

    Parameters
    ----------
    X : ndarray (C-contiguous) or csr_matrix of shape (n_rows, n_features)
        The rows.
    y : ndarray of shape (n_rows,), float64
        Targets, as in the file.
    name : str
        Name of the set; ends in "-like" if generated.
    split : {"train", "test", "all"}
        The part.
    task : {"binary", "multiclass", "regression"}
        The kind of target.
    source : str
        The file, or how the rows were generated.
    generated : bool
        Whether the rows are generated.
    note : str
        A warning for comparisons, for example if the part is not the published one.
    bayes_accuracy : float or None
        Of a generated set: the best accuracy that is possible.
    coef : ndarray of shape (n_features,) or None
        Of a generated set: the direction of the separator that has it.
    intercept : float or None
        Of a generated set: its offset.
    """

    X: Any = field(repr=False)
    y: NDArray[np.float64] = field(repr=False)
    name: str
    split: str
    task: str
    source: str
    generated: bool = False
    note: str = ""
    bayes_accuracy: float | None = None
    coef: NDArray[np.float64] | None = field(default=None, repr=False)
    intercept: float | None = None

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return int(self.X.shape[0])

    @property
    def n_features(self) -> int:
        """Number of columns."""
        return int(self.X.shape[1])


def load(
    name: str,
    split: str = "train",
    *,
    dtype: DTypeLike = np.float64,
    dense: bool | None = None,
    holdout: float | None = None,
    n_rows: int | None = None,
    seed: int = 0,
    generate: bool = False,
    data_home: str | os.PathLike[str] | None = None,
    download: bool = True,
) -> Dataset:
    """Load a set by name.

    The folder that the environment variable DSGD_DATA names is looked at first, then the cache, then the web. What
    was read is kept in the cache in binary form, so that a second call does not parse it again.

    Parameters
    ----------
    name : str
        A name of the registry; with "-like" at the end, the generated twin.
    split : {"train", "test", "all"}
        The part. A set without a published test part is split 80:20, always the same way: the test rows are drawn
        without replacement by a fixed seed, and both parts keep the order of the file.
    dtype : numpy dtype
        float32 or float64, of X.
    dense : bool or None
        Whether X is an ndarray rather than CSR; None does what suits the set.
    holdout : float or None
        Share of the training rows to split off as the test part, instead of the published test part if there is
        one; None splits only sets that have none.
    n_rows : int or None
        How many rows. Of a published set they are drawn without replacement by `seed` and keep the order of the file;
        of a generated one they are the first. None gives all.
    seed : int
        For n_rows, and for generated rows.
    generate : bool
        Whether to make the twin even if the set is on this machine.
    data_home : path or None
        Cache folder; None means what DSGD_CACHE names, else the user's cache folder.
    download : bool
        Whether to download missing files.

    Returns
    -------
    Dataset
        X, y and where they come from.

    Raises
    ------
    DatasetError
        There is no such set, it has no twin, or its files are not available; the message says what to do.
    InvalidParameterError
        An argument is out of range.
    InvalidDataError
        A file does not hold what it should.
    """
    _check(split, dtype, holdout, n_rows)
    if generate or name.endswith("-like"):
        return _generated(name, split, dtype, dense, n_rows, seed)
    info = find(name)
    X, y, source, note = _published(info, split, holdout, data_home, download)
    if n_rows is not None:
        if n_rows > y.size:
            raise InvalidParameterError(f"n_rows={n_rows}, but the {split} part of {name} has {y.size} rows")
        chosen = np.sort(np.random.default_rng(seed).choice(y.size, n_rows, replace=False))
        X, y = X[chosen], y[chosen]
    X = _shaped(X, info.dense if dense is None else dense, dtype)
    return Dataset(X, y, info.name, split, info.task, source, note=note)


def load_or_generate(
    name: str,
    split: str = "train",
    *,
    dtype: DTypeLike = np.float64,
    dense: bool | None = None,
    n_rows: int | None = None,
    seed: int = 0,
    data_home: str | os.PathLike[str] | None = None,
) -> Dataset:
    """Load a set if it is on this machine, else make its generated twin; the web is never asked.

    If only the training part is on this machine, its rows are split 80:20 for every split, as `load` does with
    ``holdout=0.2``, so that training and test part never overlap.

    Parameters
    ----------
    name, split, dtype, dense, n_rows, seed, data_home
        As for `load`, but n_rows is at most what there is.

    Returns
    -------
    Dataset
        Its `generated` and `name` say which of the two it is.

    Raises
    ------
    DatasetError
        The set is not on this machine and has no twin.
    """
    if name.endswith("-like"):
        return load(name, split, dtype=dtype, dense=dense, n_rows=n_rows, seed=seed)
    info = find(name)
    if locate(info, "train", data_home) is None:
        if info.twin is None:
            raise DatasetError(
                f"{name} is not on this machine and has no generated twin: run `dsgd datasets fetch {name}`, or name "
                "the folder that holds it in the environment variable DSGD_DATA"
            )
        return load(info.twin, split, dtype=dtype, dense=dense, n_rows=n_rows, seed=seed)
    holdout = DEFAULT_HOLDOUT if bool(info.test) and locate(info, "test", data_home) is None else None
    loaded = load(name, split, dtype=dtype, dense=dense, holdout=holdout, data_home=data_home, download=False)
    if n_rows is None or n_rows >= loaded.n_rows:
        return loaded
    chosen = np.sort(np.random.default_rng(seed).choice(loaded.n_rows, n_rows, replace=False))
    return replace(loaded, X=loaded.X[chosen], y=loaded.y[chosen])


def _check(split: str, dtype: DTypeLike, holdout: float | None, n_rows: int | None) -> None:
    """Refuse arguments that fit no set."""
    check_choice("split=...", split, ("train", "test", "all"))
    check_choice("dtype=...", np.dtype(dtype).name, ("float32", "float64"))
    if holdout is not None:
        check_number("holdout=...", holdout, low=0, high=1, open_low=True, open_high=True)
    if n_rows is not None:
        check_number("n_rows=...", n_rows, low=1)


def _generated(name: str, split: str, dtype: DTypeLike, dense: bool | None, n_rows: int | None, seed: int) -> Dataset:
    """Make a twin."""
    base = name.removesuffix("-like")
    if base not in TWINS:
        known = ", ".join(f"{twin}-like" for twin in sorted(TWINS))
        raise DatasetError(f"{base!r} has no generated twin; there is {known}")
    if split == "all":
        parts = [make_like(base, split=part, seed=seed, dtype=dtype, dense=dense) for part in ("train", "test")]
        made = parts[0]
        X = (sp.vstack if sp.issparse(made.X) else np.concatenate)([part.X for part in parts])
        y = np.concatenate([part.y for part in parts])
        X, y = (sp.csr_matrix(X) if sp.issparse(X) else X)[:n_rows], y[:n_rows]
    else:
        made = make_like(base, n_rows, split=split, seed=seed, dtype=dtype, dense=dense)
        X, y = made.X, made.y
    return Dataset(
        X,
        y,
        f"{base}-like",
        split,
        "binary",
        f"generated with seed {seed}",
        generated=True,
        note=f"shape, density and class balance of {base}; labels flipped with probability {made.twin.noise:g}",
        bayes_accuracy=made.bayes_accuracy,
        coef=made.coef,
        intercept=made.intercept,
    )


def _published(
    info: DatasetInfo, split: str, holdout: float | None, data_home: str | os.PathLike[str] | None, download: bool
) -> tuple[Any, NDArray[np.float64], str, str]:
    """Return X, y, source and note of a part of a published set."""
    parts = {"train": ("train",), "test": ("test",), "all": ("train", "test")}[split]
    note = info.note
    if holdout is not None or not info.test:
        share = DEFAULT_HOLDOUT if holdout is None else holdout
        X, y, source = _read_part(info, "train", data_home, download)
        if split == "all":
            return X, y, source, note
        rows = split_rows(y.size, share)[split]
        note = f"{share:.0%} of the training rows held out by a fixed seed" + (f"; {note}" if note else "")
        return X[rows], y[rows], source, note
    read = [_read_part(info, part, data_home, download) for part in parts]
    if len(read) == 1:
        return *read[0], note
    stack = (
        sp.vstack([X for X, _, _ in read], format="csr")
        if sp.issparse(read[0][0])
        else np.concatenate([X for X, _, _ in read])
    )
    return stack, np.concatenate([y for _, y, _ in read]), " and ".join(source for _, _, source in read), note


def split_rows(n_rows: int, share: float) -> dict[str, NDArray[np.intp]]:
    """Split row numbers into a training and a test part, always the same way."""
    order = np.random.default_rng(_SPLIT_SEED).permutation(n_rows)
    n_test = max(1, round(share * n_rows))
    return {"train": np.sort(order[n_test:]), "test": np.sort(order[:n_test])}


def _read_part(
    info: DatasetInfo, part: str, data_home: str | os.PathLike[str] | None, download: bool
) -> tuple[Any, NDArray[np.float64], str]:
    """Return X, y and the path of a published part."""
    found = fetch_part(info, part, data_home) if download else locate(info, part, data_home)
    if found is None:
        raise DatasetError(
            f"the {part} part of {info.name} is not on this machine: run `dsgd datasets fetch {info.name}`"
        )
    file, path = found
    stat = path.stat()
    key = f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns} {part} {info.n_features} {_PARSED_VERSION}"
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    parsed = cache_folder(data_home) / "parsed" / f"{path.name}-{digest}.npz"
    kept = _read_parsed(parsed)
    if kept is None:
        kept = _parse_file(file, path, part, info.n_features)
        _write_parsed(parsed, *kept)
    X, y = kept
    return X, y, str(path)


def _parse_file(file: DataFile, path: Path, part: str, n_features: int) -> tuple[Any, NDArray[np.float64]]:
    """Read a file in the format it has."""
    if file.format == "svmlight":
        return load_svmlight(path, n_features=n_features, zero_based=False)
    try:
        if file.format == "npz":
            with path.open("rb") as stream:
                arrays = read_arrays(stream, path.stat().st_size)
            X = arrays[f"x_{part}"]
            return X.reshape(X.shape[0], -1), arrays[f"y_{part}"].astype(np.float64)
        delimiter, header, first = {"csv": (",", 1, False), "tsv": ("\t", 1, False), "text": (None, 0, True)}[
            file.format
        ]
        table = np.loadtxt(path, delimiter=delimiter, skiprows=header, dtype=np.float64, ndmin=2)
    except (ValueError, EOFError, LookupError) as error:
        raise InvalidDataError(f"{path} does not read as {file.format}: {error}") from error
    X, y = (table[:, 1:], table[:, 0]) if first else (table[:, :-1], table[:, -1])
    if X.shape[1] != n_features:
        raise InvalidDataError(f"{path} has {X.shape[1]} columns beside the target, expected {n_features}")
    return np.ascontiguousarray(X), y.copy()


def _read_parsed(path: Path) -> tuple[Any, NDArray[np.float64]] | None:
    """Return what was parsed before, or None if there is nothing that can be used."""
    try:
        return read_npz(path)
    except (OSError, InvalidDataError):
        return None  # absent, or cut off by a full disk: it is made again


def _write_parsed(path: Path, X: Any, y: NDArray[np.float64]) -> None:
    """Keep parsed rows for the next call; a cache that cannot be written to costs time, never a result."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as aside:
            write_npz(aside, X, y)


def _shaped(X: Any, dense: bool, dtype: DTypeLike) -> Any:
    """Return X as ndarray or CSR of a dtype."""
    if sp.issparse(X):
        X = X.astype(dtype, copy=False)
        return np.ascontiguousarray(X.toarray()) if dense else X
    X = np.ascontiguousarray(X, dtype=dtype)
    return X if dense else sp.csr_matrix(X)
