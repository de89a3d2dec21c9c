"""Kernel SVMs: `dsgd.svm.SVC` beside scikit-learn's SVC and scikit-learn-intelex's, on the same data in the same run.

Prints one line per set and solver: median seconds at tol 1e-3 with the same cache and what they are of ours, the same
of the least processor times, which tell more on a machine that others use, the gap over all samples in float64, kernel
values computed, and how far the objective lies from ours. One set is for LinearSVC at its defaults, beside
scikit-learn's at its own. Real sets are read from the folder DSGD_DATA names; one is generated. A peer that is not
installed is left out. With ``--once scikit-learn`` the slowest is fitted in the first of the repeats only: then the
whole table takes eleven minutes.

    DSGD_DATA=... python -m benchmarks run svm/peers --out rows.jsonl
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn import svm as plain
from sklearn.datasets import load_digits, make_classification
from sklearn.metrics.pairwise import rbf_kernel

from benchmarks.common.measuring import Options, Rows, Timing, median_s, report, timed
from benchmarks.common.suite import where_found
from dsgd.datasets import load
from dsgd.svm import SVC, LinearSVC

PAGE = "svm"
QUICK_S = 60
QUICK = "one repeat on the first 4000 rows"
REPEATS = (3, 1)

CACHE_MB = 400


def generated(n: int) -> tuple[Any, Any]:
    """Return a noisy problem of n rows and 20 features."""
    return make_classification(n, 20, n_informative=10, n_clusters_per_class=5, flip_y=0.01, random_state=0)


def real(name: str, *, sparse: bool) -> Callable[[], tuple[Any, Any]]:
    """Return what loads a set as CSR or dense."""

    def read() -> tuple[Any, Any]:
        data = load(name)
        if sparse:
            return sp.csr_matrix(data.X), data.y
        return (data.X.toarray() if sp.issparse(data.X) else data.X), data.y

    return read


def first(name: str, n: int) -> tuple[Any, Any]:
    """Return the first n rows of a set, dense; of letter, 325 pairs of classes have some 300 rows each."""
    X, y = real(name, sparse=False)()
    return X[:n], y[:n]


def mnist(n: int) -> tuple[Any, Any]:
    """Return the first n digits, scaled to [0, 1], dense."""
    X, y = first("mnist", n)
    return X / X.max(), y


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
    "letter-4k": (lambda: first("letter", 4000), 1.0),
    "usps": (real("usps", sparse=False), 1.0),
    "digits": (lambda: load_digits(return_X_y=True), 1.0),
    "generated 60k x 20": (lambda: generated(60_000), 1.0),
    "mnist-6k, LinearSVC": (lambda: mnist(6000), 1.0),
}


def pairs(model: Any, y: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Yield rows, signs and variables of each pair of classes."""
    coef = model.dual_coef_.toarray() if sp.issparse(model.dual_coef_) else model.dual_coef_
    labels = y[model.support_]
    for a, b in combinations(range(len(model.classes_)), 2):
        rows = np.flatnonzero((y == model.classes_[a]) | (y == model.classes_[b]))
        alpha = np.zeros(len(y))
        for mine, other in ((a, b - 1), (b, a)):
            of = labels == model.classes_[mine]
            alpha[model.support_[of]] = np.abs(coef[other, of])
        yield rows, np.where(y[rows] == model.classes_[a], 1.0, -1.0), alpha[rows]


def peers(name: str, presets: list[str]) -> dict[str, Callable[[float], Any]]:
    """Return what makes each solver for a cost C."""
    if is_linear(name):
        return {"dsgd": lambda C: LinearSVC(C=C), "scikit-learn": lambda C: plain.LinearSVC(C=C)}
    makers: dict[str, Callable[[float], Any]] = {
        "dsgd": lambda C: SVC(C=C, cache_size=CACHE_MB),
        "dsgd, no elimination": lambda C: SVC(C=C, cache_size=CACHE_MB, elimination="none"),
        **{f"dsgd, {p}": lambda C, p=p: SVC(C=C, cache_size=CACHE_MB, elimination=p) for p in presets},
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


def fit_all(
    makers: dict[str, Callable[[float], Any]], X: Any, y: Any, C: float, repeats: int, once: list[str]
) -> dict[str, list[Timing]]:
    """Fit all solvers on one set, interleaved."""
    taken: dict[str, list[Timing]] = {key: [] for key in makers}
    for turn in range(repeats):
        for key, make in makers.items():
            if turn and key in once:
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                taken[key].append(timed(make(C).fit, X, y))
    return taken


def compare(name: str, options: Options, add: Callable[..., None]) -> None:
    """Fit all solvers on one set, and print their lines."""
    only, limit = ["dsgd", *options.solver] if options.solver else [], 4000 if options.quick else None
    read, C = CASES[name]
    X, y = read()
    X, y = X[:limit], y[:limit]
    some = np.argsort(y, kind="stable")[:: max(1, len(y) // 500)]
    for policy in ("auto", "aggressive"):  # load compiled kernels
        SVC(cache_size=0.1, elimination=policy).fit(X[some], y[some])
    if is_linear(name):
        LinearSVC().fit(X[some], y[some])
    makers = {key: make for key, make in peers(name, options.preset).items() if not only or key in only}
    taken = fit_all(makers, X, y, C, options.repeats, options.once)
    models = {key: turns[-1].value for key, turns in taken.items()}
    medians = {key: median_s(turns) for key, turns in taken.items()}
    least = {key: min(turn.cpu_s for turn in turns) for key, turns in taken.items()}
    values = {
        key: primal(model, X, y, C) if is_linear(name) else objective(model, X, y) for key, model in models.items()
    }
    for key, model in models.items():
        of_ours = {"of_ours": medians[key] / medians["dsgd"], "of_our_processor_s": least[key] / least["dsgd"]}
        add(
            case=name,
            method=key,
            n=X.shape[0],
            d=X.shape[1],
            C=C,
            tol=model.tol,
            cache_mb=CACHE_MB,
            seconds=medians[key],
            all_seconds=[turn.seconds for turn in taken[key]],
            least_processor_s=least[key],
            processor_s=[turn.cpu_s for turn in taken[key]],
            n_support=len(getattr(model, "support_", ())),
            objective=values[key],
            apart=abs(values[key] / values["dsgd"] - 1.0),
            gap=getattr(model, "gap_", None),
            kernel_evaluations=getattr(model, "n_kernel_evaluations_", None),
            **of_ours,
        )


OPTIONS = {
    "--solver": {"action": "append", "help": "only this solver, besides dsgd; can be repeated"},
    "--once": {"action": "append", "default": [], "help": "fit this solver once only; can be repeated"},
    "--preset": {"nargs": "+", "default": [], "help": "dsgd with these values of elimination, too"},
}


def run(options: Options, rows: Rows) -> None:
    columns = (
        "set = case | solver = method | rows = n | seconds:.2f | of ours = of_ours:.2f | "
        "processor s = least_processor_s:.2f | of our processor s = of_our_processor_s:.2f | gap:.1e | "
        "1e9 kernel values = kernel_evaluations*1e-9:.2f | objective = apart:.0e"
    )
    with report(rows, "whole fits to tol 1e-3", columns) as add:
        for name in options.only:
            with where_found(name):
                compare(name, options, add)
