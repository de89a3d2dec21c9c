"""The data of a study: loaded once, and placed on the workers once per number of ranks."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from dsgd.datasets import find, load_or_generate, locate, split_rows
from dsgd.errors import ClusterError, InvalidParameterError
from dsgd.sim import SimulatedCluster
from dsgd.study.frame.measure import majority_accuracy
from dsgd.study.frame.missing import MissingData, sizes_of
from dsgd.study.frame.rows import Row
from dsgd.types import AnyArray, IntVector

if TYPE_CHECKING:
    from distributed import Client

#: Precisions of rows and models.
DTYPES: Final = ("float32", "float64")


@dataclass(frozen=True)
class DataSource:
    """A dataset of the study and how much of it is used.

    Parameters
    ----------
    name : str
        A name that `dsgd.datasets` knows; if the set is not on this machine, its generated twin is used and named as
        such.
    rows : int, optional
        Training rows: a draw without replacement of that many, or as many generated; all of them by default.
    test_rows : int, optional
        Test rows. By default a quarter of `rows`, or all where `rows` is not given.
    """

    name: str
    rows: int | None = None
    test_rows: int | None = None

    def __post_init__(self) -> None:
        if not self.name:
            raise InvalidParameterError("DataSource(name=...) is empty; name a dataset, for example 'ijcnn1'.")
        for name, value in (("rows", self.rows), ("test_rows", self.test_rows)):
            if value is not None and value < 100:
                raise InvalidParameterError(f"DataSource({name}={value}): a study needs at least 100 of them.")

    @property
    def all_test_rows(self) -> int | None:
        """How many test rows there are at most; None for all of the set."""
        return self.test_rows or (self.rows and max(100, self.rows // 4))


@dataclass(frozen=True, eq=False)
class StudyData:
    """Training and test rows."""

    name: str
    source: str
    X: Any = field(repr=False)
    y: AnyArray = field(repr=False)
    X_test: Any = field(repr=False)
    y_test: AnyArray = field(repr=False)
    bayes_accuracy: float | None = None
    loaded_s: float = 0.0

    @cached_property
    def checksum(self) -> str:
        """That of all rows and labels, see `checksum_of`."""
        return checksum_of(self.X, self.y, self.X_test, self.y_test)

    def describe(self) -> dict[str, Any]:
        """Return the columns of a row that describe the data."""
        return {
            "source": self.source,
            "checksum": self.checksum,
            "features": int(self.X.shape[1]),
            "density": density(self.X),
            "majority_accuracy": majority_accuracy(self.y, self.y_test),
            "bayes_accuracy": self.bayes_accuracy,
        }


def checksum_of(*parts: Any) -> str:
    """Return 16 hexadecimal digits that arrays and CSR matrices of another type, shape or content hardly have."""
    code = hashlib.blake2b(digest_size=8)
    for part in parts:
        arrays = (part.data, part.indices, part.indptr) if hasattr(part, "indptr") else (part,)
        for array in map(np.ascontiguousarray, arrays):
            code.update(f"{part.shape} {array.dtype.str}".encode())
            is_object = array.dtype == object
            code.update(repr(array.tolist()).encode() if is_object else array.reshape(-1).view(np.uint8).data)
    return code.hexdigest()


def density(X: Any) -> float:
    """Return the share of the entries of an array or sparse matrix that are not zero."""
    non_zero = X.nnz if hasattr(X, "nnz") else np.count_nonzero(X)
    return float(non_zero / (X.shape[0] * X.shape[1]))


def file_names(source: str) -> str:
    """Return the files of a set without their folders: rows of a study travel."""
    return ", ".join(PurePath(path).name for path in source.split(" and "))


def load_data(source: DataSource, dtype: str) -> StudyData:
    """Load a dataset if it is on this machine, else generate its twin."""
    test_rows, begin = source.all_test_rows, time.perf_counter()
    train = load_or_generate(source.name, "train", n_rows=source.rows, dtype=dtype)
    test = load_or_generate(source.name, "test", n_rows=test_rows, dtype=dtype)
    if train.task == "regression":
        raise InvalidParameterError(f"DataSource({source.name!r}) is a regression set; the study trains classifiers.")
    text = train.source if train.generated else file_names(train.source)
    took_s = time.perf_counter() - begin
    return StudyData(train.name, text, train.X, train.y, test.X, test.y, train.bayes_accuracy, took_s)


def load_or_keep(source: DataSource, dtype: str, rows: Sequence[Row]) -> StudyData | MissingData:
    """Load a dataset as `load_data` does, but never a twin for one that a study has measured already.

    - returned: the latter if the set is not on this machine and rows of it are there: what is left of it.
    """
    own = [row for row in rows if row.get("dataset") == source.name]
    if own and not source.name.endswith("-like") and locate(find(source.name), "train") is None:
        left = sizes_of(source.name, own, source.rows, source.all_test_rows)
        if left is not None:
            return left
    return load_data(source, dtype)


def place(
    where: Client | SimulatedCluster | None,
    rows: tuple[Any, AnyArray],
    ranks: int,
    partition: str,
    *,
    seed: int = 0,
    share: float = 1.0,
) -> tuple[list[Any], int]:
    """Give each rank its rows: send them to a worker of its own, or cut them for a thread or a simulated rank.

    Which rows a rank trains on is decided here and nowhere else, for workers, threads and simulated ranks alike.

    - returned: one block (X, y) per rank, which estimators take as ``X``. Rows stay on the workers as long as the
      futures are held.
    """
    X, y = rows
    shares = split_rows(y, ranks, partition, seed=seed, X=X)
    if share < 1.0:
        shares = [_drawn(mine, share, (seed, rank)) for rank, mine in enumerate(shares)]
    n_rows = sum(map(len, shares))
    if where is None or isinstance(where, SimulatedCluster):
        return [(X[mine], y[mine]) for mine in shares], n_rows
    workers = sorted(where.nthreads())
    if len(workers) < ranks:
        raise ClusterError(
            f"the study wants {ranks} ranks but the cluster has {len(workers)} workers: start more, or lower --ranks"
        )
    blocks = []
    for worker, mine in zip(workers, shares, strict=False):
        blocks += where.scatter([(X[mine], y[mine])], workers=[worker], hash=False)
    return blocks, n_rows


def _drawn(rows: IntVector, share: float, seed: tuple[int, int]) -> IntVector:
    """Return a share of rows in their order; a larger share of the same seed holds the smaller one."""
    order = np.random.default_rng(seed).permutation(len(rows))
    drawn: IntVector = rows[np.sort(order[: math.ceil(share * len(rows))])]
    return drawn
