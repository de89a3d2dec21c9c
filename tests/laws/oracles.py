"""What the laws are held on: linear models and, where torch is installed, torch modules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

from dsgd import SGDClassifier
from dsgd.local import SGD, Momentum, Objective
from dsgd.local.objective import n_params
from dsgd.runtime.train import TrainJob, TrainResult
from dsgd.sync import AbstractStrategy
from laws.gang import run_job, shards_of

N_FEATURES = 5


@dataclass(frozen=True)
class Linear:
    """A linear model."""

    def __repr__(self) -> str:
        return "linear"

    def train(
        self, kind: str, n_rows: Sequence[int], strategy: AbstractStrategy[Any], rule: Momentum | None = None
    ) -> list[TrainResult]:
        """Train two epochs on a gang and return what every rank returned."""
        sgd = SGD(Objective("log_loss", "l2", 0.01), schedule="constant", eta0=0.1, rule=rule)
        initial = np.linspace(-1.0, 1.0, n_params(N_FEATURES, 1))
        initial[-1] = 0.0
        return run_job(kind, shards_of(n_rows), job_of(sgd, strategy, initial))

    def estimator(self, strategy: AbstractStrategy[Any], rule: Momentum | None, **options: Any) -> Any:
        """Return an estimator."""
        defaults = {"learning_rate": "constant", "eta0": 0.01, "loss": "log_loss", "tol": None, "random_state": 0}
        return SGDClassifier(sync=strategy, optimizer=rule, **{**defaults, **options})

    def model(self, fitted: Any) -> bytes:
        """Return the model of a fitted estimator."""
        return bytes(fitted.coef_.tobytes() + fitted.intercept_.tobytes())


def job_of(optimizer: Any, strategy: AbstractStrategy[Any], initial: np.ndarray) -> TrainJob:
    """Return a job of two epochs."""
    return TrainJob(optimizer, strategy, initial, max_iter=2, tol=None, n_iter_no_change=5)


LINEAR = Linear()
ORACLES: list[Any] = [LINEAR]
if find_spec("torch") is not None:
    from laws.torch_oracle import Torch

    ORACLES.append(Torch())
