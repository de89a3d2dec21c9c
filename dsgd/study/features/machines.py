"""Machines: the exact kernel SVM beside linear models of random features, and the error of the features' kernel."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from dsgd import SGDClassifier
from dsgd.datasets import find, locate
from dsgd.kernel_approximation import RandomFeatures
from dsgd.study.features.grid import MachineRun, ValueRun
from dsgd.study.frame.data import DataSource, StudyData, load_or_keep
from dsgd.study.frame.missing import MissingData, sizes_of
from dsgd.study.frame.rows import Row
from dsgd.svm import SVC
from dsgd.types import AnyArray, FloatMatrix

__all__ = ["CLUSTERS", "data_of_machines", "run_machines", "run_values"]

#: How names of generated clusters end.
CLUSTERS: Final = "-clusters"

_COST: Final = 10.0
_OF_A_CLASS: Final = 6
_DIRECTIONS: Final = 6
_PAIRS: Final = 400
_DRAWS: Final = 10
_COLUMNS: Final = 10


def data_of_machines(source: DataSource, rows: Sequence[Row]) -> StudyData | MissingData:
    """Return a set of the registry, or clusters of its shape where it is not on this machine.

    Parameters
    ----------
    source : DataSource
        Which, and how many rows. A name that ends in ``-clusters`` is always generated.
    rows : sequence of dict
        The rows of the study so far: what was begun with a real set does not go on with clusters.
    """
    name = source.name
    if name.endswith(CLUSTERS):
        return _clusters(name.removesuffix(CLUSTERS), source)
    if name.endswith("-like") or locate(find(name), "train") is not None:
        return load_or_keep(source, "float32", rows)
    own = [row for row in rows if row["dataset"] == name]
    left = sizes_of(name, own, source.rows, source.all_test_rows)
    return _clusters(name, source) if left is None else left


def _clusters(base: str, source: DataSource) -> StudyData:
    """Return rows of as many columns and classes as a set has: clusters in a few directions, several a class."""
    info = find(base)
    n, n_test = source.rows or 5_000, source.all_test_rows or 2_000
    rng = np.random.default_rng(0)
    n_classes, d = info.n_classes, info.n_features
    centres = 3.0 * rng.standard_normal((n_classes * _OF_A_CLASS, _DIRECTIONS))
    cluster = rng.integers(len(centres), size=n + n_test)
    places = centres[cluster] + rng.standard_normal((n + n_test, _DIRECTIONS))
    X = places @ rng.standard_normal((_DIRECTIONS, d)) + 0.3 * rng.standard_normal((n + n_test, d))
    X, y = X.astype(np.float32), cluster % n_classes
    text = f"{_OF_A_CLASS} clusters a class in {_DIRECTIONS} directions, with the columns and classes of {base}"
    return StudyData(base + CLUSTERS, text, X[:n], y[:n], X[n:], y[n:])


def run_machines(data: StudyData, runs: Sequence[MachineRun]) -> Iterator[Row]:
    """Yield the contents of the rows of machines on one set."""
    gamma = _width(data.X)
    described = {**data.describe(), "columns": int(data.X.shape[1]), "gamma": gamma, "cost": _COST}
    del described["features"]  # of a run they are those that are made
    # Kernels are compiled before anything is timed.
    for features in sorted({min(run.features, 50) for run in runs}):
        _machine(features, gamma, len(data.y), 1, 0).fit(data.X[:500], data.y[:500])
    for run in runs:
        model = _machine(run.features, gamma, len(data.y), run.epochs, run.seed)
        begin = time.perf_counter()
        model.fit(data.X, data.y)
        seconds = time.perf_counter() - begin
        accuracy = float(np.mean(model.predict(data.X_test) == data.y_test))
        yield {**described, "seconds": seconds, "accuracy": accuracy}


def _machine(features: int, gamma: float, n_rows: int, epochs: int, seed: int) -> Any:
    """Return a machine of one thread: the exact one, or of features; both minimise the same but for the kernel."""
    if not features:
        return SVC(C=_COST, gamma=gamma, n_jobs=1)
    return SGDClassifier(
        "hinge",
        alpha=1.0 / (_COST * n_rows),
        average=True,
        max_iter=epochs,
        tol=None,
        random_state=seed,
        features=RandomFeatures(features, gamma=gamma, random_state=seed),
        n_jobs=1,
    )


def _width(X: Any) -> float:
    """Return one over columns times variance, as ``gamma="scale"`` has it."""
    mean = float(X.mean())
    square = float(X.multiply(X).mean()) if hasattr(X, "multiply") else float(np.mean(np.square(X, dtype=np.float64)))
    return float(f"{1.0 / (X.shape[1] * max(square - mean**2, 1e-12)):.6g}")


def run_values(runs: Sequence[ValueRun]) -> Iterator[Row]:
    """Yield the root of the mean squared error of kernel values over ten draws, of plain and orthogonal features."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((2 * _PAIRS, _COLUMNS))
    gamma = 0.5 / _COLUMNS
    exact = np.exp(-gamma * np.sum((X[:_PAIRS] - X[_PAIRS:]) ** 2, axis=1))
    for run in runs:
        yield {
            "plain": _error(X, exact, gamma, run, orthogonal=False),
            "orthogonal": _error(X, exact, gamma, run, orthogonal=True),
        }


def _error(X: FloatMatrix, exact: AnyArray, gamma: float, run: ValueRun, *, orthogonal: bool) -> float:
    squares = []
    for draw in range(_DRAWS):
        seed = _DRAWS * run.seed + draw
        made = RandomFeatures(run.features, gamma=gamma, orthogonal=orthogonal, random_state=seed).fit_transform(X)
        found = np.einsum("ij,ij->i", made[:_PAIRS], made[_PAIRS:])
        squares.append(np.mean((found - exact) ** 2))
    return float(np.sqrt(np.mean(squares)))
