"""L1 penalties where models are averaged: the model of one rank, with as many zeros."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from dsgd import SGDClassifier, SGDRegressor
from dsgd.compress import QSGD, ErrorFeedback, TopK
from dsgd.kernels.dual import to_dual, to_primal
from dsgd.kernels.sgd import COUNTERS, L1_TOTAL
from dsgd.local import Momentum
from dsgd.sim import SimulatedCluster
from dsgd.sync import (
    ADPSGD,
    DPSGD,
    EASGD,
    SCAFFOLD,
    AnytimeSGD,
    ChocoSGD,
    Downpour,
    EpochAveraging,
    LeaderSGD,
    LocalSGD,
    PostLocalSGD,
    SlowMo,
)
from laws.family import FAMILY, Strategy
from laws.test_training import steady

ALPHA = 0.05
N_ROWS, N_FEATURES, N_PARTS = 1600, 64, 16
SHARE = {"l1": 1.0, "elasticnet": 0.7}


def with_period(strategy: Strategy) -> Strategy:
    """Return a strategy that exchanges every 32 rows, where it has such a period."""
    has_period = "every" in vars(strategy) and not isinstance(strategy, PostLocalSGD)
    return replace(strategy, every=32) if has_period else strategy


AVERAGING = [
    *(with_period(steady(member.strategy)) for member in FAMILY if member.strategy.exchanges == "model"),
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
    """Return rows of which a quarter of the features count; of sparse ones every other one is on few ranks."""
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
    rates = {"learning_rate": "invscaling", "eta0": 0.02, "power_t": 0.5, "shuffle": False, "random_state": 0}
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


#: Times that a strategy is given to come as near to the minimum, where replicas or controls lag behind.
LONGER = {EASGD: 2, LeaderSGD: 2, SCAFFOLD: 2}
#: With 16 ranks a rank has 100 rows, and never sees some features. What by its definition ends elsewhere then, as the
#: mean of minima (`OneShotAveraging`) or near to the minimum of a leader (`LeaderSGD`), is not among these.
WITH_MANY = [LocalSGD(32), EpochAveraging(), SlowMo(32, 0.5), DPSGD(32), EASGD(32), SCAFFOLD(32)]


@pytest.mark.parametrize(("kind", "penalty"), [("csr", "l1"), ("dense", "elasticnet")])
@pytest.mark.parametrize(
    ("strategy", "n_ranks"), [*((s, 4) for s in AVERAGING), *((s, 16) for s in WITH_MANY)], ids=repr
)
def test_ranks_find_the_model_of_one(strategy: Strategy, n_ranks: int, kind: str, penalty: str) -> None:
    """The objective is that of one rank within 2 %, and so is the number of non-zeros, up to one."""
    X, y = problem(kind)
    one = of_one_rank(strategy.momentum, kind, penalty)
    many = trained(strategy, n_ranks, X, y, penalty, 10 * n_ranks * LONGER.get(type(strategy), 1))
    assert objective(many, X, y, penalty) < 1.02 * objective(one, X, y, penalty)
    assert abs(np.count_nonzero(many.coef_) - np.count_nonzero(one.coef_)) <= 1 + 0.02 * N_FEATURES


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


@pytest.mark.parametrize(
    "strategy", [LocalSGD(8), EASGD(8), SCAFFOLD(8), ChocoSGD(8), LocalSGD(8, overlap=True)], ids=repr
)
@pytest.mark.parametrize("kind", ["csr", "dense"])
def test_the_same_bits_in_every_way(strategy: Strategy, kind: str, tmp_path: Any) -> None:
    """Rounds in a kernel, simulated ranks, calls of `partial_fit` and a checkpoint give one model; others go on."""
    X, y = problem(kind)
    X, y = X[:100], y[:100]
    fits: dict[str, Any] = {"strategy": strategy, "X": X, "y": y, "penalty": "elasticnet"}
    whole = trained(**fits, n_ranks=3, n_epochs=4)
    simulated = trained(**fits, n_ranks=None, n_epochs=4, client=SimulatedCluster(3, "10GbE"))
    trained(**fits, n_ranks=3, n_epochs=2, checkpoint=tmp_path)
    resumed = trained(**fits, n_ranks=3, n_epochs=4, resume_from=tmp_path)
    calls = SGDRegressor(**whole.get_params())
    for _ in range(4):
        calls.partial_fit(X, y)
    for other in (simulated, resumed, calls):
        assert other.coef_.tobytes() == whole.coef_.tobytes()
    fewer = trained(**fits, n_ranks=2, n_epochs=4, resume_from=tmp_path)
    assert objective(fewer, X, y, "elasticnet") < 1.5 * objective(whole, X, y, "elasticnet")


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
