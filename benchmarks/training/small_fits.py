"""Small fits and predictions of one row: every estimator beside scikit-learn's of the same name, on one thread.

A set has the classes that its name says, or as many levels of a target for regression. Fits follow a first one, which
compiles and loads; the ratio is the median over turns of ours by theirs in the same turn. `one row` is `predict`, and
`decision_function` where the estimator has it, of one row.

    python -m benchmarks run small_fits [--quick] [--only "SVC rbf" LinearSVC]
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn import linear_model as plain_linear
from sklearn import svm as plain_svm
from sklearn.base import is_classifier

import dsgd
from benchmarks.common.measuring import Options, Rows, in_turns, median_s, ratio, report
from dsgd import linear_model, svm

PAGE = "performance"
QUICK_S = 40
QUICK = "half of the sets, fewer turns"
REPEATS = (31, 11)
ONE_THREAD = True

#: Rows, columns, classes.
SETS = [(60, 10, 10), (100, 10, 2), (500, 50, 3), (500, 10, 2), (2_000, 2, 2), (2_000, 20, 3), (5_000, 20, 2)]
QUICK_SETS = SETS[:4]


def of(ours: Any, theirs: Any, name: str, own: dict[str, Any] | None = None, **options: Any) -> tuple[Any, Any]:
    """Return ours and theirs of a name with the same parameters."""
    return getattr(ours, name)(**options, **(own or {})), getattr(theirs, name)(**options)


def machine(name: str, **options: Any) -> Callable[[], tuple[Any, Any]]:
    """Return what makes both machines of a name."""
    return lambda: of(svm, plain_svm, name, **options)


def linear(name: str, ours: Any = linear_model, **options: Any) -> Callable[[], tuple[Any, Any]]:
    """Return what makes both linear models of a name."""
    return lambda: of(ours, plain_linear, name, **options)


CASES: dict[str, Callable[[], tuple[Any, Any]]] = {
    "SVC rbf": machine("SVC"),
    "SVC linear": machine("SVC", kernel="linear"),
    "NuSVC": machine("NuSVC", nu=0.3),
    "SVR": machine("SVR"),
    "NuSVR": machine("NuSVR"),
    "OneClassSVM": machine("OneClassSVM"),
    "LinearSVC": machine("LinearSVC"),
    "LinearSVC hinge": machine("LinearSVC", loss="hinge"),
    "LinearSVR": machine("LinearSVR"),
    "LinearSVR squared": machine("LinearSVR", loss="squared_epsilon_insensitive"),
    "LogisticRegression": linear("LogisticRegression"),
    "Ridge": linear("Ridge"),
    "Lasso": linear("Lasso", alpha=0.01),
    "ElasticNet": linear("ElasticNet", alpha=0.01),
    "SGDClassifier": linear("SGDClassifier", dsgd, random_state=0),
    "SGDRegressor": linear("SGDRegressor", dsgd, random_state=0),
}


def small_set(n: int, d: int, k: int) -> tuple[Any, Any, Any]:
    """Return rows around k centres, their labels, and a noisy target."""
    rng = np.random.default_rng(n + d + k)
    labels = rng.permutation(np.arange(n) % k)
    X = rng.standard_normal((n, d)) + 1.5 * rng.standard_normal((k, d))[labels] / np.sqrt(d / 2)
    return X, labels, np.sin(X[:, 0]) + X[:, 1] + 0.1 * rng.standard_normal(n)


def actions(model: Any, X: Any, y: Any) -> dict[str, Callable[[], Any]]:
    """Return what is timed of a fitted model, by name."""
    found = {"fit": lambda: model.fit(X, y), "predict": lambda: model.predict(X[:1])}
    if hasattr(model, "decision_function"):
        found["decision_function"] = lambda: model.decision_function(X[:1])
    if hasattr(model, "partial_fit"):
        classes = [np.unique(y)] if is_classifier(model) else []
        model.partial_fit(X[:50], y[:50], *classes)
        found["partial_fit of 50"] = lambda: model.partial_fit(X[:50], y[:50])
    return found


def run(options: Options, rows: Rows) -> None:
    warnings.simplefilter("ignore")  # of limits that both reach
    found: list[float] = []
    columns = (
        "estimator = case | rows = n | columns = d | classes | what | ms = seconds*1e3:.3f | "
        "scikit-learn's ms = peer_seconds*1e3:.3f | ratio:.2f"
    )
    with report(rows, "small fits, and predictions of one row", columns) as add:
        for name in options.only:
            for n, d, k in QUICK_SETS if options.quick else SETS:
                X, labels, target = small_set(n, d, k)
                both = CASES[name]()
                y = labels if is_classifier(both[1]) else target
                for model in both:
                    model.fit(X, y)
                ours, theirs = (actions(model, X, y) for model in both)
                for what in ours:
                    calls = {"ours": ours[what], "theirs": theirs[what]}
                    turns = in_turns(calls, options.repeats, warm_up=2, alternate=True)
                    times = ratio(*([timing.seconds for timing in turns[who]] for who in calls))
                    s, plain_s = median_s(turns["ours"]), median_s(turns["theirs"])
                    found.append(times)
                    add(case=name, what=what, n=n, d=d, classes=k, seconds=s, peer_seconds=plain_s, ratio=times)
    print(f"ratios: median {statistics.median(found):.2f}, largest {max(found):.2f}")
