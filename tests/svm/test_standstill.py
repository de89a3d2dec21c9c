"""Runs that come no nearer end long before their steps are spent, and say so; runs that do are left alone."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

import dsgd.svm.kernel_solver.solve as solving
import dsgd.svm.kernel_solver.solve as whole_module
from dsgd.svm import SVC
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
