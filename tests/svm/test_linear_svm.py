"""Linear SVMs: the contract of scikit-learn, parity with LIBLINEAR, and the certificate."""

from __future__ import annotations

import pickle
from contextlib import closing

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import make_classification
from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import LinearSVC as PlainSVC
from sklearn.svm import LinearSVR as PlainSVR
from sklearn.utils.estimator_checks import parametrize_with_checks

from dsgd.collectives import Team
from dsgd.errors import IncompatiblePartsError, InvalidDataError, InvalidParameterError
from dsgd.svm import LinearSVC, LinearSVR
from dsgd.svm.linear_solver import small
from dsgd.svm.linear_solver.descent import solve_dual_cd
from dsgd.svm.linear_solver.newton import solve_newton
from dsgd.svm.linear_solver.problem import LOSSES, certify, gather_rows, make_problem, spread
from reference import linear_svm as twin

ALL_LOSSES = [*LOSSES["classification"], *LOSSES["regression"]]
SOLVERS = {"dual_cd": solve_dual_cd, "newton": solve_newton}


def problem_of(name, n, d, seed, *, bias=1.0, C=1.0, density=1.0, epsilon=0.1):
    """Return a problem, and its rows, targets and costs as plain arrays in the order of the problem."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) * (rng.random((n, d)) < density)
    scores = X @ rng.standard_normal(d) + 0.5 * rng.standard_normal(n)
    y = np.where(scores > 0.0, 1.0, -1.0) if name in LOSSES["classification"] else scores
    rows, targets, weights = gather_rows(sp.csr_array(X), y, rng.uniform(0.5, 2.0, n), bias=bias, seed=0)
    costs = C * weights
    dense = np.array([rows.combine(unit, Team()) for unit in np.eye(rows.n_rows)]).reshape(rows.n_rows, d + 1)
    return make_problem(name, rows, targets, costs, epsilon), dense, targets, costs


@pytest.fixture(scope="module")
def two_classes():
    """A noisy binary problem."""
    X, y = make_classification(300, 12, n_informative=6, flip_y=0.1, random_state=0)
    return X, y


#: scikit-learn excepts its own class from these, too.
LIBLINEARS = {
    f"check_sample_weight_equivalence_on_{kind}_data": "LIBLINEAR visits rows in an order that copies of rows change"
    for kind in ("dense", "sparse")
}


@parametrize_with_checks(
    [
        LinearSVC(),
        LinearSVC(penalty="l1", penalize_intercept=False),
        LinearSVC(multi_class="crammer_singer"),
        LinearSVC(loss="hinge", penalize_intercept=False, fit_intercept=True),
        LinearSVR(),
        LinearSVR(loss="squared_epsilon_insensitive", penalize_intercept=False),
    ],
    expected_failed_checks=lambda estimator: LIBLINEARS if getattr(estimator, "multi_class", "ovr") != "ovr" else {},
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_sklearn_contract(estimator, check):
    """Both estimators keep scikit-learn's whole contract, but for what its own solver of the joint problem breaks."""
    check(estimator)


@pytest.mark.parametrize(("ours", "plain"), [(LinearSVC, PlainSVC), (LinearSVR, PlainSVR)])
def test_defaults_are_sklearns(ours, plain):
    """Every parameter that scikit-learn's class has too has the same default here."""
    theirs = plain().get_params()
    assert {name: ours().get_params()[name] for name in theirs} == theirs


# -- the problem and its certificate ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL_LOSSES)
@given(seed=st.integers(0, 10_000), scale=st.sampled_from([0.0, 0.1, 1.0, 30.0]), C=st.sampled_from([0.01, 1.0, 50.0]))
def test_certificate_bounds_the_optimum(name, seed, scale, C):
    """For any weights and any dual variables in their intervals, dual <= optimum <= primal, and both are the twin's."""
    problem, X, y, costs = problem_of(name, 12, 3, seed, C=C)
    rng = np.random.default_rng(seed + 1)
    w = scale * rng.standard_normal(4)
    duals = np.clip(scale * rng.standard_normal(len(y)), problem.low, problem.high)
    primal, dual, _ = certify(problem, w, duals, Team())
    assert primal == pytest.approx(twin.primal(name, X, y, costs, w, 0.1), rel=1e-10)
    assert dual == pytest.approx(twin.dual(name, X, y, costs, duals, problem.epsilon), rel=1e-9, abs=1e-9)
    optimum = solve_newton(problem, tol=1e-10, max_iter=300, team=Team())
    assert optimum.converged
    assert dual <= optimum.primal * (1 + 1e-9)
    assert primal >= optimum.dual * (1 - 1e-9)


@pytest.mark.parametrize("name", ALL_LOSSES)
@given(
    seed=st.integers(0, 10_000),
    n=st.sampled_from([1, 3, 40, 200]),
    scale=st.sampled_from([1e-150, 1e-3, 1.0, 1e3, 1e150]),
    C=st.sampled_from([0.0, 0.01, 1.0, 1e4]),
    is_dense=st.booleans(),
)
def test_compiled_steps_end_where_the_general_ones_do(name, seed, n, scale, C, is_dense):
    """Compiled steps reach the solution of those that ranks take, within the gap: a wrong factor, ridge or step."""
    rng = np.random.default_rng(seed)
    X = scale * rng.standard_normal((n, 5)) * (rng.random((n, 5)) < 0.7)
    y = np.sign(rng.standard_normal(n)) if name in LOSSES["classification"] else rng.choice([0.0, 1.0]) * X[:, 0]
    rows, y, costs = gather_rows(X if is_dense else sp.csr_array(X), y, np.ones(n), bias=scale, seed=0)
    problem = make_problem(name, rows, y, np.where(y > 0.0, C, 1.0) * costs, 0.1)
    with np.errstate(all="ignore"), pytest.MonkeyPatch.context() as patch:
        found = solve_newton(problem, tol=1e-6, max_iter=200, team=Team())
        patch.setattr(small, "SMALL_WIDTH", 0)
        general = solve_newton(problem, tol=1e-6, max_iter=200, team=Team())
    assert found.converged or not general.converged
    if found.converged and general.converged:
        assert found.primal == pytest.approx(general.primal, rel=2e-6, abs=1e-300)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("name", ALL_LOSSES)
def test_solvers_reach_the_twins_optimum(name, solver):
    """Both solvers end at the optimum of plain coordinate descent, with the gap they report."""
    problem, X, y, costs = problem_of(name, 80, 5, 3, density=0.6, C=0.05)
    w, alpha = twin.dual_cd(name, X, y, costs, 400, 0.1)
    expected = twin.dual(name, X, y, costs, alpha, problem.epsilon)
    found = SOLVERS[solver](problem, tol=1e-8, max_iter=20_000, team=Team())
    assert found.converged
    assert found.gap <= 1e-8
    assert found.primal == pytest.approx(twin.primal(name, X, y, costs, found.weights, 0.1), rel=1e-12)
    assert found.primal == pytest.approx(expected, rel=1e-6)
    np.testing.assert_allclose(found.weights, w, atol=2e-3)


@pytest.mark.parametrize("name", ALL_LOSSES)
def test_wrong_start_is_undone(name):
    """From dual variables all at the wrong bound, which elimination would keep, the optimum is still found."""
    problem, *_ = problem_of(name, 100, 4, 7)
    far = np.clip(-5.0 * problem.targets, problem.low, problem.high)
    start = far if name not in LOSSES["classification"] else np.where(problem.targets > 0, 1.0, -1.0) * 0.5
    found = solve_dual_cd(problem, tol=1e-7, max_iter=20_000, team=Team(), start=start)
    assert found.converged
    assert found.primal == pytest.approx(solve_newton(problem, tol=1e-8, max_iter=300, team=Team()).primal, rel=2e-7)


# -- rows --------------------------------------------------------------------------------------------------------


def test_equal_rows_are_merged():
    """Copies of a row with equal target become one row of the summed weight; zero weights go; nothing else merges."""
    X = np.array([[1.0, 2.0], [1.0, 2.0], [1.0, 2.0], [3.0, 0.0], [0.0, 0.0]])
    rows, targets, weights = gather_rows(X, [1.0, 1.0, -1.0, 1.0, 1.0], [1.0, 2.5, 1.0, 0.0, 1.0], bias=2.0, seed=1)
    found = {(tuple(rows.combine(unit, Team())), t, w) for unit, t, w in zip(np.eye(3), targets, weights, strict=True)}
    assert found == {((1.0, 2.0, 2.0), 1.0, 3.5), ((1.0, 2.0, 2.0), -1.0, 1.0), ((0.0, 0.0, 2.0), 1.0, 1.0)}


@pytest.mark.parametrize("density", [1.0, 0.2])
def test_packed_rows_are_the_same_rows(density):
    """A copy of some rows next to each other has their entries and no others, on any number of threads."""
    X = np.random.default_rng(0).standard_normal((60, 9)) * (np.random.default_rng(1).random((60, 9)) < density)
    rows, *_ = gather_rows(X if density == 1.0 else sp.csr_array(X), np.arange(60), np.ones(60), bias=2.0, seed=0)
    some = rows.take(np.array([1, 2, 5, 11, 12, 30, 59, 40, 3]))
    with closing(Team(2)) as team:
        packed = some.packed(team)
    assert packed.values.shape == (some.n_entries,)
    np.testing.assert_array_equal(packed.first, np.append(0, packed.last[:-1]))
    for factors in np.eye(9):
        np.testing.assert_array_equal(packed.combine(factors, Team()), some.combine(factors, Team()))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("solver", SOLVERS)
def test_dense_equals_csr(two_classes, solver, dtype):
    """CSR rows with indices of either width in any order give the same bits, dense rows the same up to rounding."""
    X, y = two_classes
    X = np.where(np.abs(X) < 0.3, 0.0, X).astype(dtype)
    csr = sp.csr_array(X)
    wide = sp.csr_array((csr.data, csr.indices.astype(np.int64), csr.indptr.astype(np.int64)), shape=csr.shape)
    order = np.random.default_rng(0).permutation(len(y))
    make = LinearSVC(loss="squared_hinge", solver=solver, random_state=0, tol=1e-10, max_iter=20_000)
    dense = make.fit(X, y).coef_
    sparse = make.fit(csr, y).coef_
    np.testing.assert_array_equal(sparse, make.fit(wide, y).coef_)
    np.testing.assert_array_equal(sparse, make.fit(csr[order], y[order]).coef_)
    np.testing.assert_allclose(dense, sparse, rtol=1e-4)
    assert dense.dtype == np.float64


def test_input_is_not_changed(two_classes):
    """Neither a CSR matrix with unsorted, duplicate entries nor a read-only array is changed by a fit."""
    X, y = two_classes
    data, columns = np.arange(1.0, 901.0), np.tile([2, 0, 2], 300)
    messy = sp.csr_array((data, columns, np.arange(0, 901, 3)), shape=(300, 4))
    before = messy.copy()
    tidy = messy.toarray() / 900
    messy.data /= 900
    first = LinearSVC(random_state=0, tol=1e-10).fit(messy, y)
    np.testing.assert_array_equal(messy.indices, before.indices)
    np.testing.assert_allclose(first.coef_, LinearSVC(random_state=0, tol=1e-10).fit(tidy, y).coef_, rtol=1e-4)
    frozen = X.copy()
    frozen.flags.writeable = False
    LinearSVC(random_state=0).fit(frozen, y)


# -- against LIBLINEAR -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", ["auto", *SOLVERS])
@pytest.mark.parametrize("intercept_scaling", [None, 1.0, 7.0])
@pytest.mark.parametrize("loss", LOSSES["classification"])
def test_svc_matches_liblinear(two_classes, loss, intercept_scaling, solver):
    """Objective and model equal scikit-learn's at a tight tolerance, with any treatment of the intercept."""
    X, y = two_classes
    shared = {"loss": loss, "C": 0.5, "fit_intercept": intercept_scaling is not None, "random_state": 0}
    shared["intercept_scaling"] = intercept_scaling or 1.0
    theirs = PlainSVC(tol=1e-9, max_iter=1_000_000, dual=True, **shared).fit(X, y)
    ours = LinearSVC(tol=1e-8, max_iter=50_000, solver=solver, **shared).fit(X, y)
    t, scale = np.where(y > 0, 1.0, -1.0), shared["intercept_scaling"]

    def objective(model):
        w = np.r_[model.coef_.ravel(), np.ravel(model.intercept_) / scale]
        return twin.primal(loss, np.c_[X, np.full(len(y), scale)], t, np.full(len(y), 0.5), w)

    assert objective(ours) == pytest.approx(objective(theirs), rel=1e-6)
    assert ours.primal_objective_[0] == pytest.approx(objective(ours), rel=1e-10)
    assert ours.dual_objective_[0] <= objective(theirs) * (1 + 1e-12)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=2e-4)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=2e-4)


def test_unscaled_features_change_over_to_newton():
    """Where coordinate descent is hopeless, "auto" goes over to Newton's method and still reaches the gap."""
    X, y = make_classification(400, 80, flip_y=0.1, random_state=0)
    X = X * np.logspace(0, 4, 80)
    model = LinearSVC(loss="hinge", C=10.0, random_state=0).fit(X, y)
    assert model.converged_
    assert model.solver_ == ["dual_cd, newton"]
    assert LinearSVR(C=10.0, random_state=0).fit(X, X[:, 0]).converged_


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("seed", range(8))
def test_columns_of_unlike_scales_end_no_further_off_than_zeros(seed):
    """Descent hands over before `max_iter` ends it, and where Newton's method ends further off its model is kept."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(12, 80)) * 10.0 ** rng.uniform(-2, 2, size=80)
    model = LinearSVC(loss="hinge", C=1000.0, max_iter=300, random_state=seed).fit(X, np.arange(12) % 2)
    assert model.solver_ == ["dual_cd, newton"]
    assert 0.0 <= model.dual_objective_[0] <= model.primal_objective_[0]


# -- the estimator -----------------------------------------------------------------------------------------------


def test_warning_states_the_true_gap(two_classes):
    """A fit that the cap on iterations stops warns with the gap it has, and that gap holds."""
    X, y = two_classes
    model = LinearSVC(loss="hinge", solver="dual_cd", max_iter=2, tol=1e-9, random_state=0)
    with pytest.warns(ConvergenceWarning, match="relative duality gap of"):
        model.fit(X, y)
    assert not model.converged_
    assert model.gap_ > 1e-9
    best = LinearSVC(loss="hinge", tol=1e-9, random_state=0, max_iter=50_000).fit(X, y)
    assert model.dual_objective_[0] <= best.primal_objective_[0] <= model.primal_objective_[0]


def test_pickle_sparsify_and_verbose(two_classes, capsys):
    """A fitted model pickles, predicts from sparse weights, and says what it did if asked."""
    X, y = two_classes
    model = LinearSVC(random_state=0, verbose=1).fit(X, y)
    assert "relative gap" in capsys.readouterr().out
    again = pickle.loads(pickle.dumps(model)).sparsify()
    np.testing.assert_allclose(again.decision_function(sp.csr_array(X)), model.decision_function(X))
    np.testing.assert_array_equal(again.densify().coef_, model.coef_)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"C": 0}, InvalidParameterError, "C="),
        ({"tol": 0.0}, InvalidParameterError, "tol="),
        ({"loss": "log"}, InvalidParameterError, "squared_hinge"),
        ({"solver": "lbfgs"}, InvalidParameterError, "dual_cd"),
        ({"n_jobs": 0}, InvalidParameterError, "n_jobs"),
        ({"dual": True, "solver": "newton"}, IncompatiblePartsError, "contradict"),
        ({"penalty": "l1", "loss": "hinge"}, IncompatiblePartsError, "loss"),
        ({"penalty": "l1", "dual": True}, IncompatiblePartsError, "dual"),
        ({"penalty": "l1", "solver": "dual_cd"}, IncompatiblePartsError, "solver"),
        ({"multi_class": "crammer_singer", "penalty": "l1"}, IncompatiblePartsError, "penalty"),
        ({"multi_class": "crammer_singer", "solver": "newton"}, IncompatiblePartsError, "solver"),
        ({"multi_class": "crammer_singer", "penalize_intercept": False}, IncompatiblePartsError, "penalises"),
        ({"multi_class": "crammer_singer", "probability": "sigmoid"}, IncompatiblePartsError, "CalibratedClassifierCV"),
        ({"penalize_intercept": "no"}, InvalidParameterError, "penalize_intercept"),
        ({"class_weight": "even"}, InvalidParameterError, "balanced"),
        ({"class_weight": {7: 1.0}}, InvalidParameterError, "no labels of y"),
    ],
)
def test_wrong_parameters_are_named(two_classes, options, error, text):
    """A parameter that cannot be is refused by name, with what is possible."""
    with pytest.raises(error, match=text):
        LinearSVC(**options).fit(*two_classes)


def test_bad_weights_are_refused(two_classes):
    """Negative, all-zero and misshapen sample weights are refused."""
    X, y = two_classes
    for weights in (-np.ones(len(y)), np.zeros(len(y)), np.ones((len(y), 1)), np.ones(3)):
        with pytest.raises(InvalidDataError):
            LinearSVC().fit(X, y, weights)


# -- how rows are read, and what a solver begins with ------------------------------------------------------------


@given(n=st.integers(0, 5000), share=st.floats(0.01, 1.0))
def test_spread_takes_one_row_of_every_part(n, share):
    """The rows of a sample ascend, none twice, one in each of as many equal parts as there are rows."""
    n_chosen = int(n * share)
    chosen = spread(n, n_chosen)
    assert chosen.shape == (n_chosen,)
    bounds = np.arange(n_chosen + 1) * n // max(n_chosen, 1)
    assert (bounds[:-1] <= chosen).all()
    assert (chosen < bounds[1:]).all()


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
def test_wide_rows_are_read_where_they_are(loss):
    """Rows too wide to be copied give the same model in any order, and repeated or weighted, up to the tolerance."""
    X, y = make_classification(250, 90, n_informative=10, flip_y=0.1, random_state=0)
    rows, *_ = gather_rows(X, y, np.ones(len(y)), bias=1.0, seed=0)
    assert np.shares_memory(rows.values, X)
    assert (np.diff(rows.first.astype(np.int64)) > 0).all()
    weights = np.random.default_rng(1).integers(0, 3, len(y))
    order = np.random.default_rng(0).permutation(int(weights.sum()))
    make = LinearSVC(loss=loss, C=0.01, tol=1e-9, max_iter=50_000, random_state=0)
    weighted = make.fit(X, y, weights).coef_
    repeated = make.fit(X.repeat(weights, axis=0)[order], y.repeat(weights)[order]).coef_
    np.testing.assert_allclose(weighted, repeated, atol=1e-5)


def test_more_columns_than_rows_start_with_coordinate_descent(monkeypatch):
    """A squared loss on more columns than rows gets passes over rows, at any scale, and Newton if these are slow."""
    X, y = make_classification(60, 200, n_informative=20, flip_y=0.2, random_state=0)
    for scale in (1.0, np.logspace(0, 3, 200)):
        model = LinearSVC(C=1e3, tol=1e-9, random_state=0).fit(X * scale, y)
        assert model.converged_
        assert model.solver_[0].startswith("dual_cd")
    monkeypatch.setattr("dsgd.svm.linear_solver.solve.SMOOTH_EARLIEST", 5.0)
    monkeypatch.setattr("dsgd.svm.linear_solver.solve.SMOOTH_PATIENCE", 1.0)
    model = LinearSVC(tol=1e-9, random_state=0).fit(X, y)
    assert model.converged_
    assert model.solver_ == ["dual_cd, newton"]


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dense_rows_of_zeros_are_the_sparse_ones(loss, dtype):
    """Wide dense rows that are mostly zeros are read without them: the machine is that of CSR rows, to the last bit."""
    rng = np.random.default_rng(0)
    X = np.where(rng.random((300, 80)) < 0.15, rng.normal(size=(300, 80)), 0.0).astype(dtype)
    X.flags.writeable = False
    y = (X[:, :10].sum(axis=1) > 0).astype(int)
    dense, sparse = (LinearSVC(loss=loss, random_state=0).fit(rows, y) for rows in (X, sp.csr_matrix(X)))
    np.testing.assert_array_equal(dense.coef_, sparse.coef_)
    np.testing.assert_array_equal(dense.intercept_, sparse.intercept_)


def test_several_classes_and_weights_match_liblinear():
    """One-vs-rest with class and sample weights gives scikit-learn's outputs, on one thread and on two."""
    X, y = make_classification(300, 10, n_informative=6, n_classes=4, random_state=2)
    names = np.array(["ash", "birch", "cedar", "dogwood"])[y]
    weights = np.random.default_rng(0).uniform(0.2, 3.0, len(y))
    shared = {"class_weight": {"birch": 3.0, "cedar": 0.5}, "random_state": 0}
    theirs = PlainSVC(dual=True, tol=1e-8, max_iter=100_000, **shared).fit(X, names, weights)
    for n_jobs in (1, 2):
        ours = LinearSVC(tol=1e-9, n_jobs=n_jobs, **shared).fit(X, names, weights)
        np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-4)
        np.testing.assert_allclose(ours.decision_function(X), theirs.decision_function(X), atol=1e-3)
        assert (ours.predict(X) == theirs.predict(X)).all()
        assert len(ours.solver_) == len(ours.primal_objective_) == 4
