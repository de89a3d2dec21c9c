"""L1 penalties where models are averaged: the model of one rank, with as many zeros."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from dsgd import SGDRegressor
from dsgd.compress import QSGD, ErrorFeedback, TopK
from dsgd.local import Momentum
from dsgd.sync import (
    ADPSGD,
    AnytimeSGD,
    Downpour,
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
    Downpour(32),
    ADPSGD(32),
]


def problem(kind: str) -> tuple[Any, np.ndarray]:
    """Return rows of which a quarter of the features count; of sparse rows each odd one is on a quarter of the ranks."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N_ROWS, N_FEATURES))
    truth = np.where(rng.random(N_FEATURES) < 0.25, rng.standard_normal(N_FEATURES), 0.0)
    if kind == "csr":
        X *= 2.0 * (rng.random(X.shape) < 0.4)
        rows, columns = np.indices(X.shape)
        X[(columns % 2 == 1) & ((columns // 2 + rows // (N_ROWS // N_PARTS)) % 4 != 0)] = 0.0
    y = X @ truth + 0.3 * rng.standard_normal(N_ROWS)
    return (sparse.csr_array(X) if kind == "csr" else X), y


def trained(strategy: Strategy, n_ranks: int, X: Any, y: np.ndarray, penalty: str, n_epochs: int, **more: Any) -> Any:
    """Return a model of ranks that are threads."""
    options = {"penalty": penalty, "alpha": ALPHA, "l1_ratio": SHARE[penalty], "fit_intercept": False, "tol": None}
    rates = {"learning_rate": "invscaling", "eta0": 0.02, "power_t": 0.5, "shuffle": False, "random_state": 0}
    rule = Momentum(0.5, batch=2) if strategy.momentum != "keep" else None
    parts = {"sync": strategy, "n_jobs": n_ranks, "max_iter": n_epochs, "optimizer": rule}
    return SGDRegressor(**{**options, **rates, **parts, **more}).fit(X, y)


def objective(model: Any, X: Any, y: np.ndarray, penalty: str) -> float:
    """Return what is minimised, by its definition."""
    w, share = model.coef_, SHARE[penalty]
    penalties = share * np.abs(w).sum() + (1.0 - share) * w @ w / 2.0
    return float(np.mean((X @ w - y) ** 2) / 2.0 + ALPHA * penalties)


@pytest.mark.parametrize(("kind", "penalty"), [("csr", "l1"), ("dense", "elasticnet")])
@pytest.mark.parametrize("strategy", AVERAGING, ids=repr)
def test_ranks_find_the_model_of_one(strategy: Strategy, kind: str, penalty: str) -> None:
    """On 4 and 16 ranks the objective is that of one rank within 2 %, and so is the number of non-zeros."""
    X, y = problem(kind)
    one = trained(LocalSGD(momentum=strategy.momentum), 1, X, y, penalty, 10)
    for n in (4, 16):
        many = trained(strategy, n, X, y, penalty, 10 * n)
        print(
            f"RES {n:2d} {kind} {strategy!r:.70} {objective(many, X, y, penalty) / objective(one, X, y, penalty):.4f} {np.count_nonzero(many.coef_)} {np.count_nonzero(one.coef_)}",
            flush=True,
        )
