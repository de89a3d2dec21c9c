"""Validation rows of torch estimators: scores, buffers and the best module are those of a fit that ends there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsgd import Gang

torch = pytest.importorskip("torch")

from sklearn.metrics import get_scorer  # noqa: E402 - what comes below needs torch
from sklearn.model_selection import ShuffleSplit  # noqa: E402
from torch import nn  # noqa: E402

from dsgd.errors import InvalidDataError, InvalidParameterError  # noqa: E402
from dsgd.runtime import Checkpoint  # noqa: E402
from dsgd.sim import SimulatedCluster  # noqa: E402
from dsgd.sync import DPSGD, EpochAveraging, LocalSGD  # noqa: E402
from dsgd.torch import TorchClassifier, TorchRegressor  # noqa: E402

EPOCHS = 6


def network(n_outputs: int = 2) -> nn.Module:
    """Return a module with running statistics, a counter and a parameter that is not trained."""
    module = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, n_outputs))
    module[0].bias.requires_grad_(False)
    return module


def rows(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of floats, and their quadrant as class, a fifth of them wrong."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 4)).astype(np.float32)
    return X, np.where((X[:, 0] * X[:, 1] > 0) ^ (rng.random(n) < 0.2), "same", "other")


def classifier(**options: Any) -> TorchClassifier:
    """Return an estimator whose steps are so long that the last epoch is rarely the best."""
    return TorchClassifier(network, **{"lr": 0.7, "batch_size": 8, "random_state": 0, **options})


def state_of(module: nn.Module) -> bytes:
    """Return everything in the state of a module as bytes."""
    return b"".join(tensor.numpy().tobytes() for tensor in module.state_dict().values())


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"n_jobs": 2},
        {"n_jobs": 2, "sync": LocalSGD(16), "batch_norm": "local"},
        {"n_jobs": 2, "sync": LocalSGD(16), "batch_norm": "recompute", "optimizer__momentum": 0.5},
        {"client": SimulatedCluster(ranks=2), "sync": EpochAveraging()},
        {"n_jobs": 2, "sync": DPSGD(16)},
    ],
    ids=["one", "two", "local buffers", "recomputed buffers", "simulated", "apart"],
)
def test_an_epoch_has_the_score_of_a_fit_that_ends_there(options: dict[str, Any]) -> None:
    """Scores are scikit-learn's for fits of so many epochs; the best module comes back, its buffers included."""
    (X, y), (X_val, y_val) = rows(120, 0), rows(80, 1)
    scorer = get_scorer("neg_log_loss")
    watched = classifier(**options, max_epochs=EPOCHS, scoring="neg_log_loss", restore_best=True)
    watched.fit(X, y, X_val=X_val, y_val=y_val)
    by_hand = [classifier(**options, max_epochs=k).fit(X, y) for k in range(1, EPOCHS + 1)]
    scores = watched.history_[:, "valid_score"]
    if options.get("batch_norm") != "recompute":  # which has other statistics while training lasts
        assert scores == [scorer(model, X_val, y_val) for model in by_hand]
    assert (watched.best_epoch_, watched.best_score_) == (1 + int(np.argmax(scores)), max(scores))
    assert watched.best_epoch_ < EPOCHS == watched.n_iter_
    assert state_of(watched.module_) == state_of(by_hand[watched.best_epoch_ - 1].module_)


def test_a_measure_of_ones_own_and_rows_held_out() -> None:
    """A regressor with several values a row; without X_val the rows of scikit-learn's split are held out."""
    X, _ = rows(100, 0)
    y = (X @ np.arange(8.0).reshape(4, 2)).astype(np.float32)
    options: dict[str, Any] = {"module__n_outputs": 2, "lr": 0.05, "max_epochs": 3, "random_state": 0, "batch_size": 10}
    options |= {"scoring": "neg_mean_absolute_error"}
    train, held_out = map(np.sort, next(ShuffleSplit(test_size=0.1, random_state=0).split(X)))
    given = TorchRegressor(network, **options).fit(X[train], y[train], X_val=X[held_out], y_val=y[held_out])
    split = TorchRegressor(network, **options, early_stopping=True).fit(X, y)
    assert split.history_[:, "valid_score"] == given.history_[:, "valid_score"]
    assert split.best_score_ == max(given.history_[:, "valid_score"])


def test_the_best_module_outlives_an_interruption(tmp_path: Path) -> None:
    """A fit that resumes after its best epoch still ends with the best module and its buffers."""
    (X, y), (X_val, y_val) = rows(120, 0), rows(80, 1)
    options: dict[str, Any] = {"n_jobs": 2, "sync": LocalSGD(16), "scoring": "neg_log_loss", "restore_best": True}
    whole = classifier(**options, max_epochs=EPOCHS).fit(X, y, X_val=X_val, y_val=y_val)
    n_first = whole.best_epoch_
    assert n_first < EPOCHS
    classifier(**options, max_epochs=n_first, client=Gang(checkpoint=Checkpoint(tmp_path))).fit(
        X, y, X_val=X_val, y_val=y_val
    )
    resumed = classifier(**options, max_epochs=EPOCHS, client=Gang(resume_from=tmp_path)).fit(
        X, y, X_val=X_val, y_val=y_val
    )
    assert resumed.history_[:, "valid_score"] == whole.history_[:, "valid_score"]
    assert state_of(resumed.module_) == state_of(whole.module_)


@pytest.mark.parametrize(
    ("parameters", "given", "message"),
    [
        ({}, lambda X, y: {"X_val": X}, "X_val is given without y_val"),
        ({}, lambda X, y: {"X_val": X[:, :3], "y_val": y}, "X has 3 features"),
        ({}, lambda X, y: {"X_val": X, "y_val": np.full(len(y), "none")}, "y_val holds labels"),
        ({"scoring": "r3"}, lambda X, y: {"X_val": X, "y_val": y}, "r3"),
        ({"scoring": "recall"}, lambda X, y: {"X_val": X, "y_val": y}, "cannot score this model"),
        ({"restore_best": True}, lambda X, y: {}, "restore_best=True.* needs validation rows"),
        ({}, lambda X, y: {"X_val": "rows.csv", "y_val": "y"}, "in the memory of this process"),
    ],
)
def test_what_cannot_be_scored_is_refused_before_training(parameters: dict[str, Any], given: Any, message: str) -> None:
    """Errors name the argument; no epoch is trained first."""
    (X, y), val = rows(60, 0), rows(40, 1)
    model = classifier(**parameters, max_epochs=1)
    with pytest.raises((InvalidDataError, InvalidParameterError), match=message):
        model.fit(X, y, **given(*val))
    assert not hasattr(model, "module_")
