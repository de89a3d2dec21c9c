"""What safe screening proves is true at the optimum, on every problem and from every start."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn.datasets import make_classification
from sklearn.metrics.pairwise import linear_kernel, rbf_kernel

from dsgd.collectives import Team
from dsgd.errors import InvalidDataError, InvalidParameterError
from dsgd.svm import SVC, SVR, LinearSVC, LinearSVR, OneClassSVM, screen
from dsgd.svm.certify import (
    Ball,
    count_proven,
    feature_norms,
    gap_ball,
    intercept_bracket,
    path_ball,
    prove,
    prove_linear,
)
from dsgd.svm.kernel_solver.block import solve
from dsgd.svm.kernel_solver.elimination import Elimination
from dsgd.svm.kernel_solver.problem import Dual, Solution
from dsgd.svm.kernels.functions import Kernel
from dsgd.svm.kernels.matrix import KernelMatrix
from dsgd.svm.kernels.threads import Pool
from dsgd.svm.linear_solver.problem import certify, gather_rows, make_problem
from dsgd.svm.linear_solver.solve import solve_linear

POLICY = Elimination("none")


def _problem(rng: np.random.Generator, task: str, kernel: str, n: int = 40) -> tuple[np.ndarray, Dual]:
    """Return kernel values and a problem with bounds of its own for every variable."""
    X = rng.normal(size=(n, 3)) + rng.normal(size=3)
    K = linear_kernel(X) if kernel == "linear" else rbf_kernel(X, gamma=rng.uniform(0.1, 1.0))
    bounds = rng.uniform(0.5, 1.5, n) * 10.0 ** rng.uniform(-2, 2)
    if task == "classes":
        y = np.where(X[:, 0] + rng.normal(scale=rng.uniform(0.01, 1), size=n) > np.median(X[:, 0]), 1.0, -1.0)
        y[:2] = 1.0, -1.0
        return K, Dual(y[None], np.full((1, n), -1.0), bounds[None], np.zeros((1, n)))
    z, ones, epsilon = X[:, 0] ** 2 + rng.normal(scale=0.3, size=n), np.ones(n), 0.1
    signs, terms = np.stack([ones, -ones]), np.stack([epsilon - z, epsilon + z])
    return K, Dual(signs, terms, np.stack([bounds, bounds]), np.zeros((2, n)))


def _solve(K: np.ndarray, dual: Dual, tol: float) -> Solution:
    matrix = KernelMatrix(
        Kernel("precomputed"), K, samples=np.arange(len(K)), dtype=np.float64, cache_bytes=0, pool=Pool(1, None)
    )
    return solve(dual, matrix, tol=tol, max_iter=200_000, elimination=POLICY)


def _beta(dual: Dual, alpha: np.ndarray) -> np.ndarray:
    return (dual.y * alpha).sum(axis=0)


def _wrong(values: np.ndarray, dual: Dual, best: Solution) -> int:
    """Return how many proven variables are not where the tight solution has them."""
    # A variable that is free, or at the other bound, with a margin that is clear of one.
    far = 1e-5 * dual.upper
    return int(((values == 0) & (best.alpha > far)).sum() + ((values > 0) & (best.alpha < dual.upper - far)).sum())


def _descend(K: np.ndarray, dual: Dual, n_passes: int) -> np.ndarray:
    """Return the variables of a problem without intercept, by coordinate descent on its dual."""
    alpha, y = dual.alpha[0].copy(), dual.y[0]
    u = K @ (y * alpha)
    for _ in range(n_passes):
        for i in range(len(y)):
            new = np.clip(alpha[i] - (y[i] * u[i] + dual.p[0, i]) / K[i, i], 0.0, dual.upper[0, i])
            u += K[i] * y[i] * (new - alpha[i])
            alpha[i] = new
    return alpha[None]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    task=st.sampled_from(["classes", "values"]),
    kernel=st.sampled_from(["linear", "rbf"]),
    tol=st.sampled_from([1.0, 0.1, 1e-2, 1e-3, 1e-5]),
    ratio=st.sampled_from([1.0, 1.01, 1.1, 1.5, 4.0, 0.8]),
    is_centred=st.booleans(),
)
def test_nothing_proven_is_wrong_with_a_free_intercept(seed, task, kernel, tol, ratio, is_centred):
    """From a rough solution, at its costs or at others: the ball holds the optimum, the bracket its intercept."""
    rng = np.random.default_rng(seed)
    K, dual = _problem(rng, task, kernel)
    rough = _solve(K, dual, tol)
    start = replace(dual, alpha=rough.alpha)
    later = replace(dual, upper=ratio * dual.upper)
    best = _solve(K, later, 1e-9)
    ball, squares = path_ball(start, rough.u, ratio), np.diag(K)
    norms = np.sqrt(squares - 2 * K[:, ::2].mean(axis=1) + K[::2, ::2].mean() if is_centred else squares)
    values = prove(start, ball, norms, ratio=ratio)
    assert _wrong(values, later, best) == 0
    off = _beta(dual, best.alpha) - 0.5 * (1 + ratio) * _beta(dual, rough.alpha)
    assert np.sqrt(max(off @ K @ off, 0.0)) <= ball.radius * (1 + 1e-6) + 1e-6
    breaks, reach = -dual.y * dual.p - ball.scores, ball.radius * norms
    mass = later.upper[dual.y > 0].sum()
    low, high = intercept_bracket(breaks - reach, breaks + reach, later.upper, mass)
    free = (best.alpha > 1e-6 * later.upper) & (best.alpha < (1 - 1e-6) * later.upper)
    if free.any() and not is_centred:  # distances from a mean are for an intercept that takes it in
        assert low - 1e-6 <= -best.thresholds[0] <= high + 1e-6


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), n_passes=st.integers(0, 30), ratio=st.sampled_from([1.0, 1.05, 1.5, 0.9]))
def test_nothing_proven_is_wrong_without_intercept(seed, n_passes, ratio):
    """The same for problems without intercept, from a few passes of coordinate descent."""
    rng = np.random.default_rng(seed)
    K, dual = _problem(rng, "classes", "rbf", n=16)
    start = replace(dual, alpha=_descend(K, dual, n_passes))
    later = replace(dual, upper=ratio * dual.upper)
    best = _descend(K, later, 1500)
    u = K @ _beta(dual, start.alpha)
    ball = path_ball(start, u, ratio, has_intercept=False)
    values = prove(start, ball, np.ones(16), ratio=ratio, has_intercept=False)
    assert ((values == 0) & (best > 1e-4 * later.upper)).sum() == 0
    assert ((values > 0) & (best < (1 - 1e-4) * later.upper)).sum() == 0


def test_the_radius_cannot_be_smaller():
    """Two points whose optimum is on the sphere: of the ball of the gap, and of the ball along a path."""
    K = np.array([[1.0, -1.0], [-1.0, 1.0]])
    dual = Dual(np.array([[1.0, -1.0]]), np.full((1, 2), -1.0), np.full((1, 2), 0.5), np.zeros((1, 2)))
    best = _solve(K, dual, 1e-12)
    norm = np.sqrt(_beta(dual, best.alpha) @ best.u)
    assert gap_ball(dual, np.zeros(2)).radius == pytest.approx(norm, rel=1e-9)  # from zero, a distance of norm
    small = replace(dual, upper=0.25 * dual.upper)
    before = _solve(K, small, 1e-12)
    ball = path_ball(replace(small, alpha=before.alpha), before.u, 2.0)
    after = _solve(K, replace(small, upper=0.5 * dual.upper), 1e-12)
    off = _beta(dual, after.alpha) - 1.5 * _beta(dual, before.alpha)
    assert ball.radius == pytest.approx(np.sqrt(off @ K @ off), rel=1e-6)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 12))
def test_the_bracket_holds_every_minimiser(seed, n):
    """No intercept outside of the bracket is better than the best at a break point."""
    rng = np.random.default_rng(seed)
    breaks, weights = np.round(rng.normal(size=n), 1), rng.integers(1, 4, n).astype(float)
    mass = float(rng.integers(0, int(weights.sum()) + 1))

    def objective(b: float) -> float:
        return float((weights * np.maximum(b - breaks, 0)).sum() - mass * b)

    low, high = intercept_bracket(breaks, breaks, weights, mass)
    values = np.array([objective(b) for b in breaks])
    minimisers = breaks[values <= values.min() + 1e-9]
    assert low <= minimisers.min()
    assert high >= minimisers.max()
    for b in (low - 0.01, high + 0.01):
        assert not np.isfinite(b) or objective(b) > values.min() + 1e-9


@pytest.mark.parametrize("task", ["binary", "three", "values", "one"])
def test_a_fitted_model_says_which_coefficients_are_final(task):
    """Coefficients that `screen` returns are those of a far more exact fit, and most rows have one."""
    X, y = make_classification(
        400, 8, n_informative=5, n_classes=3 if task == "three" else 2, flip_y=0.05, random_state=0
    )
    weights = None if task == "three" else np.random.default_rng(0).uniform(0.5, 1.5, len(y))
    model: SVC | SVR | OneClassSVM = {
        "binary": SVC(class_weight={0: 2.0}),
        "three": SVC(),
        "values": SVR(epsilon=0.3, kernel="linear", C=0.1),
        "one": OneClassSVM(nu=0.3),
    }[task]
    target = None if task == "one" else (X[:, 0] + 0.2 * X[:, 1] ** 2 if task == "values" else y)
    model.set_params(tol=1e-4).fit(X, target, sample_weight=weights)
    found = screen(model, X, target, sample_weight=weights).reshape(len(y), -1)
    exact = model.set_params(tol=1e-10).fit(X, target, sample_weight=weights)
    coefs = exact._pair_coefs() if isinstance(exact, SVC) else exact._dense_coefs().T
    full = np.zeros(found.shape)
    full[exact.support_] = coefs
    proven = np.isfinite(found)
    assert proven.mean() > 0.6
    np.testing.assert_allclose(found[proven], full[proven], atol=1e-7)


def test_screening_refuses_what_it_cannot_prove():
    """Kernels that need not be inner products, other rows, and problems that do not scale are refused."""
    X, y = make_classification(60, random_state=0)
    with pytest.raises(InvalidParameterError, match="inner product"):
        screen(SVC(kernel="sigmoid").fit(X, y), X, y)
    with pytest.raises(InvalidDataError, match="60 rows"):
        screen(SVC().fit(X, y), X[:50], y[:50])
    one = Dual(np.ones((1, 2)), np.zeros((1, 2)), np.ones((1, 2)), np.full((1, 2), 0.5))
    with pytest.raises(InvalidDataError, match="y'alpha = 0"):
        path_ball(one, np.ones(2), 1.5)
    assert feature_norms(Kernel("poly", 1.0, -1.0, 3.0), X) is None
    assert isinstance(gap_ball(one, np.ones(2)), Ball)


LOSSES = ["hinge", "squared_hinge", "epsilon_insensitive", "squared_epsilon_insensitive"]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    loss=st.sampled_from(LOSSES),
    penalizes=st.booleans(),
    max_iter=st.sampled_from([1, 3, 10, 300]),
)
def test_linear_certificates_are_right(seed, loss, penalizes, max_iter):
    """However early a linear solver stops, dual variables that are proven are those of the optimum."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(40, 4)) + rng.normal(size=4)
    y = X[:, 0] + rng.normal(scale=rng.uniform(0.05, 1), size=40)
    targets = y if loss.endswith("insensitive") else np.where(y > np.median(y), 1.0, -1.0)
    costs = rng.uniform(0.5, 1.5, 40) * 10.0 ** rng.uniform(-2, 1)
    rows, targets, costs = gather_rows(X, targets, costs, bias=1.0, seed=0)
    problem, team = make_problem(loss, rows, targets, costs, 0.1, penalizes), Team()
    rough = solve_linear(problem, "auto", tol=1e-7, max_iter=max_iter, team=team)
    best = solve_linear(problem, "auto", tol=1e-11, max_iter=5000, team=team)
    assume(best.gap < 1e-8)  # with hardly any cost and a free intercept it may stall far from the optimum, and says so
    proven = prove_linear(problem, rough, team)
    known = np.isfinite(proven)
    np.testing.assert_allclose(proven[known], best.duals[known], atol=2e-4 * costs.max())
    assert count_proven(problem, rough, team) == known.sum()
    if rough.gap <= 1e-7 and loss == "hinge":
        assert known.mean() > 0.5


def test_linear_estimators_tell_what_is_proven():
    """More rows are proven the smaller the gap, for each class; nothing is with an L1 penalty."""
    X, y = make_classification(600, 8, n_informative=5, n_classes=3, random_state=0)
    rough, fine = (LinearSVC(loss="hinge", tol=tol, random_state=0).fit(X, y).n_screened_ for tol in (1e-2, 1e-8))
    assert rough.shape == fine.shape == (3,)
    assert (fine > rough).all()
    assert (fine > 500).all()
    assert LinearSVC(penalty="l1", dual=False).fit(X, y).n_screened_.tolist() == [0, 0, 0]
    assert 0 < LinearSVR(epsilon=0.5, C=0.1, tol=1e-8).fit(X, X[:, 0] + X[:, 1] ** 2).n_screened_ <= 600


@pytest.mark.parametrize("loss", ["hinge", "epsilon_insensitive"])
def test_linear_certificates_hold_where_the_optimum_is_on_the_sphere(loss):
    """Where no row costs much, weights moved along a row by t have a gap of t²/2, and the ball ends at the optimum."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 4))
    targets = np.where(X[:, 0] + rng.normal(size=40) > 0, 1.0, -1.0)
    rows, targets, costs = gather_rows(X, targets, np.full(40, 1e-4), bias=1.0, seed=0)
    problem, team = make_problem(loss, rows, targets, costs, 0.1, True), Team()
    best = solve_linear(problem, "auto", tol=1e-12, max_iter=5000, team=team)
    n_proven = 0
    for row, target in zip(X, targets, strict=True):
        weights = best.weights + 2.0 * target * np.array([*row, 1.0])
        primal, dual, _ = certify(problem, weights, best.duals, team)
        proven = prove_linear(problem, replace(best, weights=weights, primal=primal, dual=dual), team)
        known = np.isfinite(proven)
        np.testing.assert_allclose(proven[known], best.duals[known], atol=1e-7)
        n_proven += known.sum()
    assert n_proven > 0
