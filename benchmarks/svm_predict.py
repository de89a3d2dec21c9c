"""Prediction of kernel SVMs: `dsgd.svm.SVC` beside scikit-learn's SVC, with the same support vectors in the same run.

Machines are trained with `dsgd.svm.SVC`; their support vectors, coefficients and intercepts go into scikit-learn's, so
both compute the same sums and decision values must agree. Prints one line per set: rows, support vectors, median
seconds of both, interleaved, the ratio, the largest difference of decision values, and the peak of memory allocated
meanwhile beside the size of a matrix of rows by support vectors, which is never held.

    DSGD_DATA=... python benchmarks/svm_predict.py --out rows.jsonl
"""

from __future__ import annotations

import argparse
import statistics
import time
import tracemalloc
from typing import Any

import numpy as np
import scipy.sparse as sp
from common import Rows
from sklearn import svm as plain

from dsgd.datasets import load
from dsgd.errors import DatasetError
from dsgd.svm import SVC


def a9a(*, sparse: bool, n_test: int) -> tuple[Any, Any, Any]:
    """Return rows to train on, labels, and rows to predict for."""
    data = load("a9a")
    X = sp.csr_matrix(data.X)
    X.indices, X.indptr = X.indices.astype(np.int32), X.indptr.astype(np.int32)
    X = X if sparse else X.toarray()
    return X, data.y, X[:n_test]


def digits(*, n_test: int) -> tuple[Any, Any, Any]:
    """Return 5000 digits of ten classes in [0, 1], dense, labels, and others to predict for."""
    data = load("mnist")
    X = data.X[: 5000 + n_test]
    X = np.asarray(X.toarray() if sp.issparse(X) else X, dtype=np.float64)
    X /= X.max()
    return X[:5000], data.y[:5000], X[5000:]


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


def compare(name: str, n_test: int, repeats: int, rows: Rows) -> None:
    """Time both on one set and print its line."""
    try:
        X, y, T = CASES[name](n_test)
    except DatasetError as error:
        print(f"{name:>20} skipped: {error}")
        return
    model = SVC(cache_size=400).fit(X, y)
    machines = {"dsgd": model, "scikit-learn": twin(model, X, y)}
    seconds: dict[str, list[float]] = {key: [] for key in machines}
    values = {key: machine.decision_function(T[:200]) for key, machine in machines.items()}
    for _ in range(repeats):
        for key, machine in machines.items():
            begin = time.perf_counter()
            values[key] = machine.decision_function(T)
            seconds[key].append(time.perf_counter() - begin)
    tracemalloc.start()
    model.decision_function(T)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    n, n_support = T.shape[0], len(model.support_)
    medians = {key: statistics.median(of) for key, of in seconds.items()}
    differ = float(np.abs(values["dsgd"] - values["scikit-learn"]).max())
    ratio = medians["scikit-learn"] / medians["dsgd"]
    print(
        f"{name:>20} {n} rows x {n_support} support vectors: dsgd {medians['dsgd']:.3f} s, "
        f"scikit-learn {medians['scikit-learn']:.3f} s ({ratio:.1f}x), differ by {differ:.0e}; "
        f"peak {peak / 2**20:.0f} MB, the matrix would take {8 * n * n_support / 2**20:.0f} MB"
    )
    for key, of in seconds.items():
        rows.add(case=name, solver=key, n=n, n_support=n_support, seconds=of, difference=differ, peak_bytes=peak)


def main() -> None:
    """Run all sets and print their lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="append one JSON row per solver and set to this file")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one repeat on 1000 rows")
    parser.add_argument("--case", action="append", choices=list(CASES), help="only this set; can be repeated")
    arguments = parser.parse_args()
    rows = Rows("svm_predict", arguments.out)
    for name in arguments.case or CASES:
        compare(name, 1000 if arguments.quick else 10_000, 1 if arguments.quick else arguments.repeats, rows)


if __name__ == "__main__":
    main()
