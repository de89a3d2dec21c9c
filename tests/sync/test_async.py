"""Methods in which ranks do not wait for all others, trained with servers, in pairs and on a virtual clock."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from async_jobs import PUSHING, fit, make_data, make_job
from dsgd.collectives import Group
from dsgd.errors import IncompatiblePartsError
from dsgd.runtime.checkpoints.checkpoint import Checkpoint
from dsgd.runtime.rank import GangResult, Mail
from dsgd.runtime.threads import run_on_threads
from dsgd.runtime.train import TrainData, TrainJob, train
from dsgd.runtime.train.serving import mail_for
from dsgd.sim import Compute, SimulatedCluster
from dsgd.sync import (
    ADPSGD,
    ASGD,
    AsyncADMM,
    AsyncEASGD,
    AsyncLeaderSGD,
    BackupWorkers,
    Downpour,
    Hogwild,
    MinibatchSGD,
)


@pytest.mark.parametrize("n_ranks", [2, 4])
def test_without_backups_a_round_is_a_minibatch(n_ranks: int) -> None:
    """With ``backups=0`` the steps are those of minibatch SGD with the batches of all workers together."""
    ours = fit(BackupWorkers(8, backups=0), n_ranks).value.params
    plain = fit(MinibatchSGD(8 * n_ranks), n_ranks).value.params
    np.testing.assert_allclose(ours, plain, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    "strategy",
    [*PUSHING, Downpour(8, fetch_every=3), AsyncEASGD(8), AsyncADMM(8), AsyncLeaderSGD(8), ADPSGD(8)],
    ids=repr,
)
def test_a_kept_state_has_all_that_was_sent(strategy: Any, tmp_path: Path) -> None:
    """The last checkpoint of an epoch holds the model that training returned, whichever worker sent last."""
    job, data = replace(make_job(strategy, 2), checkpoint=Checkpoint(tmp_path)), make_data(3)
    whole = run_on_threads(train, data, (job,), timeout_s=30.0, mail=mail_for(job)).value.params
    again = replace(job, checkpoint=None, resume_from=str(tmp_path))
    found = run_on_threads(train, data, (again,), timeout_s=30.0, mail=mail_for(again)).value.params
    np.testing.assert_array_equal(found, whole)


@pytest.mark.parametrize(("options", "word"), [({"average": 1}, "average"), ({"schedule": "adaptive"}, "adaptive")])
def test_what_a_server_cannot_do_is_refused(options: dict[str, Any], word: str) -> None:
    """Averages of local steps and rates that ranks change do not go with steps that a server takes."""
    with pytest.raises(IncompatiblePartsError, match=rf"ASGD.*{word}"):
        mail_for(make_job(ASGD(), **options))


def test_a_worker_that_fails_ends_its_server() -> None:
    """When a worker raises, the server and the other workers end, and its error is the one that is raised."""
    job = make_job(ASGD(), epochs=10**6)

    def broken(rank: Any, data: TrainData, job: TrainJob) -> Any:
        if rank.number == 1:
            raise ZeroDivisionError("no such luck")
        return train(rank, data, job)

    with pytest.raises(ZeroDivisionError, match="no such luck"):
        run_on_threads(broken, make_data(2), (job,), timeout_s=30.0, mail=mail_for(job))


@pytest.mark.parametrize("n_ranks", [1, 2, 3, 5])
def test_pairs_conserve_the_mean(n_ranks: int) -> None:
    """Without steps the mean of all models stays, whatever is under way at the end, and models come closer."""
    start = np.random.default_rng(2).standard_normal((n_ranks, 4))
    strategy = ADPSGD(patience=41)  # no rank waits before the collectives below

    def program(rank: Any, own: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        params = own.copy()
        state = strategy.init(rank.group, params, 1.0 / n_ranks)
        for number in range(40):
            strategy.sync(rank.group, params, 1.0 / n_ranks, state)
            if number == 0:
                rank.group.barrier()  # somebody has been asked by now, however slow the machine is
            time.sleep(2e-4 * (1 + rank.number % 3))
        apart = rank.group.allgather(params)
        strategy.settle(rank.group, params, state)
        settled = rank.group.allgather(params)
        strategy.collect(rank.group, params, 1.0 / n_ranks, state)
        return params, apart, settled

    params, apart, settled = run_on_threads(program, list(start), timeout_s=30.0, mail=Mail()).value
    np.testing.assert_allclose(params, start.mean(axis=0), rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(settled.mean(axis=0), start.mean(axis=0), rtol=1e-12, atol=1e-13)
    if n_ranks > 1:
        assert apart.std(axis=0).max() < start.std(axis=0).max()


@pytest.mark.parametrize("is_through", [False, True])
def test_an_active_rank_waits_for_an_answer_that_is_late(is_through: bool) -> None:
    """It does so at the look that is named; a passive rank answers, whether it has rows left or not."""
    strategy, params, has_looked = ADPSGD(patience=3), np.array([0.0, 4.0]), threading.Event()

    def program(rank: Any, _: None) -> tuple[float, float]:
        own = params[rank.number : rank.number + 1].copy()
        state = strategy.init(rank.group, own, 0.5)
        if rank.number:
            assert has_looked.wait(20.0)
            time.sleep(0.02)  # so that it has begun to wait
            if not is_through:
                strategy.sync(rank.group, own, 0.5, state)
            strategy.settle(rank.group, own, state)
            return 0.0, 0.0
        for _ in range(3):  # asks, and looks twice
            strategy.sync(rank.group, own, 0.5, state)
        before = float(own[0])
        has_looked.set()
        strategy.sync(rank.group, own, 0.5, state)
        after = float(own[0])
        strategy.settle(rank.group, own, state)
        return before, after

    assert run_on_threads(program, [None] * 2, timeout_s=30.0, mail=Mail()).value == (0.0, 2.0)


def test_nothing_is_under_way_where_pairs_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Half an exchange is in no checkpoint: before each one all ranks end what they have begun."""
    settle, left = ADPSGD.settle, []

    def watched(self: ADPSGD, group: Group, params: np.ndarray, state: Any) -> None:
        settle(self, group, params, state)
        left.append((group.rank, state.partner))

    monkeypatch.setattr(ADPSGD, "settle", watched)
    job = replace(make_job(ADPSGD(8), 3), checkpoint=Checkpoint(tmp_path, every_s=0))
    run_on_threads(train, make_data(2), (job,), timeout_s=30.0, mail=mail_for(job))
    assert sorted(left) == sorted(3 * [(0, -1), (1, -1)])


def simulate(strategy: Any, stragglers: str = "none", ranks: int = 8, **options: Any) -> GangResult:
    slow = Compute(row_s=1e-3)
    cluster = SimulatedCluster(ranks, network="InfiniBand", compute=slow, stragglers=stragglers, seed=3)
    job = make_job(strategy, epochs=3, **options)
    return cluster.run(train, make_data(ranks, 512), (job,), mail=mail_for(job))


@pytest.mark.parametrize(
    "strategy", [*PUSHING, Downpour(8), AsyncEASGD(8), AsyncLeaderSGD(8), ADPSGD(8), Hogwild()], ids=repr
)
def test_simulated_runs_repeat_to_the_bit(strategy: Any) -> None:
    """On the virtual clock even methods without order give the same model and the same seconds every time."""
    first, second = (simulate(strategy, "heavy-tail", ranks=4) for _ in range(2))
    np.testing.assert_array_equal(first.value.params, second.value.params)
    assert first.ledger.elapsed_s == second.ledger.elapsed_s
    assert first.ledger.totals() == second.ledger.totals()
    assert first.value.history[-1].train_loss < first.value.history[0].train_loss
