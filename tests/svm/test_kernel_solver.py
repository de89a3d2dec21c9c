"""The kernel SVM solver on one machine: blocks, members, pairs in threads, merged rows."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics.pairwise import rbf_kernel

import dsgd.svm.kernel_solver.solve as whole_module
from dsgd.kernels.order import sort_hashes
from dsgd.svm import SVC
from dsgd.svm.kernel_solver.block import solve
from dsgd.svm.kernel_solver.elimination import Elimination
from dsgd.svm.kernel_solver.problem import Dual
from dsgd.svm.kernel_solver.smo import solve_block
from dsgd.svm.kernel_solver.solve import solve_directly
from dsgd.svm.kernels.functions import Kernel, scale_gamma
from dsgd.svm.kernels.matrix import KernelMatrix
from dsgd.svm.kernels.rows import distribute, merge_rows
from dsgd.svm.kernels.threads import Pool
from reference.svm import smo

GAMMA = 0.3


POOL = Pool(1, None)


def _matrix(X, **options) -> KernelMatrix:
    options = {"samples": None, "dtype": np.float64, "cache_bytes": 10**7, "pool": POOL} | options
    return KernelMatrix(Kernel("rbf", GAMMA), X, **options)


@pytest.mark.parametrize("by_sign", [False, True])
@pytest.mark.parametrize("r", [1, 2])
@pytest.mark.parametrize("few", [False, True])
def test_small_problems_take_rows_of_members(by_sign, r, few, monkeypatch):
    """With all members at once or a few more each round the solution is that of blocks, and a cap on steps is kept."""
    if few:
        monkeypatch.setattr(whole_module, "_ROUND_COST", 0)
        monkeypatch.setattr(whole_module, "_FEWEST", 2)
    rng = np.random.default_rng(5)
    X, n = rng.normal(size=(120, 4)), 120
    z = np.sin(X[:, 0])
    y = np.stack([np.ones(n), -np.ones(n)])[:r] if r == 2 else np.where(z > 0, 1.0, -1.0)[None]
    p = np.stack([0.1 - z, 0.1 + z])[:r] if r == 2 else np.full((1, n), 0.0 if by_sign else -1.0)
    dual = Dual(y, p, np.full((r, n), 2.0), np.full((r, n), 0.5 if by_sign else 0.0), by_sign)
    whole = solve_directly(dual, _matrix(X), tol=1e-6, max_iter=-1)
    rounds = solve(dual, _matrix(X), tol=1e-6, max_iter=-1, elimination=Elimination("none"))
    assert whole.converged
    assert whole.gap < 1e-6
    assert whole.objective == pytest.approx(rounds.objective, rel=1e-8)
    np.testing.assert_allclose(whole.thresholds, rounds.thresholds, atol=1e-5)
    np.testing.assert_allclose(whole.u, rbf_kernel(X, gamma=GAMMA) @ (y * whole.alpha).sum(axis=0), rtol=1e-9)
    # Who has no member's row has cost none: nu-SVMs begin with a coefficient on every sample.
    assert whole.counts.n_evaluations == n * n if by_sign or not few else whole.counts.n_evaluations < n * n
    capped = solve_directly(dual, _matrix(X), tol=1e-6, max_iter=3)
    assert not capped.converged
    assert capped.counts.n_iter == 3
    assert capped.gap > whole.gap


@pytest.mark.parametrize("kernel", ["rbf", "callable", "precomputed", "csr"])
def test_threads_change_no_bit_of_pairs(kernel):
    """Pairs solved together or one by one, by one thread or two, are the same to the last bit."""
    rng = np.random.default_rng(7)
    X, y = rng.normal(size=(900, 4)), rng.integers(0, 3, 900)
    X[:, 0] += y
    function = (lambda A, B: rbf_kernel(A, B, gamma=GAMMA)) if kernel == "callable" else "rbf"
    rows = {"precomputed": rbf_kernel(X, gamma=GAMMA), "csr": sp.csr_matrix(np.where(X > 1.5, X, 0.0))}.get(kernel, X)
    name = "precomputed" if kernel == "precomputed" else function
    one, two, four = (SVC(kernel=name, gamma=GAMMA, n_jobs=k).fit(rows, y) for k in (1, 2, 4))
    for other in (two, four):  # with four threads the three pairs take turns, each with all of them
        np.testing.assert_array_equal(other._dense_coefs(), one._dense_coefs())
        np.testing.assert_array_equal(other.n_iter_, one.n_iter_)


@pytest.mark.parametrize("by_sign", [False, True])
def test_inner_solver_reaches_the_optimum_of_its_block(by_sign):
    """The block solver closes the gap of a block, within each sign where sums are fixed by sign."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(80, 4))
    y = np.where(rng.random(80) < 0.5, 1.0, -1.0)
    K = rbf_kernel(X, gamma=GAMMA)
    group = (y < 0).astype(np.int64) if by_sign else np.zeros(80, np.int64)
    alpha = np.full(80, 0.5)
    f = K @ (y * alpha) - (0 if by_sign else y)
    before = [alpha[y == s].sum() for s in (-1, 1)]
    solve_block(K, y, group, np.ones(80), alpha, f, 1e-8, 100_000, 1 + by_sign)
    np.testing.assert_allclose(f, K @ (y * alpha) - (0 if by_sign else y), atol=1e-9)
    for g in range(1 + by_sign):
        inside = group == g
        up = inside & np.where(y > 0, alpha < 1, alpha > 0)
        low = inside & np.where(y > 0, alpha > 0, alpha < 1)
        assert f[low].max() - f[up].min() < 1e-8
    if by_sign:
        np.testing.assert_allclose([alpha[y == s].sum() for s in (-1, 1)], before)


@pytest.mark.parametrize("block_size", [2, 5, 64, None])
def test_any_block_size_gives_the_twins_optimum(block_size):
    """Blocks of two variables or of many end at the objective of the plain twin, also from a start that is not zero."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(120, 4))
    y = np.where(X[:, 0] + 0.5 * rng.normal(size=120) > 0, 1.0, -1.0)
    K = rbf_kernel(X, gamma=GAMMA)
    start = np.full(120, 0.25)
    _, expected = smo(K, y, -np.ones(120), np.full(120, 2.0), start, 1e-7)
    dual = Dual(y[None], -np.ones((1, 120)), np.full((1, 120), 2.0), start[None])
    solution = solve(dual, _matrix(X), tol=1e-7, max_iter=-1, elimination=Elimination(every=10), block_size=block_size)
    assert solution.converged
    assert solution.objective == pytest.approx(expected, rel=1e-9)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1), st.integers(0, 3)), min_size=1, max_size=30))
@settings(max_examples=60, deadline=None)
def test_merged_rows_are_dealt_out_within_bounds(rows):
    """Merging keeps total bounds; dealing out keeps sums and bounds, and never uses weight zero."""
    X = np.array([[row[0], 1.0 - row[0]] for row in rows])
    target = np.array([float(row[1]) for row in rows])
    weights = np.array([float(row[2]) for row in rows])
    if not weights.any():
        return
    first, owner, total = merge_rows(X, target, weights)
    first_s, owner_s, total_s = merge_rows(sp.csr_matrix(X), target, weights)
    np.testing.assert_array_equal(owner, owner_s)
    np.testing.assert_array_equal(total, total_s)
    np.testing.assert_array_equal(X[first[owner[owner >= 0]]], X[owner >= 0])
    assert len(first) == len(first_s) == len({(row[0], row[1]) for row in rows if row[2]})
    merged = np.where(target[first] > 0, 1, -1) * total * 0.7
    dealt = distribute(merged[None], owner, weights, total)[0]
    assert (np.abs(dealt) <= weights).all()
    sums = np.bincount(owner[owner >= 0], weights=dealt[owner >= 0], minlength=len(first))
    np.testing.assert_allclose(sums, merged, atol=1e-9)


def test_gamma_scale_counts_rows_by_weight():
    """``gamma="scale"`` of weighted rows is that of repeated rows, dense and sparse."""
    X = np.random.default_rng(0).normal(size=(20, 3))
    weights = np.arange(20.0)
    repeated = scale_gamma("scale", X.repeat(weights.astype(int), axis=0))
    assert scale_gamma("scale", X, weights) == pytest.approx(repeated)
    assert scale_gamma("scale", sp.csr_matrix(X), weights) == pytest.approx(repeated)
    assert scale_gamma("scale", sp.csr_matrix(X)) == pytest.approx(scale_gamma("scale", X))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 700), st.sampled_from(["even", "copies", "few", "neighbours", "ends"]))
def test_hashes_are_sorted_whatever_they_are(seed, n, kind):
    """The order is that of a stable sort, where hashes are spread evenly and where they are anything but that."""
    rng = np.random.default_rng(seed)
    keys = rng.integers(0, 2**64, n, np.uint64)
    if kind == "copies" and n:
        keys = keys[rng.integers(0, n, n)]
    elif kind == "few":
        keys = rng.integers(0, 3, n, np.uint64) << np.uint64(20)
    elif kind == "neighbours":
        keys = np.uint64(2**63) - np.arange(n, dtype=np.uint64)
    elif kind == "ends":
        keys = np.where(rng.random(n) < 0.5, np.uint64(0), np.uint64(2**64 - 1))
    order, in_order = sort_hashes(keys)
    np.testing.assert_array_equal(order, np.argsort(keys, kind="stable"))
    np.testing.assert_array_equal(in_order, np.sort(keys))
