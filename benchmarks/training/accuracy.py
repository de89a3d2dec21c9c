"""Test accuracy beside scikit-learn's SGD with the same hyper-parameters, in process and on worker processes.

Prints one line per dataset: the mean over seeds of scikit-learn's score, of ours in this process and of ours on two
workers (R2 for the regression set), and writes one row per run. Sets that are not on this machine are
skipped and named: `dsgd datasets fetch NAME` gets them.

    python -m benchmarks run accuracy --out rows.jsonl

With ``--defaults`` both libraries train with all their defaults (and ``--alpha``, where given), ours on one thread and
on two, on more sets, small ones that come with scikit-learn among them; the line then has the mean and the standard
deviation over seeds of each, and the difference of the means with its standard error.

    python -m benchmarks run accuracy --defaults --repeats 16 --out rows.jsonl
"""

from __future__ import annotations

import argparse
import time
import warnings
from typing import Any

import numpy as np
from distributed import Client
from sklearn.datasets import load_breast_cancer, load_digits, load_wine, make_classification
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import SGDClassifier as PlainClassifier
from sklearn.linear_model import SGDRegressor as PlainRegressor
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import MaxAbsScaler, StandardScaler

from benchmarks.common.rows import Rows
from benchmarks.common.workers import workers
from dsgd import SGDClassifier, SGDRegressor
from dsgd.datasets import load
from dsgd.errors import DatasetError

PAGE = "performance"
QUICK_S = 40
QUICK = "one seed"
REPEATS = (3, 1)

#: Name, and what differs from the defaults; the same for both libraries.
CASES: dict[str, dict[str, Any]] = {
    "ijcnn1": {"alpha": 1e-4, "average": True},
    "a9a": {"alpha": 1e-4, "average": True},
    "w8a": {"alpha": 1e-4, "average": True},
    "usps": {"alpha": 1e-4, "average": True},
    "news20": {"alpha": 1e-5, "average": True},
    "covtype-subset": {"alpha": 1e-5, "average": True},
    "cadata": {"alpha": 1e-4, "average": True},
}
EPOCHS = 20

#: The sets of ``--defaults``, and the most training rows taken of each: scikit-learn needs minutes a fit on more.
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
REGRESSION = {"cadata"}
SMALL = {"wine": load_wine, "breast_cancer": load_breast_cancer, "digits": load_digits}


def split(name: str) -> tuple[Any, Any, Any, Any]:
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


def split_small(name: str) -> tuple[Any, Any, Any, Any]:
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


def compare(name: str, seeds: range, client: Client, rows: Rows) -> str:
    """Run one dataset; return its line of the table."""
    X, y, X_test, y_test = split(name)
    options = {"max_iter": EPOCHS, "tol": None, **CASES[name]}
    regression = name == "cadata"
    plain, ours = (PlainRegressor, SGDRegressor) if regression else (PlainClassifier, SGDClassifier)
    X_plain, X_test_plain = as_plain(X), as_plain(X_test)
    methods = {
        "scikit-learn": lambda seed: plain(**options, random_state=seed).fit(X_plain, y).score(X_test_plain, y_test),
        "in process": lambda seed: ours(**options, random_state=seed).fit(X, y).score(X_test, y_test),
        "2 workers": lambda seed: (
            ours(**options, random_state=seed, sync=256, client=client).fit(X, y).score(X_test, y_test)
        ),
    }
    scores: dict[str, list[float]] = {}
    for method, run in methods.items():
        for seed in seeds:
            begin = time.perf_counter()
            score = run(seed)
            scores.setdefault(method, []).append(score)
            rows.add(case=name, method=method, seed=seed, score=score, seconds=time.perf_counter() - begin)
    majority = float("nan") if regression else np.unique(y_test, return_counts=True)[1].max() / len(y_test)
    means = [100 * np.mean(scores[method]) for method in methods]
    gaps = [mean - means[0] for mean in means[1:]]
    verdict = "yes" if min(gaps) >= -0.5 else "NO"
    cells = " ".join(f"{mean:12.2f}" for mean in means)
    return f"{name:>16} {100 * majority:9.2f} {cells} {min(gaps):+10.2f} {verdict:>8}"


def compare_defaults(name: str, seeds: range, options: dict[str, Any], rows: Rows) -> str:
    """Run one dataset with the defaults of both libraries; return its line of the table."""
    X, y, X_test, y_test = split(name)
    most = DEFAULT_SETS[name]
    X, y = X[:most], y[:most]
    plain, ours = (PlainRegressor, SGDRegressor) if name in REGRESSION else (PlainClassifier, SGDClassifier)
    X_plain, X_test_plain = as_plain(X), as_plain(X_test)
    methods = {
        "scikit-learn": lambda seed: plain(**options, random_state=seed).fit(X_plain, y),
        "one thread": lambda seed: ours(**options, random_state=seed).fit(X, y),
        "two threads": lambda seed: ours(**options, random_state=seed, n_jobs=2).fit(X, y),
    }
    scores: dict[str, Any] = {method: np.zeros(len(seeds)) for method in methods}
    # In turn, so that all see the same machine.
    for number, seed in enumerate(seeds):
        for method, run in methods.items():
            begin, cpu = time.perf_counter(), time.process_time()
            model = run(seed)
            spent = {"seconds": time.perf_counter() - begin, "cpu_s": time.process_time() - cpu}
            score = model.score(X_test_plain if method == "scikit-learn" else X_test, y_test)
            scores[method][number] = 100 * score
            rows.add(case=name, method=method, seed=seed, score=score, epochs=int(model.n_iter_), **options, **spent)
    means = {method: values.mean() for method, values in scores.items()}
    spreads = {method: values.std(ddof=1) if len(seeds) > 1 else np.nan for method, values in scores.items()}
    cells = " ".join(f"{means[method]:9.2f} ({spreads[method]:4.2f})" for method in methods)
    error = np.hypot(spreads["scikit-learn"], spreads["one thread"]) / np.sqrt(len(seeds))
    gaps = [means[method] - means["scikit-learn"] for method in ("one thread", "two threads")]
    return f"{name:>16} {cells} {gaps[0]:+8.2f} +- {error:4.2f} {gaps[1]:+8.2f}"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what to compare."""
    parser.add_argument("--dataset", action="append", choices=[*{**CASES, **DEFAULT_SETS}], help="only these")
    parser.add_argument("--defaults", action="store_true", help="compare the defaults of both libraries")
    parser.add_argument("--alpha", type=float, help="with --defaults: another strength of the penalty")


def run(arguments: argparse.Namespace, rows: Rows) -> None:
    """Run all cases and print the table; a seed for every repeat."""
    seeds = range(arguments.repeats)
    warnings.simplefilter("ignore", ConvergenceWarning)
    if arguments.defaults:
        options = {} if arguments.alpha is None else {"alpha": arguments.alpha}
        print(f"test accuracy (R2 for cadata), %, mean (sd) over {len(seeds)} seed(s), defaults {options or ''}")
        titles = ("scikit-learn", "one thread", "two threads")
        print(f"{'':>16} {titles[0]:>16} {titles[1]:>16} {titles[2]:>16} {'one gains':>16} {'two gain':>8}")
        for name in arguments.dataset or DEFAULT_SETS:
            try:
                print(compare_defaults(name, seeds, options, rows), flush=True)
            except DatasetError as error:
                print(f"{name:>16} skipped: {error}")
        return
    print(f"test accuracy (R2 for cadata), %, mean over {len(seeds)} seed(s), {EPOCHS} epochs, averaged SGD")
    titles = ("majority", "scikit-learn", "in process", "2 workers")
    print(f"{'':>16} {titles[0]:>9} {titles[1]:>12} {titles[2]:>12} {titles[3]:>12} {'worst gap':>10} {'<= 0.5?':>8}")
    with workers(2) as client:
        for name in [name for name in arguments.dataset or CASES if name in CASES]:
            try:
                print(compare(name, seeds, client, rows), flush=True)
            except DatasetError as error:
                print(f"{name:>16} skipped: {error}")
