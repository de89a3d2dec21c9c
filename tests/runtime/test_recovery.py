"""Fits on real worker processes that are killed, stopped or joined by others, and end as they should."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client

import gang_programs as programs
from dsgd import Gang, SGDClassifier
from dsgd.errors import ClusterError, InvalidDataError, RankError
from dsgd.runtime import Checkpoint
from gang_cluster import (
    assert_clean,
    client_fixture,
    cluster_fixture,
    on_ranks,
    once,
    put_blocks,
    signal_rank,
    start_cluster,
)

pytestmark = pytest.mark.cluster

cluster = cluster_fixture(3)
client = client_fixture(3)

# 20 epochs of 4 or more rounds of 20 ms.
OPTIONS = {
    "loss": "log_loss",
    "alpha": 1e-2,
    "max_iter": 20,
    "tol": None,
    "random_state": 0,
    "sync": programs.SlowRounds(every=200, pause_s=0.02),
}


@pytest.fixture(scope="module")
def rows() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    X = rng.standard_normal((2400, 10))
    return X, (X[:, 0] + X[:, 1] + 0.1 * rng.standard_normal(2400) > 0).astype(int)


@pytest.fixture(scope="module")
def undisturbed(rows: Any) -> float:
    """Return the accuracy that a fit reaches when it is left alone."""
    X, y = rows
    return float(SGDClassifier(**OPTIONS | {"sync": 100}, n_jobs=3).fit(X, y).score(X, y))


@pytest.fixture
def at_epoch(monkeypatch: pytest.MonkeyPatch) -> Callable[[Mapping[int, Callable[[], Any]]], None]:
    """Return a function that arranges for actions once a fit has come to an epoch."""

    def arrange(actions: Mapping[int, Callable[[], Any]], resumed: list[Mapping[str, Any]] | None = None) -> None:
        left = dict(actions)

        def listen(event: Mapping[str, Any]) -> None:
            if resumed is not None and event.get("phase") == "resumed":
                resumed.append(event)
            for epoch in [epoch for epoch in left if event.get("epoch", 0) >= epoch]:
                left.pop(epoch)()

        monkeypatch.setattr(SGDClassifier, "_listener", lambda self: listen)

    return arrange


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("policy", "kind", "epoch", "rank"),
    [("restart", "numpy", 1, 0), ("restart", "dask", 12, 2), ("shrink", "numpy", 12, 2), ("shrink", "dask", 1, 0)],
)
def test_a_killed_worker(
    client: Client, rows: Any, undisturbed: float, at_epoch: Any, policy: Any, kind: str, epoch: int, rank: int
) -> None:
    """A fit that loses a worker, early or late, the first rank or the last, is as accurate as one that does not."""
    X, y = rows
    data = rows if kind == "numpy" else (da.from_array(X, chunks=(400, -1)), da.from_array(y, chunks=400))
    at_epoch({epoch: lambda: signal_rank(client, rank)})
    model = SGDClassifier(**OPTIONS, client=Gang(client, on_failure=policy))
    with pytest.warns(RuntimeWarning, match=f"rank {rank} on worker .* was lost; training goes on"):
        model.fit(*data)
    # Whose rows were lost has another optimum.
    assert abs(model.score(X, y) - undisturbed) < (0.01 if policy == "shrink" else 0.005)
    report = model.fit_report_
    [event] = report["recoveries"]
    assert (event["kind"], event["rank"], event["policy"], event["ranks"]) == ("lost", rank, policy, report["ranks"])
    assert report["rows_lost"] == (800 if policy == "shrink" else 0)
    assert sum(stats["rows"] for stats in report["stats"]) == 2400 - report["rows_lost"]
    assert model.n_iter_ == 20


@pytest.mark.slow
def test_the_same_number_of_ranks_ends_in_the_same_bits(client: Client, rows: Any, at_epoch: Any) -> None:
    """With as many ranks as before, a restart resumes inside its epoch and is the undisturbed run bit for bit."""
    X, y = rows
    options = OPTIONS | {"n_jobs": 3, "penalty": "elasticnet"}
    whole = SGDClassifier(**options, client=client).fit(X, y)
    at_epoch({8: lambda: signal_rank(client, 1)})
    with pytest.warns(RuntimeWarning, match="with 3 ranks and all rows"):
        model = SGDClassifier(**options, client=Gang(client, on_failure="restart")).fit(X, y)
    assert model.coef_.tobytes() == whole.coef_.tobytes()
    assert model.loss_curve_ == whole.loss_curve_
    assert model.t_ == whole.t_


@pytest.mark.parametrize("rank", [0, 1])
def test_a_spare_worker_takes_the_place_of_the_lost_one(client: Client, rows: Any, at_epoch: Any, rank: int) -> None:
    """The survivor stays in the gang: training begins anew where workers without a copy of the state take over."""
    X, y = rows
    resumed: list[Mapping[str, Any]] = []
    at_epoch({12: lambda: signal_rank(client, rank)}, resumed)
    with pytest.warns(RuntimeWarning, match="with 2 ranks and all rows"):
        SGDClassifier(**OPTIONS | {"n_jobs": 2}, client=Gang(client, on_failure="restart")).fit(X, y)
    assert [event["resumed_epoch"] >= 2 for event in resumed] == [True]


@pytest.mark.slow
def test_the_best_model_survives_the_rank_that_has_scored_it(client: Client, rows: Any, at_epoch: Any) -> None:
    """When the worker of rank 0 is lost, another one scores the validation rows, and an early best model is kept."""
    X, y = rows
    options = OPTIONS | {"n_jobs": 3, "scoring": "roc_auc", "restore_best": True}
    watch = {"X_val": X[:200], "y_val": y[:200]}
    whole = SGDClassifier(**options, client=client).fit(X, y, **watch)
    assert whole.best_epoch_ < 12
    at_epoch({12: lambda: signal_rank(client, 0)})
    with pytest.warns(RuntimeWarning, match="with 3 ranks and all rows"):
        model = SGDClassifier(**options, client=Gang(client, on_failure="restart")).fit(X, y, **watch)
    assert model.history_[:, "valid_score"] == whole.history_[:, "valid_score"]
    assert model.coef_.tobytes() == whole.coef_.tobytes()


@pytest.mark.slow
def test_when_all_workers_are_lost_the_checkpoint_is_left(
    client: Client, rows: Any, at_epoch: Any, tmp_path: Path
) -> None:
    """A restart without survivors resumes from checkpoints of its own job, bit for bit, and not from others."""
    X, y = rows
    options = OPTIONS | {"n_jobs": 3, "average": True, "penalty": "l1"}
    place = Checkpoint(tmp_path, every_s=0.2, overwrite=True)
    whole = SGDClassifier(**options, client=Gang(client, checkpoint=place)).fit(X, y)

    def kill_all() -> None:
        for pid in client.run(os.getpid).values():
            os.kill(pid, signal.SIGKILL)

    resumed: list[Mapping[str, Any]] = []
    at_epoch({8: kill_all}, resumed)
    with pytest.warns(RuntimeWarning, match="with 3 ranks and all rows"):
        model = SGDClassifier(**options, client=Gang(client, on_failure="restart", checkpoint=place)).fit(X, y)
    assert model.coef_.tobytes() == whole.coef_.tobytes()
    assert model.loss_curve_ == whole.loss_curve_
    # Neither from the beginning nor from the end of the fit before, which is in the same folder.
    assert [1 < event["resumed_epoch"] < 20 for event in resumed] == [True]


def test_a_program_without_snapshots_begins_again(client: Client) -> None:
    """A rank program that keeps no state is started again on the remaining workers."""
    with pytest.warns(RuntimeWarning, match="with 2 ranks"):
        result = on_ranks(
            client,
            programs.count_starts,
            1.0,
            blocks=put_blocks(client, 3),
            on_event=once(lambda: signal_rank(client, 1)),
            on_failure="shrink",
            block_rows=[4, 4, 4],
        )
    assert result.value == 2
    assert result.recoveries[0]["rows_lost"] == 4


def test_what_cannot_be_had_again_is_said(client: Client) -> None:
    """Scattered blocks of a lost worker end the job with a text that says why Dask cannot make them again."""
    kill = once(lambda: signal_rank(client, 1))
    with pytest.raises(ClusterError, match="not computed by Dask"):
        on_ranks(client, programs.count_starts, 60.0, blocks=put_blocks(client, 3), on_event=kill, on_failure="restart")


@pytest.mark.parametrize(("kind", "error"), [("zero", RankError), ("data", InvalidDataError)])
def test_errors_of_the_program_are_not_retried(client: Client, kind: str, error: type[Exception]) -> None:
    """What a program raises would be raised again: it ends the job at once."""
    with pytest.raises(error):
        on_ranks(client, programs.fail, 1, kind, on_failure="restart")


def test_workers_that_join_take_part(rows: Any, undisturbed: float, at_epoch: Any) -> None:
    """With elastic=True a worker that comes during a fit gets its share of the rows from the next epoch on."""
    X, y = rows
    with start_cluster(1) as cluster, Client(cluster, set_as_default=False) as client:
        begun: list[threading.Thread] = []

        def grow() -> None:
            begun.append(threading.Thread(target=cluster.scale, args=(2,)))
            begun[0].start()

        at_epoch({2: grow})
        options = OPTIONS | {"max_iter": 120, "sync": programs.SlowRounds(every=1200, pause_s=0.0, alone_s=0.25)}
        model = SGDClassifier(**options, client=Gang(client, elastic=True)).fit(X, y)
        begun[0].join()
        assert model.fit_report_["ranks"] == 2
        assert [event["kind"] for event in model.fit_report_["recoveries"]] == ["joined"]
        assert [stats["rows"] for stats in model.fit_report_["stats"]] == [1200, 1200]
        assert abs(model.score(X, y) - undisturbed) < 0.005
        assert model.n_iter_ == 120
        assert_clean(client)
