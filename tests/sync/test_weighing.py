"""What ranks count in means of models: sums of rates, and shares that follow from them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsgd.kernels.state import SCHEDULES, optimal_t0, relative_sums
from dsgd.local import SGD, Momentum, Objective, make_shard
from dsgd.runtime.threads import run_on_threads
from dsgd.runtime.train import TrainData, TrainJob, train
from dsgd.sync import DPSGD, EpochAveraging, LocalSGD, PostLocalSGD, mean_shares
from reference.sgd import rate

ALPHA = 0.01


@settings(max_examples=60)
@given(
    name=st.sampled_from(sorted(SCHEDULES)),
    starts=st.lists(st.integers(1, 10**6), min_size=2, max_size=2),
    counts=st.lists(st.integers(0, 400), min_size=2, max_size=2),
    power_t=st.sampled_from([0.25, 0.5, 1.0, 2.0]),
)
def test_sums_of_rates_are_those_of_the_schedule(name: str, starts: Any, counts: Any, power_t: float) -> None:
    """Two stretches of an epoch are to each other as the sums of the rates of their steps, to 1e-4."""
    sums = relative_sums(
        SCHEDULES[name].code, np.array(starts, float), np.array(counts, float), power_t, optimal_t0(ALPHA)
    )
    first, second = (
        sum(rate(name, t, 3, ALPHA, 0.5, power_t) for t in range(start, start + count))
        for start, count in zip(starts, counts, strict=True)
    )
    np.testing.assert_allclose(sums[0] * second, sums[1] * first, rtol=2e-4)
    assert (sums > 0).tolist() == [count > 0 for count in counts]


@given(rows=st.lists(st.integers(0, 99), min_size=1, max_size=8).filter(any), seed=st.integers(0, 99))
def test_shares_make_changes_count_by_rows(rows: list[int], seed: int) -> None:
    """Shares add up to one, none is negative, and a share times its sum of rates is in proportion to the rows."""
    sums = np.where(np.array(rows) > 0, np.random.default_rng(seed).uniform(0.5, 2.0, len(rows)), 0.0)
    shares = mean_shares(rows, sums)
    np.testing.assert_allclose(shares.sum(), 1.0)
    assert (shares >= 0).all()
    changes = shares * sums
    np.testing.assert_allclose(changes / changes.sum(), np.array(rows) / sum(rows), atol=1e-12)
    assert mean_shares([0, 0], np.zeros(2)).tolist() == [0.5, 0.5]


def shard_of(n: int, target: float) -> TrainData:
    """Return rows whose optimum is the target."""
    return TrainData(make_shard(np.ones((n, 1)), np.full(n, target), shuffle=False))


@pytest.mark.parametrize("strategy", [LocalSGD(30), EpochAveraging(), PostLocalSGD(60, 15), DPSGD(30)], ids=repr)
@pytest.mark.parametrize(
    "steps",
    [
        {"schedule": "constant", "eta0": 0.02, "rule": Momentum(0.0, batch=10)},
        {"schedule": "invscaling", "eta0": 0.2, "power_t": 0.5},
        {"schedule": "pegasos"},
        {"schedule": "optimal"},
    ],
    ids=str,
)
def test_uneven_shards_with_any_schedule_minimise_the_whole(strategy: Any, steps: dict[str, Any]) -> None:
    """Ranks with 30, 90 and no rows of their own kinds end at the ridge solution of all rows, whatever their rates."""
    alpha = 0.5
    sgd = SGD(Objective("squared_error", "l2", alpha, fit_intercept=False), **steps)
    job = TrainJob(sgd, strategy, np.zeros(2), max_iter=60, tol=None, n_iter_no_change=5)
    data = [shard_of(90, 1.0), shard_of(0, 0.0), shard_of(30, -3.0)]
    found = run_on_threads(train, data, (job,)).value.params[0]
    # Counted alike or by the squares of their rows, they would be near -0.67 and 0.4.
    assert abs(found - (0.75 - 0.75) / (1 + alpha)) < 0.08
