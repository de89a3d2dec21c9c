"""Small pairs of classes, solved by one call each: the same machines and the same proof."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits, make_classification

from dsgd.svm import SVC, NuSVC
from dsgd.svm.estimators.pairs import PairTrainer
from dsgd.svm.kernel_solver import pairs as small_pairs
from dsgd.svm.kernel_solver.pairs import OPEN, PROVEN
from dsgd.svm.kernel_solver.problem import Counts, Dual, conclude, tell
from dsgd.svm.kernels.functions import Kernel


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
