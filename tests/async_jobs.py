"""Small trainings of asynchronous methods, and the messages that servers get."""

from __future__ import annotations

from typing import Any

import numpy as np

from dsgd.local import SGD, Objective, make_shard
from dsgd.runtime.rank import GangResult
from dsgd.runtime.threads import run_on_threads
from dsgd.runtime.train import TrainData, TrainJob, train
from dsgd.runtime.train.serving import mail_for
from dsgd.sync import ASGD, BackupWorkers, DelayCompensatedASGD, StalenessAware, StaleSynchronous
from dsgd.sync.server import ServerMessage

PUSHING = (
    ASGD(),
    StalenessAware(arrivals=2),
    DelayCompensatedASGD(decay=0.95, compensation=2.0),
    StaleSynchronous(),
    BackupWorkers(),
)


def make_job(strategy: Any, epochs: int = 2, **options: Any) -> TrainJob:
    settings_of = {"schedule": "constant", "eta0": 0.05} | options
    optimizer = SGD(Objective("log_loss", "l2", settings_of.pop("alpha", 1e-3)), **settings_of)
    return TrainJob(optimizer, strategy, np.zeros(6), max_iter=epochs, tol=None, n_iter_no_change=5)


def make_data(n_ranks: int, n_rows: int = 96) -> list[TrainData]:
    rng = np.random.default_rng(5)
    X = rng.standard_normal((n_rows, 5))
    y = np.where(X @ rng.standard_normal(5) + 0.3 * rng.standard_normal(n_rows) > 0, 1.0, -1.0)
    return TrainData(make_shard(X, y, shuffle=False)).cut(n_ranks)


def fit(strategy: Any, n_ranks: int, epochs: int = 2, n_rows: int = 96, **options: Any) -> GangResult:
    job = make_job(strategy, epochs, **options)
    return run_on_threads(train, make_data(n_ranks, n_rows), (job,), timeout_s=30.0, mail=mail_for(job))


def message_of(vector: np.ndarray, version: int, share: float = 1.0) -> ServerMessage:
    message = ServerMessage(vector.shape[0], vector.dtype)
    message.body[:] = vector
    message.head["version"], message.head["score"] = version, share
    return message
