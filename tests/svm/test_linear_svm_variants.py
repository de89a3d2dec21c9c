"""Linear SVMs with an L1 penalty, jointly over classes, and with an intercept that is not penalised."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import make_classification, make_regression
from sklearn.svm import LinearSVC as PlainSVC

from dsgd.collectives import Team
from dsgd.errors import InvalidDataError
from dsgd.linear_model.problem import shrunk
from dsgd.svm import LinearSVC, LinearSVR
from dsgd.svm.linear_solver.problem import LOSSES, certify, gather_rows, make_problem
from dsgd.svm.linear_solver.solve import make_l1_columns, solve_l1, solve_linear
from reference import linear_svm as twin

ALL_LOSSES = [*LOSSES["classification"], *LOSSES["regression"]]


def rows_of(n, d, seed, *, n_classes=2, density=1.0, is_sparse=False):
    """Return rows, their codes and costs, and the rows with the constant column as a dense array."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) * (rng.random((n, d)) < density)
    codes = np.argmax(X @ rng.standard_normal((d, n_classes)) + rng.standard_normal((n, n_classes)), axis=1)
    data = sp.csr_array(X) if is_sparse else X
    rows, codes, weights = gather_rows(data, codes, rng.uniform(0.5, 2.0, n), bias=1.0, seed=0)
    dense = np.array([rows.combine(unit, Team()) for unit in np.eye(rows.n_rows)]).reshape(rows.n_rows, d + 1)
    return rows, codes.astype(np.int64), weights, dense


@pytest.fixture(scope="module")
def four_classes():
    """A noisy problem of four classes."""
    return make_classification(300, 12, n_informative=8, n_classes=4, flip_y=0.05, random_state=3)


# -- the L1 penalty ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize("penalizes", [True, False])
@given(seed=st.integers(0, 10_000), C=st.sampled_from([0.003, 0.1, 5.0]))
@settings(max_examples=15, deadline=None)
def test_l1_reaches_the_twins_optimum(is_sparse, penalizes, seed, C):
    """The model, its objective and its bound are those of proximal gradient descent, at any strength of the penalty."""
    rows, codes, weights, dense = rows_of(40, 6, seed, density=0.7, is_sparse=is_sparse)
    y, costs = np.where(codes == 1, 1.0, -1.0), C * weights
    problem = make_problem("squared_hinge", rows, y, costs, penalizes_intercept=penalizes)
    found = solve_l1(problem, make_l1_columns(rows, penalizes_intercept=penalizes), tol=1e-9, max_iter=500)
    penalties = np.append(np.ones(6), float(penalizes))
    expected = twin.l1_primal(dense, y, costs, twin.l1_proximal_gradient(dense, y, costs, penalties, 4000), penalties)
    assert found.converged
    assert found.primal == pytest.approx(twin.l1_primal(dense, y, costs, found.weights, penalties), rel=1e-10)
    assert found.primal <= expected * (1 + 2e-9)
    assert found.dual <= expected * (1 + 1e-12)
    sums = dense.T @ found.duals
    assert np.abs(sums).max() <= 1.0 + 1e-9
    assert penalizes or abs(sums[-1]) <= 1e-9
    assert (found.duals * y >= 0.0).all()


def test_l1_over_columns_equals_over_a_matrix(monkeypatch):
    """Both forms of the model, and working sets smaller than all columns, end at the same optimum."""
    rows, codes, weights, _ = rows_of(200, 300, 1, density=0.2, is_sparse=True)
    problem = make_problem("squared_hinge", rows, np.where(codes == 1, 1.0, -1.0), 0.5 * weights)
    columns = make_l1_columns(rows, penalizes_intercept=True)
    values = []
    for most in (0, 10_000):
        for name in ("_MOST_GRAM_COLUMNS", "_MOST_OF_JUMPS"):
            monkeypatch.setattr(f"dsgd.linear_model.newton.{name}", most)
        found = solve_l1(problem, columns, tol=1e-8, max_iter=1000)
        assert found.converged
        values.append(found.primal)
    assert values[0] == pytest.approx(values[1], rel=2e-8)


# -- Crammer and Singer ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_classes", [2, 4])
@pytest.mark.parametrize("fit_intercept", [True, False])
def test_joint_problem_is_solved_by_scikit_learn(four_classes, n_classes, fit_intercept):
    """Model and objective are scikit-learn's, dense or sparse with wide indices, with weights of classes and rows."""
    X, y = four_classes
    X, y = X[y < n_classes], np.array(["eel", "bee", "ape", "elk"])[y[y < n_classes]]
    weights = np.random.default_rng(0).uniform(0.2, 3.0, len(y))
    shared = {"multi_class": "crammer_singer", "class_weight": {"bee": 2.0}, "C": 0.1, "random_state": 0}
    shared |= {"tol": 1e-3, "max_iter": 20_000, "fit_intercept": fit_intercept, "intercept_scaling": 2.0}
    theirs = PlainSVC(**shared).fit(X, y, weights)
    wide = sp.csr_array(X)
    wide.indices, wide.indptr = wide.indices.astype(np.int64), wide.indptr.astype(np.int64)
    for data in (X, wide):
        ours = LinearSVC(n_jobs=2, **shared).fit(data, y, weights)
        np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-9)
        np.testing.assert_allclose(ours.intercept_, theirs.intercept_, rtol=1e-9)
        assert np.shape(ours.intercept_) == np.shape(theirs.intercept_)
        assert (ours.n_iter_, ours.converged_, ours.solver_) == (theirs.n_iter_, True, ["liblinear"])
        assert np.isnan(ours.gap_)
        np.testing.assert_array_equal(ours.predict(data), theirs.predict(X))
    W = np.c_[theirs.coef_, np.broadcast_to(theirs.intercept_, len(theirs.coef_)) / 2.0]
    W = np.vstack([-W, W]) / 2 if n_classes == 2 else W
    costs, codes = 0.1 * weights * np.where(y == "bee", 2.0, 1.0), np.unique(y, return_inverse=True)[1]
    value = twin.joint_primal(np.c_[X, np.full(len(y), 2.0 * fit_intercept)], codes, costs, W)
    assert ours.primal_objective_ == pytest.approx([value], rel=1e-12)


def test_joint_problem_needs_weight_in_every_class(four_classes):
    """A class whose rows have no weight, which LIBLINEAR would leave out of the model, is named."""
    X, y = four_classes
    with pytest.raises(InvalidDataError, match=r"Got none of \[2\]"):
        LinearSVC(multi_class="crammer_singer", class_weight={2: 0.0}).fit(X, y)


# -- the intercept without a penalty -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL_LOSSES)
@given(seed=st.integers(0, 10_000), scale=st.sampled_from([0.1, 1.0, 10.0]))
@settings(max_examples=15, deadline=None)
def test_balanced_duals_bound_the_optimum(name, seed, scale):
    """Any dual variables, balanced, stay in their intervals, sum to zero, and give a lower bound of any objective."""
    rows, codes, weights, _ = rows_of(12, 3, seed)
    rng = np.random.default_rng(seed)
    y = np.where(codes == 1, 1.0, -1.0) if name in LOSSES["classification"] else rng.standard_normal(rows.n_rows)
    problem = make_problem(name, rows, y, weights, 0.1, penalizes_intercept=False)
    duals = np.clip(scale * rng.standard_normal(rows.n_rows), problem.low, problem.high)
    balanced = shrunk(duals, Team())
    assert abs(balanced.sum()) <= 1e-12 * (1.0 + np.abs(duals).sum())
    assert ((problem.low <= balanced) & (balanced <= problem.high)).all()
    primal, dual, _ = certify(problem, scale * rng.standard_normal(4), duals, Team())
    assert dual <= primal * (1 + 1e-12)
    best = solve_linear(problem, "auto", tol=1e-8, max_iter=20_000, team=Team())
    assert best.converged
    assert dual <= best.primal * (1 + 1e-9)
    assert primal >= best.dual * (1 - 1e-9)


@pytest.mark.parametrize("loss", LOSSES["regression"])
def test_free_intercept_ignores_the_origin_of_targets(loss):
    """Without a penalty on the intercept, targets moved by any constant move the intercept alone."""
    X, y = make_regression(150, 5, noise=5.0, random_state=0)
    y = y / y.std()
    make = LinearSVR(loss=loss, epsilon=0.1, penalize_intercept=False, tol=1e-9, max_iter=50_000, random_state=0)
    near, objective = make.fit(X, y).coef_, make.primal_objective_
    far = make.fit(X, y + 1000.0)
    np.testing.assert_allclose(far.coef_, near, atol=1e-3)
    assert far.primal_objective_ == pytest.approx(objective, rel=1e-6)
    assert far.intercept_[0] > 900.0


def test_targets_that_a_constant_fits_need_no_weights():
    """Targets within the tube of one number have objective zero, which the fit reports as solved."""
    X = np.random.default_rng(0).standard_normal((20, 3))
    model = LinearSVR(penalize_intercept=False, epsilon=0.5).fit(X, np.linspace(6.6, 7.4, 20))
    assert model.converged_
    assert model.primal_objective_ == 0.0
    assert model.intercept_[0] == pytest.approx(7.0)
    assert not model.coef_.any()
