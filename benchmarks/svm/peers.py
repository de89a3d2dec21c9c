"""Kernel SVMs: `dsgd.svm.SVC` beside scikit-learn's SVC and scikit-learn-intelex's, on the same data in the same run.

Prints one line per set: median seconds of every solver at tol 1e-3 with the same cache, the ratios of these and of the
least processor times, which tell more on a machine that others use, our gap over all samples in float64, kernel values
computed with and without elimination, and how far the objectives lie apart. One set is for LinearSVC at its defaults,
beside scikit-learn's at its own. Real sets
are read from the folder DSGD_DATA names; one is generated. A peer that is not installed is left out. With ``--once
scikit-learn`` the slowest is fitted in the first of the repeats only: then the whole table takes eleven minutes.

    DSGD_DATA=... python -m benchmarks run svm/peers --out rows.jsonl
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn import svm as plain
from sklearn.datasets import load_digits, make_classification
from sklearn.metrics.pairwise import rbf_kernel

from benchmarks.common.rows import Rows
from benchmarks.svm.parity import pairs
from dsgd.datasets import load
from dsgd.errors import DatasetError
from dsgd.svm import SVC, LinearSVC

PAGE = "svm"
QUICK_S = 60
QUICK = "one repeat on the first 4000 rows"
REPEATS = (3, 1)

CACHE_MB = 400


def generated(n: int) -> tuple[Any, Any]:
    """Return a noisy problem of n rows and 20 features."""
    return make_classification(n, 20, n_informative=10, n_clusters_per_class=5, flip_y=0.01, random_state=0)


def mnist(n: int) -> tuple[Any, Any]:
    """Return the first n digits, scaled to [0, 1], dense."""
    data = load("mnist")
    X = data.X[:n]
    X = np.asarray(X.toarray() if sp.issparse(X) else X, dtype=np.float64)
    return X / X.max(), data.y[:n]


def real(name: str, *, sparse: bool) -> Callable[[], tuple[Any, Any]]:
    """Return what loads a set as CSR or dense."""

    def read() -> tuple[Any, Any]:
        data = load(name)
        if sparse:
            return sp.csr_matrix(data.X), data.y
        return (data.X.toarray() if sp.issparse(data.X) else data.X), data.y

    return read


def letter(n: int) -> tuple[Any, Any]:
    """Return the first n letters, dense: 325 pairs of some 300 rows each."""
    X, y = real("letter", sparse=False)()
    return X[:n], y[:n]


#: name -> (reader, C)
CASES: dict[str, tuple[Callable[[], tuple[Any, Any]], float]] = {
    "a9a csr": (real("a9a", sparse=True), 1.0),
    "a9a dense": (real("a9a", sparse=False), 1.0),
    "ijcnn1 dense": (real("ijcnn1", sparse=False), 1.0),
    "w8a csr": (real("w8a", sparse=True), 1.0),
    "w8a dense": (real("w8a", sparse=False), 1.0),
    "mnist-10k": (lambda: mnist(10_000), 10.0),
    "mnist-6k": (lambda: mnist(6000), 1.0),
    "letter": (real("letter", sparse=False), 1.0),
    "letter-4k": (lambda: letter(4000), 1.0),
    "usps": (real("usps", sparse=False), 1.0),
    "digits": (lambda: load_digits(return_X_y=True), 1.0),
    "generated 60k x 20": (lambda: generated(60_000), 1.0),
    "mnist-6k, LinearSVC": (lambda: mnist(6000), 1.0),
}


def peers(name: str) -> dict[str, Callable[[float], Any]]:
    """Return what makes each solver for a cost C."""
    if is_linear(name):
        return {"dsgd": lambda C: LinearSVC(C=C), "scikit-learn": lambda C: plain.LinearSVC(C=C)}
    makers: dict[str, Callable[[float], Any]] = {
        "dsgd": lambda C: SVC(C=C, cache_size=CACHE_MB),
        "dsgd, no elimination": lambda C: SVC(C=C, cache_size=CACHE_MB, elimination="none"),
        "scikit-learn": lambda C: plain.SVC(C=C, cache_size=CACHE_MB),
    }
    try:
        from sklearnex.svm import SVC as Intelex  # noqa: N811
    except ImportError:
        print("scikit-learn-intelex is not installed: left out")
    else:
        makers["intelex"] = lambda C: Intelex(C=C, cache_size=CACHE_MB)
    return makers


def is_linear(name: str) -> bool:
    """Return whether a set is for LinearSVC."""
    return name.endswith("LinearSVC")


def primal(model: Any, X: Any, y: Any, C: float) -> float:
    """Return the primal objective of a fitted LinearSVC, the sum over classes."""
    signs = np.where(y[:, None] == model.classes_, 1.0, -1.0)
    slack = np.maximum(1.0 - signs * model.decision_function(X), 0.0)
    return 0.5 * float((model.coef_**2).sum() + (model.intercept_**2).sum()) + C * float((slack * slack).sum())


def objective(model: Any, X: Any, y: Any) -> float:
    """Return the dual objective of a fitted machine, in float64, a block at a time; the sum over pairs of classes."""
    total, gamma = 0.0, 1 / (X.shape[1] * (X.multiply(X).mean() - X.mean() ** 2 if sp.issparse(X) else X.var()))
    for numbers, signs, alpha in pairs(model, y):
        used = np.flatnonzero(alpha)
        rows, beta = X[numbers[used]], (signs * alpha)[used]
        half = sum(
            float(beta[k : k + 1000] @ (rbf_kernel(rows[k : k + 1000], rows, gamma=gamma) @ beta))
            for k in range(0, len(beta), 1000)
        )
        total += 0.5 * half - float(alpha.sum())
    return total


def compare(name: str, repeats: int, limit: int | None, rows: Rows, only: list[str], once: list[str]) -> None:
    """Fit all solvers on one set, interleaved, and print its line."""
    read, C = CASES[name]
    try:
        X, y = read()
    except DatasetError as error:
        print(f"{name:>20} skipped: {error}")
        return
    X, y = X[:limit], y[:limit]
    makers = {key: make for key, make in peers(name).items() if not only or key in only}
    seconds: dict[str, list[float]] = {key: [] for key in makers}
    processor: dict[str, list[float]] = {key: [] for key in makers}
    models: dict[str, Any] = {}
    some = np.argsort(y, kind="stable")[:: max(1, len(y) // 500)]
    for policy in ("auto", "aggressive"):  # load compiled kernels
        SVC(cache_size=0.1, elimination=policy).fit(X[some], y[some])
    if is_linear(name):
        LinearSVC().fit(X[some], y[some])
    for turn in range(repeats):
        for key, make in makers.items():
            if turn and key in once:
                continue
            begin, used = time.perf_counter(), time.process_time()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                models[key] = make(C).fit(X, y)
            seconds[key].append(time.perf_counter() - begin)
            processor[key].append(time.process_time() - used)
    medians = {key: statistics.median(values) for key, values in seconds.items()}
    least = {key: min(times) for key, times in processor.items()}
    values = {
        key: primal(model, X, y, C) if is_linear(name) else objective(model, X, y) for key, model in models.items()
    }
    for key, model in models.items():
        rows.add(
            case=name,
            method=key,
            n=X.shape[0],
            d=X.shape[1],
            C=C,
            tol=model.tol,
            cache_mb=CACHE_MB,
            seconds=medians[key],
            all_seconds=seconds[key],
            processor_s=processor[key],
            n_support=len(getattr(model, "support_", ())),
            objective=values[key],
            gap=getattr(model, "gap_", None),
            kernel_evaluations=getattr(model, "n_kernel_evaluations_", None),
        )
    ours = models["dsgd"]
    cells = " ".join(
        f"{key} {medians[key]:.2f} s ({medians[key] / medians['dsgd']:.2f}x, processor {least[key]:.2f} s, "
        f"{least[key] / least['dsgd']:.2f}x)"
        for key in medians
    )
    spread = max(abs(v - values["dsgd"]) / abs(values["dsgd"]) for v in values.values())
    counts = "/".join(
        f"{models[key].n_kernel_evaluations_ / 1e9:.2f}"
        for key in ("dsgd", "dsgd, no elimination")
        if hasattr(models.get(key), "n_kernel_evaluations_")
    )
    print(
        f"{name:>20} n={X.shape[0]}: {cells}; gap {ours.gap_:.1e}, 1e9 kernel values {counts or 'none'}, "
        f"objectives {spread:.0e}"
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--solver", action="append", help="only this solver, besides dsgd; can be repeated")
    parser.add_argument("--once", action="append", default=[], help="fit this solver once only; can be repeated")


def run(arguments: argparse.Namespace, rows: Rows) -> None:
    only = ["dsgd", *arguments.solver] if arguments.solver else []
    for name in arguments.only:
        compare(name, arguments.repeats, 4000 if arguments.quick else None, rows, only, arguments.once)
