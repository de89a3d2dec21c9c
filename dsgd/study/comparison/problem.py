"""The problem that all methods are given: rows, model, ranks, and how often the model is looked at."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.model_selection import train_test_split
from sklearn.utils import check_array

from dsgd.datasets import check_split
from dsgd.errors import InvalidDataError, InvalidParameterError
from dsgd.estimators import SGDClassifier
from dsgd.estimators.start import Start, check_rows
from dsgd.estimators.tables import encoded
from dsgd.inputs.sources import is_distributed
from dsgd.inputs.table_files import with_files_opened
from dsgd.sim import SimulatedCluster
from dsgd.study.comparison.methods import Place
from dsgd.study.comparison.training import DivergedError, Held, looks_within, train_curve
from dsgd.study.frame.data import StudyData
from dsgd.study.frame.measure import LOSSES
from dsgd.study.frame.rows import AbstractRun, Row, picked
from dsgd.sync import AbstractStrategy
from dsgd.validation import check_number

#: Ranks up to which all methods are tried on a few rows before anything is measured.
_MOST_REHEARSED: Final = 64
_ROWS_REHEARSED: Final = 4
#: Schedules that a first step size decides.
_OF_ETA0: Final = ("constant", "invscaling", "adaptive")
_FIXED: Final = {
    "early_stopping": False,
    "restore_best": False,
    "scoring": None,
    "checkpoint": None,
    "resume_from": None,
    "class_weight": None,
}


@dataclass(frozen=True, eq=False)
class Problem:
    """What is trained on, and where."""

    data: StudyData
    estimator: SGDClassifier
    place: Place
    partition: str
    looks: Sequence[float]

    @property
    def has_rate(self) -> bool:
        """Whether the schedule has a first step size, which can be tuned."""
        return self.estimator.learning_rate in _OF_ETA0

    def held(self, ranks: int, seed: int) -> Held:
        """Return the rows as so many ranks hold them."""
        return Held(self.place.for_run(ranks, seed), self.data, ranks, self.partition, seed)

    def train(self, run: ComparisonRun, held: Held) -> Row:
        """Train a method; return what its row says. One that diverges has a row that says so."""
        model = clone(self.estimator).set_params(
            sync=run.strategy, eta0=run.eta0, random_state=run.seed, tol=None, verbose=0
        )
        try:
            return {**self.data.describe(), "diverged": False, **train_curve(model, held, self.looks)}
        except DivergedError as error:
            return {**self.data.describe(), "diverged": True, **error.row}


@dataclass(frozen=True)
class ComparisonRun(AbstractRun):
    """One training of a method, with one seed."""

    problem: Problem
    name: str
    strategy: AbstractStrategy[Any]
    ranks: int
    eta0: float
    seed: int
    stage: str = "final"

    def with_seed(self, seed: int) -> ComparisonRun:
        """Return the same run with another seed."""
        return replace(self, seed=seed)

    def settings(self) -> Row:
        """Return everything that decides what is run, as plain values."""
        problem, model = self.problem, self.problem.estimator
        return {
            "dataset": problem.data.name,
            "digest": _digest(problem.data),
            "rows": len(problem.data.y),
            "test_rows": len(problem.data.y_test),
            "ranks": self.ranks,
            "place": problem.place.settings,
            "strategy": self.name,
            "sync": repr(self.strategy),
            "seed": self.seed,
            "epochs": problem.looks[-1],
            "looks": list(problem.looks),
            **picked(model, "alpha", "loss"),
            "model": repr(clone(model).set_params(client=None, sync=None, n_jobs=None)),
            "schedule": model.learning_rate,
            "eta0": self.eta0,
            "partition": problem.partition,
            "stage": self.stage,
        }


def check_estimator(estimator: SGDClassifier | None) -> SGDClassifier:
    """Return the model that all methods train, by default one with its defaults."""
    model = SGDClassifier() if estimator is None else estimator
    if not isinstance(model, SGDClassifier):
        raise InvalidParameterError(f"compare(estimator=...) must be an SGDClassifier of dsgd. Got {model!r}.")
    if model.loss not in LOSSES or model.penalty not in ("l2", None):
        raise InvalidParameterError(
            f"compare(estimator=...) needs a loss out of {', '.join(LOSSES)} and penalty 'l2' or None, as objectives "
            f"are evaluated apart from training. Got loss={model.loss!r}, penalty={model.penalty!r}."
        )
    for name, value in _FIXED.items():
        if getattr(model, name) != value:
            raise InvalidParameterError(
                f"compare(estimator=...): {name}={getattr(model, name)!r} has no place in a comparison; leave it at "
                f"{value!r}."
            )
    return model


def check_looks(epochs: int, at: Iterable[float] | None) -> list[float]:
    """Return after how many epochs the model is looked at."""
    check_number("compare(epochs=...)", epochs, low=1, integer=True)
    if at is None:
        return looks_within(int(epochs))
    found = sorted({*at, epochs})
    for look in found:
        check_number("compare(looks=...)", look, low=0, high=epochs, open_low=True)
        if look > 1 and look != int(look):
            raise InvalidParameterError(
                f"compare(looks=...) must be parts of the first epoch, above 0, or whole numbers of epochs. Got {look}."
            )
    return [int(look) if look >= 1 else float(look) for look in found]


def split_data(
    estimator: SGDClassifier,
    X: Any,
    y: Any,
    test: float | tuple[Any, Any],
    partition: str,
    ranks: int,
    *,
    name: str,
) -> StudyData:
    """Return training and test rows, checked."""
    check_split(partition)
    X = with_files_opened(X)
    if is_distributed(X) or (is_distributed(y) and not isinstance(y, str)):
        raise InvalidDataError(
            f"compare(X=...) takes arrays and sparse matrices of this process, which it assigns to ranks itself. Got a "
            f"{type(X).__name__}: load it first."
        )
    probe: SGDClassifier = clone(estimator).set_params(client=None)
    X, y, _ = check_rows(probe, *encoded(probe, (X, y, None), goes_on=False), Start())
    if isinstance(test, tuple):
        X_test, y_test, _ = encoded(probe, (*test, None), goes_on=True)
        X_test = check_array(X_test, accept_sparse="csr", dtype=[np.float64, np.float32])
        y_test = np.asarray(y_test)
        if X_test.shape[1] != X.shape[1] or len(y_test) != X_test.shape[0]:
            raise InvalidDataError(
                f"compare(test=...) must be (X, y) with {X.shape[1]} columns. Got {X_test.shape}, {y_test.shape}."
            )
    else:
        check_number("compare(test=...)", test, low=0, high=1, open_low=True, open_high=True)
        # By the labels, where each has rows for both sides.
        by_label = y if np.unique(y, return_counts=True)[1].min() > 1 else None
        X, X_test, y, y_test = train_test_split(X, y, test_size=test, random_state=0, stratify=by_label)
    if len(np.unique(y)) < 2:
        raise InvalidDataError(f"compare(y=...) has one class only, {y[0]!r}: there is nothing to learn.")
    if len(y) < 2 * ranks:
        raise InvalidDataError(f"compare(X=...) has {len(y)} training rows, too few for {ranks} ranks.")
    return StudyData(name, "arrays", X, y, X_test, y_test)


def rehearse(problem: Problem, methods: dict[str, AbstractStrategy[Any]]) -> None:
    """Train each method for an epoch on a few rows: what cannot work is found before anything is measured.

    Up to 64 ranks; more of them take longer than the error is worth.
    """
    ranks = problem.place.ranks
    if ranks > _MOST_REHEARSED:
        return
    data = problem.data
    classes, n = np.unique(data.y), min(_ROWS_REHEARSED * ranks, len(data.y))
    X, y = data.X[:n], classes[np.arange(n) % len(classes)]
    few = StudyData(data.name, data.source, X, y, X, y)
    for name, strategy in methods.items():
        model = clone(problem.estimator).set_params(sync=strategy, random_state=0, tol=None, verbose=0)
        try:
            train_curve(model, Held(SimulatedCluster(ranks, "InfiniBand"), few, ranks, "contiguous"), [1])
        except DivergedError:
            continue  # the rows are made up
        except Exception as error:
            raise InvalidParameterError(
                f"compare(methods=...): {name!r} fails on {ranks} ranks, {type(error).__name__}: {error}"
            ) from error


def _digest(data: StudyData) -> str:
    """Return what tells these rows from others."""
    found = hashlib.blake2b(digest_size=8)
    parts: tuple[Any, ...] = (data.X, data.y, data.X_test, data.y_test)
    for part in parts:
        arrays: tuple[Any, ...] = (part.data, part.indices, part.indptr) if sp.issparse(part) else (part,)
        for array in arrays:
            found.update(repr((array.shape, array.dtype.str)).encode())
            found.update(repr(array.tolist()).encode() if array.dtype == object else np.ascontiguousarray(array).data)
    return found.hexdigest()
