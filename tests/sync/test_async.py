"""Methods in which ranks do not wait for all others, trained with servers, in pairs and on a virtual clock."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from async_jobs import PUSHING, fit, make_data, make_job
from dsgd.collectives import Group
from dsgd.comm.frames import HEADER_BYTES
from dsgd.errors import IncompatiblePartsError, InvalidParameterError
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
    DecoupledDiLoCo,
    DelayCompensatedASGD,
    DiLoCo,
    Downpour,
    Hogwild,
    LocalSGD,
    MinibatchSGD,
    OneShotAveraging,
    StalenessAware,
    StaleSynchronous,
)
from dsgd.sync.base import LocalSteps
from dsgd.sync.server import Model, finish, message_bytes, serve


@pytest.mark.parametrize("strategy", [ASGD(8), DelayCompensatedASGD(8), StaleSynchronous(8), BackupWorkers(8)])
@pytest.mark.parametrize("options", [{}, {"schedule": "optimal"}, {"schedule": "invscaling"}])
def test_one_worker_is_minibatch_sgd(strategy: Any, options: dict[str, Any]) -> None:
    """With one worker a server takes the steps of minibatch SGD, bit for bit, and the history is the same."""
    ours, plain = (fit(s, 1, **options).value for s in (strategy, MinibatchSGD(8)))
    np.testing.assert_array_equal(ours.params, plain.params)
    assert [r.train_loss for r in ours.history] == [r.train_loss for r in plain.history]


@pytest.mark.parametrize("n_ranks", [2, 3])
def test_without_slack_a_round_steps_with_the_sum(n_ranks: int) -> None:
    """With ``slack=0`` a round is one synchronous step with the sum of all gradients, each at the same model."""
    n_rows, batch, rate = 96, 8, 0.05
    params = fit(StaleSynchronous(batch, slack=0), n_ranks, epochs=2, n_rows=n_rows, alpha=0.0).value.params
    shards = [data.shard.packed(0, data.n_rows) for data in make_data(n_ranks, n_rows)]
    x = np.zeros(6)
    rounds = -(-max(s.n_rows for s in shards) // batch)
    for number in list(range(rounds)) * 2:
        gradients = []
        for shard in shards:
            low, high = shard.n_rows * number // rounds, shard.n_rows * (number + 1) // rounds
            rows, targets = shard.values[low:high], shard.targets[low:high]
            slope = -targets / (1.0 + np.exp(targets * (rows @ x[:5] + x[5])))
            gradients.append(np.append(slope @ rows, slope.sum()) / (high - low))
        for g in gradients:
            x -= rate * g
    np.testing.assert_allclose(params, x, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("n_ranks", [2, 4])
def test_without_backups_a_round_is_a_minibatch(n_ranks: int) -> None:
    """With ``backups=0`` the steps are those of minibatch SGD with the batches of all workers together."""
    ours = fit(BackupWorkers(8, backups=0), n_ranks).value.params
    plain = fit(MinibatchSGD(8 * n_ranks), n_ranks).value.params
    np.testing.assert_allclose(ours, plain, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("strategy", PUSHING, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("n_ranks", [1, 2, 3])
def test_servers_converge_and_count_their_messages(strategy: Any, n_ranks: int) -> None:
    """Every method learns, and sends a message per batch, one per worker and epoch, and as many back."""
    epochs = 6
    result = fit(strategy, n_ranks, epochs)
    history = result.value.history
    assert history[-1].train_loss < 0.9 * history[0].train_loss
    rounds = strategy.period.rounds_per_epoch([data.n_rows for data in make_data(n_ranks)])
    server = result.ledger.per_rank()[n_ranks]
    message, n_messages = message_bytes(6, 8), n_ranks * epochs * (rounds + 1)
    assert server["messages"] == n_messages
    assert server["bytes_sent"] == n_messages * message
    assert server["rounds"] == 0
    if n_ranks == 1:
        # Control is the model to start from, eight numbers about the rows and the start, how many rows each worker has,
        # and that there is no more.
        begun = 3 * HEADER_BYTES + 8 * 8 + 6 * 8 + 8 + message
        assert result.ledger.per_rank()[0]["bytes_sent"] == n_messages * message
        assert result.ledger.per_rank()[0]["control_bytes_sent"] == begun
    assert len(result.stats) == n_ranks


@pytest.mark.parametrize(
    ("strategy", "tolerance"),
    [
        (ASGD(8), 0.0),
        (StaleSynchronous(8), 0.0),
        (BackupWorkers(8), 0.0),
        (BackupWorkers(8, rates="pooled"), 0.0),
        (AsyncEASGD(8, beta=0.6), 1e-12),
        (AsyncADMM(8, 0.3, 4), 1e-12),
    ],
    ids=repr,
)
@pytest.mark.parametrize("schedule", ["invscaling", "per_epoch"])
def test_a_server_goes_on_where_training_was(strategy: Any, tolerance: float, schedule: str, tmp_path: Path) -> None:
    """From a checkpoint a server resumes with its own model, rates and updates, as if nothing had happened."""
    job, data = make_job(strategy, 4, schedule=schedule), make_data(1)
    half = replace(job, max_iter=2, checkpoint=Checkpoint(tmp_path))
    first, whole = (run_on_threads(train, data, (j,), timeout_s=30.0, mail=mail_for(j)).value for j in (half, job))
    for epochs, expected in ((2, first), (4, whole)):
        resumed = replace(job, max_iter=epochs, resume_from=str(tmp_path))
        result = run_on_threads(train, data, (resumed,), timeout_s=30.0, mail=mail_for(resumed)).value
        np.testing.assert_allclose(result.params, expected.params, rtol=tolerance, atol=tolerance)


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


def test_a_leader_is_not_held_back_by_itself() -> None:
    """The worker with the lowest loss goes its own way to the bit; the others are pulled to it."""
    strategy, n_rounds = AsyncLeaderSGD(8, pull=0.5), 30

    def serve_leaders(server: Any) -> None:
        model = Model(np.zeros(3), lambda g, factor: None, lambda: None, server.n_workers, rounds=10**6)
        serve(server.mailbox, strategy.handler(model))

    def program(rank: Any, step: np.ndarray) -> np.ndarray:
        params = np.zeros(3)
        state = strategy.init(rank.group, params, 1 / 3)
        for _ in range(n_rounds):
            params += step
            strategy.correct(params, LocalSteps(0.1, float(rank.number), 1), state)
            strategy.sync(rank.group, params, 1 / 3, state)
            rank.group.barrier()
        finish(rank.group, params)
        return rank.group.allgather(params)

    steps = [np.array([0.1, -0.2, 0.3]), np.zeros(3), -np.ones(3)]
    models = run_on_threads(program, steps, timeout_s=30.0, mail=Mail(False, 1, serve_leaders)).value
    alone = np.zeros(3)
    for _ in range(n_rounds):
        alone += steps[0]
    np.testing.assert_array_equal(models[0], alone)
    assert all(np.linalg.norm(model - alone) < np.linalg.norm(n_rounds * steps[2] - alone) / 4 for model in models[1:])


@pytest.mark.parametrize(("options", "word"), [({"average": 1}, "average"), ({"schedule": "adaptive"}, "adaptive")])
def test_what_a_server_cannot_do_is_refused(options: dict[str, Any], word: str) -> None:
    """Averages of local steps and rates that ranks change do not go with steps that a server takes."""
    with pytest.raises(IncompatiblePartsError, match=rf"ASGD.*{word}"):
        mail_for(make_job(ASGD(), **options))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: ASGD(batch=0), "ASGD"),
        (lambda: StalenessAware(arrivals=0), "arrivals"),
        (lambda: DelayCompensatedASGD(compensation=-1.0), "compensation"),
        (lambda: DelayCompensatedASGD(decay=1.0), "decay"),
        (lambda: StaleSynchronous(slack=-1), "slack"),
        (lambda: BackupWorkers(backups=-1), "backups"),
    ],
)
def test_impossible_parameters_are_refused(make: Callable[[], Any], text: str) -> None:
    """A parameter that makes no sense is refused by name when the strategy is made."""
    with pytest.raises(InvalidParameterError, match=text):
        make()


def test_a_worker_that_fails_ends_its_server() -> None:
    """When a worker raises, the server and the other workers end, and its error is the one that is raised."""
    job = make_job(ASGD(), epochs=10**6)

    def broken(rank: Any, data: TrainData, job: TrainJob) -> Any:
        if rank.number == 1:
            raise ZeroDivisionError("no such luck")
        return train(rank, data, job)

    with pytest.raises(ZeroDivisionError, match="no such luck"):
        run_on_threads(broken, make_data(2), (job,), timeout_s=30.0, mail=mail_for(job))


@pytest.mark.parametrize("fetch_every", [1, 3])
def test_downpour_of_one_worker_is_sgd(fetch_every: int) -> None:
    """With one worker the server adds up the steps of plain SGD, however seldom the worker fetches."""
    ours = fit(Downpour(8, fetch_every=fetch_every), 1, schedule="optimal").value
    plain = fit(LocalSGD(8), 1, schedule="optimal").value
    np.testing.assert_allclose(ours.params, plain.params, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose([r.train_loss for r in ours.history], [r.train_loss for r in plain.history], rtol=1e-10)


@pytest.mark.parametrize("n_ranks", [1, 2, 3])
def test_a_quorum_of_all_is_diloco(n_ranks: int) -> None:
    """With a quorum of all workers, whose shards are equal, outer steps are those of DiLoCo; of one worker also."""
    ours = fit(DecoupledDiLoCo(8, quorum=9, outer_rate=1.0, outer_momentum=0.4), n_ranks).value
    if n_ranks > 1:
        plain = fit(DiLoCo(8, 1.0, 0.4), n_ranks).value
        np.testing.assert_allclose(ours.params, plain.params, rtol=1e-10, atol=1e-12)
    assert np.isfinite(ours.params).all()


@pytest.mark.parametrize("n_ranks", [2, 3])
@pytest.mark.parametrize("strategy", [AsyncLeaderSGD(8, pull=0.0), AsyncEASGD(8, beta=0.0)])
def test_without_a_pull_workers_are_alone(strategy: Any, n_ranks: int) -> None:
    """Workers without any pull take the steps of ranks that never communicate."""
    result = fit(strategy, n_ranks).value
    alone = fit(OneShotAveraging(), n_ranks).value
    np.testing.assert_allclose(
        [r.train_loss for r in result.history], [r.train_loss for r in alone.history], rtol=1e-10
    )
    if isinstance(strategy, AsyncLeaderSGD):
        np.testing.assert_allclose(result.params, alone.params, rtol=1e-10, atol=1e-12)
    else:
        np.testing.assert_array_equal(result.params, np.zeros(6))


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


@pytest.mark.parametrize("strategy", [Downpour(8), AsyncEASGD(8), AsyncLeaderSGD(8), ADPSGD(8)], ids=repr)
@pytest.mark.parametrize("n_ranks", [1, 3])
def test_methods_that_send_models_converge(strategy: Any, n_ranks: int) -> None:
    """Every method learns, and all ranks end with a model that is finite."""
    result = fit(strategy, n_ranks, epochs=6).value
    assert result.history[-1].train_loss < 0.8 * result.history[0].train_loss
    assert np.isfinite(result.params).all()


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
    assert first.value.history[-1].train_loss < first.value.history[0].train_loss


def test_who_waits_for_nobody_is_not_slowed_by_stragglers() -> None:
    """Among stragglers, asynchronous methods take less time than a round that waits for all; without, about as much."""
    posted = [ASGD(8), StaleSynchronous(8, slack=8), BackupWorkers(8, backups=2)]
    waiting = MinibatchSGD(8 * 8)
    even = {s: simulate(s).ledger.elapsed_s for s in (*posted, waiting)}
    uneven = {s: simulate(s, "heavy-tail").ledger.elapsed_s for s in (*posted, waiting)}
    for strategy in posted:
        assert even[strategy] < 1.2 * even[waiting]
        assert uneven[strategy] < 0.9 * uneven[waiting]
