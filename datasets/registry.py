"""The registry of data sets: shape, task, location and checksum of the files, which ``registry.toml`` lists.

A file without a checksum is accepted when it is downloaded, and its checksum is recorded beside it for the next time.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsgd.datasets.generators import TWINS
from dsgd.errors import DatasetError

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


_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_REGISTRY = {name: _read(name, row) for name, row in _TABLE.items()}
