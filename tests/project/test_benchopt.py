"""Files for benchopt: solvers reach the optimum of its objectives, and our own benchmark agrees with LIBSVM."""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path

import numpy as np
import pandas as pd
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
    for name in ("BaseSolver", "BaseObjective", "BaseDataset", "BasePlot"):
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


@pytest.mark.parametrize("data", ["simulated", "like"])
def test_our_benchmark_finds_the_same_optimum_by_dsgd_and_by_libsvm(load, data):
    """Values agree, gaps close, and the model without support vectors has a gap of one."""
    rows = load(f"kernel_svm/datasets/{data}.py", n_rows=200).get_data()
    objective = load("kernel_svm/objective.py")
    objective.set_data(**rows)
    assert objective.evaluate_result(**objective.get_one_result())["relative_gap"] == 1.0
    found = []
    for name in ("dsgd", "sklearn"):
        solver = load(f"kernel_svm/solvers/{name}.py")
        solver.set_objective(**objective.get_objective())
        solver.run(1e-4)
        found.append(objective.evaluate_result(**solver.get_result()))
        assert 0 <= found[-1]["relative_gap"] < 1e-3
    assert found[0]["value"] == pytest.approx(found[1]["value"], rel=1e-4)
    assert found[0]["test_error"] < min(np.mean(rows["y_test"] == 1), np.mean(rows["y_test"] == -1)) + 0.02


def test_the_table_has_the_fastest_fit_within_the_target(load):
    """Seconds and bytes are medians over repetitions; a solver that is not there yet says so."""
    runs = [
        ("a", 0, 1.0, 0.1, 5),
        ("a", 0, 2.0, 1e-3, 9),
        ("a", 0, 4.0, 1e-4, 11),
        ("a", 1, 3.0, 1e-3, 9),
        ("b", 0, 1.0, 0.5, 0),
    ]
    names = ["solver_name", "idx_rep", "time", "objective_relative_gap", "objective_bytes_sent"]
    frame = pd.DataFrame(runs, columns=names).assign(dataset_name="d", objective_name="o")
    lines = load("kernel_svm/plots/time_to_gap.py").plot(frame, "d", "o", 1e-2)
    assert lines == [["a", 2.5, 9], ["b", "not reached", ""]]
