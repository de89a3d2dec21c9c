"""Laws of the linear kernel: the optimum of LIBSVM whichever solver begins, certified as with any other kernel."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import svm as plain
from sklearn.base import clone
from sklearn.datasets import make_classification

from dsgd.collectives import Team
from dsgd.linear_model.newton import conjugate_gradients
from dsgd.svm import SVC, SVR, LinearSVC, NuSVC, NuSVR, OneClassSVM
from dsgd.svm.kernel_solver import solve as solving
from dsgd.svm.linear_solver import newton
from svm_soak.problems import draw_hard

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


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10_000),
    n=st.sampled_from([3, 20, 90, 200]),
    d=st.sampled_from([1, 3, 30]),
    C=st.sampled_from([1e-3, 1.0, 100.0]),
    scale=st.sampled_from([1e-2, 1.0, 30.0]),
    form=st.sampled_from(["dense", "csr"]),
    dtype=st.sampled_from([np.float32, np.float64]),
    kind=st.sampled_from(["noise", "separable", "duplicates", "constant", "one-sided"]),
    is_regression=st.booleans(),
)
def test_the_linear_solver_begins_and_the_optimum_is_libsvms(
    seed, n, d, C, scale, form, dtype, kind, is_regression, monkeypatch_module
):
    """Where the linear solver begins coefficients are feasible, the gap is true, and the objective is LIBSVM's."""
    rng = np.random.default_rng(seed)
    X = (scale * rng.normal(size=(n, d)) * np.linspace(1.0, 3.0, d)).astype(dtype)
    if kind == "duplicates":
        X = X[rng.integers(0, max(1, n // 4), n)]
    if kind == "constant":
        X[:, 0] = 7.0
    noise = 0.0 if kind == "separable" else 1.0
    z = X.astype(np.float64).sum(axis=1) + noise * scale * rng.normal(size=n)
    y = z if is_regression else (z > np.quantile(z, 0.95 if kind == "one-sided" else 0.5)).astype(int)
    y[:2] = y[:2] if is_regression else [0, 1]
    weights = rng.choice([0.5, 1.0, 2.0], n)
    make = {"kernel": "linear", "C": C, "tol": TOL}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours: Any = (SVR(**make) if is_regression else SVC(**make)).fit(
            sp.csr_matrix(X) if form == "csr" else X, y, sample_weight=weights
        )
        theirs: Any = (plain.SVR(**make, max_iter=10**5) if is_regression else plain.SVC(**make, max_iter=10**5)).fit(
            X.astype(np.float64), y, sample_weight=weights
        )
    K = X.astype(np.float64) @ X.T.astype(np.float64)
    ones = np.ones(n)
    signs = np.concatenate([ones, -ones]) if is_regression else np.where(y == 1, 1.0, -1.0)
    linear = np.concatenate([0.1 - y, 0.1 + y]) if is_regression else -ones
    upper = np.tile(C * weights, len(signs) // n)
    beta = coefficients(ours, n)
    alpha = np.concatenate([np.maximum(beta, 0), np.maximum(-beta, 0)]) if is_regression else signs * beta
    assert (alpha >= 0).all()
    assert (alpha <= upper).all()
    assert abs(beta.sum()) <= 1e-9 * max(1e-12, np.abs(beta).sum())
    # Equal rows are given coefficients one after the other, at machine precision of their sum.
    rounding = 1e-9 * (1.0 + float(np.abs(K).max()) * float(np.abs(beta).sum()))
    if ours.converged_ and kind != "duplicates":
        assert violation(K, signs, linear, upper, alpha) < TOL + rounding
    beta = coefficients(theirs, n)
    other = np.concatenate([np.maximum(beta, 0), np.maximum(-beta, 0)]) if is_regression else signs * beta
    slack = TOL * float(alpha.sum() + other.sum()) + rounding
    assert value(K, signs, linear, alpha) <= value(K, signs, linear, other) + slack
    assert ours.converged_


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


@pytest.mark.parametrize("C", [1.0, 100.0])
def test_features_in_plain_units_are_solved(C):
    """Temperatures, pressures and years, unscaled, are solved to the tolerance in few steps, whatever C."""
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(300, 10, 1000), rng.normal(1000, 15, 1000), rng.normal(2000, 12, 1000)])
    y = X[:, 0] - 300 + 0.4 * (X[:, 1] - 1000) - 0.3 * (X[:, 2] - 2000) + rng.normal(0, 1.5, 1000) > 0
    for rows in (X, X.astype(np.float32)):
        model = SVC(kernel="linear", C=C).fit(rows, y)
        assert model.converged_
        assert model.n_iter_[0] < 10_000
        assert model.score(rows, y) > 0.95


def test_several_classes_and_the_kernel_solver_agree():
    """Pairs of classes have the same objectives whether the linear or the kernel solver begins."""
    X, y = make_classification(900, 6, n_informative=5, n_redundant=0, n_classes=3, random_state=0)
    options = {"kernel": "linear", "decision_function_shape": "ovo"}
    ours, other = SVC(**options).fit(X, y), SVC(**options, elimination="multi").fit(X, y)
    assert ours.dual_objective_ == pytest.approx(other.dual_objective_, rel=1e-6)
    assert other.n_kernel_evaluations_ > 0
    is_far = np.abs(other.decision_function(X)).min(axis=1) > 0.05
    assert np.array_equal(ours.predict(X)[is_far], other.predict(X)[is_far])


def test_a_cap_on_steps_is_one_of_the_kernel_solver():
    """max_iter counts steps on two variables, so that no linear solver works behind it."""
    X, y = make_classification(600, 4, flip_y=0.2, random_state=0)
    with pytest.warns(UserWarning, match="took 3 steps"):
        model = SVC(kernel="linear", max_iter=3).fit(X, y)
    assert not model.converged_


# -- rows far from the origin --------------------------------------------------------------------------------------

FAR = {
    "SVC": SVC(kernel="linear", C=5e8),
    "SVR": SVR(kernel="linear", C=1e4),
    "NuSVC": NuSVC(kernel="linear", nu=0.7, tol=1e-6),
    "NuSVR": NuSVR(kernel="linear", C=10.0),
}


@pytest.mark.parametrize("spread", [2.0**-8, 1.0])
@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix])
@pytest.mark.parametrize("name", FAR)
def test_rows_far_from_the_origin_are_no_harder_than_near_it(name, form, spread):
    """A shift of all rows, exact in float64, changes neither the steps by much, nor optimum, proof and scores."""
    rng = np.random.default_rng(0)
    near = spread * np.round(1024 * rng.normal(size=(21, 2))) / 1024
    y = near @ [1.0, -1.0] / spread + rng.normal(size=21)
    y = np.arange(21) % 2 if name == "SVC" else y > 0 if name == "NuSVC" else y
    ours = clone(FAR[name]).fit(near, y)
    far = clone(FAR[name]).fit(form(near + 1024.0), y)
    assert ours.converged_
    assert far.converged_
    assert np.sum(far.n_iter_) < 2 * np.sum(ours.n_iter_) + 1000
    assert far.dual_objective_ == pytest.approx(ours.dual_objective_, rel=1e-4)
    known, found = (
        model.decision_function(X) if "SVC" in name else model.predict(X)
        for model, X in ((ours, near), (far, form(near + 1024.0)))
    )
    assert found == pytest.approx(known, abs=3e-2 * (1 + np.abs(known).max()))


def test_a_sum_that_is_not_zero_makes_the_origin_matter():
    """`OneClassSVM` separates rows from the origin: far from it too its optimum is LIBSVM's."""
    X = 30.0 + np.random.default_rng(0).normal(size=(40, 2))
    ours, theirs = OneClassSVM(kernel="linear", nu=0.29).fit(X), plain.OneClassSVM(kernel="linear", nu=0.29).fit(X)
    assert ours.decision_function(X) == pytest.approx(theirs.decision_function(X), abs=0.1)
    assert ours.dual_objective_ == pytest.approx(0.5 * float(theirs.coef_[0] @ theirs.coef_[0]), rel=1e-6)


@pytest.mark.parametrize("elimination", ["libsvm", "single", "aggressive", "conservative"])
def test_a_narrow_valley_is_left_whatever_is_eliminated(elimination):
    """Two columns and costs that differ by millions: pairs of variables creep, and weights come in from beside them."""
    rng = np.random.default_rng(63641)
    X = (rng.normal(size=(62, 2)) * [7.0, 11.0]).astype(np.float32)
    y = 1e-3 * rng.normal(size=62)
    costs = 10.0 ** rng.uniform(-1, 6, 62)
    model = SVR(kernel="linear", C=0.01, epsilon=1e-6, elimination=elimination).fit(X, y, sample_weight=costs)
    assert model.converged_
    assert model.n_iter_ < 100 * 2 * 62


@pytest.mark.parametrize("elimination", ["auto", "multi"])
def test_a_direction_whose_square_underflows_ends_nothing(elimination):
    """One column, tubes of no width and a gap of 1e-8 to reach: what is left to move is next to nothing."""
    problem = draw_hard(0, 655)
    model = SVR(**problem.parameters, elimination=elimination).fit(problem.X, problem.y, sample_weight=problem.weights)
    assert np.isfinite(model.dual_coef_).all()


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
