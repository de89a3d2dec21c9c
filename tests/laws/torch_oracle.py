"""A torch module for the laws; it learns the rows that linear models learn, by minibatches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from dsgd.local import Momentum
from dsgd.runtime.train import TrainJob, TrainResult
from dsgd.sync import AbstractStrategy
from dsgd.torch import FlatModule, TorchClassifier
from dsgd.torch.oracle import ModuleOptimizer
from dsgd.torch.parts import build_module, fingerprint
from dsgd.torch.rows import TensorRows
from laws.gang import run_job, shards_of

N_FEATURES = 5


def network() -> nn.Module:
    """Return a small module of doubles."""
    return nn.Sequential(nn.Linear(N_FEATURES, 3), nn.Tanh(), nn.Linear(3, 1)).double()


@dataclass(frozen=True)
class Torch:
    """A torch module, see `laws.oracles.Linear`."""

    batch: int = 4

    def __repr__(self) -> str:
        return "torch"

    def train(
        self, kind: str, n_rows: Sequence[int], strategy: AbstractStrategy[Any], rule: Momentum | None = None
    ) -> list[TrainResult]:
        """Train two epochs on a gang and return what every rank returned."""
        module = build_module(network, {})
        optimizer = ModuleOptimizer(
            module=network,
            module_options={},
            buffers={},
            identity=fingerprint(module),
            criterion=nn.BCEWithLogitsLoss,
            criterion_options={},
            optimizer=torch.optim.SGD,
            optimizer_options={"lr": 0.1, "weight_decay": 0.01, **_as_options(rule)},
            batch=self._batch(strategy, rule),
        )
        rows = []
        for shard in shards_of(n_rows):
            X, y = np.asarray(shard.packed(0, shard.n_rows).values), np.asarray(shard.targets)
            rows.append(TensorRows(torch.from_numpy(X), torch.from_numpy((y > 0).astype(float)), False, 0))
        return run_job(
            kind, rows, TrainJob(optimizer, strategy, FlatModule(module).params.copy(), 2, tol=None, n_iter_no_change=5)
        )

    def estimator(self, strategy: AbstractStrategy[Any], rule: Momentum | None, **options: Any) -> Any:
        """Return an estimator."""
        options["max_epochs"] = options.pop("max_iter")
        steps = {f"optimizer__{name}": value for name, value in _as_options(rule).items()}
        loss = {"criterion": nn.BCEWithLogitsLoss, "lr": 0.2, "batch_size": self._batch(strategy, rule)}
        return TorchClassifier(network, sync=strategy, **{**loss, **steps, "random_state": 0, **options})

    def model(self, fitted: Any) -> bytes:
        """Return the model of a fitted estimator."""
        return b"".join(tensor.numpy().tobytes() for tensor in fitted.module_.state_dict().values())

    def _batch(self, strategy: AbstractStrategy[Any], rule: Momentum | None) -> int | None:
        if strategy.exchanges == "gradient":
            return None
        return self.batch if rule is None or rule.batch is None else rule.batch


def _as_options(rule: Momentum | None) -> dict[str, Any]:
    return {} if rule is None else {"momentum": rule.momentum, "nesterov": rule.nesterov}
