"""Elimination in kernel SVMs: wrong ones are undone, stale indicators are renewed, a small cache is bounded memory."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from functools import cache

import numpy as np
import pytest
from sklearn.datasets import make_classification
from sklearn.metrics.pairwise import rbf_kernel

import dsgd.svm.kernel_solver.block as block_module
from dsgd.svm import SVC, SVR, Elimination, release_memory
from dsgd.svm.kernel_solver import growth
from dsgd.svm.kernel_solver.block import solve
from dsgd.svm.kernel_solver.elimination import Trail
from dsgd.svm.kernel_solver.problem import Dual
from dsgd.svm.kernel_solver.state import ExactSums
from dsgd.svm.kernels.functions import Kernel
from dsgd.svm.kernels.matrix import KernelMatrix
from dsgd.svm.kernels.threads import Buffers, Pool
from reference.svm import dual_gap

PRESETS = ["none", "single", "multi", "libsvm", "aggressive", "average", "conservative", "auto"]
GAMMA = 0.1
STARVED = 0.05  # megabytes: a few rows


def _few_vectors(n: int = 1500) -> tuple[np.ndarray, np.ndarray]:
    X, y = make_classification(
        n, 8, n_informative=6, n_clusters_per_class=4, flip_y=0.02, random_state=np.random.RandomState(0)
    )
    return X, np.where(y == 1, 1.0, -1.0)


def _solve(X, y, *, dtype=np.float64, cache_bytes=50_000, tol=1e-4, C=5.0, block_size=None, max_iter=-1, **policy):
    n = len(y)
    matrix = KernelMatrix(
        Kernel("rbf", GAMMA), X, samples=None, dtype=dtype, cache_bytes=cache_bytes, pool=Pool(1, None)
    )
    dual = Dual(y[None], -np.ones((1, n)), np.full((1, n), C), np.zeros((1, n)))
    policy = Elimination(**policy)
    return solve(dual, matrix, tol=tol, max_iter=max_iter, elimination=policy, block_size=block_size)


@cache
def _honest_objective() -> float:
    return _solve(*_few_vectors(), mode="none").objective


class _Liar:
    """Calls samples settled that are not: at random, or exactly those the solution needs."""

    def __init__(self, kind: str, honest) -> None:
        self.kind, self.honest, self.n_lies = kind, honest, 0
        self.rng = np.random.default_rng(0)

    def __call__(self, f, y, alpha, upper, *args):
        out = self.honest(f, y, alpha, upper, *args)
        if self.n_lies >= 6 or len(out) < 300:
            return out
        if self.kind == "random":
            wrong = self.rng.random(len(out)) < 0.3
        elif self.kind == "free":
            wrong = ((alpha > 0) & (alpha < upper)).any(axis=0) & (self.rng.random(len(out)) < 0.5)
        else:  # the half that violates most
            wrong = np.abs(f[0]) <= np.median(np.abs(f[0]))
        self.n_lies += int((wrong & ~out).any())
        return out | wrong


@pytest.mark.parametrize("mode", ["multi", "single", "libsvm"])
@pytest.mark.parametrize("kind", ["random", "free", "worst"])
def test_lies_about_settled_samples_are_found_out(monkeypatch, kind, mode):
    """Whatever is wrongly left out, free variables too, the run ends with a float64 gap below tol over all samples."""
    X, y = _few_vectors()
    expected = _honest_objective()
    liar = _Liar(kind, growth.eliminable)
    monkeypatch.setattr(growth, "eliminable", liar)
    solution = _solve(X, y, mode=mode, every=2, min_fraction=0.0)
    assert liar.n_lies > 0
    assert solution.counts.n_returned > 0
    assert solution.converged
    gap = dual_gap(rbf_kernel(X, gamma=GAMMA), y, -np.ones(len(y)), np.full(len(y), 5.0), solution.alpha[0])
    assert gap < 1e-4 * (1 + 1e-6)
    assert solution.gap == pytest.approx(gap, rel=1e-6)
    assert solution.objective == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize("form", ["dense", "float32"])
def test_delta_reconstruction_is_the_full_one(form):
    """Indicators renewed from what has changed, over many events, are those computed from all coefficients."""
    X, y = _few_vectors(700)
    X = X.astype(np.float32) if form == "float32" else X
    ends = {}
    for how in ("delta", "full"):
        matrix = KernelMatrix(
            Kernel("rbf", GAMMA), X, samples=None, dtype=np.float64, cache_bytes=10_000, pool=Pool(1, None)
        )
        run = block_module._Run(
            Dual(y[None], -np.ones((1, 700)), np.full((1, 700), 5.0), np.zeros((1, 700))),
            matrix,
            1e-3,
            -1,
            Elimination("multi", every=1, min_fraction=0.0, reconstruction=how),
            64,
        )
        for _ in range(40):
            gap = run.state.scan()
            if gap < 1e-3:
                break
            if not run.left_out.eliminate(gap):
                run._round(gap)
        assert len(run.left_out.trail) > 1
        run.left_out.bring_back(early=True)
        run.state.store_active()
        right = rbf_kernel(X.astype(np.float64), gamma=GAMMA) @ (y * run.state.alpha[0])
        np.testing.assert_allclose(run.state.u, right, atol=1e-10, rtol=0)
        ends[how] = run.state.u.copy()
    np.testing.assert_allclose(ends["delta"], ends["full"], atol=1e-10, rtol=0)


@pytest.mark.parametrize("estimator", ["SVC", "SVR"])
def test_every_preset_ends_at_the_same_objective_on_a_starved_cache(estimator):
    """With room for a few rows only, every preset ends at one objective; `auto` needs no more values than `none`."""
    X, y = _few_vectors(1500)
    maker = {"SVC": SVC(gamma=GAMMA, C=5.0), "SVR": SVR(gamma=GAMMA, C=5.0, epsilon=0.2)}[estimator]
    models = {
        preset: maker.__class__(**{**maker.get_params(), "cache_size": STARVED, "elimination": preset}).fit(X, y)
        for preset in PRESETS
    }
    for model in models.values():
        assert model.converged_
        assert model.dual_objective_ == pytest.approx(models["none"].dual_objective_, rel=1e-5)
    assert models["none"].n_eliminated_ == 0
    assert models["multi"].n_eliminated_ > 0
    assert models["auto"].n_kernel_evaluations_ <= models["none"].n_kernel_evaluations_


@pytest.mark.parametrize("kernel_dtype", [np.float32, np.float64])
@pytest.mark.slow
def test_large_problems_begin_small_and_end_at_the_same_optimum(kernel_dtype):
    """Where rows do not fit, `auto` looks at samples in batches, needs fewer values, and is proven over all of them."""
    X, y = _few_vectors(3000)
    expected = _solve(X, y, mode="none", block_size=48)
    auto = _solve(
        X, y, dtype=kernel_dtype, block_size=48, tol=1e-3, every=0.05, min_fraction=0.05, waits_for_pressure=True
    )
    grown = [record.n_active for record in auto.counts.history if record.event == "grow"]
    assert len(grown) == 4
    assert auto.counts.history[0].n_active == 187
    gap = dual_gap(rbf_kernel(X, gamma=GAMMA), y, -np.ones(len(y)), np.full(len(y), 5.0), auto.alpha[0])
    assert gap < 1e-3 * (1 + 1e-6)
    assert abs(y @ auto.alpha[0]) < 1e-9
    assert auto.objective == pytest.approx(expected.objective, rel=1e-5)
    assert auto.counts.n_evaluations < 0.6 * _solve(X, y, mode="none", block_size=48, tol=1e-3).counts.n_evaluations


def test_exact_sums_forget_the_rounding_of_what_they_were():
    """Sums that were 1e20 and are about one are right to the digits of one."""
    rng = np.random.default_rng(0)
    A = rng.normal(size=(60, 4))
    A[:20] *= 1e10
    K, beta = A @ A.T, np.zeros(60)
    matrix = KernelMatrix(Kernel("precomputed"), K, samples=None, dtype=np.float64, cache_bytes=9, pool=Pool(1, None))
    exact = ExactSums(matrix)
    beta[10:] = rng.normal(size=50)
    assert np.abs(exact.renew_all(beta)).max() > 1e19
    beta[10:20] = 0.0
    np.testing.assert_allclose(exact.renew_all(beta)[20:], (K @ beta)[20:], rtol=1e-9)


def test_buffers_are_lent_again_and_bounded():
    """Memory comes back when its owner is gone, is lent again, and never exceeds what was once lent at a time."""

    class Owner:
        pass

    pool, first, second = Buffers(), Owner(), Owner()
    one = pool.borrow(first, 3 << 20)
    two = pool.borrow(second, 2 << 20)
    assert (len(one), len(two)) == (3 << 20, 2 << 20)
    assert not np.shares_memory(one, two)
    where = one.ctypes.data
    del one, first
    assert pool.idle_bytes == 3 << 20
    third = Owner()
    again = pool.borrow(third, 1 << 20)
    assert again.ctypes.data == where
    assert len(again) == 1 << 20
    fourth = Owner()
    pool.borrow(fourth, 4 << 20)
    del third, fourth, second, again, two
    assert 0 < pool.idle_bytes <= 9 << 20
    pool.release()
    assert pool.idle_bytes == 0


def test_buffers_of_threads_do_not_overlap():
    """Threads that borrow and give back at once never get the same memory at the same time."""
    pool, errors = Buffers(), []

    class Owner:
        pass

    def work(number: int) -> None:
        for _ in range(200):
            owner = Owner()
            memory = pool.borrow(owner, 4096)
            memory[:] = number
            if not (memory == number).all():
                errors.append(number)
            del owner

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert pool.idle_bytes <= 4 * 4096


_MEASURE = """
import sys
import numpy as np
from dsgd.runtime.threads import peak_rss_bytes
from dsgd.svm import SVC
rng = np.random.default_rng(0)
X = rng.normal(size=(7_000, 6))
y = (X[:, 0] * X[:, 1] + 0.3 * X[:, 2] > 0).astype(int)
SVC(n_jobs=2, cache_size=1, elimination="aggressive").fit(X[:1000], y[:1000])  # compiled code is loaded once
before = peak_rss_bytes()
for _ in range(2):
    model = SVC(gamma=0.2, n_jobs=2, cache_size=float(sys.argv[1])).fit(X, y)
assert model.converged_
print(before, peak_rss_bytes(), X.nbytes)
"""


@pytest.mark.slow
@pytest.mark.parametrize("cache_size", [10])
def test_peak_memory_of_a_process_is_bounded(cache_size):
    """Resident memory grows by at most the cache, four times the data and 96 megabytes; the kernel would be 187."""
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, str(cache_size)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "2"},
    )
    before, peak, data = (int(word) for word in done.stdout.split())
    assert peak - before < cache_size * 2**20 + 4 * data + 96 * 2**20


def test_memory_is_reused_by_the_next_fit_and_released():
    """Idle memory stays for the next fit, and `release_memory` gives it back."""
    from dsgd.svm.kernels.threads import _BUFFERS

    X, y = _few_vectors(1500)
    release_memory()
    SVC(gamma=GAMMA, n_jobs=1).fit(X, y)
    kept = _BUFFERS.idle_bytes
    SVC(gamma=GAMMA, n_jobs=1).fit(X, y)
    assert _BUFFERS.idle_bytes == kept > 0
    release_memory()
    assert _BUFFERS.idle_bytes == 0


def test_a_large_problem_whose_first_samples_are_of_one_class_is_solved():
    """A start without an extreme on one side does not end the run, and settles no sample."""
    X, y = _few_vectors(3000)
    y = np.where(np.arange(3000) == 17, -1.0, 1.0)
    auto = _solve(X, y, block_size=64, every=0.05, min_fraction=0.05, waits_for_pressure=True)
    assert auto.converged
    assert auto.objective == pytest.approx(_solve(X, y, mode="none").objective, rel=1e-6)


def test_a_large_problem_stops_at_max_iter_with_the_gap_over_all_samples():
    """A limit that is met before all batches have come gives the true gap, those not looked at included."""
    X, y = _few_vectors(3000)
    auto = _solve(X, y, block_size=64, max_iter=50, every=0.05, min_fraction=0.05, waits_for_pressure=True)
    gap = dual_gap(rbf_kernel(X, gamma=GAMMA), y, -np.ones(len(y)), np.full(len(y), 5.0), auto.alpha[0])
    assert not auto.converged
    assert auto.gap == pytest.approx(gap, rel=1e-6)


@pytest.mark.parametrize("n_events", [1, 5, 40])
def test_trail_knows_the_coefficients_of_every_event(n_events):
    """Going back over a trail gives the coefficients at each event, also after neighbours were joined."""
    rng = np.random.default_rng(1)
    n = 60
    trail, beta = Trail(n), np.zeros(n)
    current = {}  # sample -> the coefficients its indicator is right for
    for _ in range(n_events):
        moved = rng.permutation(n)[:7]
        beta[moved] = np.round(rng.normal(size=7))
        ids = np.setdiff1d(rng.permutation(n)[:2], list(current))
        trail.add(ids, beta)
        current.update({int(k): beta.copy() for k in ids})
        if len(trail) > 8:
            renewed, before, after = trail.join(beta)
            for k in renewed:
                np.testing.assert_array_equal(current[int(k)], before)
                current[int(k)] = after.copy()
    beta[rng.permutation(n)[:20]] += 1.0
    seen = []
    for ids, state in trail.back(beta):
        seen.extend(ids.tolist())
        for k in ids:
            np.testing.assert_array_equal(state, current[int(k)])
    assert sorted(seen) == sorted(current)
    assert sorted(trail.ids) == sorted(current)
