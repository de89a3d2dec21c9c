"""Epochs of ten classes: softmax beside one class against the rest, ours and scikit-learn's.

Methods take turns on one thread, and the median of each is kept. An epoch is a third of what three more epochs add to
the time of a fit, so without checks and packing; scikit-learn's SAGA is `LogisticRegression(solver="saga")`, whose
objective is that of softmax. Accuracy is on other rows, after as many epochs (`EPOCHS`) of each.

    python -m benchmarks run classes [--quick]
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import SGDClassifier as Plain

from benchmarks.common.measuring import Options, Rows, in_turns, report, timed
from dsgd import SGDClassifier

PAGE = "estimators"
QUICK_S = 30
QUICK = "a tenth of the rows"
REPEATS = (5, 3)

N_CLASSES, ALPHA, EPOCHS = 10, 1e-5, 4


def labelled(X: Any, n_features: int, seed: int) -> tuple[Any, Any]:
    """Return rows in float32, and classes drawn by a softmax of their products with hidden weights."""
    rng = np.random.default_rng(seed)
    scores = X @ rng.normal(size=(n_features, N_CLASSES)) * 3
    return X, (scores + rng.gumbel(size=scores.shape)).argmax(axis=1)


def dense_rows(n: int) -> tuple[Any, Any]:
    """Return rows of 50 numbers."""
    X = np.random.default_rng(0).standard_normal((n, 50), np.float32) / np.float32(np.sqrt(50))
    return labelled(X, 50, 1)


def sparse_rows(n: int) -> tuple[Any, Any]:
    """Return rows of 25 entries in 5,000 columns."""
    X = scipy.sparse.random(n, 5_000, 0.005, "csr", np.float32, rng=np.random.default_rng(2))
    return labelled(X / np.float32(3), 5_000, 3)


def methods(n_rows: int) -> dict[str, Callable[[int], Any]]:
    """Return the models by name, each made for a number of epochs."""
    ours = {"alpha": ALPHA, "tol": None, "random_state": 0}
    saga = {"C": 1 / (ALPHA * n_rows), "solver": "saga", "tol": 1e-30, "random_state": 0}
    return {
        "softmax": lambda epochs: SGDClassifier(loss="softmax", max_iter=epochs, **ours),
        "log_loss": lambda epochs: SGDClassifier(loss="log_loss", max_iter=epochs, **ours),
        "scikit-learn, log_loss": lambda epochs: Plain(loss="log_loss", max_iter=epochs, **ours),
        "scikit-learn, SAGA": lambda epochs: LogisticRegression(max_iter=epochs, **saga),
    }


def run(options: Options, rows: Rows) -> None:
    warnings.simplefilter("ignore", ConvergenceWarning)
    n = 10_000 if options.quick else 100_000
    for case, make in {"dense": dense_rows, "sparse": sparse_rows}.items():
        X, y = make(2 * n)
        models = methods(n)

        def epoch(make_model: Callable[[int], Any], X: Any = X, y: Any = y) -> float:
            longer, shorter = (timed(make_model(epochs).fit, X[:n], y[:n]).seconds for epochs in (EPOCHS, 1))
            return (longer - shorter) / (EPOCHS - 1)

        for make_model in models.values():
            make_model(1).fit(X[:1000], y[:1000])  # compiles
        turns = in_turns({name: lambda made=made: epoch(made) for name, made in models.items()}, options.repeats)
        seconds = {name: statistics.median(each.value for each in taken) for name, taken in turns.items()}
        columns = "method | ms an epoch = seconds*1e3:.1f | x softmax = times_softmax:.2f | accuracy:.3f"
        title = f"{case}: {n} rows, {N_CLASSES} classes, accuracy after {EPOCHS} epochs"
        with report(rows, title, columns, case=case, n=n) as add:
            for name, make_model in models.items():
                accuracy = make_model(EPOCHS).fit(X[:n], y[:n]).score(X[n:], y[n:])
                add(
                    method=name,
                    seconds=seconds[name],
                    times_softmax=seconds[name] / seconds["softmax"],
                    accuracy=accuracy,
                )
