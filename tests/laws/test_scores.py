"""What early stopping looks at: the score of the model that training would return if it ended now."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from dsgd.local import SGD, Objective
from dsgd.runtime.threads import run_on_threads
from dsgd.runtime.train import TrainData, TrainJob, train
from dsgd.runtime.train.serving import mail_for
from dsgd.sync import Downpour
from laws.gang import shards_of
from members import FAMILY, POSTED

STRATEGIES = [m.strategy for m in [*FAMILY, *POSTED] if m.strategy.momentum == "keep"] + [Downpour(8, fetch_every=3)]


def r2(params: np.ndarray, data: list[TrainData]) -> float:
    """Return R2 on the rows that all ranks hold out."""
    X = np.concatenate([part.validation.packed(0, part.validation.n_rows).values for part in data])  # type: ignore
    y = np.concatenate([part.validation.targets for part in data])  # type: ignore[union-attr]
    return float(1.0 - np.sum((y - X @ params[:-1] - params[-1]) ** 2) / np.sum((y - y.mean()) ** 2))


@pytest.mark.parametrize("average", [0, 1])
@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_the_score_of_an_epoch_is_that_of_the_model_returned(strategy: Any, average: int) -> None:
    """However far ranks are apart when an epoch ends, the last score is that of what training returns."""
    if average and (strategy.n_servers and strategy.exchanges == "gradient"):
        pytest.skip("a server takes the steps, and no rank has iterates to average")
    shards = shards_of([40, 64, 16, 0], loss="squared_error")
    held_out = shards_of([9, 5, 0, 12], seed=1, loss="squared_error")
    data = [TrainData(shard, validation) for shard, validation in zip(shards, held_out, strict=True)]
    sgd = SGD(Objective("squared_error", "l2", 0.01), schedule="constant", eta0=0.02, average=average)
    job = TrainJob(sgd, strategy, np.zeros(6), 2, None, 5, early_stopping=True, scoring="r2")
    result = run_on_threads(train, data, (job,), timeout_s=60.0, mail=mail_for(job)).value
    model = result.averaged if average else result.params
    assert result.history[-1].validation_score == pytest.approx(r2(model, data), rel=1e-11, abs=1e-11)


@dataclass
class Told:
    """Validation rows whose scores are told in advance; keeps the models that it is asked about."""

    scores: list[float]
    models: list[np.ndarray] = field(default_factory=list)
    n_rows: int = 1
    n_entries: int = 5

    def score(self, params: np.ndarray, statistics: Any) -> float:
        """Return the score that is next."""
        self.models.append(params.copy())
        return self.scores[len(self.models) - 1]


@pytest.mark.parametrize("average", [0, 1])
@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_training_returns_the_model_that_was_scored_best(strategy: Any, average: int) -> None:
    """Whatever ranks exchange, the best model is the one that rank 0 has scored in the first of the best epochs."""
    if average and (strategy.n_servers and strategy.exchanges == "gradient"):
        pytest.skip("a server takes the steps, and no rank has iterates to average")
    data = [TrainData(shard) for shard in shards_of([40, 64, 16, 0], loss="squared_error")]
    sgd = SGD(Objective("squared_error", "l2", 0.01), schedule="constant", eta0=0.02, average=average)
    told = Told([0.1, float("nan"), 0.7, 0.7, -0.3])
    job = TrainJob(sgd, strategy, np.zeros(6), 5, None, 5, validates=True, restore_best=True)
    result = run_on_threads(train, data, (job,), timeout_s=60.0, mail=mail_for(job), given=told).value
    np.testing.assert_array_equal(result.averaged if average else result.params, told.models[2])
    np.testing.assert_array_equal([record.validation_score for record in result.history], told.scores)
