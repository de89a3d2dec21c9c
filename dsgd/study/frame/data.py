"""The data of a study: loaded once and placed on its workers once per number of ranks; evaluation of fitted models.

A study that is resumed keeps what was measured: its rows stay in the folder and in the report. It does not go on with a
generated twin in the place of a set that it began with, and what it cannot run is said: when it ends, and on its page.

Everything is computed from the model that a fit returns, the average over the ranks, and on all rows: the published
study scored one rank's own model and took its objective from the last sample seen.
"""

from __future__ import annotations

import hashlib
import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from sklearn.metrics import balanced_accuracy_score, f1_score

from dsgd.datasets import find, load_or_generate, locate, split_rows
from dsgd.errors import ClusterError, InvalidParameterError
from dsgd.estimators import SGDClassifier
from dsgd.ledger import PHASES
from dsgd.runtime import connect_client
from dsgd.sim import SimulatedCluster
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
    read : callable, optional
        Returns rows and labels of the caller's own, which are then used under this name. The test rows are drawn from
        them: a fifth by default.
    """

    name: str
    rows: int | None = None
    test_rows: int | None = None
    read: Callable[[], tuple[Any, AnyArray]] | None = field(default=None, repr=False)

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
    if source.read is not None:
        return _own_data(source, source.read, dtype)
    train = load_or_generate(source.name, "train", n_rows=source.rows, dtype=dtype)
    test = load_or_generate(source.name, "test", n_rows=test_rows, dtype=dtype)
    if train.task == "regression":
        raise InvalidParameterError(f"DataSource({source.name!r}) is a regression set; the study trains classifiers.")
    text = train.source if train.generated else file_names(train.source)
    took_s = time.perf_counter() - begin
    return StudyData(train.name, text, train.X, train.y, test.X, test.y, train.bayes_accuracy, took_s)


def _own_data(source: DataSource, read: Callable[[], tuple[Any, AnyArray]], dtype: str) -> StudyData:
    """Return a draw of the rows of somebody's own: first those to test on, then those to train on."""
    begin = time.perf_counter()
    X, y = read()
    X = X.astype(dtype)
    asked, n_classes = f"DataSource({source.name!r}, rows={source.rows})", len(np.unique(y))
    if not 2 <= n_classes <= len(y) // 2:
        raise InvalidParameterError(
            f"{asked}: the study trains classifiers, and the targets have {n_classes} values in {len(y)} rows. Give "
            "the labels of two classes or more, each of several rows."
        )
    n_test = source.all_test_rows or len(y) // 5
    n = source.rows or len(y) - n_test
    if min(n, n_test) < 100 or n + n_test > len(y):
        raise InvalidParameterError(
            f"{asked}: there are {len(y):,} rows, of which {n:,} to train on and {n_test:,} to test on; a study needs "
            "at least 100 of each. Ask for fewer, or give more rows."
        )
    order = np.random.default_rng(0).permutation(len(y))
    test, train = np.sort(order[:n_test]), np.sort(order[n_test : n_test + n])
    took_s = time.perf_counter() - begin
    return StudyData(source.name, "own files", X[train], y[train], X[test], y[test], None, took_s)


def load_or_keep(source: DataSource, dtype: str, rows: Sequence[Row]) -> StudyData | MissingData:
    """Load a dataset as `load_data` does, but never a twin for one that a study has measured already.

    - returned: the latter if the set is not on this machine and rows of it are there: what is left of it.
    """
    own = [row for row in rows if row.get("dataset") == source.name]
    if own and source.read is None and not source.name.endswith("-like") and locate(find(source.name), "train") is None:
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


@dataclass(frozen=True)
class MissingData:
    """What rows tell of data that are not here: their name and their numbers of rows."""

    name: str
    y: Sequence[Any]
    y_test: Sequence[Any]


def sizes_of(name: str, rows: Sequence[Row], asked: int | None, asked_test: int | None) -> MissingData | None:
    """Return what rows of data tell of what is asked for; None if no row is of so many."""
    sizes = {(row["rows"], row["test_rows"]) for row in rows}
    inside = [
        (n, n_test)
        for n, n_test in sizes
        if (asked is None or n <= asked) and (asked_test is None or n_test <= asked_test)
    ]
    if not inside:
        return None
    n, n_test = max(inside)
    return MissingData(name, range(n), range(n_test))


def missing_runs(found: int, asked: int) -> str:
    """Return the sentence that says how many runs of a study are missing, empty where none is."""
    if found >= asked:
        return ""
    return (
        f"{asked - found} of {asked} runs are missing: their data are not on this machine, or the study was "
        "interrupted. What was measured before is kept. To run the others, name the folder of the data in DSGD_DATA "
        "and give the same command."
    )


def classifier(run: Any, **options: Any) -> SGDClassifier:
    """Return the model of a run, not trained: of its loss, penalty, schedule and seed, for a number of epochs."""
    schedule = {"learning_rate": run.schedule} if hasattr(run, "schedule") else {}
    return SGDClassifier(loss=run.loss, alpha=run.alpha, tol=None, random_state=run.seed, **schedule | options)


# Bytes and messages of the algorithm, and of control.
_SENT: Final = ("bytes_sent", "messages", "control_bytes_sent", "control_messages")
_LOSSES: Final[dict[str, Callable[[AnyArray], AnyArray]]] = {
    "hinge": lambda margin: np.maximum(0.0, 1.0 - margin),
    "squared_hinge": lambda margin: np.maximum(0.0, 1.0 - margin) ** 2,
    "log_loss": lambda margin: np.logaddexp(0.0, -margin),
}

#: The losses whose full objective is evaluated here, independently of the training code.
LOSSES: Final = tuple(_LOSSES)


def score(model: Any, X: Any, y: AnyArray) -> dict[str, float | None]:
    """Return how well a fitted classifier predicts.

    - returned: ``accuracy``, ``balanced_accuracy`` (mean of the recalls) and ``f1`` (of the second class, for two
      classes), all between 0 and 1.
    """
    classes = model.classes_
    decision = np.asarray(model.decision_function(X))
    codes = (decision > 0).astype(np.intp) if decision.ndim == 1 else np.argmax(decision, axis=1)
    predicted = classes[codes]
    f1 = float(f1_score(y, predicted, pos_label=classes[1], zero_division=0.0)) if len(classes) == 2 else None
    return {
        "accuracy": float(np.mean(predicted == y)),
        "balanced_accuracy": float(balanced_accuracy_score(y, predicted)),
        "f1": f1,
    }


def majority_accuracy(y_train: AnyArray, y_test: AnyArray) -> float:
    """Return the accuracy on `y_test` of always predicting the commonest label of `y_train`."""
    labels, counts = np.unique(y_train, return_counts=True)
    return float(np.mean(y_test == labels[np.argmax(counts)]))


def objective(model: Any, X: Any, y: AnyArray, *, loss: str, alpha: float) -> float:
    """Return the full training objective, alpha/2 ||w||^2 + mean loss, summed over one-vs-rest outputs."""
    decision = np.asarray(model.decision_function(X), dtype=np.float64)
    classes = model.classes_
    outputs = [(decision, classes[1])] if decision.ndim == 1 else list(zip(decision.T, classes, strict=True))
    mean_loss = sum(
        float(np.mean(_LOSSES[loss](values * np.where(y == label, 1.0, -1.0)))) for values, label in outputs
    )
    return 0.5 * alpha * float(np.sum(np.square(model.coef_, dtype=np.float64))) + mean_loss


def point(model: Any, epochs: float) -> dict[str, Any]:
    """Return a point of a curve after so many epochs: seconds since the first row on rank 0, bytes and messages of all.

    Bytes and messages are the algorithm's; those of control have names of their own.
    """
    seconds, totals = model.fit_report_["epochs"][-1]["seconds"], model.ledger_.totals()
    return {"epoch": epochs, "seconds": seconds, **{name: int(totals[name]) for name in _SENT}}


def spent(model: Any, ranks: int = 1) -> dict[str, Any]:
    """Return seconds by phase, summed over ranks or averaged over `ranks` of them, and counts over all ranks.

    Bytes and messages are the algorithm's; those of control have names of their own.
    """
    totals = model.ledger_.totals()
    return {
        **{f"{phase}_s": totals[f"{phase}_s"] / ranks for phase in PHASES},
        **{name: int(totals[name]) for name in (*_SENT, "rounds")},
    }


@contextmanager
def cluster_of(ranks: int, scheduler: str | None = None, **options: Any) -> Iterator[Client]:
    """Give a client of a cluster."""
    if scheduler is not None:
        with connect_client(scheduler) as client:
            yield client
        return
    from distributed import Client, LocalCluster

    from dsgd.runtime.gang.client import QUIET_WORKER

    with _children_ignore_interrupts():
        started = LocalCluster(
            n_workers=ranks,
            threads_per_worker=1,
            processes=True,
            # No dashboard, and a free port for the page that the scheduler serves even so: 8787 may be taken.
            dashboard_address="127.0.0.1:0",
            scheduler_kwargs={"dashboard": False},
            silence_logs=logging.ERROR,
            preload=[QUIET_WORKER],
            **options,
        )
    with started as cluster, Client(cluster, set_as_default=False) as client:
        yield client


def cluster_where(needed: bool, ranks: int, scheduler: str | None = None) -> AbstractContextManager[Client | None]:
    """Give a client as `cluster_of` does if one is needed, else None, so that nothing is started for finished runs."""
    return cluster_of(ranks, scheduler) if needed else nullcontext()


def place_name(scheduler: str | None, network: object = None) -> str:
    """Return the name of the place of the ranks in rows: "simulated" on a network, "scheduler", or "local"."""
    return "simulated" if network is not None else "scheduler" if scheduler else "local"


@contextmanager
def _children_ignore_interrupts() -> Iterator[None]:
    """Start processes that ignore ctrl-C; this one handles it and closes them in order, without their tracebacks."""
    if threading.current_thread() is not threading.main_thread():  # signals can be set only there
        yield
        return
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
