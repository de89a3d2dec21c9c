"""On many problems, real and hard, every way of eliminating samples ends at LIBSVM's optimum, with a gap that is true.

The references are computed here by plain numpy from the kernel matrix: objective, gap and decision values of what a
machine returns, ours and scikit-learn's. The cache is starved: rows are computed again, and samples are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn import svm as plain_svm
from sklearn.datasets import make_classification
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics.pairwise import rbf_kernel

from dsgd.datasets import load
from dsgd.svm import SVC
from reference.svm import dual_gap

PRESETS = ["none", "single", "multi", "libsvm", "aggressive", "average", "conservative", "auto"]
TOL = 1e-3


@dataclass(frozen=True)
class Problem:
    """A training set, (X, y, weights), its parameters, and the presets that may find no time to leave samples out."""

    make: Callable[[], tuple[Any, np.ndarray, np.ndarray | None]]
    C: float
    gamma: float
    cache_mb: float = 0.5
    idle: tuple[str, ...] = ()
    class_weight: Any = None
    is_precomputed: bool = False
    is_real: bool = False


IDLE = ("average",)


def _real(name: str, n: int, *, dense: bool = False, scale: float = 1.0) -> Callable[[], Any]:
    def make() -> Any:
        data = load(name)
        rows = np.random.default_rng(0).permutation(len(data.y))[:n]
        X = data.X[rows]
        X = (X.toarray() if dense and sp.issparse(X) else X) * scale
        return (sp.csr_matrix(X) if sp.issparse(X) else np.asarray(X, dtype=np.float64)), data.y[rows], None

    return make


def _checkerboard() -> Any:
    X = np.random.default_rng(1).random((1200, 2))
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


PROBLEMS = {
    "a9a": Problem(_real("a9a", 1500), 1.0, 0.05, idle=("libsvm",), is_real=True),
    "w8a": Problem(_real("w8a", 2500), 8.0, 0.02, is_real=True),
    "ijcnn1": Problem(_real("ijcnn1", 2000, dense=True), 10.0, 1.0, is_real=True),
    "usps": Problem(_real("usps", 1500, dense=True), 10.0, 0.01, cache_mb=0.2, idle=IDLE, is_real=True),
    "letter": Problem(_real("letter", 2600, dense=True), 10.0, 0.5, cache_mb=0.05, is_real=True),
    "mnist": Problem(
        _real("mnist", 1500, dense=True, scale=1 / 255),
        10.0,
        0.02,
        cache_mb=0.2,
        idle=IDLE,
        is_real=True,
    ),
    "covtype": Problem(_real("covtype-subset", 2000, dense=True), 10.0, 1.0, cache_mb=0.2, is_real=True),
    "checkerboard": Problem(_checkerboard, 1000.0, 10.0),
    "unscaled": Problem(_unscaled, 100.0, 1e-7),
    "duplicates": Problem(_duplicates, 5.0, 0.1),
    "heavy weights": Problem(_heavy, 1.0, 0.1, class_weight={0: 0.5, 1: 3.0}),
    "precomputed": Problem(_precomputed, 2.0, 0.1, is_precomputed=True),
    "five classes": Problem(_blobs, 3.0, 0.05, cache_mb=0.2),
}


@dataclass(frozen=True)
class Reference:
    """What a problem is measured by: data, kernel matrix, bounds, and LIBSVM's objective and decision values."""

    X: Any
    y: np.ndarray
    weights: np.ndarray | None
    K: np.ndarray
    costs: np.ndarray
    objective: float
    scores: np.ndarray


def _pair_values(model: Any, y: np.ndarray) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Return (rows, signs, alpha) of each pair of classes, from the coefficients as scikit-learn lays them out."""
    coef = model.dual_coef_.toarray() if sp.issparse(model.dual_coef_) else model.dual_coef_
    found = []
    for a, b in combinations(range(len(model.classes_)), 2):
        rows = np.flatnonzero((y == model.classes_[a]) | (y == model.classes_[b]))
        full = np.zeros(len(y))
        labels = y[model.support_]
        for mine, other, sign in ((a, b - 1, 1.0), (b, a, -1.0)):
            of = labels == model.classes_[mine]
            full[model.support_[of]] = coef[other, of] * sign
        signs = np.where(y[rows] == model.classes_[a], 1.0, -1.0)
        found.append((rows, signs, full[rows] * (-1.0 if len(model.classes_) == 2 else 1.0)))
    return found


def _objective(model: Any, y: np.ndarray, K: np.ndarray) -> float:
    total = 0.0
    for rows, signs, alpha in _pair_values(model, y):
        used = alpha > 0
        beta = (signs * alpha)[used]
        total += 0.5 * float(beta @ K[np.ix_(rows[used], rows[used])] @ beta) - float(alpha.sum())
    return total


@cache
def _reference(name: str) -> Reference:
    """Solve a problem with LIBSVM, once for the module."""
    problem = PROBLEMS[name]
    X, y, weights = problem.make()
    plain = X.toarray() if sp.issparse(X) else X
    K = X if problem.is_precomputed else rbf_kernel(plain, gamma=problem.gamma)
    theirs = plain_svm.SVC(
        C=problem.C, kernel="precomputed", class_weight=problem.class_weight, decision_function_shape="ovo"
    ).fit(K, y, sample_weight=weights)
    costs = problem.C * (np.ones(len(y)) if weights is None else weights)
    costs = costs * theirs.class_weight_[np.searchsorted(theirs.classes_, y)]
    scores = theirs.decision_function(K).reshape(len(y), -1)
    return Reference(X, y, weights, K, costs, _objective(theirs, y, K), scores)


def _machine(name: str, **options: Any) -> SVC:
    problem = PROBLEMS[name]
    kernel = {"kernel": "precomputed"} if problem.is_precomputed else {"gamma": problem.gamma}
    return SVC(
        C=problem.C,
        class_weight=problem.class_weight,
        cache_size=problem.cache_mb,
        decision_function_shape="ovo",
        **kernel,
        **options,
    )


def _true_gap(model: SVC, y: np.ndarray, K: np.ndarray, costs: np.ndarray) -> float:
    """Return the largest gap of all pairs over all their rows, and check that the variables are feasible."""
    gaps = []
    for rows, signs, alpha in _pair_values(model, y):
        bound = costs[rows]
        assert (alpha >= 0).all()
        assert (alpha <= bound * (1 + 1e-9)).all()
        assert abs(float(signs @ alpha)) < 1e-7 * max(1.0, float(alpha.sum()))
        alpha = np.where(alpha > bound * (1 - 1e-12), bound, alpha)
        gaps.append(dual_gap(K[np.ix_(rows, rows)], signs, -np.ones(len(rows)), bound, alpha))
    return max(gaps)


@pytest.fixture
def known(name: str, request: pytest.FixtureRequest) -> Reference:
    """Return what a problem is measured by; a real one needs the folder with real data, or the test is skipped."""
    if PROBLEMS[name].is_real:
        request.getfixturevalue("data_home")
    return _reference(name)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.data] if p.is_real else []) for name, p in PROBLEMS.items()]
)
def test_every_preset_is_libsvm(name: str, preset: str, known: Reference) -> None:
    """The objective is within 1e-5 of LIBSVM's, predictions off the margin are equal, the gap is below tol and true."""
    model = _machine(name, elimination=preset).fit(known.X, known.y, sample_weight=known.weights)
    assert model.converged_
    assert model.gap_ < TOL
    assert _true_gap(model, known.y, known.K, known.costs) < TOL * (1 + 1e-6)
    objective = _objective(model, known.y, known.K)
    assert abs(objective - known.objective) <= 1e-5 * abs(known.objective)
    assert model.dual_objective_ == pytest.approx(objective, rel=1e-8)
    # A preset may be idle where the solver is done before its first test, after 500 steps of "average"; "auto" may be
    # wherever it does not pay, and is where problems are so small that they are one block.
    if preset != "auto" and preset not in PROBLEMS[name].idle:
        assert (model.n_eliminated_ > 0) == (preset != "none")
    scores = np.reshape(model.decision_function(known.X), (len(known.y), -1))
    clear = np.abs(known.scores) > 10 * TOL
    np.testing.assert_array_equal((scores > 0)[clear], (known.scores > 0)[clear])


@pytest.mark.parametrize("name", ["a9a", "letter", "checkerboard", "heavy weights", "precomputed"])
def test_a_cap_on_steps_warns_with_the_true_gap(name: str, known: Reference) -> None:
    """Stopped by `max_iter`, a machine says so, with the gap over all rows of what it returns."""
    model = _machine(name, elimination="aggressive", max_iter=20)
    with pytest.warns(ConvergenceWarning, match="gap of .* over all samples"):
        model.fit(known.X, known.y, sample_weight=known.weights)
    assert not model.converged_
    assert model.n_iter_.max() <= 20
    assert model.gap_ == pytest.approx(_true_gap(model, known.y, known.K, known.costs), rel=1e-6)
