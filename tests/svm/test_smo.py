"""Laws of the steps: each keeps to the constraints and lowers the objective, and none creeps along a valley."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsgd.svm.kernel_solver.smo import solve_block


class _Block:
    """Minimise ½ β'Kβ + p'α, β = yα, over 0 ≤ α ≤ upper with the sum of β fixed in each group."""

    def __init__(self, K, y, p, upper, alpha, group):
        self.K, self.y, self.p, self.upper, self.alpha, self.group = K, y, p, upper, alpha.copy(), group
        self.f = K @ (y * alpha) + y * p

    def run(self, tol, most):
        """Take steps; return how many."""
        args = (self.K, self.y, self.group, self.upper, self.alpha, self.f, tol, most, int(self.group.max()) + 1)
        return solve_block(*args)

    @property
    def objective(self):
        """What is minimised."""
        beta = self.y * self.alpha
        return 0.5 * beta @ self.K @ beta + self.p @ self.alpha

    def extremes(self):
        """Return, by group and from a fresh sum f, the least of those that may rise and the most of those to fall."""
        f = self.K @ (self.y * self.alpha) + self.y * self.p
        up = np.where(self.y > 0, self.alpha < self.upper, self.alpha > 0)
        low = np.where(self.y > 0, self.alpha > 0, self.alpha < self.upper)
        groups = [self.group == g for g in range(self.group.max() + 1)]
        least = [f[up & g].min(initial=np.inf) for g in groups]
        return np.array(least), np.array([f[low & g].max(initial=-np.inf) for g in groups])

    @property
    def sums(self):
        """What is fixed."""
        return np.bincount(self.group, weights=self.y * self.alpha)


def _draw(seed, n, rank, kind, groups):
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(n, rank))
    K = A @ A.T if kind != "indefinite" else 0.5 * (A @ A.T - np.roll(A, 1, axis=0) @ np.roll(A, 1, axis=0).T)
    if kind == "valley":
        K = K + 1e4
    y = rng.choice([-1.0, 1.0], n)
    upper = rng.choice([0.5, 1.0, 100.0], n)
    group = rng.integers(0, groups, n)
    group[-1] = groups - 1
    alpha = upper * np.clip(rng.uniform(-0.5, 1.5, n), 0.0, 1.0)
    return _Block(K, y, rng.normal(size=n) - 0.5, upper, alpha, group)


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(2, 12),
    rank=st.integers(1, 4),
    kind=st.sampled_from(["plain", "valley", "indefinite"]),
    groups=st.sampled_from([1, 2]),
)
def test_no_step_leaves_the_box_or_the_sums_or_raises_the_objective(seed, n, rank, kind, groups):
    """However few steps are allowed at a time, variables stay feasible, f stays true and the objective falls."""
    block, whole = (_draw(seed, n, rank, kind, groups) for _ in range(2))
    sums, size = block.sums, 1.0 + np.abs(block.K).max() * np.square(block.upper.sum())
    whole.run(1e-6, 300)
    for most in (1, 2, 3, 5, 8, 13, 21, 34):
        before = block.objective
        assert block.run(1e-6, most) <= most
        assert (block.alpha >= 0.0).all()
        assert (block.alpha <= block.upper).all()
        assert block.objective <= before + 1e-14 * size
        np.testing.assert_allclose(block.sums, sums, atol=1e-12 * (1 + block.upper.sum()))
        true = block.K @ (block.y * block.alpha) + block.y * block.p
        np.testing.assert_allclose(block.f, true, atol=1e-13 * size)
    np.testing.assert_allclose(whole.sums, sums, atol=1e-12 * (1 + whole.upper.sum()))


@pytest.mark.parametrize("narrowness", [1e-3, 1e-6, 1e-9])
@pytest.mark.parametrize("groups", [1, 2])
def test_two_pairs_that_take_turns_do_not_creep(narrowness, groups):
    """Along a valley as narrow as you like, which two pairs span, the minimum is a few steps away."""
    # β_0 + β_1 and β_2 + β_3 are fixed; the plane's curvatures are 4 (1 ± (1 − narrowness)), its minimum is inside.
    a, b = np.array([1.0, -1.0, 0.0, 0.0]), np.array([0.0, 0.0, 1.0, -1.0])
    K = np.outer(a, a) + np.outer(b, b) - (1.0 - narrowness) * (np.outer(a, b) + np.outer(b, a))
    y, start = np.ones(4), np.array([1.0, 2.0, 1.5, 1.5]) / narrowness
    inside = np.array([1.3, 1.7, 1.2, 1.8]) / narrowness
    group = np.array([0, 0, 1, 1]) if groups == 2 else np.zeros(4, dtype=np.int64)
    block = _Block(K, y, -K @ inside, np.full(4, 3.0) / narrowness, start, group)
    assert block.run(1e-8, 100_000) < 100
    best = 0.5 * inside @ K @ inside - inside @ K @ inside
    assert block.objective == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("C", [1e2, 1e5, 1e9])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("n_columns", [2, 3, 7])
def test_few_dimensions_and_large_bounds_do_not_creep(n_columns, groups, C):
    """A dual that is almost a linear programme takes steps by its variables, not by how wide the box is."""
    rng = np.random.default_rng(0)
    A, y = rng.normal(size=(30, n_columns)), rng.choice([-1.0, 1.0], 30)
    block = _Block(A @ A.T, y, -np.ones(30), np.full(30, C), np.zeros(30), np.zeros(30, np.int64))
    if groups == 2:  # a ν-machine's: sums by sign, and no linear term but targets
        block.p, block.group, block.alpha = 0.01 * rng.normal(size=30), (y < 0).astype(np.int64), np.full(30, 0.3 * C)
        block.f = block.K @ (y * block.alpha) + y * block.p
    sums = block.sums
    steps = block.run(1e-3, 10**6)
    assert steps < 100 * 30
    low, high = block.extremes()
    assert (high - low < 1e-3).all()
    np.testing.assert_allclose(block.sums, sums, atol=1e-13 * 30 * C)


@pytest.mark.parametrize("offset", [1e2, 1e4, 1e8])
def test_sums_stay_where_indicators_share_all_but_their_last_digits(offset):
    """What all indicators of a sign have in common is large, yet the sum of its variables keeps all its digits."""
    rng = np.random.default_rng(0)
    A, y = rng.normal(size=(30, 3)), rng.choice([-1.0, 1.0], 30)
    K = A @ A.T + offset * np.outer(y > 0, y > 0)
    upper, alpha, group = np.full(30, 100.0), np.full(30, 0.3), (y < 0).astype(np.int64)
    block = _Block(K, y, 1e-3 * rng.normal(size=30), upper, alpha, group)
    sums = block.sums
    assert block.run(1e-13 * offset, 3000) > 4 * 30
    np.testing.assert_allclose(block.sums, sums, rtol=1e-13)


def test_values_of_hundreds_of_orders_do_not_overflow_on_the_way():
    """Squares of indicators that overflow leave variables finite."""
    rng = np.random.default_rng(0)
    A = rng.normal(size=(12, 2)) * 10.0 ** rng.uniform(0, 60, 12)[:, None]
    y = rng.choice([-1.0, 1.0], 12)
    block = _Block(A @ A.T, y, -np.ones(12), np.full(12, 1e60), np.full(12, 1e59), np.zeros(12, np.int64))
    block.run(1e-3, 5000)
    assert np.isfinite(block.alpha).all()
    assert np.isfinite(block.f).all()
