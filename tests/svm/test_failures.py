"""Kernel SVMs whose ranks are lost: what was solved stays, variables are kept, and the optimum is that of all rows."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from distributed import Client
from sklearn.base import clone

from dsgd import Gang
from dsgd.comm.frames import AbortFlag
from dsgd.errors import AbortedError, CheckpointError, WorkerLostError
from dsgd.runtime import Checkpoint, Restart, run_on_threads
from dsgd.runtime.checkpoints.checkpoint import SnapshotKeeper
from dsgd.svm import SVC
from dsgd.svm.distributed import kernel as kernel_module
from dsgd.svm.distributed.kernel import RankRows, fit_on_rank
from gang_cluster import client_fixture, cluster_fixture, signal_rank

cluster = cluster_fixture(2)
client = client_fixture(2, hurt=True)


def rows(n: int = 300) -> tuple[np.ndarray, np.ndarray]:
    """Return three noisy classes."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, n)
    return rng.normal(size=(n, 4)) + 0.7 * np.eye(3, 4)[y], y


class BreaksAt(AbortFlag):
    """A flag that raises when it is read often enough."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.left = at

    def check(self) -> None:
        """Count, and raise."""
        self.left -= 1
        if self.left == 0:
            raise AbortedError("lost")


def fit(rank: Any, data: Any, model: SVC, X: Any, y: Any, keepers: list[SnapshotKeeper], breaks_at: int) -> Any:
    """Fit on this rank's share; rank 1 breaks when its flag has been read so often."""
    mine = np.flatnonzero(np.arange(len(y)) * rank.group.size // len(y) == rank.number)
    rank = replace(rank, keeper=keepers[rank.number])
    if rank.number == 1 and breaks_at:
        rank = replace(rank, abort=BreaksAt(breaks_at))
    return fit_on_rank(rank, RankRows(X[mine], y[mine].astype(float), np.ones(len(mine)), mine), model)


@pytest.mark.parametrize("breaks_at", [30, 60, 90])
@pytest.mark.parametrize("n_ranks", [1, 2, 3])
def test_ranks_go_on_from_what_any_of_them_has_kept(breaks_at, n_ranks, monkeypatch):
    """However far a lost gang was, another number of ranks ends at its optimum, with fewer steps than from zero."""
    monkeypatch.setattr(kernel_module, "_EVERY_S", 0.0)
    X, y = rows()
    model = SVC(C=10.0, tol=1e-5)
    model.classes_ = np.arange(3)
    whole = run_on_threads(fit, [None] * 2, (model, X, y, [SnapshotKeeper(), SnapshotKeeper()], 0), timeout_s=20).value
    keepers = [SnapshotKeeper(), SnapshotKeeper()]
    with pytest.raises(AbortedError, match="lost"):
        run_on_threads(fit, [None] * 2, (model, X, y, keepers, breaks_at), timeout_s=20)
    left = [keepers[0].next(), SnapshotKeeper(), SnapshotKeeper()][:n_ranks]  # that of rank 1 is gone
    number = keepers[0].latest.position[0]
    again = run_on_threads(fit, [None] * n_ranks, (model, X, y, left, 0), timeout_s=20).value
    assert again["converged_"]
    assert again["dual_objective_"] == pytest.approx(whole["dual_objective_"], rel=1e-6)
    assert again["n_iter_"].sum() < whole["n_iter_"].sum()
    assert again["n_iter_"][:number].tolist() == [0] * number
    np.testing.assert_allclose(again["intercept_"], whole["intercept_"], atol=1e-3)


def test_problems_of_other_samples_begin_from_zero(monkeypatch):
    """Where copies of rows are merged in another way, what was kept is left aside, and the fit is the ordinary one."""
    monkeypatch.setattr(kernel_module, "_EVERY_S", 0.0)
    X, y = rows(150)
    X, y = np.concatenate([X, X]), np.concatenate([y, y])  # copies lie on two ranks, or on one
    model = SVC(C=10.0, tol=1e-5)
    model.classes_ = np.arange(3)
    keepers = [SnapshotKeeper(), SnapshotKeeper()]
    two = run_on_threads(fit, [None] * 2, (model, X, y, keepers, 0), timeout_s=20).value
    one = run_on_threads(fit, [None], (model, X, y, [SnapshotKeeper()], 0), timeout_s=20).value
    again = run_on_threads(fit, [None], (model, X, y, [keepers[0].next()], 0), timeout_s=20).value
    assert again["n_iter_"].tolist() == one["n_iter_"].tolist()
    assert again["dual_objective_"] == one["dual_objective_"] == pytest.approx(two["dual_objective_"], rel=1e-6)


@pytest.mark.cluster
@pytest.mark.parametrize("policy", ["raise", Restart(1)])
def test_a_killed_worker(client: Client, policy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An SVM that loses a worker says which, or goes on with the pair that it was at, to the optimum of all rows."""
    X, y = rows(6000)
    options = {"C": 100.0, "tol": 1e-5}
    killed: list[str] = []

    def listen(event: Mapping[str, Any]) -> None:
        if "gap" in str(event.get("text")) and not killed:
            killed.append(signal_rank(client, 1, signal.SIGKILL)[0])

    monkeypatch.setattr(SVC, "_listener", lambda self: listen)
    model = SVC(**options, client=Gang(client, on_failure=policy))
    if policy == "raise":
        with pytest.raises(WorkerLostError) as caught:
            model.fit(X, y)
        assert (caught.value.rank, caught.value.worker) == (1, killed[0])
        return
    with pytest.warns(RuntimeWarning, match=r"rank 1 on worker .* was lost; training goes on"):
        model.fit(X, y)
    [event] = model.fit_report_["recoveries"]
    assert (event["kind"], event["rank"], event["policy"]) == ("lost", 1, "restart")
    assert sum(stats["rows"] for stats in model.fit_report_["stats"]) == 6000
    assert model.converged_
    assert model.n_iter_[0] == 0  # the first pair was solved
    assert model.n_iter_[2] > 0
    assert model.dual_objective_ == pytest.approx(SVC(**options).fit(X, y).dual_objective_, rel=1e-6)


def saved(rank: Any, data: Any, model: SVC, X: Any, y: Any, breaks_at: int) -> Any:
    """Fit on this rank's share, without a keeper."""
    return fit(rank, data, model, X, y, [None] * rank.size, breaks_at)


@pytest.mark.parametrize("n_ranks", [1, 2, 3])
def test_a_fit_goes_on_from_a_checkpoint_on_any_number_of_ranks(n_ranks, tmp_path, monkeypatch):
    """What a gang wrote before all of it was lost is where the next begins, and ends at the same optimum."""
    monkeypatch.setattr(kernel_module, "_EVERY_S", 0.0)
    X, y = rows()
    model = SVC(C=10.0, tol=1e-5, client=Gang(checkpoint=Checkpoint(tmp_path, every_s=0.0), resume_from="auto"))
    model.classes_ = np.arange(3)
    plain = clone(model).set_params(client__checkpoint=None, client__resume_from=None)
    plain.classes_ = model.classes_
    whole = run_on_threads(saved, [None] * 2, (plain, X, y, 0), timeout_s=20).value
    with pytest.raises(AbortedError, match="lost"):
        run_on_threads(saved, [None] * 2, (model, X, y, 60), timeout_s=20)
    number = int(json.loads((tmp_path / "newest.json").read_text())["names"][0].split("-")[1])
    again = run_on_threads(saved, [None] * n_ranks, (model, X, y, 0), timeout_s=20).value
    assert again["converged_"]
    assert again["dual_objective_"] == pytest.approx(whole["dual_objective_"], rel=1e-6)
    assert again["n_iter_"].sum() < whole["n_iter_"].sum()
    assert again["n_iter_"][:number].tolist() == [0] * number
    done = run_on_threads(saved, [None] * n_ranks, (model, X, y, 0), timeout_s=20).value
    assert done["n_iter_"].tolist() == [0, 0, 0]
    np.testing.assert_array_equal(done["support_"], again["support_"])
    with pytest.raises(CheckpointError, match=r"C was 10\.0 there and is 1\.0 here"):
        run_on_threads(saved, [None] * n_ranks, (_with(model, C=1.0), X, y, 0), timeout_s=20)
    with pytest.raises(CheckpointError, match="other rows"):
        run_on_threads(saved, [None] * n_ranks, (model, X + 1e-9, y, 0), timeout_s=20)
    with pytest.raises(CheckpointError, match="another fit"):
        run_on_threads(saved, [None] * n_ranks, (_with(model, client__resume_from=None), X, y, 0), timeout_s=20)
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        run_on_threads(
            saved,
            [None] * n_ranks,
            (_with(model, client__checkpoint=None, client__resume_from=tmp_path / "b"), X, y, 0),
            timeout_s=20,
        )


def _with(model: SVC, **params: Any) -> SVC:
    """Return a model with the same classes and other parameters."""
    other = clone(model).set_params(**params)
    other.classes_ = model.classes_
    return other


@pytest.mark.cluster
def test_a_checkpoint_outlives_the_workers_and_the_client(client: Client, tmp_path: Any) -> None:
    """A fit that another one's checkpoint begins takes no step and has its support vectors."""
    X, y = rows(240)
    first = SVC(C=10.0, client=Gang(client, checkpoint=tmp_path)).fit(X, y)
    again = SVC(C=10.0, client=Gang(client, resume_from=tmp_path)).fit(X, y)
    assert again.n_iter_.tolist() == [0, 0, 0]
    np.testing.assert_array_equal(again.support_, first.support_)
    np.testing.assert_allclose(again.dual_coef_, first.dual_coef_, atol=1e-12)
