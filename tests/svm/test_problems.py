"""On many problems, real and hard, every way of eliminating samples ends at LIBSVM's optimum, with a gap that is true.

The soak draws small problems; these are large enough for a starved cache, where rows are computed again and samples are
left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import load_digits, make_classification
from sklearn.metrics.pairwise import rbf_kernel

from dsgd.datasets import load
from svm_soak.judge import judge
from svm_soak.problems import PRESETS, Problem


def _real(name: str, n: int, *, dense: bool = False, scale: float = 1.0) -> Callable[[], Any]:
    def make() -> Any:
        data = load(name)
        rows = np.random.default_rng(0).permutation(len(data.y))[:n]
        X = data.X[rows]
        X = (X.toarray() if dense and sp.issparse(X) else X) * scale
        return (sp.csr_matrix(X) if sp.issparse(X) else np.asarray(X, dtype=np.float64)), data.y[rows], None

    return make


def _checkerboard() -> Any:
    X = np.random.default_rng(1).random((1500, 2))
    return X, (np.floor(4 * X).sum(axis=1) % 2).astype(int), None


def _noisy(n: int = 900) -> Any:
    X, y = make_classification(n, 10, n_informative=6, n_clusters_per_class=3, flip_y=0.1, random_state=0)
    return X, y, None


def _unscaled() -> Any:
    X, y, _ = _noisy()
    return X * np.logspace(-1, 3, 10) + 50, y, None


def _duplicates() -> Any:
    X, y, _ = _noisy(300)
    again = np.random.default_rng(2).integers(0, 300, 1200)
    return X[again], y[again], None


def _heavy() -> Any:
    X, y, _ = _noisy()
    return X, y, 10.0 ** np.random.default_rng(0).uniform(-3, 2, len(y))


def _precomputed() -> Any:
    X, y, _ = _noisy()
    return rbf_kernel(X, gamma=0.1), y, None


def _blobs() -> Any:
    X, y = make_classification(1000, 12, n_informative=10, n_classes=5, n_clusters_per_class=2, random_state=4)
    return X, y, None


def _values() -> Any:
    X = np.random.default_rng(2).normal(size=(500, 5))
    return X, np.sin(X[:, 0]) + 0.1 * np.random.default_rng(3).normal(size=500), None


REAL = {
    "a9a": (_real("a9a", 1500), {"C": 1.0, "gamma": 0.05}),
    "w8a": (_real("w8a", 2500), {"C": 8.0, "gamma": 0.02}),
    "ijcnn1": (_real("ijcnn1", 2000, dense=True), {"C": 10.0, "gamma": 1.0}),
    "usps": (_real("usps", 1500, dense=True), {"C": 10.0, "gamma": 0.01, "cache_size": 0.2}),
    "letter": (_real("letter", 2600, dense=True), {"C": 10.0, "gamma": 0.5, "cache_size": 0.05}),
    "mnist": (_real("mnist", 1500, dense=True, scale=1 / 255), {"C": 10.0, "gamma": 0.02, "cache_size": 0.2}),
    "covtype": (_real("covtype-subset", 2000, dense=True), {"C": 10.0, "gamma": 1.0, "cache_size": 0.2}),
}
MADE = {
    "checkerboard": (_checkerboard, {"C": 1000.0, "gamma": 10.0}),
    "unscaled": (_unscaled, {"C": 100.0, "gamma": 1e-7}),
    "duplicates": (_duplicates, {"C": 5.0, "gamma": 0.1}),
    "heavy weights": (_heavy, {"C": 1.0, "gamma": 0.1, "class_weight": {0: 0.5, 1: 3.0}}),
    "precomputed": (_precomputed, {"C": 2.0, "kernel": "precomputed"}),
    "five classes": (_blobs, {"C": 3.0, "gamma": 0.05, "cache_size": 0.2}),
    "shares": (_noisy, {"nu": 0.3, "gamma": 0.1}),
    "regression": (_values, {"C": 5.0, "epsilon": 0.1, "gamma": 0.2}),
    "shares of values": (_values, {"C": 5.0, "nu": 0.3, "gamma": 0.2}),
}
ESTIMATORS = {"shares": "NuSVC", "regression": "SVR", "shares of values": "NuSVR"}


def check(name: str, preset: str) -> None:
    """Judge what our class makes of a problem by plain numpy, and beside scikit-learn's."""
    make, given = {**REAL, **MADE}[name]
    parameters = {"kernel": "rbf", "tol": 1e-3, "cache_size": 0.5, **given}
    problem = Problem(
        0, 0, ESTIMATORS.get(name, "SVC"), *make(), parameters, {"elimination": preset}, 1, None, is_psd=True
    )
    assert judge(problem).failures == []


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", MADE)
def test_every_preset_is_libsvm(name: str, preset: str) -> None:
    """Objective, gap, thresholds and predictions are right by plain numpy, and no worse than LIBSVM's."""
    check(name, preset)


@pytest.mark.usefixtures("data_home")
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", REAL)
def test_every_preset_is_libsvm_on_real_rows(name: str, preset: str) -> None:
    """So it is on rows of real sets."""
    check(name, preset)


KERNELS = {
    "linear": {},
    "poly": {"gamma": 0.1, "coef0": 1.0, "degree": 3},
    "poly of degree 4": {"gamma": 0.05, "coef0": 1.0, "degree": 4},
    "sigmoid": {"gamma": 0.01, "coef0": 0.0},
    "callable": {},
}


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("form", ["dense", "float32", "csr", "wide indices", "ten classes"])
def test_every_kernel_is_libsvm(name: str, form: str) -> None:
    """On rows in every form, and on many small pairs of classes, a machine of any kernel is right by plain numpy."""
    X, y, _ = _noisy(300)
    X = np.where(np.abs(X) > 0.5, X, 0.0)
    if form == "ten classes":
        X, y = load_digits(return_X_y=True)
        X, y = X[:500] / 16.0, y[:500]
    elif form == "float32":
        X = X.astype(np.float32)
    elif form != "dense" and name != "callable":
        X = sp.csr_matrix(X)
        if form == "wide indices":
            X.indices, X.indptr = X.indices.astype(np.int64), X.indptr.astype(np.int64)
    kernel = (lambda A, B: rbf_kernel(A, B, gamma=0.1)) if name == "callable" else name.partition(" ")[0]
    parameters = {"kernel": kernel, "tol": 1e-3, "C": 2.0, **KERNELS[name]}
    is_psd = name != "sigmoid"
    assert judge(Problem(0, 0, "SVC", X, y, None, parameters, {}, 1, None, is_psd)).failures == []
