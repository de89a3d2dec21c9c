"""Test accuracy beside scikit-learn's SGD, all defaults of both libraries, ours on one thread and on two.

Prints one line per dataset: the mean and the standard deviation over seeds of each (R2 for the regression set), and the
difference of the means with its standard error, and writes one row per run. Sets that are not on this machine are
skipped and named: `dsgd datasets fetch NAME` gets them.

    python -m benchmarks run accuracy --repeats 16 --out rows.jsonl
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits, load_wine, make_classification
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import SGDClassifier as PlainClassifier
from sklearn.linear_model import SGDRegressor as PlainRegressor
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import MaxAbsScaler, StandardScaler

from benchmarks.common.measuring import Options, Rows, table, timed
from benchmarks.common.suite import where_found
from dsgd import SGDClassifier, SGDRegressor
from dsgd.datasets import load

PAGE = "estimators"
QUICK_S = 40
QUICK = "one seed"
REPEATS = (3, 1)

#: The sets, and the most training rows taken of each: scikit-learn needs minutes a fit on more.
DEFAULT_SETS: dict[str, int | None] = {
    "wine": None,
    "breast_cancer": None,
    "digits": None,
    "made, 2 classes": None,
    "made, 5 classes": None,
    "cadata": None,
    "reuters-money-fx": None,
    "usps": None,
    "letter": None,
    "a9a": None,
    "w8a": None,
    "ijcnn1": None,
    "covtype-subset": 20_000,
    "mnist": 6_000,
    "news20": 4_000,
}
CASES = tuple(DEFAULT_SETS)
REGRESSION = {"cadata"}
# Rows and targets to train on and to test on.
Data = tuple[Any, Any, Any, Any]
SMALL = {"wine": load_wine, "breast_cancer": load_breast_cancer, "digits": load_digits}


def split(name: str) -> Data:
    """Return training and test data; what is not scaled is standardised, or brought to [0, 1], as SGD needs."""
    if name in SMALL or name.startswith("made"):
        return split_small(name)
    # Only the training part of these two is small enough to travel: a fifth of it is held out, by a fixed draw.
    holdout = 0.2 if name in {"w8a", "news20"} else None
    train, test = (load(name, split=part, holdout=holdout, download=False) for part in ("train", "test"))
    X, y, X_test, y_test = train.X, train.y, test.X, test.y
    if name == "mnist":
        return X / 255, y, X_test / 255, y_test
    if name == "cadata":
        scaler = StandardScaler().fit(X)
        spread = y.std()
        return scaler.transform(X), y / spread, scaler.transform(X_test), y_test / spread
    return X, y, X_test, y_test


def split_small(name: str) -> Data:
    """Return training and test data of a set that needs no file."""
    if name.startswith("made"):
        n_classes = int(name.split()[1])
        X, y = make_classification(6_000, 30, n_informative=10, n_classes=n_classes, flip_y=0.05, random_state=0)
    else:
        X, y = SMALL[name](return_X_y=True)
    X, X_test, y, y_test = train_test_split(X, y, test_size=0.4, random_state=0, stratify=y)
    scaler = StandardScaler() if name != "digits" else MaxAbsScaler()
    return scaler.fit_transform(X), y, scaler.transform(X_test), y_test


def as_plain(X: Any) -> Any:
    """Return CSR with the 32-bit indices that scikit-learn's SGD needs."""
    if hasattr(X, "indices"):
        X = X.copy()
        X.indices, X.indptr = X.indices.astype(np.int32), X.indptr.astype(np.int32)
    return X


def scores_of(
    name: str, data: Data, where: dict[str, dict[str, Any]], options: dict[str, Any], seeds: range, rows: Rows
) -> dict[str, Any]:
    """Fit scikit-learn's estimator, and ours in each of some places; return the scores by seed, in per cent."""
    X, y, X_test, y_test = data
    plain, ours = (PlainRegressor, SGDRegressor) if name in REGRESSION else (PlainClassifier, SGDClassifier)
    methods = {"scikit-learn": (plain, {}, as_plain(X), as_plain(X_test))}
    methods |= {method: (ours, place, X, X_test) for method, place in where.items()}
    scores: dict[str, Any] = {method: np.zeros(len(seeds)) for method in methods}
    # In turn, so that all see the same machine.
    for number, seed in enumerate(seeds):
        for method, (kind, place, X_train, X_scored) in methods.items():
            fit = timed(kind(**options, **place, random_state=seed).fit, X_train, y)
            score, spent = fit.value.score(X_scored, y_test), {"seconds": fit.seconds, "cpu_s": fit.cpu_s}
            scores[method][number] = 100 * score
            epochs = int(fit.value.n_iter_)
            rows.add(case=name, method=method, seed=seed, score=score, epochs=epochs, **options, **spent)
    return scores


def compare(name: str, seeds: range, options: dict[str, Any], rows: Rows, line: Callable[..., None]) -> None:
    """Run one dataset with the defaults of both libraries and print its line."""
    X, y, *test = split(name)
    most = DEFAULT_SETS[name]
    where = {"one thread": {}, "two threads": {"n_jobs": 2}}
    scores = scores_of(name, (X[:most], y[:most], *test), where, options, seeds, rows)
    means = {method: values.mean() for method, values in scores.items()}
    spreads = {method: values.std(ddof=1) if len(seeds) > 1 else np.nan for method, values in scores.items()}
    cells = (f"{means[method]:.2f} ({spreads[method]:.2f})" for method in scores)
    error = np.hypot(spreads["scikit-learn"], spreads["one thread"]) / np.sqrt(len(seeds))
    gaps = [means[method] - means["scikit-learn"] for method in ("one thread", "two threads")]
    line(name, *cells, f"{gaps[0]:+.2f} +- {error:.2f}", gaps[1])


OPTIONS = {
    "--alpha": {"type": float, "help": "another strength of the penalty"},
}


def run(arguments: Options, rows: Rows) -> None:
    """Run all cases and print the table; a seed for every repeat."""
    seeds = range(arguments.repeats)
    warnings.simplefilter("ignore", ConvergenceWarning)
    options = {} if arguments.alpha is None else {"alpha": arguments.alpha}
    title = f"test accuracy (R2 for cadata), %, mean (sd) over {len(seeds)} seed(s), defaults {options or ''}"
    heads = ("scikit-learn", "one thread", "two threads", "one gains", "two gain:+.2f")
    with table(title, "set", *heads) as line:
        for name in arguments.only:
            with where_found(name):
                compare(name, seeds, options, rows, line)
