"""Runs that come no nearer end long before their steps are spent, and say so; runs that do are left alone."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

import dsgd.svm.kernel_solver.solve as solving
import dsgd.svm.kernel_solver.solve as whole_module
from dsgd.svm import SVC, NuSVC
from dsgd.svm.kernel_solver import block
from dsgd.svm.kernel_solver.block import solve
from dsgd.svm.kernel_solver.elimination import Standstill


@pytest.mark.parametrize("block_size", [None, 4])
def test_a_run_that_goes_round_ends_and_says_so(block_size, monkeypatch):
    """A given matrix that is not symmetric leads round and round: the run ends long before its steps, and warns."""
    rng = np.random.default_rng(2)
    A, B = rng.normal(size=(12, 6)), rng.normal(size=(12, 12))
    K, y = A @ A.T + 3.0 * (B - B.T), np.arange(12) % 2
    if block_size is not None:
        monkeypatch.setattr(solving, "solve", partial(solve, block_size=block_size))
        monkeypatch.setattr(whole_module, "LARGEST_DIRECT", 0)
    with pytest.warns(ConvergenceWarning):
        model = SVC(kernel="precomputed", C=10.0).fit(K, y)
    assert not model.converged_
    assert model.gap_ > model.tol
    assert model.n_iter_[0] < 1_000_000


@pytest.mark.slow
@pytest.mark.parametrize(("degree", "seed"), [(20, 2), (40, 0), (60, 0)])
def test_rounds_of_a_step_that_rounding_undoes_are_few(degree, seed, monkeypatch):
    """Values of unlike size let a round take a single step, of an ulp: the run ends by its rounds, not its steps."""
    rounds, plain = [], block._Run._round
    monkeypatch.setattr(block._Run, "_round", lambda run, gap: (rounds.append(gap), plain(run, gap)))
    rng = np.random.default_rng(seed)
    X, y = rng.normal(size=(128, 10)), np.arange(128) % 5
    with pytest.warns(ConvergenceWarning):
        NuSVC(nu=0.49, kernel="poly", gamma=4.12, degree=degree, cache_size=0.01, elimination="average").fit(X, y)
    n_pairs = 10
    assert n_pairs < len(rounds) < 700 * n_pairs


def _watch(gaps, objectives, duality_gaps, n=10, step=1000):
    """Return after how many looks the watch ends a run, or None."""
    standstill = Standstill(n)
    for look, (gap, objective, duality_gap) in enumerate(zip(gaps, objectives, duality_gaps, strict=True)):
        if standstill.is_suspected(look * step, gap) and standstill.is_certain(objective, duality_gap):
            return look
    return None


N = 5000


def test_a_run_whose_gap_falls_goes_on():
    """A gap that falls by a fifth in each window, however it jumps within, is progress without any of the objective."""
    looks = np.arange(N)
    gaps = 0.8 ** (looks / 100) * (1.0 + np.random.default_rng(0).exponential(3.0, N))
    assert _watch(gaps, np.zeros(N), np.ones(N)) is None


def test_a_run_whose_objective_falls_goes_on():
    """A gap that stays is no end while the objective falls by a share of what is missing that closes it in time.

    Nor while it falls by a share of what was won, however little is known of what is missing.
    """
    missing = 0.99 ** (np.arange(N) / 100)
    assert _watch(np.ones(N), missing, missing) is None
    assert _watch(np.ones(N), 1e-30 * missing, np.ones(N)) is None


@pytest.mark.parametrize("slope", [0.0, -1e-3])
def test_a_run_that_wins_nothing_ends(slope):
    """Neither a gap that jumps nnor an objective that stays or rises keeps a run going."""
    gaps = 1.0 + np.random.default_rng(0).random(N)
    assert 100 < _watch(gaps, -slope * np.arange(N), np.ones(N)) <= 500


def test_a_run_that_has_won_much_and_wins_next_to_nothing_ends():
    """A millionth of what was won, and of what is missing, in each window is no progress."""
    fallen = np.minimum(np.arange(N) / 250, 1.0) + 1e-8 * np.arange(N)
    assert 250 < _watch(np.ones(N), -fallen, np.ones(N)) <= 700


def test_many_samples_have_more_steps():
    """With a million samples a hundred thousand steps say nothing."""
    assert _watch(np.ones(N), np.zeros(N), np.ones(N), n=10**6) is None


@pytest.mark.parametrize("elimination", ["auto", "none", "single", "multi", "libsvm", "aggressive", "average"])
@pytest.mark.parametrize("has_copies", [False, True])
def test_a_large_cost_and_few_dimensions_take_steps_by_their_samples(elimination, has_copies):
    """A given matrix of rank three, with equal rows or without, and C = 1e6: pairs alone take millions of steps."""
    rng = np.random.default_rng(0)
    A, y = rng.normal(size=(40, 3)), rng.integers(0, 2, 40)
    if has_copies:
        A[20:] = A[:20]
    model = SVC(kernel="precomputed", C=1e6, elimination=elimination).fit(A @ A.T, y)
    assert model.converged_
    assert model.n_iter_[0] < 100 * 40
