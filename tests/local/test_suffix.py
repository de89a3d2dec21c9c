"""The mean of the last models of an epoch: that of plain numpy, wherever it is made."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from async_jobs import fit
from dsgd.local import SGD, Objective, make_shard
from dsgd.runtime.threads import run_on_threads
from dsgd.runtime.train import TrainData, TrainJob, train
from dsgd.runtime.train.serving import mail_for
from dsgd.sync import ASGD, BackupWorkers, MinibatchSGD

ALPHA, BATCH, EPOCHS = 0.02, 8, 3


def rows(n_rows: int = 40) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    X = rng.standard_normal((n_rows, 6))
    return X, X @ np.array([1.0, -0.5, 0.0, 0.0, 0.02, 0.0]) + 0.3 + 0.1 * rng.standard_normal(n_rows)


def trained(strategy: Any, n_ranks: int, penalty: str, **options: Any) -> np.ndarray:
    sgd = SGD(Objective("epsilon_insensitive", penalty, ALPHA, epsilon=0.1), **{"schedule": "optimal", **options})
    job = TrainJob(sgd, strategy, np.zeros(7), EPOCHS, None, 5)
    data = TrainData(make_shard(*rows(), shuffle=False)).cut(n_ranks)
    params: np.ndarray = run_on_threads(train, data, (job,), mail=mail_for(job)).value.params
    return params


def twin(penalty: str, share: float, spans: list[list[slice]]) -> np.ndarray:
    """Take steps of rates 1 / (alpha (t0 + t - 1)) on batches; a model is what is left of z once u is taken off."""
    X, y = rows()
    z, u, t = np.zeros(7), 0.0, 0

    def model(z: np.ndarray, u: float) -> np.ndarray:
        return np.append(np.sign(z[:-1]) * np.maximum(np.abs(z[:-1]) - u, 0.0), z[-1])

    for _ in range(EPOCHS):
        last = []
        for parts in spans:
            x, gradient, n = model(z, u), np.zeros(7), 0
            for part in parts:
                r = X[part] @ x[:-1] + x[-1] - y[part]
                gradient += np.append(
                    X[part].T @ (np.sign(r) * (np.abs(r) > 0.1)), np.sum(np.sign(r) * (np.abs(r) > 0.1))
                )
                n += len(r)
            rate = 1.0 / (ALPHA * (ALPHA**-0.75 + t))
            z, t = z - rate * gradient / n, t + 1
            if penalty == "l2":
                z[:-1] -= rate * ALPHA * x[:-1]
            else:
                u += rate * ALPHA
            last.append((z, u))
        if share:
            last = last[-int(np.ceil(share * len(last))) :]
            z, u = np.mean([z for z, _ in last], axis=0), float(np.mean([u for _, u in last]))
    return model(z, u)


@pytest.mark.parametrize("penalty", ["l2", "l1"])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.3, 1.0])
def test_the_mean_is_that_of_the_last_models(share: float, penalty: str) -> None:
    """Each epoch begins with the mean of the last models of the one before, with L1 with the model of mean duals."""
    alone = twin(penalty, share, [[slice(k, k + BATCH)] for k in range(0, 40, BATCH)])
    dealt = twin(penalty, share, [[slice(k, k + 4), slice(20 + k, 24 + k)] for k in range(0, 20, 4)])
    for strategy, n_ranks, expected in (
        (ASGD(BATCH, suffix=share), 1, alone),
        (MinibatchSGD(BATCH, suffix=share), 1, alone),
        (MinibatchSGD(BATCH, suffix=share), 2, dealt),
    ):
        np.testing.assert_allclose(trained(strategy, n_ranks, penalty), expected, rtol=1e-9, atol=1e-11)
    assert np.count_nonzero(alone) < 7 or penalty == "l2"


@pytest.mark.parametrize("options", [{"schedule": "constant"}, {"schedule": "invscaling"}, {"average": 1}], ids=repr)
@pytest.mark.parametrize("strategy", [MinibatchSGD, ASGD])
def test_other_rates_leave_the_last_model(strategy: Any, options: dict[str, Any]) -> None:
    """Where rates do not fall like 1 / t a mean would lag behind, and an average of all steps takes its place."""
    if strategy is ASGD and "average" in options:
        pytest.skip("servers keep no average")
    plain, default = (trained(strategy(BATCH, **given), 1, "l2", **options) for given in ({"suffix": 0.0}, {}))
    np.testing.assert_array_equal(plain, default)


def test_backup_workers_count_gradients() -> None:
    """The counter after training is one more than the gradients that were used."""
    assert fit(BackupWorkers(8, backups=0), 3, epochs=2, n_rows=96).value.t == 1 + 2 * 12
