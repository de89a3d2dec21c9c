"""Small pairs of classes, solved by one call each: the same machines and the same proof."""

from __future__ import annotations

import warnings
from itertools import combinations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits, make_classification
from sklearn.metrics.pairwise import pairwise_kernels

from dsgd.errors import InvalidDataError
from dsgd.svm import SVC, NuSVC
from dsgd.svm.estimators.pairs import PairTrainer
from dsgd.svm.kernel_solver import pairs as small_pairs
from dsgd.svm.kernel_solver import solve as solving
from dsgd.svm.kernel_solver.pairs import OPEN, PROVEN
from dsgd.svm.kernel_solver.problem import Counts, Dual, conclude, tell
from dsgd.svm.kernels.functions import Kernel
from reference.svm import dual_gap


def _classes(n=240, k=6, d=5):
    return make_classification(
        n, d, n_informative=d, n_redundant=0, n_classes=k, n_clusters_per_class=1, random_state=3
    )


def _watch(monkeypatch):
    """Return a list that takes the status of each call."""
    seen, plain = [], small_pairs.solve_pairs

    def solve_pairs(*args):
        plain(*args)
        seen.extend(args[-2][:, 0].astype(int).tolist())

    monkeypatch.setattr(small_pairs, "solve_pairs", solve_pairs)
    return seen


def _one_by_one(model, *args):
    """Fit with the solver of one problem at a time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PairTrainer, "_takes_small_pairs", lambda self: False)
        return model.fit(*args)


KERNELS = {
    "rbf": {},
    "linear": {"kernel": "linear"},
    "poly": {"kernel": "poly", "coef0": 1.0},
    "poly of degree 4": {"kernel": "poly", "coef0": 1.0, "degree": 4, "gamma": 0.1},
    "sigmoid": {"kernel": "sigmoid", "gamma": 0.01},
}


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("options", KERNELS.values(), ids=KERNELS)
@pytest.mark.parametrize("make", [SVC, NuSVC])
def test_machines_are_those_of_the_solver_of_one_problem(monkeypatch, make, options, dtype):
    """Objectives, intercepts and decision values are those that pairs have when they are solved one by one."""
    X, y = _classes()
    X = X.astype(dtype)
    weights = np.random.default_rng(0).uniform(0.5, 2.0, len(y))
    more = {"nu": 0.7} if make is NuSVC else {"class_weight": {0: 2.0}}
    other = _one_by_one(make(tol=1e-7, **options, **more), X, y, weights)
    seen = _watch(monkeypatch)
    model = make(tol=1e-7, **options, **more).fit(X, y, weights)
    assert len(seen) == 15
    assert seen.count(PROVEN) >= 14
    assert model.converged_
    assert other.converged_
    assert model.dual_objective_ == pytest.approx(other.dual_objective_, rel=1e-6)
    np.testing.assert_allclose(model.intercept_, other.intercept_, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(model.decision_function(X), other.decision_function(X), rtol=1e-3, atol=1e-3)
    if dtype == np.float64:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(small_pairs, "_MANY_CLASSES", 99)
            apart = make(tol=1e-7, **options, **more).fit(X, y, weights)
        assert apart.dual_objective_ == pytest.approx(model.dual_objective_, rel=1e-6)
        assert apart.n_kernel_evaluations_ != model.n_kernel_evaluations_


@pytest.mark.parametrize("kind", ["csr", "precomputed", "callable", "sparse rows"])
def test_other_rows_give_the_same_machines(kind):
    """Rows in another form, given values and callables give the machines of dense rows."""
    X, y = _classes()
    if kind == "sparse rows":  # so wide and empty that they are multiplied as such
        X = np.hstack([X, np.zeros((len(X), 500))])
    plain = SVC(gamma=0.1, tol=1e-8).fit(X, y)
    if kind in {"csr", "sparse rows"}:
        model, rows = SVC(gamma=0.1, tol=1e-8).fit(sp.csr_matrix(X), y), sp.csr_matrix(X)
    elif kind == "precomputed":
        rows = pairwise_kernels(X, metric="rbf", gamma=0.1)
        model = SVC(kernel="precomputed", tol=1e-8).fit(rows, y)
        frozen = rows.copy()
        frozen.flags.writeable = False
        assert SVC(kernel="precomputed", tol=1e-8).fit(frozen, y).dual_objective_ == pytest.approx(
            model.dual_objective_
        )
    else:
        rows, model = X, SVC(kernel=lambda a, b: pairwise_kernels(a, b, metric="rbf", gamma=0.1), tol=1e-8).fit(X, y)
    np.testing.assert_array_equal(model.support_, plain.support_)
    np.testing.assert_allclose(model.decision_function(rows), plain.decision_function(X), atol=1e-5)


def test_a_callable_kernel_finds_the_machine_of_the_named_one():
    """On few rows a kernel gives the same numbers to rounding, whether it is named or a function."""
    X, y = _classes(n=150, k=4)
    named = SVC(gamma=0.1).fit(X, y)
    other = SVC(kernel=lambda a, b: pairwise_kernels(a, b, metric="rbf", gamma=0.1)).fit(X, y)
    np.testing.assert_array_equal(other.n_iter_, named.n_iter_)
    np.testing.assert_allclose(other.intercept_, named.intercept_, rtol=1e-9)


@pytest.mark.parametrize("C", [0.01, 1.0, 1e4])
def test_what_a_machine_says_of_itself_is_so(C):
    """The gap told is that of the returned coefficients, computed by plain numpy over all samples of each pair."""
    X, y = load_digits(return_X_y=True)
    model = SVC(C=C).fit(X, y)
    K = pairwise_kernels(X, metric="rbf", gamma=model._gamma)
    betas, worst = np.zeros((45, len(y))), -np.inf
    betas[:, model.support_] = model._pair_coefs().T
    for beta, (a, b) in zip(betas, combinations(range(10), 2), strict=True):
        rows = np.flatnonzero((y == a) | (y == b))
        signs = np.where(y[rows] == a, 1.0, -1.0)
        args = K[np.ix_(rows, rows)], signs, -np.ones(len(rows)), np.full(len(rows), C), signs * beta[rows]
        worst = max(worst, dual_gap(*args))
    assert model.converged_
    assert model.gap_ == pytest.approx(worst, rel=1e-5, abs=1e-9)
    assert worst < 1e-3


def test_a_pair_left_open_goes_on(monkeypatch):
    """If a call may take only three steps, the next call continues each pair, and all steps count."""
    X, y = _classes()
    model = SVC(C=10.0, tol=1e-6).fit(X, y)
    monkeypatch.setattr(small_pairs, "_STEPS", 3)
    seen = _watch(monkeypatch)
    short = SVC(C=10.0, tol=1e-6).fit(X, y)
    assert set(seen) == {OPEN}
    assert short.converged_
    elsewhere = np.array([history[-1].n_iter for history in short.elimination_history_])
    assert (elsewhere > 0).all()
    np.testing.assert_array_equal(short.n_iter_, 3 + elsewhere)
    assert short.dual_objective_ == pytest.approx(model.dual_objective_, rel=1e-8)
    assert [record.event for record in short.elimination_history_[0]].count("verify") >= 1


@pytest.mark.parametrize("max_iter", [0, 1, 20])
def test_max_iter_holds_for_each_pair(max_iter):
    """No pair takes more steps than it may, and a fit that needs more says so."""
    X, y = _classes()
    with pytest.warns(UserWarning, match="max_iter"):
        model = SVC(C=100.0, max_iter=max_iter).fit(X, y)
    assert (model.n_iter_ <= max_iter).all()
    assert not model.converged_
    assert model.gap_ > 1e-3


@pytest.mark.parametrize("options", [{"kernel": "poly", "degree": 80, "gamma": 1e6}, {"kernel": "linear"}])
def test_values_that_are_not_finite_are_refused(options):
    """Overflowing kernel values end in an error that names them, never in a machine."""
    X, y = _classes()
    scale = 1e200 if options["kernel"] == "linear" else 1.0
    with pytest.raises(InvalidDataError, match="finite"):
        SVC(**options).fit(X * scale, y)


def test_threads_do_not_change_a_bit():
    """One thread and three find the same numbers."""
    X, y = load_digits(return_X_y=True)
    one, three = (SVC(n_jobs=n).fit(X, y) for n in (1, 3))
    np.testing.assert_array_equal(one.dual_coef_, three.dual_coef_)
    np.testing.assert_array_equal(one.intercept_, three.intercept_)
    assert one.n_kernel_evaluations_ == three.n_kernel_evaluations_


def test_what_is_held_stays_within_the_cache():
    """Rows and values within classes are held up to half of the cache each; with less there are none."""
    X, y = load_digits(return_X_y=True)
    codes, pool = y.astype(np.int64), small_pairs.Pool(1, None)
    kernel = Kernel("rbf", 1e-3)
    for most in (0, 10**6, 3 * 10**6, 10**8):
        pairs = small_pairs.ClassPairs(kernel, X, np.arange(len(y)), codes, pool, most)
        assert pairs.takes((0, 1)) == (8 * 66 * len(y) <= most // 2)
        if pairs.takes((0, 1)):
            assert pairs._own.nbytes <= most // 2
    assert pairs._own.nbytes == 8 * (np.bincount(codes) ** 2).sum()


def test_a_large_class_is_solved_as_before(monkeypatch):
    """A pair of more samples than a call may hold is solved by blocks, the others by calls."""
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1, 2, 3, 4], [330, 40, 40, 40, 40])
    X = rng.normal(size=(len(y), 3)) + y[:, None]
    monkeypatch.setattr(small_pairs, "_LARGEST", 300)
    monkeypatch.setattr(solving, "LARGEST_DIRECT", 300)
    seen = _watch(monkeypatch)
    model = SVC().fit(X, y)
    assert len(seen) == 6
    other = _one_by_one(SVC(), X, y)
    assert model.dual_objective_ == pytest.approx(other.dual_objective_, rel=1e-4)


@given(seed=st.integers(0, 10**6), by_sign=st.booleans(), n=st.integers(2, 40), kinds=st.sampled_from([1, 2, 3]))
def test_what_is_told_is_what_numpy_tells(seed, by_sign, n, kinds):
    """Objective, duality gap and thresholds in the call are those of `conclude`, without bounds or with bounds of zero.

    Of classification, of regression, and of regression with variables that rounding keeps from their bounds.
    """
    rng, r = np.random.default_rng(seed), min(kinds, 2)
    y = np.where(np.arange(n) % 2, 1.0, -1.0)[None] if r == 1 else np.outer([1.0, -1.0], np.ones(n))
    upper = rng.choice([0.0, 0.5, 1.0, 3.0, np.inf], (r, n), p=[0.1, 0.3, 0.3, 0.2, 0.1])
    alpha = np.minimum(upper, 7.0) * rng.choice([0.0, 0.3, 1.0] if kinds < 3 else [0.0, 1e-17], (r, n))
    dual = Dual(y, -np.ones((r, n)) if not by_sign else np.zeros((r, n)), upper, alpha, by_sign=by_sign)
    u = np.round(rng.normal(size=n), 1)
    want = conclude(dual, Kernel("rbf"), alpha, u, tol=1e-3, counts=Counts())
    told, parts = np.zeros(4 + dual.n_groups), (y * dual.p, y, upper, alpha, dual.group)
    tell(u, *(part.ravel() for part in parts), float((y * alpha).sum()), told)
    told[0] = max(told[0], 0.0)
    np.testing.assert_allclose(told[:3], [want.gap, want.duality_gap, want.objective], rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(told[4:], want.thresholds, rtol=1e-10, atol=1e-10)


@pytest.mark.slow
def test_pairs_solved_many_in_a_call_are_those_of_a_call_each(monkeypatch):
    """Of many tiny classes a call solves many pairs, and finds the same to the last bit, open pairs included."""
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(40), rng.integers(1, 12, 40))
    X = rng.normal(size=(len(y), 4)) + rng.normal(size=(40, 4))[y]
    weights = rng.choice([0.5, 1.0, 2.0], len(y))
    several = [{}, {"class_weight": "balanced", "C": 1e-4}, {"max_iter": 12}, {"n_jobs": 3}]
    shares = [{"nu": 0.02}, {"nu": 0.4, "class_weight": "balanced"}, {"nu": 0.02, "max_iter": 12, "n_jobs": 3}]
    for make, options in [*((SVC, each) for each in several), *((NuSVC, each) for each in shares)]:
        found = []
        for tiny in (0, small_pairs._TINY):
            monkeypatch.setattr(small_pairs, "_TINY", tiny)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of steps and of margins
                found.append(make(**options).fit(X, y, weights))
        one, many = found
        for name in ("dual_coef_", "intercept_", "support_", "n_iter_", "gap_", "dual_objective_", "duality_gap_"):
            np.testing.assert_array_equal(getattr(one, name), getattr(many, name))
        assert one.n_kernel_evaluations_ == many.n_kernel_evaluations_
        events = [[[(r.event, r.n_iter, r.gap) for r in run] for run in m.elimination_history_] for m in found]
        assert events[0] == events[1]
