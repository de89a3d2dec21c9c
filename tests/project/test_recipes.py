"""The callbacks of docs/monitoring.rst for experiment trackers and Optuna."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dsgd import SGDClassifier, SGDRegressor
from dsgd.progress import Callback, Notice, ProgressEvent
from dsgd.sim import SimulatedCluster

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "examples"))
from metrics import Metrics

X = np.random.default_rng(0).standard_normal((300, 5))
y = (X[:, 0] > 0).astype(int)
OPTIONS: dict[str, Any] = {"max_iter": 4, "tol": None, "sync": 64, "random_state": 0}


class Tracker:
    """Keeps what is logged."""

    def __init__(self) -> None:
        self.lines: list[tuple[int, dict[str, float]]] = []

    def log(self, metrics: dict[str, float], step: int) -> None:
        """Keep metrics."""
        self.lines.append((step, metrics))


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every epoch be told."""
    monkeypatch.setattr("dsgd.runtime.train.epoch._PERIOD_S", 0.0)


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("place", [{"n_jobs": 2}, {"client": SimulatedCluster(ranks=2)}], ids=["threads", "simulated"])
def test_a_tracker_gets_every_epoch(place: dict[str, Any]) -> None:
    """The losses, scores and steps of its lines are those of the history; what an epoch does not have is left out."""
    tracker = Tracker()
    callback = Metrics(tracker.log)
    assert isinstance(callback, Callback)
    model = SGDClassifier(early_stopping=True, n_iter_no_change=9, **OPTIONS, **place).set_callbacks(callback).fit(X, y)
    assert [step for step, _ in tracker.lines] == [1, 2, 3, 4]
    for (_, metrics), line in zip(tracker.lines, model.history_, strict=True):
        assert (metrics["train_loss"], metrics["validation_score"]) == (line["train_loss"], line["valid_score"])
        assert metrics["rows_per_s"] > 0
        assert 0 <= metrics["comm_share"] <= 1
    tracker.lines.clear()
    SGDRegressor(**OPTIONS, **place).set_callbacks(callback).fit(X, X[:, 0])
    assert all("validation_score" not in metrics for _, metrics in tracker.lines)
    callback.on_event(model, Notice("straggler", "rank 1 is slow", {"rank": 1, "worker": "w"}))
    assert len(tracker.lines) == 4


class Trial:
    """A trial that is pruned at an epoch."""

    def __init__(self, prunes_at: int) -> None:
        self.prunes_at = prunes_at
        self.reported: dict[int, float] = {}

    def report(self, value: float, step: int) -> None:
        """Keep a value."""
        assert step not in self.reported
        self.reported[step] = value

    def should_prune(self) -> bool:
        """Whether the epoch has come."""
        return max(self.reported) >= self.prunes_at


class TrialPrunedError(Exception):
    """What stands for ``optuna.TrialPruned``."""


@pytest.fixture
def pruning(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Give the recipe, with something in the place of Optuna."""
    monkeypatch.setitem(sys.modules, "optuna", SimpleNamespace(TrialPruned=TrialPrunedError))
    monkeypatch.delitem(sys.modules, "pruning", raising=False)
    from pruning import Pruning

    yield Pruning
    del sys.modules["pruning"]


def test_a_trial_hears_of_every_epoch_once(pruning: Any) -> None:
    """Epochs between two events have the value of the next one; epochs that are repeated are not reported again."""
    trial = Trial(prunes_at=5)
    callback = pruning(trial)

    def tell(epoch: int, score: float) -> None:
        callback.on_event(None, ProgressEvent(epoch, 9, 0.5, 1.0, 1.0, 0.0, None, "LocalSGD", validation_score=score))

    for epoch, score in ((1, 0.1), (4, 0.5), (3, 0.4)):
        tell(epoch, score)
    assert trial.reported == {1: 0.1, 2: 0.5, 3: 0.5, 4: 0.5}
    with pytest.raises(TrialPrunedError):
        tell(5, 0.6)


@pytest.mark.usefixtures("often")
def test_a_pruned_trial_ends_its_fit(pruning: Any) -> None:
    """What the callback raises stops all ranks and comes out of fit; the other trial goes to its end."""
    pruned, complete = Trial(prunes_at=2), Trial(prunes_at=9)
    model = SGDClassifier(early_stopping=True, n_jobs=2, **OPTIONS | {"max_iter": 10**6, "n_iter_no_change": 10**6})
    with pytest.raises(TrialPrunedError):
        model.set_callbacks(pruning(pruned)).fit(X, y)
    assert list(pruned.reported) == [1, 2]
    model.set_params(max_iter=4).set_callbacks(pruning(complete)).fit(X, y)
    assert list(complete.reported.values()) == [line["valid_score"] for line in model.history_]
