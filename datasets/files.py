"""Files of datasets: the registry that names them, downloads, the cache, and arrays.

A file without a checksum is accepted when it is downloaded, and its checksum is recorded beside it for the next time.

**Files of datasets: downloads, the cache, and arrays.**

Rows in ``.npz`` archives: the arrays X and y, or the parts of a CSR matrix and y.

Finding the files of a data set: in the folder ``DSGD_DATA``, in the cache, or on the web.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dsgd.datasets.generators import TWINS
from dsgd.errors import DatasetError, InvalidDataError
from dsgd.files import ArchiveError, read_arrays
from dsgd.types import AnyArray

_PAGE = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/"
_LICENCE = "not stated by the LIBSVM page; cite the source it names and see there before passing the data on"


@dataclass(frozen=True)
class DataFile:
    """One file of a set.

    Parameters
    ----------
    name : str
        File name, which is also its name in the cache.
    url : str or None
        Where to download it; None for a copy that is not published under that name.
    checksum : str or None
        ``"sha256:..."`` or ``"md5:..."``; None if none was published.
    format : {"svmlight", "csv", "tsv", "text", "npz"}
        csv and tsv have a header and the target in the last column; text is blank-separated with the label first; npz
        holds x_train, y_train, x_test and y_test.
    """

    name: str
    url: str | None = None
    checksum: str | None = None
    format: str = "svmlight"


@dataclass(frozen=True)
class DatasetInfo:
    """A set and its files.

    Parameters
    ----------
    name : str
        Its name.
    task : {"binary", "multiclass", "regression"}
        The kind of target.
    n_train : int
        Rows of the published training part; all rows if there is no test part.
    n_test : int
        Rows of the published test part; 0 if there is none.
    n_features : int
        Columns.
    n_classes : int
        Classes; 0 for regression.
    train, test : tuple of DataFile
        Alternatives for each part, the first one found is used; test is empty if none is published.
    dense : bool
        Whether `load` returns an ndarray unless told otherwise.
    used_by : tuple of str
        The published studies and the tables of this project that use it.
    licence : str
        The terms of use, if known.
    note : str
        A warning for comparisons.
    """

    name: str
    task: str
    n_train: int
    n_test: int
    n_features: int
    n_classes: int
    train: tuple[DataFile, ...]
    test: tuple[DataFile, ...] = ()
    dense: bool = False
    used_by: tuple[str, ...] = ()
    licence: str = _LICENCE
    note: str = ""

    @property
    def twin(self) -> str | None:
        """Name of the generated twin, or None."""
        return f"{self.name}-like" if self.name in TWINS else None

    def files(self, part: str) -> tuple[DataFile, ...]:
        """Return the alternatives for a part, ``"train"`` or ``"test"``."""
        return self.train if part == "train" else self.test

    @property
    def source(self) -> str:
        """The page that describes the set."""
        is_published = any(file.url for file in self.train)
        return f"{_PAGE}{self.task}.html" if is_published else "described in the data notes of the project"


def names() -> list[str]:
    """Return the names of all sets, sorted."""
    return sorted(_REGISTRY)


def catalog() -> Iterator[DatasetInfo]:
    """Yield every set, by name."""
    for name in names():
        yield _REGISTRY[name]


def find(name: str) -> DatasetInfo:
    """Return a set by name.

    Raises
    ------
    DatasetError
        There is no such set; names the closest ones.
    """
    if name in _REGISTRY:
        return _REGISTRY[name]
    from difflib import get_close_matches

    close = get_close_matches(name, [*names(), *(f"{twin}-like" for twin in TWINS)], n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    raise DatasetError(f"no dataset is called {name!r}: {hint}`dsgd datasets list` shows all of them")


def _file(given: str | dict[str, str]) -> DataFile:
    """Return one alternative: a file below the LIBSVM page, or a copy that is only found locally."""
    given = {"path": given} if isinstance(given, str) else given
    path = given.get("path")
    url = None if path is None else _PAGE + path
    name = given["copy"] if path is None else path.rpartition("/")[2]
    return DataFile(name, url, given.get("checksum"), given.get("format", "svmlight"))


def _read(name: str, row: dict[str, Any]) -> DatasetInfo:
    files = {part: tuple(map(_file, row.get(part, ()))) for part in ("train", "test")}
    return DatasetInfo(name, **{"n_test": 0, "n_classes": 0, **row, **files, "used_by": tuple(row.get("used_by", ()))})


_TABLE = tomllib.loads(Path(__file__).with_name("registry.toml").read_text(encoding="utf-8"))
_REGISTRY = {name: _read(name, row) for name, row in _TABLE.items()}


_OF_CSR: Final = ("data", "indices", "indptr", "shape")


def write_npz(path: str | os.PathLike[str], X: Any, y: NDArray[np.float64]) -> None:
    """Write rows."""
    arrays = {"X": X}
    if sp.issparse(X):
        arrays = {"data": X.data, "indices": X.indices, "indptr": X.indptr, "shape": np.array(X.shape)}
    with Path(path).open("wb") as stream:
        np.savez(stream, **arrays, y=y)


def read_npz(path: str | os.PathLike[str]) -> tuple[Any, Any]:
    """Return the rows and targets of an archive."""
    path = Path(path)
    try:
        with path.open("rb") as stream:
            arrays = read_arrays(stream, path.stat().st_size)
    except ArchiveError as error:
        raise InvalidDataError(f"{path}: not a readable .npz archive ({error})") from error
    if not {"X", "y"} <= set(arrays) and not {*_OF_CSR, "y"} <= set(arrays):
        raise InvalidDataError(
            f"{path}: needs the arrays X and y, or {', '.join(_OF_CSR)} and y for CSR; it has {', '.join(arrays)}"
        )
    y = arrays["y"]
    try:
        X = arrays["X"] if "X" in arrays else _csr(*(arrays[name] for name in _OF_CSR))
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidDataError(f"{path}: holds no rows in CSR form ({error})") from error
    if X.ndim != 2 or y.shape != X.shape[:1]:
        raise InvalidDataError(f"{path}: X{list(X.shape)} and y{list(y.shape)} are not rows with one target each")
    return X, y


def _csr(data: AnyArray, indices: AnyArray, indptr: AnyArray, shape: AnyArray) -> sp.csr_matrix:
    X = sp.csr_matrix((data, indices, indptr), shape=tuple(shape.tolist()), copy=False)
    # Compiled code trusts them.
    X.check_format(full_check=True)
    return X


_PACKINGS = ("", ".bz2", ".xz", ".gz")


def cache_folder(data_home: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder that downloads and parsed files go to.

    Parameters
    ----------
    data_home : path or None
        The folder; None means the one the environment variable DSGD_CACHE names, else the user's cache folder.

    Returns
    -------
    Path
        The folder, which may not exist yet.
    """
    if data_home is not None:
        return Path(data_home).expanduser()
    if folder := os.environ.get("DSGD_CACHE"):
        return Path(folder).expanduser()
    import pooch

    return Path(pooch.os_cache("dsgd"))


def locate(
    info: DatasetInfo, part: str, data_home: str | os.PathLike[str] | None = None
) -> tuple[DataFile, Path] | None:
    """Find a part of a set on this machine.

    Parameters
    ----------
    info : DatasetInfo
        The set.
    part : {"train", "test"}
        Which part.
    data_home : path or None
        See `cache_folder`.

    Returns
    -------
    (DataFile, Path) or None
        The first alternative that is there: looked for in the folder DSGD_DATA names, then in the cache. svmlight
        files may be there plain or as bz2, xz or gz.
    """
    folders = [cache_folder(data_home)]
    if given := os.environ.get("DSGD_DATA"):
        folders.insert(0, Path(given).expanduser())
    for folder in folders:
        for file in info.files(part):
            for name in _spellings(file):
                if (folder / name).is_file():
                    return file, folder / name
    return None


def fetch(
    name: str, *, data_home: str | os.PathLike[str] | None = None, progress: bool | None = None
) -> dict[str, Path]:
    """Make sure the files of a set are on this machine; download those that are not.

    Parameters
    ----------
    name : str
        The set.
    data_home : path or None
        Where downloads go, see `cache_folder`.
    progress : bool or None
        Whether to draw a progress bar on stderr; None draws it on a terminal.

    Returns
    -------
    dict of str to Path
        The file of each part: "train", and "test" if one is published.

    Raises
    ------
    DatasetError
        There is no such set, or a file can be neither found nor downloaded.
    """
    info = find(name)
    return {part: fetch_part(info, part, data_home, progress)[1] for part in ("train", "test") if getattr(info, part)}


def fetch_part(
    info: DatasetInfo, part: str, data_home: str | os.PathLike[str] | None = None, progress: bool | None = None
) -> tuple[DataFile, Path]:
    """Return a part of a set, downloaded if need be."""
    found = locate(info, part, data_home)
    if found is not None:
        return found
    published = [file for file in info.files(part) if file.url]
    problems = []
    for file in published:
        try:
            return file, _download(file, cache_folder(data_home), progress)
        except (OSError, ValueError) as error:  # as those of requests are; pooch tells a wrong checksum by the second
            problems.append(_why(file, error))
    raise DatasetError(_cannot_have(info, part, problems))


def _spellings(file: DataFile) -> list[str]:
    """Return the names under which a file may be stored: as published, or packed in another way."""
    if file.format != "svmlight":
        return [file.name]
    base = file.name
    for packing in _PACKINGS[1:]:
        base = base.removesuffix(packing)
    return list(dict.fromkeys([file.name, *(base + packing for packing in _PACKINGS)]))


def _download(file: DataFile, folder: Path, progress: bool | None) -> Path:
    """Download a file, check it, and record its checksum if none was published."""
    import pooch

    pooch.get_logger().setLevel(logging.WARNING)
    record = folder / f"{file.name}.sha256"
    known = file.checksum or (record.read_text().strip() if record.exists() else None)
    wanted = sys.stderr.isatty() if progress is None else progress
    bar = _Bar(file.name) if wanted else None
    try:
        downloader = pooch.HTTPDownloader(progressbar=bar or False)
        path = pooch.retrieve(file.url, known_hash=known, fname=file.name, path=folder, downloader=downloader)
    finally:
        if bar is not None:
            bar.close()
    if known is None:
        record.write_text(checksum_of(Path(path)) + "\n")
    return Path(path)


def checksum_of(path: Path, algorithm: str = "sha256") -> str:
    """Return the checksum of a file as ``"algorithm:hexadecimal digits"``."""
    with path.open("rb") as stream:
        return f"{algorithm}:{hashlib.file_digest(stream, algorithm).hexdigest()}"


class _Bar:
    """A rich progress bar with the four things that pooch asks of one."""

    def __init__(self, name: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        self.total = 0
        self._progress: Any = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._progress.add_task(name, total=None)
        self._progress.start()

    def update(self, n_bytes: int) -> None:
        """Move on by some bytes."""
        self._progress.update(self._task, total=self.total or None, advance=n_bytes)

    def reset(self) -> None:
        """Go back to the beginning."""
        self._progress.reset(self._task)

    def close(self) -> None:
        """Take the bar away."""
        self._progress.stop()


def _why(file: DataFile, error: BaseException) -> str:
    """Return in one line why a download failed: network libraries nest their messages deeply."""
    from requests import ConnectionError as Unreachable
    from requests import Timeout

    if isinstance(error, Unreachable | Timeout):
        return f"{urlsplit(file.url or '').hostname} does not answer to a request for {file.name}"
    text = " ".join(str(error).split()) or type(error).__name__
    return f"{file.url}: {text if len(text) <= 300 else text[:297] + '...'}"


def _cannot_have(info: DatasetInfo, part: str, problems: list[str]) -> str:
    """Return the text of the error that a part is not to be had, and what can be done about it."""
    files = " or ".join(dict.fromkeys(file.name for file in info.files(part)))
    why = "; ".join(problems) if problems else "it is not published for download"
    ways = [f"put {files} into a folder and name the folder in the environment variable DSGD_DATA{_data_folder()}"]
    if part == "test":
        ways.append(f"hold a part of the training rows out instead, load({info.name!r}, split='test', holdout=0.2)")
    if info.twin:
        ways.append(f"use the generated set of the same shape, {info.twin!r}")
    return f"the {part} part of {info.name} is neither on this machine nor could it be downloaded ({why}). You can " + (
        "; or ".join(ways)
    )


def _data_folder() -> str:
    """Return what is wrong with the folder DSGD_DATA names, if anything is."""
    given = os.environ.get("DSGD_DATA")
    return f" (it names {given} now, which is no folder)" if given and not Path(given).expanduser().is_dir() else ""
