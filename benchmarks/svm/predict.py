"""Prediction of kernel SVMs: `dsgd.svm.SVC` beside scikit-learn's SVC, with the same support vectors in the same run.

Machines are trained with `dsgd.svm.SVC`; their support vectors, coefficients and intercepts go into scikit-learn's, so
both compute the same sums and decision values must agree. Prints one line per set: rows, support vectors, median
seconds of both, interleaved, the ratio, the largest difference of decision values, and the peak of memory allocated
meanwhile beside the size of a matrix of rows by support vectors, which is never held.

    DSGD_DATA=... python -m benchmarks run svm/predict --out rows.jsonl
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from sklearn import svm as plain

from benchmarks.common.measuring import Options, Rows, in_turns, median_s, table
from benchmarks.common.suite import where_found
from benchmarks.svm.peers import mnist, real
from benchmarks.training.accuracy import as_plain
from dsgd.svm import SVC

PAGE = "svm"
QUICK_S = 110
QUICK = "one repeat on 1000 rows"
REPEATS = (3, 1)


def a9a(*, sparse: bool, n_test: int) -> tuple[Any, Any, Any]:
    """Return rows to train on, labels, and rows to predict for."""
    X, y = real("a9a", sparse=sparse)()
    X = as_plain(X)
    return X, y, X[:n_test]


def digits(*, n_test: int) -> tuple[Any, Any, Any]:
    """Return 5000 digits of ten classes in [0, 1], dense, labels, and others to predict for."""
    X, y = mnist(5000 + n_test)
    return X[:5000], y[:5000], X[5000:]


CASES = {
    "a9a csr": lambda n: a9a(sparse=True, n_test=n),
    "a9a dense": lambda n: a9a(sparse=False, n_test=n),
    "mnist-5k, 10 classes": lambda n: digits(n_test=n),
}


def twin(model: SVC, X: Any, y: Any) -> Any:
    """Return scikit-learn's machine with the support vectors of `model`: fitted on a few rows, then filled in."""
    few = np.concatenate([np.flatnonzero(y == label)[:2] for label in model.classes_])
    other = plain.SVC(gamma=model._gamma).fit(X[few], y[few])
    sign = -1.0 if len(model.classes_) == 2 else 1.0
    other.support_, other._n_support = model.support_, model.n_support_
    other.support_vectors_ = model.support_vectors_
    other.dual_coef_, other.intercept_ = model.dual_coef_, model.intercept_
    other._dual_coef_, other._intercept_ = sign * model.dual_coef_, sign * model.intercept_
    other._probA, other._probB = np.empty(0), np.empty(0)
    return other


def compare(name: str, n_test: int, repeats: int, rows: Rows, line: Callable[..., None]) -> None:
    """Time both on one set and print its line."""
    X, y, T = CASES[name](n_test)
    model = SVC(cache_size=400).fit(X, y)
    machines = {"dsgd": model, "scikit-learn": twin(model, X, y)}
    for machine in machines.values():
        machine.decision_function(T[:200])
    found = in_turns({key: partial(machine.decision_function, T) for key, machine in machines.items()}, repeats)
    tracemalloc.start()
    model.decision_function(T)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    n, n_support = T.shape[0], len(model.support_)
    ours, theirs = (median_s(found[key]) for key in machines)
    differ = float(np.abs(found["dsgd"][0].value - found["scikit-learn"][0].value).max())
    line(name, n, n_support, ours, theirs, theirs / ours, differ, peak / 2**20, 8 * n * n_support / 2**20)
    for key, turns in found.items():
        seconds = [turn.seconds for turn in turns]
        rows.add(case=name, solver=key, n=n, n_support=n_support, seconds=seconds, difference=differ, peak_bytes=peak)


def run(options: Options, rows: Rows) -> None:
    times = ("dsgd, s:.3f", "scikit-learn, s:.3f", "times faster:.1f", "differ by:.0e")
    memory = ("peak MB:.0f", "MB of the matrix:.0f")
    with table("decision values", "set", "rows", "support vectors", *times, *memory) as line:
        for name in options.only:
            with where_found(name):
                compare(name, 1000 if options.quick else 10_000, options.repeats, rows, line)
