"""Consensus ADMM, synchronous and by a server: where it ends, when it is the same, and who is waited for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from dsgd import SGDClassifier
from dsgd.local import GradientDescent
from dsgd.sim import SimulatedCluster, SlowRank
from dsgd.sync import ADMM, AsyncADMM
from dsgd.sync.server import Model, ServerMessage


def problem() -> tuple[np.ndarray, np.ndarray]:
    """Return rows in the order of one feature, so that ranks have different ones."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((120, 3))
    X = X[np.argsort(X[:, 0])]
    return X, np.where(X @ [1.0, -1.0, 0.5] + rng.standard_normal(120) > 0, 1, -1)


def fit(sync: Any, cluster: Any, **options: Any) -> SGDClassifier:
    """Return a logistic regression of whole gradients at a constant rate."""
    usual = {
        "loss": "log_loss", "alpha": 0.05, "learning_rate": "constant", "eta0": 0.5, "max_iter": 400, "tol": None,
        "fit_intercept": False, "shuffle": False, "optimizer": GradientDescent(), "client": cluster,
    }  # fmt: skip
    return SGDClassifier(sync=sync, **usual | options).fit(*problem())


@pytest.mark.parametrize(
    "sync", [ADMM(10**6, 0.2), AsyncADMM(10**6, 0.2), AsyncADMM(10**6, 0.2, arrivals=2, delay=3)], ids=repr
)
def test_whole_gradients_reach_the_optimum(sync: Any) -> None:
    """On ranks with different rows, of which one is slow, ADMM ends at the optimum of scikit-learn."""
    X, y = problem()
    cluster = SimulatedCluster(4, stragglers=SlowRank(0, 3.0))
    best = LogisticRegression(C=1 / (0.05 * len(y)), fit_intercept=False, tol=1e-10).fit(X, y).coef_
    np.testing.assert_allclose(fit(sync, cluster).coef_, best, atol=1e-5)


@settings(max_examples=40)
@given(
    n_workers=st.integers(1, 5),
    arrivals=st.integers(1, 6),
    delay=st.integers(1, 4),
    rounds=st.integers(1, 5),
    order=st.lists(st.integers(0, 4), min_size=60, max_size=60),
)
def test_nobody_waits_for_ever_and_nobody_is_too_old(
    n_workers: int, arrivals: int, delay: int, rounds: int, order: list[int]
) -> None:
    """In any order of arrivals an epoch ends, updates have enough of them, and no other message is too old."""
    model = Model(np.zeros(2), lambda g, factor: None, lambda: None, n_workers, rounds=rounds)
    handler = AsyncADMM(arrivals=arrivals, delay=delay).handler(model)
    for _ in range(2):
        left, free, age = [rounds] * n_workers, set(range(n_workers)), [0] * n_workers
        wishes = iter(order * n_workers)
        while any(left):
            able = [worker for worker in free if left[worker]]
            assert able  # whoever is waited for can come
            worker = able[next(wishes) % len(able)]
            message = ServerMessage(2, np.float64)
            message.body[:] = 1.0
            left[worker] -= 1
            free.remove(worker)
            answered = list(handler.accept(worker, message))
            waiting = set(range(n_workers)) - free
            if answered:
                assert set(answered) == waiting
                to_come = [other for other in free if left[other]]
                assert len(answered) >= min(arrivals, len(answered) + len(to_come))
                age = [0 if other in waiting else age[other] + 1 for other in range(n_workers)]
                assert all(age[other] < delay for other in to_come)
                free |= waiting
        assert free == set(range(n_workers))
        handler.settle()
    assert model.params.tolist() == [2.0 * n_workers * rounds] * 2
