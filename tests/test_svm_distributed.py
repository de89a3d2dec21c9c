"""Kernel SVMs on several ranks: the same optimum as on one, whatever is left out, moved or missing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.svm import SVC

import dsgd.svm.left_out as left_out_module
from dsgd.comm import AbortFlag
from dsgd.errors import AbortedError
from dsgd.runtime import run_on_threads
from dsgd.svm.block import solve
from dsgd.svm.dual import Dual, Solution
from dsgd.svm.elimination import Elimination, eliminable
from dsgd.svm.kernel_functions import Kernel, centre
from dsgd.svm.kernel_matrix import KernelMatrix
from dsgd.svm.pairwise import solve_pairwise
from dsgd.svm.peers import Peers
from dsgd.svm.rebalance import plan_moves
from dsgd.svm.threads import Pool
from reference.svm import smo

MODES = {
    "none": Elimination("none"),
    "multi": Elimination("multi", every=60, min_fraction=0.01),
    "single": Elimination("single", every=2, min_fraction=0.0),
    "libsvm": Elimination("libsvm", min_fraction=0.0),
    "full": Elimination("multi", every=2, min_fraction=0.0, reconstruction="full"),
}


def problem(*, sparse: bool, n: int = 300) -> tuple[Any, np.ndarray]:
    """Return rows and signs that no plane divides."""
    rng = np.random.default_rng(0)
    if sparse:
        X = sp.random(n, 400, 0.03, format="csr", random_state=np.random.RandomState(0))
        return X, np.where(X @ rng.normal(size=400) + 0.1 * rng.normal(size=n) > 0, 1.0, -1.0)
    X = rng.normal(size=(n, 5))
    return X, np.where(X[:, 0] * X[:, 1] + 0.3 * rng.normal(size=n) > 0, 1.0, -1.0)


def program(rank: Any, data: Any, X: Any, dual: Dual, holder: np.ndarray, options: dict[str, Any]) -> Solution:
    """Solve a dual on this rank's share of the rows."""
    peers = Peers(X.shape[0], rank.group, holder, rank.check)
    kernel = Kernel("rbf", 0.3)
    matrix = KernelMatrix(
        kernel,
        X[np.flatnonzero(holder == rank.number)],
        samples=None,
        dtype=options.get("dtype", np.float32),
        cache_bytes=options.get("cache_bytes", 10**5),
        pool=Pool(1, None),
        peers=peers,
        shift=centre(kernel, X),
        sparse=sp.issparse(X),
    )
    elimination = options.get("elimination", MODES["none"])
    if options.get("solver") == "pairwise":
        return solve_pairwise(dual, matrix, tol=options.get("tol", 1e-4), max_iter=-1, elimination=elimination)
    return solve(dual, matrix, tol=options.get("tol", 1e-4), max_iter=-1, elimination=elimination, block_size=32)


def solve_on(X: Any, dual: Dual, holder: np.ndarray, n_ranks: int, **options: Any) -> Any:
    """Solve on a gang of threads; return the gang's result."""
    return run_on_threads(program, [None] * n_ranks, (X, dual, holder, options), timeout_s=20.0)


def dual_of(y: np.ndarray, C: float = 1.0) -> Dual:
    """Return the dual of a classification."""
    n = len(y)
    return Dual(y[None], -np.ones((1, n)), np.full((1, n), C), np.zeros((1, n)))


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_any_number_of_ranks_ends_at_the_twins_optimum(sparse, mode):
    """1, 2 and 3 ranks give the objective of the plain twin, dense and CSR, in every mode of elimination."""
    X, y = problem(sparse=sparse)
    K = rbf_kernel(X, gamma=0.3)
    _, expected = smo(K, y, -np.ones(len(y)), np.ones(len(y)), np.zeros(len(y)), 1e-8)
    for n_ranks in (1, 2, 3):
        holder = np.arange(len(y)) * n_ranks // len(y)
        solution = solve_on(X, dual_of(y), holder, n_ranks, elimination=MODES[mode], tol=1e-5).value
        assert solution.converged
        assert solution.objective == pytest.approx(expected, rel=1e-6)
        np.testing.assert_allclose(solution.u, K @ (y * solution.alpha[0]), atol=1e-9)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("mode", ["none", "multi", "single"])
def test_the_published_algorithm_ends_at_libsvms_optimum(sparse, mode):
    """One pair per step gives LIBSVM's objective on 1 and 3 ranks, one without rows, whatever is left out."""
    X, y = problem(sparse=sparse, n=150)
    plain = SVC(gamma=0.3, tol=1e-6).fit(X, y)
    coef = plain.dual_coef_.toarray()[0] if sparse else plain.dual_coef_[0]
    K = rbf_kernel(X[plain.support_], gamma=0.3)
    expected = 0.5 * coef @ K @ coef - np.abs(coef).sum()
    for n_ranks, holder in ((1, np.zeros(150, np.int64)), (3, np.arange(150) % 2)):
        options = {"solver": "pairwise", "tol": 1e-5, "elimination": MODES[mode]}
        solution = solve_on(X, dual_of(y), holder, n_ranks, **options).value
        assert solution.converged
        assert solution.objective == pytest.approx(expected, rel=1e-6)
        assert (solution.n_eliminated > 0) == (mode != "none")


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("kind", ["classes", "empty", "one"])
def test_rows_may_lie_anywhere(sparse, kind):
    """Ranks with one class only, without rows, or with one row give the same, and rows move to where there are few."""
    X, y = problem(sparse=sparse)
    holders = {"classes": np.where(y > 0, 0, 2), "empty": np.zeros(len(y), int), "one": np.ones(len(y), int)}
    holder = holders[kind].astype(np.int64)
    if kind == "one":
        holder[7] = 2
    expected = solve_on(X, dual_of(y), np.zeros(len(y), np.int64), 1, elimination=MODES["multi"]).value
    gang = solve_on(X, dual_of(y), holder, 3, elimination=MODES["multi"])
    assert gang.value.objective == pytest.approx(expected.objective, rel=1e-6)
    assert "rebalance" in [record.event for record in gang.value.history]


@pytest.mark.parametrize("n_ranks", [2, 3])
def test_wrong_eliminations_are_undone_across_ranks(n_ranks, monkeypatch):
    """Samples left out although they matter, on any rank, come back before the solver believes that it is done."""
    X, y = problem(sparse=False)
    calls = [0]

    def wrong(f, *args):
        out = eliminable(f, *args)
        calls[0] += 1
        if calls[0] <= 3 * n_ranks:
            out[::3] = True
        return out

    monkeypatch.setattr(left_out_module, "eliminable", wrong)
    holder = np.arange(len(y)) % n_ranks
    solution = solve_on(X, dual_of(y), holder, n_ranks, elimination=MODES["multi"]).value
    monkeypatch.undo()
    expected = solve_on(X, dual_of(y), np.zeros(len(y), np.int64), 1).value
    assert solution.converged
    assert solution.n_returned > 0
    assert solution.objective == pytest.approx(expected.objective, rel=1e-6)


def test_two_variables_per_sample_and_sums_by_sign():
    """Regression duals and those with a sum for each sign agree between one rank and three."""
    X, y = problem(sparse=False)
    n = len(y)
    target = X[:, 0] * X[:, 1]
    ones = np.ones(n)
    regression = Dual(
        np.stack([ones, -ones]), np.stack([0.1 - target, 0.1 + target]), np.ones((2, n)), np.zeros((2, n))
    )
    by_sign = Dual(y[None], np.zeros((1, n)), np.ones((1, n)), np.full((1, n), 0.3), by_sign=True)
    for dual in (regression, by_sign):
        one = solve_on(X, dual, np.zeros(n, np.int64), 1, tol=1e-5, elimination=MODES["multi"]).value
        three = solve_on(X, dual, np.arange(n) % 3, 3, tol=1e-5, elimination=MODES["multi"]).value
        assert three.objective == pytest.approx(one.objective, rel=1e-6)
        np.testing.assert_allclose(three.thresholds, one.thresholds, atol=1e-4)


class BreaksSoon(AbortFlag):
    """A flag that raises when it is read for the third time."""

    n_read = 0

    def check(self) -> None:
        """Count, and raise."""
        self.n_read += 1
        if self.n_read == 3:
            raise AbortedError("enough")


def test_a_rank_that_fails_stops_all():
    """What one rank raises in the middle of a solution is raised, and no rank waits for it."""
    X, y = problem(sparse=False)

    def breaks(rank, data, *args):
        return program(replace(rank, abort=BreaksSoon()) if rank.number == 1 else rank, data, *args)

    with pytest.raises(AbortedError, match="enough"):
        run_on_threads(breaks, [None] * 2, (X, dual_of(y), np.arange(len(y)) % 2, {}), timeout_s=20.0)


def test_what_travels_is_counted():
    """The ledger has bytes of rounds and of the proof; features travel once per choice and not once per rank pair."""
    X, y = problem(sparse=False)
    gang = solve_on(X, dual_of(y), np.arange(len(y)) % 2, 2)
    records = gang.ledger.ranks[0].records
    assert {"sync", "control"} <= set(records["op"])
    # A round of two ranks: extremes, candidates, rows (d + 2 values, float32) and the answer, with headers.
    q, d = 32, X.shape[1]
    most = 8 * (3 + 6 * q + q + 2 + q + 1) + 4 * q * (d + 2) + 4 * 40
    sync = records[records["op"] == "sync"]["bytes_sent"]
    assert sync.max() <= most
    assert gang.ledger.totals()["rounds"] == gang.value.n_rounds


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=9))
def test_moves_level_the_loads(loads):
    """Moves are made only when one rank has 1.5 times the mean, and then leave all within one of it."""
    before = np.array(loads, dtype=np.int64)
    moves = plan_moves(before)
    after = before.copy()
    for giver, taker, count in moves:
        assert count > 0
        after[giver] -= count
        after[taker] += count
    uneven = before.max() * len(before) > 1.5 * before.sum() and before.sum() >= 2 * len(before)
    assert bool(moves) == uneven
    assert not moves or after.max() - after.min() <= 1
