"""Every run of the kernel SVMs ends and says the truth about where: no hang, no claim from what is not finite."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy.optimize import linprog
from sklearn.datasets import make_classification
from sklearn.metrics.pairwise import rbf_kernel

import dsgd.svm.estimators.kernel_base as base_module
from dsgd.errors import InvalidDataError, InvalidParameterError
from dsgd.svm import SVC, SVR, Elimination, NuSVC, NuSVR, OneClassSVM
from dsgd.svm.kernel_solver import growth
from dsgd.svm.kernel_solver.block import solve
from dsgd.svm.kernel_solver.pairwise import solve_pairwise
from dsgd.svm.kernel_solver.problem import Counts, Dual, conclude
from dsgd.svm.kernels.functions import Kernel
from dsgd.svm.kernels.matrix import KernelMatrix
from dsgd.svm.kernels.rows import distribute
from dsgd.svm.kernels.threads import Pool
from reference.svm import dual_gap, smo

EAGER = Elimination("multi", every=1, min_fraction=0.0)


def _matrix(K: np.ndarray) -> KernelMatrix:
    return KernelMatrix(Kernel("precomputed"), K, samples=None, dtype=np.float64, cache_bytes=10**6, pool=Pool(1, None))


#: Samples 0 and 1 go to their bounds; 2 and 3 violate only with each other: beside the first two they look settled.
K_APART = np.array([[0.1, 0.0, 4.0, 0.0], [0.0, 0.1, 0.0, 4.0], [4.0, 0.0, 200.0, 0.0], [0.0, 4.0, 0.0, 200.0]])
Y_APART = np.array([1.0, -1.0, 1.0, -1.0])


def _solve_apart():
    """Solve with samples 2 and 3 left out from the beginning, and no free variable among the others."""
    dual = Dual(Y_APART[None], -np.ones((1, 4)), np.full((1, 4), 0.1), np.array([[0.1, 0.1, 0.0, 0.0]]))
    matrix = _matrix(K_APART)
    matrix.shrink(np.arange(2))
    return solve(dual, matrix, tol=1e-3, max_iter=-1, elimination=EAGER, block_size=2)


def test_samples_left_out_that_violate_only_with_each_other_come_back():
    """Where no active variable is free two samples left out both look settled beside the active ones, yet return."""
    solution = _solve_apart()
    _, expected = smo(K_APART, Y_APART, -np.ones(4), np.full(4, 0.1), np.zeros(4), 1e-9)
    assert solution.counts.n_returned >= 2
    assert solution.converged
    assert solution.objective == pytest.approx(expected, rel=1e-3)


def test_a_run_that_nothing_brings_on_ends_and_says_so(monkeypatch):
    """If no sample came back although one must, the run would end as not converged, with the true gap."""
    monkeypatch.setattr(growth.InactiveSamples, "_return_violators", lambda self, margin: self.state.load_active())
    solution = _solve_apart()
    gap = dual_gap(K_APART, Y_APART, -np.ones(4), np.full(4, 0.1), solution.alpha[0])
    assert not solution.converged
    assert solution.gap == pytest.approx(gap)
    assert gap > 1e-3


@pytest.mark.parametrize("spikes", [1, 3])
@pytest.mark.slow
def test_a_large_problem_whose_first_samples_say_nothing_goes_on(spikes):
    """A run that begins with few samples, all of them just within the tube, looks at the others too."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(9000, 2)), rng.integers(0, 2, 9000).astype(float)
    y[rng.integers(0, 9000, spikes)] = 5.0
    model = SVR(C=10.0, gamma=1.0, epsilon=0.5, cache_size=1).fit(X, y)
    assert model.converged_
    assert set(np.flatnonzero(y > 1)) <= set(model.support_)


def test_the_published_algorithm_ends_where_a_pair_cannot_move_and_nothing_is_renewed():
    """A stuck pair with samples left out and ``reconstruction="none"`` ends the run."""
    K, y = np.full((4, 4), 1e17), np.array([1.0, -1.0, 1.0, -1.0])
    policy = Elimination("multi", every=1, min_fraction=0.0, reconstruction="none")
    dual = Dual(y[None], -np.ones((1, 4)), np.full((1, 4), 1e9), np.array([[1e9, 1e9, 1e8, 1e8]]))
    assert solve_pairwise(dual, _matrix(K), tol=1e-3, max_iter=5000, elimination=policy).counts.n_iter <= 5000


# -- values that are not finite ------------------------------------------------------------------------------------


def _nan_kernel(A, B):
    values = A @ B.T
    values[values > np.median(values)] = np.nan
    return values


def _inf_kernel(A, B):
    with np.errstate(over="ignore"):
        return np.exp(1e6 * np.abs(A @ B.T))


NOT_FINITE = {
    "poly": ({"kernel": "poly", "degree": 80, "gamma": 1e6}, "degree=80"),
    "linear": ({"kernel": "linear"}, "kernel='linear'"),
    "nan": ({"kernel": _nan_kernel}, "_nan_kernel"),
    "inf": ({"kernel": _inf_kernel}, "_inf_kernel"),
}


@pytest.mark.parametrize("preset", ["auto", "aggressive"])
@pytest.mark.parametrize("name", NOT_FINITE)
@pytest.mark.parametrize("machine", [SVC, NuSVC, SVR, NuSVR, OneClassSVM])
def test_values_that_are_not_finite_are_refused(machine, name, preset):
    """Whatever overflows or is NaN is refused by an error that names the kernel; nothing is certified from it."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 3)), rng.integers(0, 2, 40)
    parameters, words = NOT_FINITE[name]
    X = X * 1e160 if name == "linear" else X
    with pytest.raises(InvalidDataError, match="not finite") as caught:
        machine(**parameters, elimination=preset).fit(X, y)
    assert words in str(caught.value)


@pytest.mark.parametrize("preset", ["auto", "aggressive", "none"])
def test_sums_of_a_given_kernel_that_overflow_are_refused(preset):
    """Each value is finite, their sums are not: no machine follows."""
    K = np.full((20, 20), 1e308) + np.diag(np.full(20, 1e307))
    with pytest.raises(InvalidDataError, match="precomputed"):
        SVC(kernel="precomputed", C=1e3, elimination=preset).fit(K, np.arange(20) % 2)


@pytest.mark.parametrize("machine", [SVC, NuSVC, SVR, NuSVR, OneClassSVM])
@pytest.mark.parametrize("degree", [2.5, -1, "3", 3.0])
def test_degree_is_a_whole_number(machine, degree):
    """As in scikit-learn a degree that is no integer, or negative, is a ValueError."""
    with pytest.raises(InvalidParameterError, match="degree"):
        machine(kernel="poly", degree=degree).fit(np.eye(4), [0, 1, 0, 1])


@pytest.mark.slow
def test_float32_rows_are_left_before_their_rounding_costs_steps(monkeypatch):
    """Where C makes what float32 rounds larger than the tolerance, a run takes hardly more steps than in float64."""
    X, y = make_classification(2100, 20, n_informative=10, flip_y=0.05, random_state=np.random.RandomState(0))
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    assert base_module.row_dtype(Kernel("rbf", 1e-4, largest_square=100.0), 2100, 1e4, 1e-3) == np.float32
    chosen = SVC(C=1e4, gamma=1e-4).fit(X, y)
    monkeypatch.setattr(base_module, "row_dtype", lambda *_: np.float64)
    exact = SVC(C=1e4, gamma=1e-4).fit(X, y)
    assert chosen.converged_
    assert chosen.n_iter_[0] < 1.4 * exact.n_iter_[0]
    assert chosen.dual_objective_ == pytest.approx(exact.dual_objective_, rel=1e-7)


def test_rows_that_are_all_one_number_have_no_spread():
    """The mean of equal numbers is that number but for rounding, which is no variance."""
    for n in range(3, 40):
        X, y = np.full((n, 3), 1000.1), np.arange(n) % 3
        assert SVR(kernel="poly", coef0=0.5).fit(X, y)._gamma == 1.0


# -- what is said of the end ---------------------------------------------------------------------------------------


def test_the_objective_of_a_regression_is_that_of_its_coefficients():
    """Both variables of a sample may be above zero before the end; what they share is not counted."""
    rng = np.random.default_rng(0)
    K, z, ones = np.eye(6), rng.normal(size=6), np.ones(6)
    y = np.stack([ones, -ones])
    alpha = rng.uniform(0.1, 0.9, size=(2, 6))
    dual = Dual(y, 0.1 - y * z, np.ones((2, 6)), alpha)
    beta = alpha[0] - alpha[1]
    solution = conclude(dual, Kernel("precomputed"), alpha, K @ beta, tol=1e-3, counts=Counts())
    np.testing.assert_allclose(solution.alpha[0] - solution.alpha[1], beta)
    assert solution.objective == pytest.approx(0.5 * beta @ K @ beta - beta @ z + 0.1 * np.abs(beta).sum())


@pytest.mark.filterwarnings("error")
def test_a_margin_whose_inverse_overflows_is_refused():
    """Kernel values of 1e-313 leave a margin above zero that no coefficient can be divided by."""
    y = np.array([1, -1, 1, -1])
    with pytest.raises(InvalidDataError, match="no decision function follows"):
        NuSVC(kernel="precomputed", nu=0.5).fit(1e-313 * (np.eye(4) + np.outer(y, y)), y)


@pytest.mark.parametrize("size", [1.0, 1e106])
def test_variables_that_are_only_what_sums_were_rounded_by_close_no_gap(size):
    """A bound that was taken and left leaves its rounding to others; held at zero, their kernel values are none."""
    y, upper = np.array([[1.0, -1.0, -1.0]]), np.array([[1e3, 5.0, 5.0]])
    alpha = np.array([[0.0, 2e-14, 1e-14]])
    K = size * np.array([[1.0, 0.9, 0.8], [0.9, 1.0, 0.9], [0.8, 0.9, 1.0]])
    dual = Dual(y, -np.ones((1, 3)), upper, np.zeros((1, 3)))
    found = conclude(dual, Kernel("precomputed"), alpha, K @ (y * alpha)[0], tol=1e-3, counts=Counts())
    assert not found.converged
    assert found.gap == pytest.approx(dual_gap(K, y[0], -np.ones(3), upper[0], found.alpha[0]))
    np.testing.assert_allclose(found.u, K @ (y * found.alpha)[0], atol=1e-9)


@pytest.mark.parametrize("size", [1e-12, 1e-3, 1.0, 1e6, 1.5e9])
def test_dealing_out_keeps_the_sum(size):
    """However small a variable is, and however unlike the bounds are, its rows get all of it, none above its bound."""
    owner, costs = np.array([1, 0, 0, 0, 1, -1]), np.array([1e9, 1.0, 1e9, 1e9, 3.0, 7.0])
    total = np.array([2e9 + 1.0, 1e9 + 3.0])
    merged = np.array([size, -min(size, 1e9)])
    coefs = distribute(merged[None], owner, costs, total)[0]
    np.testing.assert_allclose([coefs[1:4].sum(), coefs[[0, 4]].sum()], merged, rtol=1e-15)
    assert (np.abs(coefs) <= costs).all()
    assert coefs[5] == 0.0


# -- the duality gap -----------------------------------------------------------------------------------------------


def _least_loss(scores: np.ndarray, y: np.ndarray, costs: np.ndarray) -> float:
    """Return min over b of sum C max(0, 1 - y (s + b)), by linear programming."""
    n = len(y)
    found = linprog(
        np.concatenate([costs, [0.0]]),
        A_ub=-np.column_stack([np.eye(n), y]),
        b_ub=-(1.0 - y * scores),
        bounds=[(0, None)] * n + [(None, None)],
    )
    return float(found.fun)


@pytest.mark.parametrize("tol", [1e-1, 1e-4])
@pytest.mark.parametrize("C", [0.1, 10.0])
def test_the_duality_gap_is_the_primal_objective_less_the_dual_one(tol, C):
    """With the best intercept found by linear programming, primal less dual objective is `duality_gap_`."""
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(60, 3)), rng.integers(0, 2, 60)
    weights = rng.uniform(0.2, 2.0, 60)
    model = SVC(C=C, gamma=0.5, tol=tol).fit(X, y, sample_weight=weights)
    signs, beta = 2.0 * y - 1.0, np.zeros(60)
    beta[model.support_] = model.dual_coef_[0]
    K = rbf_kernel(X, gamma=0.5)
    primal = 0.5 * beta @ K @ beta + _least_loss(K @ beta, signs, C * weights)
    dual = np.abs(beta).sum() - 0.5 * beta @ K @ beta
    assert model.duality_gap_ == pytest.approx(primal - dual, rel=1e-6, abs=1e-9)
    assert model.dual_objective_ == pytest.approx(-dual, rel=1e-9)
    exact = SVC(C=C, gamma=0.5, tol=1e-9).fit(X, y, sample_weight=weights)
    assert 0.0 <= model.dual_objective_ - exact.dual_objective_ <= model.duality_gap_ + 1e-9
    assert exact.duality_gap_ < 1e-6


@pytest.mark.parametrize("machine", [SVC(C=3.0), NuSVC(nu=0.3), SVR(C=3.0), NuSVR(C=3.0), OneClassSVM(nu=0.3)])
def test_the_duality_gap_bounds_what_is_missing_to_the_optimum(machine):
    """For every machine the dual objective at a coarse tolerance is above that at a fine one by at most the gap."""
    rng = np.random.default_rng(2)
    X, y = rng.normal(size=(80, 3)), np.arange(80) % 3
    fine = type(machine)(**{**machine.get_params(), "tol": 1e-8}).fit(X, y)
    coarse = type(machine)(**{**machine.get_params(), "tol": 0.3}).fit(X, y)
    assert -1e-9 <= coarse.dual_objective_ - fine.dual_objective_ <= coarse.duality_gap_ + 1e-9
    assert 0.0 <= fine.duality_gap_ < 1e-5
    assert coarse.duality_gap_ > fine.duality_gap_


def test_a_margin_of_rounding_is_warned_of_and_the_advice_helps():
    """Where reduced hulls meet, coefficients are divided by rounding: it is said, and a larger nu gives a machine."""
    n_told = 0
    for seed in range(6):
        X, y = np.random.RandomState(seed).rand(100, 2), np.arange(100) < 50
        for nu in (0.1, 0.3, 0.5):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                try:
                    model = NuSVC(gamma=0.5, nu=nu).fit(X, y)
                    told = [str(each.message) for each in caught if "margin" in str(each.message)]
                    assert all(each.filename == __file__ for each in caught)
                    assert told or np.abs(model.dual_coef_).max() < 1e6
                except InvalidDataError as error:
                    told = [str(error)]
            n_told += len(told)
            assert all("Raise nu" in text for text in told)
    assert n_told
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.abs(NuSVC(gamma=0.5, nu=0.95).fit(X, y).dual_coef_).max() < 1e3
