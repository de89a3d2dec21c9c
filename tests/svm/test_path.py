"""Grids of C and gamma with warm starts end where cold fits end."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import make_classification
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics.pairwise import rbf_kernel

from dsgd.errors import InvalidParameterError
from dsgd.svm import SVC, OneClassSVM, svm_path
from dsgd.svm.kernel_solver.block import solve
from dsgd.svm.kernel_solver.elimination import Elimination
from dsgd.svm.kernel_solver.problem import Dual
from dsgd.svm.kernels.cache import Distances
from dsgd.svm.kernels.functions import Kernel
from dsgd.svm.kernels.matrix import KernelMatrix
from dsgd.svm.kernels.threads import Pool
from reference.svm import dual_gap

GAMMA = 0.2


def _blobs(n: int = 500, seed: int = 0, n_classes: int = 2) -> tuple[np.ndarray, np.ndarray]:
    return make_classification(
        n, 8, n_informative=5, n_classes=n_classes, flip_y=0.05, random_state=np.random.RandomState(seed)
    )


@pytest.mark.parametrize("mode", ["none", "multi"])
def test_a_known_start_and_samples_left_out_change_nothing(mode):
    """From a scaled optimum with its K(y alpha), most samples left out, rightly or not, the optimum is the same."""
    X, labels = _blobs()
    n = len(labels)
    K, y = rbf_kernel(X, gamma=GAMMA), np.where(labels, 1.0, -1.0)[None]
    cold = Dual(y, np.full((1, n), -1.0), np.full((1, n), 1.0), np.zeros((1, n)))

    def matrix() -> KernelMatrix:
        kernel, pool = Kernel("rbf", GAMMA), Pool(1, None)
        return KernelMatrix(kernel, X, samples=None, dtype=np.float64, cache_bytes=10**7, pool=pool)

    policy = Elimination(mode)
    before = solve(cold, matrix(), tol=1e-6, max_iter=-1, elimination=policy)
    later = replace(cold, upper=2 * cold.upper)
    exact = solve(later, matrix(), tol=1e-6, max_iter=-1, elimination=policy)
    warm = replace(later, alpha=2 * before.alpha, u=2 * before.u)
    part = matrix()
    part.shrink(np.arange(0, n, 3))
    found = solve(warm, part, tol=1e-6, max_iter=-1, elimination=policy)
    assert found.converged
    assert found.objective == pytest.approx(exact.objective, rel=1e-8)
    np.testing.assert_allclose(found.u, K @ (y * found.alpha)[0], atol=1e-9)


def _assert_as_cold(path, make, X, y) -> int:
    """Assert that every point is the optimum of a cold fit; return the kernel values that cold fits need."""
    total = 0
    for k, point in enumerate(path.points):
        warm, cold = path.estimator(k), make(point.C, point.gamma).fit(X, y)
        total += cold.n_kernel_evaluations_
        assert point.converged
        assert point.gap == warm.gap_ < cold.tol
        assert point.dual_objective == warm.dual_objective_ == pytest.approx(cold.dual_objective_, rel=1e-5)
        assert point.n_support == len(warm.support_)
        assert type(warm) is type(cold)
        assert warm.get_params() == {**cold.get_params(), "gamma": warm.gamma}
        assert "_answer" not in vars(warm)
        if isinstance(warm, SVC):
            scores = cold.decision_function(X).reshape(len(y), -1)
            clear = (np.abs(scores) > 0.02).all(axis=1) if scores.shape[1] == 1 else np.zeros(len(y), dtype=bool)
            np.testing.assert_array_equal(warm.predict(X)[clear], cold.predict(X)[clear])
            assert (warm.predict(X) == cold.predict(X)).mean() > 0.99
        else:
            np.testing.assert_allclose(warm.predict(X), cold.predict(X), atol=0.05)
    return total


@pytest.mark.parametrize("form", ["dense", "csr", "float32"])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_every_point_is_the_optimum_of_a_cold_fit(form, n_classes):
    """Two and three classes, dense and CSR, two gammas: objectives, gaps and predictions are those of cold fits."""
    X, y = _blobs(400, n_classes=n_classes)
    rows = {"dense": X, "csr": sp.csr_matrix(np.where(np.abs(X) > 1, X, 0)), "float32": X.astype(np.float32)}[form]
    # Told to eliminate, cold fits go by rounds, as the grid does; problems this small would else each be one block.
    options = {"class_weight": {0: 2.0}, "elimination": "multi"}
    path = svm_path(rows, y, Cs=[0.1, 0.5, 1, 5, 20], gammas=["scale", 0.5], **options)
    cold = _assert_as_cold(path, lambda C, gamma: SVC(C=C, gamma=gamma, **options), rows, y)
    assert path.n_kernel_evaluations < 0.7 * cold
    assert len(path.points) == 10


@pytest.mark.parametrize("kernel", ["linear", "poly", "precomputed", "callable"])
def test_other_kernels(kernel):
    """Grids of C work with every kernel."""
    X, y = _blobs(200)
    X = X / 3
    given = rbf_kernel(X, gamma=0.3) if kernel == "precomputed" else X
    value = (lambda a, b: rbf_kernel(a, b, gamma=0.3)) if kernel == "callable" else kernel
    path = svm_path(given, y, Cs=[0.2, 0.3, 2], kernel=value)
    _assert_as_cold(path, lambda C, gamma: SVC(C=C, kernel=value, **({"gamma": gamma} if gamma else {})), given, y)


def test_fine_grids_start_with_proven_samples_left_out_and_lose_nothing():
    """With a cache for a part of the rows, samples proven at a bound begin outside, and each point is still exact."""
    X, y = _blobs(1500)
    path = svm_path(X, y, Cs=0.1 * 1.03 ** np.arange(8), cache_size=2, gammas=[GAMMA])
    shares = np.array([point.n_proven / point.n_samples for point in path.points])
    assert shares[0] == 0
    assert shares[1:].min() > 0.3
    left_out = [path.estimator(k).elimination_history_[0][0].n_active for k in range(8)]
    assert max(left_out[1:]) < 0.7 * 1500
    cold = _assert_as_cold(path, lambda C, gamma: SVC(C=C, gamma=gamma, cache_size=2), X, y)
    assert path.n_kernel_evaluations < 0.4 * cold


@pytest.mark.parametrize("n_classes", [2, 3])
def test_beyond_the_largest_variable_nothing_is_run(n_classes):
    """A C above all variables has the solution of the one before, without a step, and it is that of a cold fit."""
    X, y = _blobs(300, n_classes=n_classes)
    path = svm_path(X, y, Cs=[1e-2, 1e4, 1e5, 1e6], gammas=[2.0], tol=1e-6)
    _assert_as_cold(path, lambda C, gamma: SVC(C=C, gamma=gamma, tol=1e-6), X, y)
    work = [(point.n_iter, point.n_kernel_evaluations) for point in path.points]
    assert min(work[:2]) > (0, 0)
    assert work[2:] == [(0, 0)] * 2
    # Where one variable is at its bound, the next C has another solution.
    weights = np.r_[1e-5, np.ones(len(y) - 1)]
    bounded = svm_path(X, y, Cs=[1e4, 2e4], gammas=[2.0], tol=1e-6, sample_weight=weights).points
    assert bounded[1].n_iter > 0
    assert bounded[1].dual_objective < bounded[0].dual_objective


def test_scores_and_pickle():
    """Scores are those of the estimators, on other rows too, and a pickled path still makes estimators."""
    X, y = _blobs(300)
    path = svm_path(X[:200], y[:200], Cs=[0.1, 1.0, 10.0])
    again = pickle.loads(pickle.dumps(path))
    assert again.points == path.points
    wanted = [SVC(C=C).fit(X[:200], y[:200]).score(X[200:], y[200:]) for C in (0.1, 1.0, 10.0)]
    np.testing.assert_allclose(again.scores(X[200:], y[200:]), wanted, atol=0.011)
    with pytest.raises(IndexError):
        path.estimator(3)


def test_grids_are_checked():
    """Costs must ascend and be positive, grids must hold something, and the estimator must be SVC or SVR."""
    X, y = _blobs(60)
    with pytest.raises(InvalidParameterError, match="must ascend"):
        svm_path(X, y, Cs=[1.0, 0.5])
    with pytest.raises(InvalidParameterError, match="at least one cost"):
        svm_path(X, y, Cs=[])
    with pytest.raises(InvalidParameterError, match=r"Cs=\.\.\."):
        svm_path(X, y, Cs=[0.0, 1.0])
    with pytest.raises(InvalidParameterError, match="at least one width"):
        svm_path(X, y, Cs=[1.0], gammas=[])
    with pytest.raises(InvalidParameterError, match="class SVC or SVR"):
        svm_path(X, y, Cs=[1.0], estimator=OneClassSVM)


def test_a_capped_point_warns_and_the_next_goes_on():
    """Steps that run out at a point warn with its gap; later points start from what there is."""
    X, y = _blobs(300)
    with pytest.warns(ConvergenceWarning, match="max_iter=40"):
        path = svm_path(X, y, Cs=[1.0, 2.0], max_iter=40)
    assert not any(point.converged for point in path.points)
    assert path.points[0].n_iter == path.points[1].n_iter == 40


@pytest.mark.parametrize("n_kept", [0, 7, 40])
@pytest.mark.parametrize("form", ["dense", "csr"])
def test_kept_distances_give_exact_kernel_values(form, n_kept):
    """Whatever has room, values of any width are those of the rows to rounding in float64, in any order of samples."""
    rng = np.random.default_rng(0)
    X = 5 + rng.normal(size=(60, 70)) if form == "dense" else sp.random(60, 3000, 0.02, format="csr", random_state=rng)
    samples = rng.permutation(60)[:40]
    shared = Distances(X, samples, 8 * 40 * n_kept, n_threads=2)
    asked: set[int] = set()
    for gamma in (0.002, 0.05):
        K = rbf_kernel(X[samples], gamma=gamma)
        kernel = shared.kernel(gamma).function
        for left, right in [(np.arange(5), np.arange(40)), (rng.permutation(40)[:20], rng.permutation(40)[:9])]:
            values = kernel(shared.rows[left], shared.rows[right])
            np.testing.assert_allclose(values, K[np.ix_(left, right)], rtol=1e-11, atol=1e-14)
            asked |= set(left.tolist())
    if n_kept == 40:
        assert shared.n_computed == len(asked) * 40


@pytest.mark.parametrize("n_classes", [2, 3])
def test_wide_rows_share_distances_between_gammas(n_classes):
    """With wide rows the second and third gamma multiply few rows, and every point is still that of a cold fit."""
    X, y = make_classification(300, 80, n_informative=20, n_classes=n_classes, random_state=np.random.RandomState(0))
    path = svm_path(X, y, Cs=[0.5, 2.0], gammas=["scale", 0.003, 0.006])
    _assert_as_cold(path, lambda C, gamma: SVC(C=C, gamma=gamma), X, y)
    products = [point.n_products for point in path.points]
    assert sum(products[2:]) < 0.3 * sum(products[:2])
    assert sum(products) <= (300**2 if n_classes == 2 else 3 * 201**2)
    narrow = svm_path(X[:, :20], y, Cs=[0.5, 2.0], gammas=[0.01, 0.02])
    assert all(point.n_products == point.n_kernel_evaluations for point in narrow.points)


def test_widths_by_name_are_those_of_a_fit():
    """Widths "scale" and "auto" become the numbers that a fit finds, wherever they stand in the grid."""
    X, y = _blobs(120)
    points = svm_path(X, y, Cs=[1.0], gammas=["auto", 0.3, "scale"]).points
    assert points[0].gamma == 1 / 8
    assert points[1].gamma == 0.3
    assert points[2].gamma == pytest.approx(1 / (8 * X.var()), rel=1e-12)
    with pytest.raises(InvalidParameterError, match=r"gamma=\.\.\."):
        svm_path(X, y, Cs=[1.0], gammas=[1.0, "wide"])


def test_float32_rows_are_proven_in_float64():
    """A grid long enough for float32 rows, over a range of C that ends with float64 rows, keeps its gap everywhere."""
    X, labels = _blobs(2300)
    X = X.astype(np.float32)
    path = svm_path(X, labels, Cs=[0.5, 1, 300, 600], gammas=[GAMMA], tol=1e-3)
    K = rbf_kernel(X.astype(np.float64), gamma=GAMMA)
    for k, point in enumerate(path.points):
        model, alpha = path.estimator(k), np.zeros(len(X))
        alpha[model.support_] = np.abs(model.dual_coef_[0])
        gap = dual_gap(K, np.where(labels, 1.0, -1.0), -np.ones(len(X)), np.full(len(X), point.C), alpha)
        assert gap < 1.1e-3
