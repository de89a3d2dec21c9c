"""Orders of rows and deals: permutations, uniform, of neighbours in large pieces, and even."""

import numpy as np
import pytest

from dsgd.inputs.blocks import partition_rows
from dsgd.kernels.order import CHUNK, GROUP
from dsgd.local.shard import MAX_COPIES, walking_order


@pytest.mark.parametrize("n_classes", [1, 2, 7])
def test_an_order_has_every_row_once(n_classes):
    """For every number of rows around those at which chunks and groups end, with classes and without."""
    sizes = [*range(300), *(k * GROUP + off for k in (1, 2, 5) for off in (-1, 0, 1, CHUNK - 1, CHUNK + 1))]
    for n in sizes:
        y = np.random.default_rng(n).integers(0, n_classes, n).astype(float)
        for seed in (0, 1):
            order, targets = walking_order(y, seed)
            assert np.array_equal(targets, y[order])
            assert np.array_equal(np.sort(order), np.arange(n)), (n, seed)


@pytest.mark.parametrize("n", [6, 200])
def test_each_row_is_as_likely_at_each_place(n):
    """Over 4,000 seeds the first and the last place are taken by all rows alike, to what chance allows."""
    n_seeds = 4000
    for y in (np.zeros(n), (np.arange(n) % 2).astype(float)):
        orders = np.array([walking_order(y, seed)[0] for seed in range(n_seeds)])
        for place in (0, n // 2, n - 1):
            counts = np.bincount(orders[:, place], minlength=n)
            expected = n_seeds / n
            # Chi-squared with n - 1 degrees of freedom has that mean, and a deviation of the root of twice as much.
            assert ((counts - expected) ** 2 / expected).sum() < n - 1 + 5 * np.sqrt(2 * (n - 1))


def test_neighbours_of_a_long_order_come_from_few_pieces():
    """A group is read from as many pieces as it has chunks, and no row is near its neighbours in it."""
    n = 64 * GROUP
    order = walking_order(np.zeros(n), 3)[0].astype(np.int64)
    for begin in range(0, n, GROUP):
        assert len(np.unique(order[begin : begin + GROUP] // CHUNK)) == GROUP // CHUNK
    assert np.mean(np.abs(np.diff(order)) < CHUNK) < 0.1
    # Whole groups are from anywhere.
    means = order.reshape(-1, GROUP).mean(axis=1)
    assert np.abs(means - n / 2).max() < 5 * n / np.sqrt(12 * GROUP // CHUNK)
    assert not np.array_equal(order, walking_order(np.zeros(n), 4)[0])


@pytest.mark.parametrize("n_ranks", [2, 3, 7])
@pytest.mark.parametrize("n", [0, 1, 5, 100, 1001])
def test_neighbours_are_dealt_to_different_ranks(n, n_ranks):
    """Every P neighbours go to P ranks, so all have rows from everywhere; another seed deals otherwise."""
    partition = partition_rows(n, None, n_ranks, seed=5)
    parts = [partition.rows(rank) for rank in range(n_ranks)]
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(n))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    owner = np.empty(n, int)
    for rank, rows in enumerate(parts):
        assert np.all(np.diff(rows) > 0)
        owner[rows] = rank
    for begin in range(0, n - n_ranks + 1, n_ranks):
        assert len(set(owner[begin : begin + n_ranks])) == n_ranks
    if n >= 100:
        assert not np.array_equal(partition_rows(n, None, n_ranks, seed=6).order, partition.order)
        # Not in turn: a series with that period would be cut into its phases.
        assert len(np.unique(owner[: n - n % n_ranks].reshape(-1, n_ranks), axis=0)) > 1


@pytest.mark.parametrize("n_ranks", [2, 5])
def test_ranks_have_as_many_visits(n_ranks):
    """Rows of several visits go where fewest are, so that ranks differ by those of one row at most."""
    weights = np.random.default_rng(1).choice([0.0, 0.3, 1.0, 2.0, 5.5, 16.0, 900.0], 400)
    visits = np.where(weights > 0, np.clip(np.rint(weights), 1, MAX_COPIES), 0)
    partition = partition_rows(400, weights, n_ranks, seed=2)
    loads = [visits[partition.rows(rank)].sum() for rank in range(n_ranks)]
    assert max(loads) - min(loads) <= MAX_COPIES
    assert np.array_equal(np.sort(partition.order), np.arange(400))
