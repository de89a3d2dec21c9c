"""Kernel SVMs on several ranks: the same optimum as on one, whatever is left out, moved or missing."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.svm import SVC

import dsgd.svm.kernel_solver.growth as growth_module
import dsgd.svm.kernel_solver.state as proof_module
from dsgd.comm.frames import AbortFlag
from dsgd.errors import AbortedError
from dsgd.runtime import run_on_threads
from dsgd.svm.kernel_solver import growth
from dsgd.svm.kernel_solver.block import solve
from dsgd.svm.kernel_solver.elimination import Elimination, eliminable
from dsgd.svm.kernel_solver.growth import plan_moves
from dsgd.svm.kernel_solver.pairwise import solve_pairwise
from dsgd.svm.kernel_solver.problem import Dual, Solution, duality_gap
from dsgd.svm.kernel_solver.state import ExactSums
from dsgd.svm.kernels import peers as peers_module
from dsgd.svm.kernels import products
from dsgd.svm.kernels.functions import Kernel, centre
from dsgd.svm.kernels.matrix import KernelMatrix
from dsgd.svm.kernels.peers import Peers
from dsgd.svm.kernels.threads import Pool
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


def matrix_of(rank: Any, X: Any, holder: np.ndarray, dtype: Any, cache_bytes: int) -> KernelMatrix:
    """Return the kernel values of which this rank has the columns of its share of the rows."""
    kernel = Kernel("rbf", 0.3)
    return KernelMatrix(
        kernel,
        X[np.flatnonzero(holder == rank.number)],
        samples=None,
        dtype=dtype,
        cache_bytes=cache_bytes,
        pool=Pool(1, None),
        peers=Peers(X.shape[0], rank.group, holder, rank.check),
        shift=centre(kernel, X),
        sparse=sp.issparse(X),
    )


def program(rank: Any, data: Any, X: Any, dual: Dual, holder: np.ndarray, options: dict[str, Any]) -> Solution:
    """Solve a dual on this rank's share of the rows."""
    matrix = matrix_of(rank, X, holder, options.get("dtype", np.float32), options.get("cache_bytes", 10**5))
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


@cache
def twins_optimum(*, sparse: bool) -> tuple[np.ndarray, float]:
    """Return all kernel values, and the objective of the plain twin."""
    X, y = problem(sparse=sparse)
    K = rbf_kernel(X, gamma=0.3)
    return K, smo(K, y, -np.ones(len(y)), np.ones(len(y)), np.zeros(len(y)), 1e-8)[1]


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_any_number_of_ranks_ends_at_the_twins_optimum(sparse, mode):
    """1, 2 and 3 ranks give the objective of the plain twin, dense and CSR, in every mode of elimination."""
    X, y = problem(sparse=sparse)
    K, expected = twins_optimum(sparse=sparse)
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
        assert (solution.counts.n_eliminated > 0) == (mode != "none")


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
    assert "rebalance" in [record.event for record in gang.value.counts.history]


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

    monkeypatch.setattr(growth, "eliminable", wrong)
    holder = np.arange(len(y)) % n_ranks
    solution = solve_on(X, dual_of(y), holder, n_ranks, elimination=MODES["multi"]).value
    monkeypatch.undo()
    expected = solve_on(X, dual_of(y), np.zeros(len(y), np.int64), 1).value
    assert solution.converged
    assert solution.counts.n_returned > 0
    assert solution.objective == pytest.approx(expected.objective, rel=1e-6)


GROWING = Elimination("multi", every=0.05, min_fraction=0.05, waits_for_pressure=True)


@pytest.mark.slow
@pytest.mark.parametrize("sparse", [False, True])
def test_ranks_begin_small_together(sparse, monkeypatch):
    """Where rows do not fit, 1, 2 and 3 ranks look at the same batches and end at the optimum of none left out."""
    monkeypatch.setattr(growth_module, "_BATCH_ROUNDS", 0)  # rounds are what batches cost, and this problem is small
    X, y = problem(sparse=sparse, n=900)
    expected = solve_on(X, dual_of(y, 5.0), np.zeros(900, np.int64), 1, tol=1e-5).value
    sizes = []
    for n_ranks in (1, 2, 3):
        holder = np.random.default_rng(n_ranks).integers(0, n_ranks, 900)
        options = {"elimination": GROWING, "cache_bytes": 9000, "tol": 1e-5}
        solution = solve_on(X, dual_of(y, 5.0), holder, n_ranks, **options).value
        events = [record.event for record in solution.counts.history]
        assert events.count("grow") == 3
        assert solution.converged
        assert solution.objective == pytest.approx(expected.objective, rel=1e-6)
        np.testing.assert_allclose(solution.u, rbf_kernel(X, gamma=0.3) @ (y * solution.alpha[0]), atol=1e-9)
        sizes.append(solution.counts.history[0].n_active)
    assert sizes == [112] * 3


def test_ranks_that_begin_small_may_have_few_rows_or_one_class():
    """A rank without rows, and ranks with one class each, take part in every batch, and rows move between them."""
    X, y = problem(sparse=False, n=900)
    expected = solve_on(X, dual_of(y), np.zeros(900, np.int64), 1, tol=1e-5).value
    for holder in (np.where(y > 0, 0, 2), np.ones(900, np.int64)):
        gang = solve_on(X, dual_of(y), holder, 3, elimination=GROWING, cache_bytes=9000, tol=1e-5)
        assert gang.value.objective == pytest.approx(expected.objective, rel=1e-6)
        assert {"grow", "rebalance"} <= {record.event for record in gang.value.counts.history}


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("n_ranks", [1, 2, 3])
@pytest.mark.parametrize("held_bytes", [None, 0])
def test_exact_sums_of_ranks_are_those_of_all_coefficients(held_bytes, n_ranks, sparse, monkeypatch):
    """Whatever was renewed or added before, each rank has K beta for its own samples, and all foresee the same work."""
    monkeypatch.setattr(proof_module, "_PART", 64)
    monkeypatch.setattr(proof_module, "_TOGETHER", 30)
    if held_bytes is not None:
        monkeypatch.setattr(peers_module, "_HELD_BYTES", held_bytes)
    X, _ = problem(sparse=sparse, n=600)
    K = rbf_kernel(X, gamma=0.3)

    def check(rank: Any, data: Any, holder: np.ndarray) -> None:
        rng, matrix, beta = np.random.default_rng(3), matrix_of(rank, X, holder, np.float32, 9), np.zeros(600)
        exact, mine = ExactSums(matrix), matrix.mine
        exact.set_aside(np.arange(200, 600))
        for start in (200, 400):
            beta[rng.permutation(start)[:80]] = rng.normal(size=80)
            batch, known = np.arange(start, start + 200), mine[mine < start + 200]
            raised = np.where(rng.random(200) < 0.2, 1.0, 0.0)
            u, change = exact.look(batch, beta[mine], lambda part, u, raised=raised, start=start: raised[part - start])
            np.testing.assert_allclose(u, K[matrix.peers.mine(batch)] @ beta, atol=1e-10)
            np.testing.assert_allclose(
                change[: len(known)], K[known][:, batch] @ raised, atol=1e-10
            )  # what is known has the lowest numbers
            beta[batch] = raised
        some = matrix.peers.mine(np.sort(rng.permutation(600)[:200]))
        beta[rng.permutation(600)[:80]] += 0.5
        np.testing.assert_allclose(exact.renew(some, beta[mine]), K[some] @ beta, atol=1e-10)
        beta[rng.permutation(600)[:80]] -= 0.5
        foreseen = rank.group.allgather(np.array([exact.work(beta[mine])]))
        assert (foreseen == foreseen[0]).all()
        assert (foreseen > 0).all()
        assert len(exact.u) == len(mine)
        np.testing.assert_allclose(exact.renew_all(beta[mine]), (K @ beta)[mine], atol=1e-10)
        assert exact.work(beta[mine]) == 0

    for holder in (np.arange(600) % n_ranks, np.minimum(np.arange(600) // 300, n_ranks - 1)):
        run_on_threads(check, [None] * n_ranks, (holder,), timeout_s=20.0)


@pytest.mark.parametrize(("n_sources", "n_targets"), [(0, 60), (1, 60), (41, 60), (60, 60), (60, 23), (41, 0)])
@pytest.mark.parametrize("n_ranks", [2, 3])
def test_values_of_a_product_that_serve_two_ranks_are_computed_once(n_ranks, n_sources, n_targets, monkeypatch):
    """Each rank has the sums of its targets, and all together compute few more values than one would have to."""
    for name, size in (("_STRIP", 16), ("_RIGHT_ROWS", 16), ("_CHUNK", 5)):
        monkeypatch.setattr(products, name, size)
    monkeypatch.setattr("dsgd.svm.kernels.matrix._FEW", 0)
    X, _ = problem(sparse=False, n=60)
    K = rbf_kernel(X, gamma=0.3)

    def check(rank: Any, data: Any, holder: np.ndarray) -> int:
        rng, matrix = np.random.default_rng(3), matrix_of(rank, X, holder, np.float32, 9)
        sources, targets = np.sort(rng.permutation(60)[:n_sources]), rng.permutation(60)[:n_targets]
        coefs, ours = rng.normal(size=n_sources), matrix.peers.mine(targets)
        found = matrix.product(ours, sources, coefs, np.float64)
        np.testing.assert_allclose(found, K[np.ix_(ours, sources)] @ coefs, atol=1e-10)
        both = len(np.intersect1d(sources, targets))
        counts = np.array([float(matrix.n_evaluations)])
        matrix.peers.add_up(counts)
        assert counts[0] <= n_sources * n_targets - both * (both - 1) // 2 + 16 * both
        return both

    for holder in (np.arange(60) % n_ranks, np.arange(60) // 30):
        run_on_threads(check, [None] * n_ranks, (holder,), timeout_s=20.0)


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


@pytest.mark.parametrize("bound", [1.0, np.inf])
@pytest.mark.parametrize("by_sign", [False, True])
def test_ranks_find_the_duality_gap_of_one(bound, by_sign):
    """The best threshold over all ranks is that of sorting all variables, ties and free upper ends included."""
    rng = np.random.default_rng(0)
    y, f = rng.choice([-1.0, 1.0], size=(2, 60)), np.round(rng.normal(size=(2, 60)), 1)
    upper = np.where(rng.random((2, 60)) < 0.9, 1.0 + rng.random((2, 60)), bound)
    alpha = np.where(rng.random((2, 60)) < 0.5, 0.0, np.minimum(upper, 1.0) * rng.random((2, 60)))
    dual = Dual(y, np.zeros_like(y), upper, alpha, by_sign)
    expected = duality_gap(dual, alpha, f)

    def find(rank: Any, data: Any) -> float:
        peers = Peers(60, rank.group, np.arange(60) % 2, rank.check)
        return duality_gap(dual.take(peers.here), alpha[:, peers.here], f[:, peers.here], peers)

    for n_ranks in (2, 3):  # one of three has no samples
        found = run_on_threads(find, [None] * n_ranks, (), timeout_s=20.0).value
        assert found == pytest.approx(expected, rel=1e-12)


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
    assert {"sync", "check"} <= set(records["op"])
    # A round of two ranks: extremes, candidates (4 words), rows (d + 2 values, float32) and the answer, with headers.
    q, d = 32, X.shape[1]
    most = 8 * (3 + 6 * q + q + 2 + q + 1) + 4 * q * (d + 2) + 4 * 40
    sync = records[records["op"] == "sync"]["bytes_sent"]
    assert sync.max() <= most
    assert gang.ledger.totals()["rounds"] == gang.value.counts.n_rounds


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
