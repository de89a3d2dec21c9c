"""Which SVM: time and test accuracy of kernel, linear and stochastic machines as rows are added, beside scikit-learn's.

The task is the second class of covtype against the others, standardised (or a generated set). Every
machine is trained on the first n rows, n from 1000 on by factors of two, with C = 10; stochastic gradient descent with
its default penalty and averaged weights, as one would start with. Methods take turns. A method drops out once a fit
took longer than a third of ``--limit`` seconds, because the next would take longer than that.

    DSGD_DATA=... python -m benchmarks run svm/choice --out rows.jsonl
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn import svm as plain
from sklearn.datasets import make_classification
from sklearn.linear_model import SGDClassifier as PlainSGD

from benchmarks.common.measuring import Options, Rows, report, timed
from dsgd import SGDClassifier
from dsgd.datasets import load
from dsgd.svm import SVC, LinearSVC

PAGE = "choosing-svm"
QUICK_S = 45
QUICK = "up to 2000 rows of the generated set"

SIZES = [1000, 2000, 4000, 8000, 16_000, 32_000, 59_000]
TEST_ROWS = 10_000

#: name -> what makes it for a cost C
CASES: dict[str, Callable[[float], Any]] = {
    "SVC": lambda C: SVC(C=C, cache_size=1000),
    "LinearSVC": lambda C: LinearSVC(C=C, loss="hinge"),
    "SGDClassifier": lambda C: SGDClassifier(loss="hinge", average=True, random_state=0),
    "scikit-learn SVC": lambda C: plain.SVC(C=C, cache_size=1000),
    "scikit-learn LinearSVC": lambda C: plain.LinearSVC(C=C, loss="hinge", random_state=0),
    "scikit-learn SGDClassifier": lambda C: PlainSGD(loss="hinge", average=True, random_state=0),
}


def forest() -> tuple[str, Any, Any, Any, Any]:
    """Return training and test rows of covtype in an order of their own, standardised by the training rows."""
    train, test = load("covtype-subset", "train", download=False), load("covtype-subset", "test", download=False)
    rng = np.random.default_rng(0)
    order, chosen = rng.permutation(train.n_rows), rng.permutation(test.n_rows)[:TEST_ROWS]
    mean, deviation = train.X.mean(axis=0), train.X.std(axis=0)
    deviation[deviation == 0] = 1.0

    def shape(X: Any, y: Any) -> tuple[Any, Any]:
        return np.ascontiguousarray((X - mean) / deviation), np.where(y == 2, 1.0, -1.0)

    return "covtype", *shape(train.X[order], train.y[order]), *shape(test.X[chosen], test.y[chosen])


def generated() -> tuple[str, Any, Any, Any, Any]:
    """Return rows of clusters in 20 dimensions, 5 per cent of the labels turned."""
    X, y = make_classification(
        SIZES[-1] + TEST_ROWS, 20, n_informative=10, n_clusters_per_class=5, flip_y=0.1, random_state=0
    )
    return "generated", X[:-TEST_ROWS], y[:-TEST_ROWS], X[-TEST_ROWS:], y[-TEST_ROWS:]


OPTIONS = {
    "--cost": {"type": float, "default": 10.0, "help": "C"},
    "--limit": {"type": float, "default": 30.0, "help": "longest fit, in seconds, as a guess"},
    "--generated": {"action": "store_true", "help": "the generated set"},
}


def run(options: Options, rows: Rows) -> None:
    name, X, y, X_test, y_test = generated() if options.generated or options.quick else forest()
    alive = dict.fromkeys(options.only, 0.0)
    for method in alive:  # load compiled kernels
        fit(method, X[:500], y[:500], options.cost)
    commonest = float(max(np.mean(y_test == label) for label in np.unique(y_test)))
    facts = {"case": name, "d": X.shape[1], "C": options.cost, "test_rows": len(y_test), "commonest": commonest}
    columns = "method | rows = n | seconds:.3f | test accuracy = test_accuracy:.4f"
    with report(rows, f"{name}, C = {options.cost:g}", columns, **facts) as add:
        for n in SIZES[:2] if options.quick else SIZES:
            n = min(n, len(y))
            for method in [method for method, last_s in alive.items() if last_s <= options.limit / 3]:
                model, seconds = fit(method, X[:n], y[:n], options.cost)
                alive[method] = seconds
                accuracy = float(np.mean(model.predict(X_test) == y_test))
                add(method=method, n=n, seconds=seconds, test_accuracy=accuracy)


def fit(method: str, X: Any, y: Any, C: float) -> tuple[Any, float]:
    """Return the fitted machine and the seconds it took; the faster of two where that is short."""
    best = np.inf
    for _ in range(2):
        model = CASES[method](C)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            best = min(best, timed(model.fit, X, y).seconds)
        if best > 1.0:
            break
    return model, float(best)
