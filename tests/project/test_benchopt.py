"""Files for benchopt: solvers reach the optimum of its objectives."""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import sklearn.linear_model
import sklearn.svm

FOLDER = Path(__file__).parents[2] / "benchmarks" / "benchopt"


class Base:
    """What benchopt does for the classes of a benchmark: parameters become attributes."""

    parameters: dict = {}  # noqa: RUF012

    def __init__(self, **chosen):
        for name, values in self.parameters.items():
            setattr(self, name, chosen.get(name, values[0]))


@pytest.fixture
def load(monkeypatch):
    """Return a function that makes the object of a file, without benchopt, which need not be installed."""
    stand_in = types.ModuleType("benchopt")
    for name in ("BaseSolver",):
        setattr(stand_in, name, type(name, (Base,), {}))
    monkeypatch.setitem(sys.modules, "benchopt", stand_in)

    def made(file, **chosen):
        spec = importlib.util.spec_from_file_location("file_of_benchopt", FOLDER / file)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        kinds = {kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, Base)}
        (kind,) = (kind for kind in kinds if kind.__module__ == module.__name__)
        return kind(**chosen)

    return made


@pytest.fixture(scope="module")
def rows():
    """Return rows and labels of -1 and 1."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 8)) + 0.3
    return X, np.where(X @ rng.normal(size=8) + rng.normal(size=120) > 0.5, 1, -1)


def minimise(solver):
    """Run as benchopt does, whose first tolerance is huge; return the coefficients."""
    tolerance = 3e38
    for _ in range(20):
        solver.run(tolerance)
        tolerance = solver.get_next(tolerance)
    return solver.get_result()["beta"]


def split(beta, fit_intercept):
    """Return coefficients and intercept."""
    return (beta[:-1], beta[-1]) if fit_intercept else (beta, 0.0)


@pytest.mark.parametrize("fit_intercept", [True, False])
def test_the_lasso_minimises_the_objective_of_its_benchmark(load, rows, fit_intercept):
    """Half of the squared error and the penalty, as benchmark_lasso has them."""
    X, y = rows
    solver = load("lasso/solvers/dsgd.py")
    solver.set_objective(X, y, lmbd=5.0, fit_intercept=fit_intercept)
    peer = sklearn.linear_model.Lasso(5.0 / len(y), fit_intercept=fit_intercept, tol=1e-12, max_iter=10_000).fit(X, y)

    def objective(coef, intercept):
        return np.sum((y - X @ coef - intercept) ** 2) / 2 + 5.0 * np.abs(coef).sum()

    ours = objective(*split(minimise(solver), fit_intercept))
    assert ours == pytest.approx(objective(peer.coef_, peer.intercept_), rel=1e-8)


@pytest.mark.parametrize("fit_intercept", [True, False])
def test_logistic_regression_minimises_the_objective_of_its_benchmark(load, rows, fit_intercept):
    """The log loss and the penalty, as benchmark_logreg_l2 has them."""
    X, y = rows
    solver = load("logreg_l2/solvers/dsgd.py")
    solver.set_objective(X, y, lmbd=0.5, fit_intercept=fit_intercept)
    peer = sklearn.linear_model.LogisticRegression(C=2.0, fit_intercept=fit_intercept, tol=1e-12, max_iter=1000).fit(
        X, y
    )

    def objective(coef, intercept):
        return np.logaddexp(0, -y * (X @ coef + intercept)).sum() + 0.25 * coef @ coef

    ours = objective(*split(minimise(solver), fit_intercept))
    assert ours == pytest.approx(objective(peer.coef_.ravel(), peer.intercept_), rel=1e-8)


def test_the_linear_svm_minimises_the_objective_of_its_benchmark(load, rows):
    """C times the hinge loss and the penalty, without an intercept."""
    X, y = rows
    solver = load("linear_svm/solvers/dsgd.py")
    solver.set_objective(X, y, C=0.5)
    peer = sklearn.svm.LinearSVC(loss="hinge", C=0.5, fit_intercept=False, tol=1e-10, max_iter=100_000).fit(X, y)

    def objective(coef):
        return 0.5 * np.maximum(1 - y * (X @ coef), 0).sum() + coef @ coef / 2

    assert objective(minimise(solver)) == pytest.approx(objective(peer.coef_.ravel()), rel=1e-6)
