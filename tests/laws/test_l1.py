"""L1 penalties where models are averaged: the model of one rank, with as many zeros."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.linear_model import ElasticNet

from dsgd import SGDClassifier, SGDRegressor
from dsgd.compress import QSGD, ErrorFeedback, TopK
from dsgd.kernels.scaled import to_dual, to_primal
from dsgd.kernels.state import COUNTERS, L1_TOTAL
from dsgd.local import Momentum
from dsgd.sync import (
    ADPSGD,
    EASGD,
    AnytimeSGD,
    Downpour,
    LeaderSGD,
    LocalSGD,
    OneShotAveraging,
    PostLocalSGD,
    SlowMo,
    StreamingDiLoCo,
)
from members import FAMILY, Strategy

ALPHA = 0.05
N_ROWS, N_FEATURES, N_PARTS = 1600, 64, 16
SHARE = {"l1": 1.0, "elasticnet": 0.7}


def with_period(strategy: Strategy) -> Strategy:
    """Return a strategy that exchanges every 32 rows, where it has such a period."""
    has_period = "every" in vars(strategy) and not isinstance(strategy, PostLocalSGD)
    return replace(strategy, every=32) if has_period else strategy


AVERAGING = [
    *(with_period(member.strategy) for member in FAMILY if member.strategy.exchanges == "model"),
    LocalSGD(32, overlap=True),
    LocalSGD(32, compressor=TopK(0.2)),
    LocalSGD(32, compressor=QSGD(127)),
    SlowMo(32, 0.5, compressor=ErrorFeedback(TopK(0.2))),
    AnytimeSGD(np.inf),
    Downpour(32, share=0.25),
    ADPSGD(32),
]


@cache
def problem(kind: str) -> tuple[Any, np.ndarray]:
    """Return rows of which a quarter of the features count; of sparse ones every other one is on 4 of 16 ranks."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N_ROWS, N_FEATURES))
    truth = np.where(rng.random(N_FEATURES) < 0.25, rng.standard_normal(N_FEATURES), 0.0)
    if kind == "csr":
        X *= 2.0 * (rng.random(X.shape) < 0.4)
        rows, columns = np.indices(X.shape)
        X[(columns % 2 == 1) & ((columns // 2 + rows // (N_ROWS // N_PARTS)) % 4 != 0)] = 0.0
    y = X @ truth + 0.3 * rng.standard_normal(N_ROWS)
    return (sparse.csr_array(X) if kind == "csr" else X), y


def trained(
    strategy: Strategy, n_ranks: int | None, X: Any, y: np.ndarray, penalty: str, n_epochs: int, **more: Any
) -> Any:
    """Return a model of ranks that are threads."""
    options = {"penalty": penalty, "alpha": ALPHA, "l1_ratio": SHARE[penalty], "fit_intercept": False, "tol": None}
    rates = {"learning_rate": "invscaling", "eta0": 0.05, "power_t": 0.5, "shuffle": False, "random_state": 0}
    rule = Momentum(0.5, batch=2) if strategy.momentum != "keep" else None
    parts = {"sync": strategy, "n_jobs": n_ranks, "max_iter": n_epochs, "optimizer": rule}
    return SGDRegressor(**{**options, **rates, **parts, **more}).fit(X, y)


@cache
def of_one_rank(momentum: Any, kind: str, penalty: str) -> Any:
    """Return the model of one rank, which a strategy with that policy for momentum is held to."""
    return trained(LocalSGD(momentum=momentum), 1, *problem(kind), penalty, 10)


def objective(model: Any, X: Any, y: np.ndarray, penalty: str) -> float:
    """Return what is minimised, by its definition."""
    w, share = model.coef_, SHARE[penalty]
    penalties = share * np.abs(w).sum() + (1.0 - share) * w @ w / 2.0
    return float(np.mean((X @ w - y) ** 2) / 2.0 + ALPHA * penalties)


#: Epochs, such that all of them come as far as one rank in ten: steps are as long, of a mean of ranks there are fewer.
EPOCHS = {4: 20, 8: 40}
#: Times as many for what moves less in a round. A spring of elastic averaging has the strength beta / P, so that its
#: centre follows 8 ranks half as fast as 4; and a rank of `ADPSGD` meets one other at a time. Of the steps that a rank
#: takes while a fragment is under way it keeps a part.
LONGER = {(EASGD, 8): 2, (ADPSGD, 8): 2, (StreamingDiLoCo, 4): 2, (StreamingDiLoCo, 8): 2}


#: One member of each class, but for two that with so few rows on a rank minimise something else; see their laws below.
FIRST_OF = {type(s): s for s in reversed(AVERAGING) if not isinstance(s, OneShotAveraging | LeaderSGD)}


# Kernels of dense rows do not know how many ranks there are: of 8, sparse rows alone are trained on.
@pytest.mark.parametrize(
    ("n_ranks", "kind", "penalty"), [(4, "csr", "l1"), (4, "dense", "elasticnet"), (8, "csr", "l1")]
)
@pytest.mark.parametrize("strategy", AVERAGING, ids=repr)
def test_ranks_find_the_model_of_one(strategy: Strategy, n_ranks: int, kind: str, penalty: str) -> None:
    """The objective is that of one rank within 2 %, and so is the number of non-zeros, up to one."""
    if n_ranks == 8 and strategy is not FIRST_OF.get(type(strategy)):
        pytest.skip("what sets members of a class apart, 4 ranks show, and some minimise something else on few rows")
    X, y = problem(kind)
    one = of_one_rank(strategy.momentum, kind, penalty)
    n_epochs = EPOCHS[n_ranks] * LONGER.get((type(strategy), n_ranks), 1)
    many = trained(strategy, n_ranks, X, y, penalty, n_epochs)
    assert objective(many, X, y, penalty) < 1.02 * objective(one, X, y, penalty)
    assert abs(np.count_nonzero(many.coef_) - np.count_nonzero(one.coef_)) <= 1 + 0.02 * N_FEATURES


def least(X: Any, y: np.ndarray, penalty: str, weights: np.ndarray | None = None) -> np.ndarray:
    """Return the minimiser that scikit-learn finds by descent along coordinates, of rows with weights."""
    net = ElasticNet(alpha=ALPHA, l1_ratio=SHARE[penalty], fit_intercept=False, tol=1e-12, max_iter=10**6)
    return net.fit(X.toarray() if sparse.issparse(X) else X, y, sample_weight=weights).coef_


@pytest.mark.parametrize(("kind", "penalty", "bias"), [("csr", "l1", 2.89), ("dense", "elasticnet", 1.00)])
def test_one_shot_averaging_keeps_what_ranks_agree_on(kind: str, penalty: str, bias: float) -> None:
    """A weight is the mean of the ranks' minima where they agree on its sign, and nearly all others are zero.

    From minima and their gradients, which scikit-learn's solver and the definition give: the sum of the gradients'
    negatives along a training is what a rank has before its penalty.
    """
    X, y = problem(kind)
    n_rows, n_epochs = N_ROWS // N_PARTS, 160
    rate_sum = np.sum(0.05 / np.sqrt(np.arange(1, n_epochs * n_rows + 1)))
    minima, pulls = [], []
    for rank in range(N_PARTS):
        part, values = X[rank * n_rows : (rank + 1) * n_rows], y[rank * n_rows : (rank + 1) * n_rows]
        w = least(part, values, penalty)
        minima.append(w)
        pulls.append(part.T @ (values - part @ w) / n_rows - ALPHA * (1.0 - SHARE[penalty]) * w)
    owed = ALPHA * SHARE[penalty] * rate_sum
    before = np.mean(minima, axis=0) + rate_sum * np.mean(pulls, axis=0)
    expected = np.sign(before) * np.maximum(0.0, np.abs(before) - owed)
    found = trained(OneShotAveraging(), N_PARTS, X, y, penalty, n_epochs)
    np.testing.assert_allclose(found.coef_, expected, atol=0.02)
    signs = np.sign(minima)
    agreed = np.abs(signs.sum(axis=0)) == N_PARTS
    np.testing.assert_array_equal(found.coef_ != 0.0, agreed)
    np.testing.assert_allclose(found.coef_[agreed], np.mean(minima, axis=0)[agreed], atol=0.02)
    assert agreed.sum() < 0.2 * np.any(signs, axis=0).sum()  # a mean of models would have all of these
    whole = of_one_rank("keep", kind, penalty)
    assert objective(found, X, y, penalty) / objective(whole, X, y, penalty) == pytest.approx(bias, rel=0.02)


def test_the_dual_is_the_model_without_its_penalty() -> None:
    """A weight that pays late and in part is, at every time, the soft threshold of its steps by all that was due."""
    rng = np.random.default_rng(0)
    w, q, z, u = 0.0, 0.0, 0.0, 0.0
    for _ in range(2000):
        step = rng.normal(scale=0.3)
        u += 0.02 * rng.random()
        if rng.random() < 0.4:
            continue  # its feature is not seen
        w, z = w + step, z + step
        before = w
        w = max(0.0, w - (u + q)) if w > 0.0 else min(0.0, w + (u - q))
        q += w - before
        assert w == pytest.approx(np.sign(z) * max(0.0, abs(z) - u), abs=1e-9)
    # The kernels go there and back, to the bit, however much is due beside the model.
    for dtype in (np.float32, np.float64):
        model = np.append(rng.normal(size=500) * 10.0 ** rng.integers(-6, 3, 500), [0.3, 0.0]).astype(dtype)
        received, counters = np.zeros(500, dtype), np.zeros(COUNTERS)
        for owed in (0.0, 1e-3, 0.7, 40.0):
            dual = np.append(model[:-1], dtype(owed))
            vector = dual.copy()
            to_primal(vector, received, counters)
            np.testing.assert_array_equal(vector[:500], np.sign(dual[:500]) * np.maximum(0, abs(dual[:500]) - dual[-1]))
            assert counters[L1_TOTAL] == dual[-1]
            to_dual(vector, received, counters)
            np.testing.assert_array_equal(vector, dual)


def test_classes_and_intercepts() -> None:
    """Of several classes, float32 and with intercepts, ranks have the zeros of one rank and its accuracy."""
    X, y = problem("dense")
    labels = np.argmax(X[:, :3] + 0.3 * y[:, None] * [1.0, 0.0, -1.0], axis=1)
    options = {"penalty": "l1", "alpha": 0.01, "max_iter": 10, "tol": None, "random_state": 0, "loss": "log_loss"}
    one = SGDClassifier(**options).fit(X.astype(np.float32), labels)
    many = SGDClassifier(**{**options, "max_iter": 40}, n_jobs=4, sync=32).fit(X.astype(np.float32), labels)
    assert many.coef_.dtype == np.float32
    assert many.score(X.astype(np.float32), labels) > one.score(X.astype(np.float32), labels) - 0.02
    assert abs(np.count_nonzero(many.coef_) - np.count_nonzero(one.coef_)) <= 0.1 * np.count_nonzero(one.coef_) + 2
