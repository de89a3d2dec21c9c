"""Random features made inside a fit, block by block, beside features made before it, and beside scikit-learn's.

Rows whose classes no line separates. Three ways to the same kind of model, in turns: ``features=`` of the estimator, a
pipeline of our transformer and estimator, and one of scikit-learn's. For each number of features: seconds of a fit, the
most memory that it allocates beside the rows, and the accuracy on as many other rows. The exact kernel SVM is the last
line.

Then the memory of 2,000 features beside that of many rows in the shape of covtype: less than five per cent of it.
"""

from __future__ import annotations

import statistics
import tracemalloc
from typing import Any

import numpy as np
from sklearn.kernel_approximation import RBFSampler
from sklearn.linear_model import SGDClassifier as Plain
from sklearn.pipeline import make_pipeline

from benchmarks.common.measuring import Options, Rows, in_turns, table, timed
from dsgd import SGDClassifier
from dsgd.kernel_approximation import RandomFeatures
from dsgd.svm import SVC

PAGE = "kernel-approximation"
QUICK_S = 25
QUICK = "a quarter of the rows, and up to 400 features"
REPEATS = (3, 1)

GAMMA, EPOCHS = 0.5, 10
MANY_COLUMNS, MANY_FEATURES = 54, 2_000


def rings(n_rows: int, seed: int) -> tuple[Any, Any]:
    """Return rows of four columns, of one class where their length is in every second of several shells."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n_rows, 4))
    return X, np.floor(np.linalg.norm(X, axis=1)) % 2 == 0


def ways(n_features: int) -> dict[str, Any]:
    """Return the estimators by name."""
    fit: dict[str, Any] = {"alpha": 1e-5, "average": True, "max_iter": EPOCHS, "tol": None, "random_state": 0}
    made = RandomFeatures(n_features, gamma=GAMMA, random_state=0)
    return {
        "features=": SGDClassifier(**fit, n_jobs=1, features=made),
        "pipeline": make_pipeline(made, SGDClassifier(**fit, n_jobs=1)),
        "scikit-learn": make_pipeline(RBFSampler(gamma=GAMMA, n_components=n_features, random_state=0), Plain(**fit)),
    }


def allocated_mb(model: Any, X: Any, y: Any) -> float:
    """Return the most memory that a fit allocates."""
    tracemalloc.start()
    model.fit(X, y)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return float(peak / 1e6)


def run(options: Options, rows: Rows) -> None:
    n_rows = 5_000 if options.quick else 20_000
    (X, y), (X_test, y_test) = rings(n_rows, 0), rings(n_rows, 1)
    heads = ("features", "way", "s:.2f", "MB:.1f", "accuracy:.1%")
    with table(f"{n_rows:,} rows of 4 columns, {EPOCHS} epochs", *heads) as line:
        for n_features in (100, 400) if options.quick else (100, 400, 1_600):
            models = ways(n_features)
            for model in models.values():
                model.fit(X[:300], y[:300])
            turns = in_turns(
                {name: (lambda model=model: model.fit(X, y)) for name, model in models.items()}, options.repeats
            )
            for name, model in models.items():
                seconds = statistics.median(one.seconds for one in turns[name])
                accuracy = float(model.score(X_test, y_test))
                memory = allocated_mb(model, X, y)
                rows.add(features=n_features, method=name, seconds=seconds, megabytes=memory, accuracy=accuracy)
                line(str(n_features), name, seconds, memory, accuracy)
        exact = SVC(gamma=GAMMA, C=10.0)
        seconds = timed(exact.fit, X, y).seconds
        accuracy, memory = float(exact.score(X_test, y_test)), allocated_mb(exact, X, y)
        rows.add(features=0, method="SVC", seconds=seconds, megabytes=memory, accuracy=accuracy)
        line("exact", "SVC", seconds, memory, accuracy)
    beside_many(20_000 if options.quick else 200_000, rows)


def beside_many(n_rows: int, rows: Rows) -> None:
    """Print what features take beside many rows, in one epoch, over a fit without them."""
    rng = np.random.default_rng(2)
    X = rng.standard_normal((n_rows, MANY_COLUMNS))
    y = X[:, 0] > 0.0
    heads = ("way", "MB of rows:.1f", "MB:.1f", "share:.1%")
    with table(f"{n_rows:,} rows of {MANY_COLUMNS} columns, {MANY_FEATURES:,} features, one epoch", *heads) as line:
        made = RandomFeatures(MANY_FEATURES, gamma=0.01, random_state=0)
        plain, model = (
            SGDClassifier(max_iter=1, tol=None, shuffle=False, n_jobs=1, features=given) for given in (None, made)
        )
        plain.fit(X[:300], y[:300])
        model.fit(X[:300], y[:300])
        # Targets and weights of rows are packed in any fit.
        memory = allocated_mb(model, X, y) - allocated_mb(plain, X, y)
        rows.add(rows=n_rows, features=MANY_FEATURES, method="features=", megabytes=memory, of_rows=X.nbytes / 1e6)
        line("features=", X.nbytes / 1e6, memory, 1e6 * memory / X.nbytes)
