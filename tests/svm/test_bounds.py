"""Machines whose variables all end at a bound, where the optimum leaves the threshold anywhere between two ends."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from sklearn import svm as plain
from sklearn.utils import compute_class_weight

from dsgd.svm import SVC, SVR, NuSVC, NuSVR, OneClassSVM, svm_path
from dsgd.svm.kernel_solver import block
from dsgd.svm.kernel_solver import solve as solving
from svm_gangs import blocks_between, fit_on_ranks


def _rows(seed: int, n_classes: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of few values, most of them several times, and labels that they do not tell."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(6, 50))
    X = rng.integers(0, rng.integers(2, 5), (n, rng.integers(1, 3))).astype(float)
    X[0] += 0.5  # at least two values
    y = rng.integers(0, n_classes, n)
    y[:n_classes] = np.arange(n_classes)
    return X, y


def _middle(X: np.ndarray, y: np.ndarray, costs: np.ndarray) -> float:
    """Return the middle of the thresholds where the variables of both classes are at their bounds, ``gamma=1``."""
    signs = np.where(y == 1, 1.0, -1.0)
    K = np.exp(-((X[:, None] - X) ** 2).sum(axis=2))
    f = K @ (signs * costs) - signs
    return -0.5 * float(f[signs < 0].min() + f[signs > 0].max())


_WAYS = {
    "pairs": {},
    "direct": {"cache_size": 1e-9},
    "blocks": {},
    "pairwise": {"solver": "pairwise"},
    "multi": {"elimination": "multi"},
    "aggressive": {"elimination": "aggressive"},
    "ranks": {},
    "path": {},
}


@pytest.mark.parametrize("way", _WAYS)
def test_the_threshold_is_the_middle_where_all_variables_are_at_bounds(monkeypatch, way):
    """Balanced classes and a small C put all at a bound but for rounding, which must not name one class for all."""
    if way == "blocks":
        monkeypatch.setattr(solving, "solve", functools.partial(block.solve, block_size=4))
        monkeypatch.setattr(solving, "LARGEST_DIRECT", 0)
    for seed in range(6 if way == "ranks" else 30):
        X, y = _rows(seed)
        C = 10.0 ** np.random.default_rng(seed).uniform(-5, -2)
        model = SVC(C=C, gamma=1.0, class_weight="balanced", n_jobs=1, **_WAYS[way])
        if way == "ranks":
            blocks = blocks_between(np.linspace(0, len(y), 4).astype(int).tolist(), X, y, None)
            fit_on_ranks(model, X, [[block] for block in blocks], np.unique(y))
        elif way == "path":
            model = svm_path(X, y, Cs=[0.5 * C, C], gammas=[1.0], class_weight="balanced").estimator(-1)
        else:
            model.fit(X, y)
        costs = C * compute_class_weight("balanced", classes=np.unique(y), y=y)[y]
        assert model.intercept_[0] == pytest.approx(_middle(X, y, costs), abs=1e-9)
        alpha = np.zeros(len(y))
        alpha[model.support_] = np.abs(model.dual_coef_[0])
        np.testing.assert_array_equal(alpha, costs)
        assert model.converged_


def test_small_costs_and_equal_rows_give_the_machines_of_scikit_learn():
    """Equal rows share a variable, whose bound is a sum: rounding of it must not make a variable free."""
    for seed in range(60):
        X, y = _rows(seed, 2 + seed % 2)
        C = 10.0 ** np.random.default_rng(seed).uniform(-6, -1)
        theirs, ours = plain.SVC(C=C).fit(X, y), SVC(C=C).fit(X, y)
        np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=2e-3)
        sure = np.abs(theirs.decision_function(X)).reshape(len(y), -1).min(axis=1) > 5e-3
        np.testing.assert_array_equal(ours.predict(X)[sure], theirs.predict(X)[sure])


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (SVR(C=1e-3, gamma=1.0, tol=1e-6), plain.SVR(C=1e-3, gamma=1.0, tol=1e-6)),
        (NuSVR(C=1e-3, nu=1.0, gamma=1.0, tol=1e-6), plain.NuSVR(C=1e-3, nu=1.0, gamma=1.0, tol=1e-6)),
        (NuSVC(nu=0.4, gamma=1.0, tol=1e-6), plain.NuSVC(nu=0.4, gamma=1.0, tol=1e-6)),
        (OneClassSVM(nu=0.3, gamma=1.0, tol=1e-6), plain.OneClassSVM(nu=0.3, gamma=1.0, tol=1e-6)),
    ],
    ids=lambda model: type(model).__name__,
)
def test_other_machines_at_bounds_are_those_of_scikit_learn(ours, theirs):
    """Regression, the ν-machines and novelty detection hold as many at bounds, and take the middle too."""
    for seed in range(30):
        X, y = _rows(seed)
        X, y = np.repeat(X, 10, axis=0), np.repeat(y, 10)
        X[y == 1] += 0.5
        if np.bincount(y).min() < 0.2 * len(y):
            continue
        np.testing.assert_allclose(ours.fit(X, y).intercept_, theirs.fit(X, y).intercept_, atol=2e-3)
