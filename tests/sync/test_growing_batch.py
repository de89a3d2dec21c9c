"""Batches that grow: the steps of each epoch are those of its batch, and what contradicts them is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsgd import Gang, SGDRegressor
from dsgd.errors import InvalidParameterError
from dsgd.sim import SimulatedCluster
from dsgd.sync import GrowingBatch, MinibatchSGD

N_ROWS = 90


def model(**options: Any) -> SGDRegressor:
    """Return an estimator at constant rates."""
    usual = {"learning_rate": "constant", "eta0": 0.05, "tol": None, "random_state": 0, "shuffle": False}
    return SGDRegressor(**usual | options)


def rows() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N_ROWS, 3))
    return X, X @ [1.0, -2.0, 3.0] + 0.1 * rng.standard_normal(N_ROWS)


@pytest.mark.parametrize("n_ranks", [1, 3])
def test_every_epoch_is_one_of_its_batch(n_ranks: int, tmp_path: Path) -> None:
    """A fit is one epoch after the other with 8, 8, 20, 20 and 30 rows a batch, to the bit, wherever it is cut."""
    X, y = rows()
    cluster = SimulatedCluster(n_ranks)
    growing = MinibatchSGD(8, growth=2.5, growth_every=2, max_batch=30)
    whole = model(sync=growing, client=cluster, max_iter=5).fit(X, y)
    steps = model(client=cluster)
    for batch in (8, 8, 20, 20, 30):
        steps.set_params(sync=MinibatchSGD(batch)).partial_fit(X, y)
    np.testing.assert_array_equal(whole.coef_, steps.coef_)
    # Twice twelve steps, twice five, three.
    assert whole.t_ == steps.t_ == 1 + 2 * 12 + 2 * 5 + 3
    parts = model(sync=growing, client=cluster)
    for _ in range(5):
        parts.partial_fit(X, y)
    np.testing.assert_array_equal(parts.coef_, whole.coef_)
    model(sync=growing, client=Gang(cluster, checkpoint=tmp_path), max_iter=3).fit(X, y)
    resumed = model(sync=growing, client=Gang(cluster, resume_from=str(tmp_path)), max_iter=5).fit(X, y)
    np.testing.assert_array_equal(resumed.coef_, whole.coef_)


def test_a_period_that_grows_stays_a_number() -> None:
    """Batches end with all rows, or with the largest allowed, however long training is."""
    assert [GrowingBatch(8, 2.5, 1).batch(90, epoch) for epoch in (0, 1, 2, 3, 10**9)] == [8, 20, 50, 90, 90]
    assert GrowingBatch(8, 2.5, 2, 30).batch(90, 10**9) == 30
    assert GrowingBatch(8, 2.5, 1).rounds_per_epoch([45, 45]) == 12
    assert GrowingBatch(8, 2.5, 1).rounds_in_epoch([0, 0], 5) == 1


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_batch": 64}, "pass growth too"),
        ({"growth": 2.0, "base_batch": 8}, "pass one of them"),
        ({"growth": 2.0, "rates": "pooled"}, "pass one of them"),
    ],
)
def test_what_contradicts_growth_is_refused(options: dict[str, Any], text: str) -> None:
    """Values out of range, and rates that would grow with the batch, are refused by name."""
    with pytest.raises(InvalidParameterError, match=text):
        MinibatchSGD(32, **options)
