"""Laws of the linear kernel: the optimum of LIBSVM whichever solver begins, certified as with any other kernel."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import svm as plain
from sklearn.datasets import make_classification

from dsgd.collectives import Team
from dsgd.linear_model.newton import conjugate_gradients
from dsgd.svm import SVC, SVR, LinearSVC
from dsgd.svm.kernel_solver import solve as solving
from dsgd.svm.linear_solver import newton
from svm_soak.judge import judge
from svm_soak.problems import draw

TOL = 1e-3


def violation(K: Any, signs: Any, linear: Any, upper: Any, alpha: Any) -> float:
    """Return the largest violation of optimality, max f over I_low less min f over I_up, from its definition."""
    f = signs * linear + np.tile(K @ (signs * alpha).reshape(-1, len(K)).sum(axis=0), len(alpha) // len(K))
    up = np.where(signs > 0, alpha < upper, alpha > 0)
    low = np.where(signs > 0, alpha > 0, alpha < upper)
    return float(f[low & (upper > 0)].max() - f[up & (upper > 0)].min())


def value(K: Any, signs: Any, linear: Any, alpha: Any) -> float:
    """Return the dual objective."""
    beta = (signs * alpha).reshape(-1, len(K)).sum(axis=0)
    return float(0.5 * beta @ K @ beta + linear @ alpha)


def coefficients(model: Any, n: int) -> Any:
    """Return the coefficients of all rows of a machine of one problem."""
    beta = np.zeros(n)
    coefs = model.dual_coef_
    beta[model.support_] = (coefs.toarray() if sp.issparse(coefs) else coefs)[0]
    return beta


@settings(max_examples=150)
@given(seed=st.integers(0, 10_000))
def test_the_linear_solver_begins_and_the_optimum_is_libsvms(monkeypatch_module, seed):
    """Where the linear solver begins, what is said of the end is true by plain numpy, and as good as LIBSVM's."""
    problem = draw(7, seed)
    if problem.estimator in ("SVC", "SVR") and problem.kernel not in ("precomputed", "callable"):
        parameters = {
            name: problem.parameters[name] for name in problem.parameters if name not in ("gamma", "coef0", "degree")
        }
        problem = replace(problem, parameters={**parameters, "kernel": "linear"}, is_psd=True)
        assert judge(problem).failures == []


@pytest.fixture(scope="module", autouse=True)
def monkeypatch_module():
    """Let the linear solver begin on as few rows as there are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(solving, "_MANY", 0)
        patch.setattr(solving, "_PER_COLUMN", 0)
        yield patch


@pytest.mark.parametrize("form", ["dense", "csr"])
@pytest.mark.parametrize("machine", [SVC, SVR])
def test_many_rows_take_no_kernel_value_and_have_all_attributes(machine, form):
    """On many rows of few columns no kernel value is computed, and the machine has what any other has."""
    X, y = make_classification(3000, 6, n_informative=4, flip_y=0.1, random_state=0)
    X = sp.csr_matrix(X) if form == "csr" else X
    model = machine(kernel="linear").fit(X, y)
    theirs = getattr(plain, machine.__name__)(kernel="linear").fit(X, y)
    assert model.converged_
    assert model.gap_ < TOL
    assert model.n_kernel_evaluations_ == 0
    assert np.min(model.n_iter_) >= 1
    assert len(model.elimination_history_[0]) >= 1
    weights, known = (m.coef_.toarray() if form == "csr" else m.coef_ for m in (model, theirs))
    np.testing.assert_allclose(weights, known, atol=0.01)
    np.testing.assert_allclose(model.intercept_, theirs.intercept_, atol=0.01)
    support, others = set(model.support_.tolist()), set(theirs.support_.tolist())
    assert len(support ^ others) < 0.02 * len(others)
    assert model.dual_coef_.shape == (1, len(support))


def test_a_machine_is_that_of_the_linear_class():
    """SVC of a linear kernel and LinearSVC of the hinge without a penalty on the intercept are one machine."""
    X, y = make_classification(2000, 5, flip_y=0.05, random_state=1)
    weights = np.random.default_rng(0).uniform(0.1, 3.0, 2000)
    options: dict[str, Any] = {"C": 0.5, "class_weight": {0: 2.0, 1: 0.7}}
    kernel = SVC(kernel="linear", **options).fit(X, y, sample_weight=weights)
    linear = LinearSVC(loss="hinge", penalize_intercept=False, tol=1e-9, **options).fit(X, y, sample_weight=weights)
    np.testing.assert_allclose(kernel.coef_, linear.coef_, atol=1e-3)
    np.testing.assert_allclose(kernel.intercept_, linear.intercept_, atol=1e-3)
    assert -kernel.dual_objective_ == pytest.approx(linear.dual_objective_[0], rel=1e-6)


def test_a_cap_on_steps_is_one_of_the_kernel_solver():
    """max_iter counts steps on two variables, so that no linear solver works behind it."""
    X, y = make_classification(600, 4, flip_y=0.2, random_state=0)
    with pytest.warns(UserWarning, match="took 3 steps"):
        model = SVC(kernel="linear", max_iter=3).fit(X, y)
    assert not model.converged_


# -- rows far from the origin --------------------------------------------------------------------------------------


def test_conjugate_gradients_end_where_a_square_underflows():
    """A residual whose weighted square is the least of numbers has a direction whose square is none."""

    class Rows:
        def hessian_product(self, factors, direction, team):
            return np.zeros_like(direction)

    def precondition(vector):
        scaled = vector / 1e10
        size = float(vector @ scaled)
        return scaled, size, size

    target = np.array([1e-156])
    assert target @ (target / 1e10) > 0.0
    multiply = functools.partial(newton._multiply, Rows(), np.ones(0), Team(1))
    solution, _ = conjugate_gradients(multiply, precondition, target, 0.01, 200)
    assert np.isfinite(solution).all()
