"""Fits in experiment trackers: the metrics of events, and what the real trackers have kept afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsgd import SGDClassifier, SGDRegressor
from dsgd.callbacks import AbstractTracker, MLflowCallback, OptunaPruning, TensorBoardCallback, WandbCallback
from dsgd.callbacks.tracker import metrics_of
from dsgd.errors import InvalidParameterError, MissingPackageError
from dsgd.progress import Notice, ProgressEvent, StopTraining
from dsgd.svm import SVC

_RNG = np.random.default_rng(0)
X = _RNG.standard_normal((300, 5))
y = (X[:, 0] > 0).astype(int)
OPTIONS: dict[str, Any] = {"max_iter": 4, "tol": None, "n_jobs": 2, "sync": 64, "random_state": 0}


class Recorder(AbstractTracker):
    """A tracker in memory; may fail when it is to open a run."""

    def __init__(self, *, opens: bool = True) -> None:
        super().__init__()
        self.opens = opens
        self.runs: list[Any] = []

    def open(self, name: str, parameters: Mapping[str, Any]) -> Any:
        """Open a run."""
        if not self.opens:
            raise ConnectionError("no server")
        self.runs.append({"name": name, "parameters": parameters, "lines": [], "ends": []})
        return self.runs[-1]

    def log(self, run: Any, metrics: Mapping[str, float], step: int) -> None:
        """Keep metrics."""
        run["lines"].append((step, dict(metrics)))

    def close(self, run: Any, error: BaseException | None) -> None:
        """Keep the end."""
        run["ends"].append(error)


class Fails:
    """A callback that fails with the first event."""

    def on_begin(self, estimator: Any) -> None:
        """Begin."""

    def on_event(self, estimator: Any, event: Any) -> None:
        """Fail."""
        raise ZeroDivisionError

    def on_end(self, estimator: Any, error: BaseException | None) -> None:
        """End."""


def test_the_metrics_of_events() -> None:
    """An epoch has all metrics that are known; of notices only the course of a solver has some."""
    event = ProgressEvent(3, 9, 0.5, 2.0, 1e6, 0.25, 64, "LocalSGD", (1.0, 2.0), (0.0, 0.0), (0.5, 0.5), (1.0, 3.0))
    assert metrics_of(event) == {
        "train_loss": 0.5,
        "seconds": 2.0,
        "rows_per_s": 1e6,
        "comm_share": 0.25,
        "wait_share": 4.0 / 8.0,
        "period": 64.0,
    }
    alone = ProgressEvent(1, 9, 0.5, 2.0, 1e6, 0.0, None, "LocalSGD", validation_score=0.75)
    assert metrics_of(alone)["validation_score"] == 0.75
    assert metrics_of(alone)["wait_share"] == 0.0
    assert "period" not in metrics_of(alone)
    assert metrics_of(Notice("dcd", "", {"output": 1, "gap": 0.1, "seconds": 2})) == {"gap": 0.1, "seconds": 2.0}
    assert metrics_of(Notice("straggler", "rank 1 is slow", {"rank": 1, "worker": "w"})) == {}


def test_a_fit_is_a_run() -> None:
    """Parameters at the beginning, the metrics of the last epoch, the totals, and one end."""
    tracker = Recorder()
    model = SGDClassifier(early_stopping=True, n_iter_no_change=9, **OPTIONS).set_callbacks(tracker).fit(X, y)
    (run,) = tracker.runs
    assert run["name"] == "SGDClassifier"
    assert run["parameters"]["sync"] == 64
    assert run["parameters"]["tol"] == "None"
    assert "client" not in run["parameters"]
    steps = [step for step, _ in run["lines"]]
    assert steps[-2:] == [4, 4]
    *_, (_, last), (_, totals) = run["lines"]
    assert last["train_loss"] == model.history_[-1]["train_loss"]
    assert last["validation_score"] == model.history_[-1]["valid_score"]
    assert totals["bytes_sent"] == model.ledger_.totals()["bytes_sent"] > 0
    assert 0 < totals["wait_share"] < 1
    assert run["ends"] == [None]
    SVC().set_callbacks(tracker).fit(X, y)
    solver = tracker.runs[1]
    assert solver["ends"] == [None]
    assert solver["lines"][0][0] == 1
    assert 0 <= solver["lines"][0][1]["gap"] < 1e-2


def test_a_fit_that_fails_is_a_run_that_fails() -> None:
    """The error comes to the run; a tracker that cannot open one fails the fit, and has nothing to close."""
    tracker = Recorder()
    with pytest.raises(ZeroDivisionError):
        SGDClassifier(**OPTIONS).set_callbacks(tracker, Fails()).fit(X, y)
    assert [type(error) for error in tracker.runs[0]["ends"]] == [ZeroDivisionError]
    with pytest.raises(ConnectionError):
        SGDClassifier(**OPTIONS).set_callbacks(Recorder(opens=False)).fit(X, y)


@pytest.mark.parametrize(
    ("make", "module", "package"),
    [
        (MLflowCallback, "mlflow", "mlflow"),
        (WandbCallback, "wandb", "wandb"),
        (TensorBoardCallback, "tensorboard.summary.writer.event_file_writer", "tensorboard"),
        (lambda: OptunaPruning(None), "optuna", "optuna"),
    ],
)
def test_what_is_missing_is_named(make: Any, module: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A callback without its library says at once what to install."""
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingPackageError, match=f"pip install {package}$"):
        make()


@pytest.fixture
def mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """MLflow with a database in a file."""
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    found = pytest.importorskip("mlflow")
    found.set_tracking_uri(tmp_path.joinpath("mlruns").as_uri())
    yield found
    found.end_run()


@pytest.mark.filterwarnings("ignore")
def test_mlflow(mlflow: Any) -> None:
    """Runs of its own end with the fit; a run of the user goes on."""
    model = SGDRegressor(**OPTIONS).set_callbacks(MLflowCallback()).fit(X, X[:, 0])
    runs = mlflow.search_runs(output_format="list")
    assert [run.info.status for run in runs] == ["FINISHED"]
    assert runs[0].info.run_name == "SGDRegressor"
    assert runs[0].data.params["sync"] == "64"
    assert runs[0].data.metrics["train_loss"] == pytest.approx(model.history_[-1]["train_loss"])
    with pytest.raises(ZeroDivisionError):
        SGDRegressor(**OPTIONS).set_callbacks(MLflowCallback("broken"), Fails()).fit(X, X[:, 0])
    found = {run.info.run_name: run.info.status for run in mlflow.search_runs(output_format="list")}
    assert found == {"SGDRegressor": "FINISHED", "broken": "FAILED"}
    with mlflow.start_run() as ours:
        SGDRegressor(**OPTIONS).set_callbacks(MLflowCallback()).fit(X, X[:, 0])
        assert mlflow.active_run().info.run_id == ours.info.run_id
    assert "bytes_sent" in mlflow.get_run(ours.info.run_id).data.metrics


_WANDB = """
import sys, wandb, numpy as np
from dsgd import SGDClassifier
from dsgd.callbacks import WandbCallback

rng = np.random.default_rng(0)
X = rng.standard_normal((300, 5))
y = (X[:, 0] > 0).astype(int)
options = {"mode": "offline", "dir": sys.argv[1]}
ended, init, finish = [], wandb.init, wandb.Run.finish

def finish_noted(run, exit_code=None):
    ended.append((exit_code, dict(run.config), dict(run.summary)))
    finish(run, exit_code=exit_code)

wandb.Run.finish = finish_noted
model = SGDClassifier(max_iter=4, tol=None, random_state=0)

class Fails:
    on_begin = lambda self, estimator: None
    on_end = lambda self, estimator, error: None
    def on_event(self, estimator, event):
        raise ZeroDivisionError

model.set_callbacks(WandbCallback(**options)).fit(X, y)
code, config, summary = ended[0]
assert (code, config["max_iter"], summary["epoch"]) == (0, 4, 4)
assert summary["train_loss"] == model.history_[-1]["train_loss"]
try:
    model.set_callbacks(WandbCallback(**options), Fails()).fit(X, y)
except ZeroDivisionError:
    assert [code for code, *_ in ended] == [0, 1]
assert wandb.run is None
with init(**options) as ours:
    model.set_callbacks(WandbCallback()).fit(X, y)
    assert wandb.run is ours and len(ended) == 2
    assert ours.summary["train_loss"] == model.history_[-1]["train_loss"]
print("all well")
"""


def test_wandb(tmp_path: Path) -> None:
    """Runs of its own end with the fit, a run of the user goes on; in a process of its own, as wandb starts others."""
    pytest.importorskip("wandb")
    quiet = {"WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false", "WANDB_MODE": "offline"}
    command = [sys.executable, "-c", _WANDB, str(tmp_path)]
    paths = os.pathsep.join(sys.path)
    done = subprocess.run(
        command,
        env=os.environ | quiet | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.stdout.endswith("all well\n"), done.stderr


@pytest.mark.filterwarnings("ignore")
def test_tensorboard(tmp_path: Path) -> None:
    """The scalars and parameters can be read back, and each fit has a folder."""
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    callback = TensorBoardCallback(tmp_path)
    model = SGDClassifier(**OPTIONS).set_callbacks(callback).fit(X, y)
    SGDClassifier(**OPTIONS).set_callbacks(callback).fit(X, y)
    first, _ = sorted(tmp_path.iterdir())
    events = reader.EventAccumulator(str(first)).Reload()
    last = events.Scalars("train_loss")[-1]
    assert last.step == 4
    assert last.value == pytest.approx(model.history_[-1]["train_loss"])
    assert "bytes_sent" in events.Tags()["scalars"]
    assert "hparams" in events.summary_metadata["_hparams_/session_start_info"].plugin_data.plugin_name


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


def test_a_trial_hears_of_every_epoch_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Epochs between two events have the value of the next one; epochs that are repeated are not reported again."""
    monkeypatch.setattr("dsgd.callbacks.optuna.library", lambda *names: None)
    trial = Trial(prunes_at=5)
    callback = OptunaPruning(trial)
    callback.on_begin(None)
    for epoch, loss in ((1, 0.9), (4, 0.5), (3, 0.6)):
        callback.on_event(None, ProgressEvent(epoch, 9, loss, 1.0, 1.0, 0.0, None, "LocalSGD"))
    assert trial.reported == {1: 0.9, 2: 0.5, 3: 0.5, 4: 0.5}
    with pytest.raises(StopTraining):
        callback.on_event(None, ProgressEvent(5, 9, 0.4, 1.0, 1.0, 0.0, None, "LocalSGD"))
    with pytest.raises(InvalidParameterError, match="metric"):
        OptunaPruning(trial, "loss")  # type: ignore[arg-type]
    scored = OptunaPruning(trial, "validation_score")
    with pytest.raises(InvalidParameterError, match="early_stopping"):
        SGDClassifier(**OPTIONS).set_callbacks(scored).fit(X, y)


@pytest.mark.filterwarnings("ignore")
def test_optuna() -> None:
    """A trial that the pruner gives up ends pruned, before its last epoch, and the others are complete."""
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    epochs = []

    def objective(trial: Any) -> float:
        # The first trial is good; the second cannot learn, with such a penalty.
        model = SGDClassifier(alpha=(1e-4, 10.0)[trial.number], **OPTIONS | {"max_iter": 10**6})
        if trial.number == 0:
            model.set_params(max_iter=4)
        try:
            model.set_callbacks(OptunaPruning(trial)).fit(X, y)
        finally:
            epochs.append(getattr(model, "n_iter_", 0))
        return float(model.history_[-1]["train_loss"])

    study = optuna.create_study(pruner=optuna.pruners.ThresholdPruner(upper=0.9))
    study.optimize(objective, n_trials=2)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "PRUNED"]
    assert epochs[0] == 4
    assert 0 < epochs[1] < 10**6
