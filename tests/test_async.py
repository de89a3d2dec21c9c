"""Methods in which nobody waits for everybody: the laws of servers and of what they do with what comes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from dsgd.collectives import Group
from dsgd.comm import AbortFlag
from dsgd.comm.wire import HEADER_BYTES
from dsgd.errors import IncompatiblePartsError, InvalidParameterError
from dsgd.local import SGD, Objective, make_shard
from dsgd.runtime import keeping
from dsgd.runtime.checkpoint import Checkpoint
from dsgd.runtime.rank import GangResult, Mail, Rank
from dsgd.runtime.serving import mail_for
from dsgd.runtime.snapshot import SnapshotKeeper
from dsgd.runtime.threads import run_on_threads
from dsgd.runtime.train import TrainData, TrainJob, train
from dsgd.sim import Compute, SimulatedCluster
from dsgd.sync import (
    ADPSGD,
    ASGD,
    AsyncEASGD,
    AsyncLeaderSGD,
    BackupWorkers,
    DelayCompensatedASGD,
    Downpour,
    Hogwild,
    LocalSGD,
    MinibatchSGD,
    OneShotAveraging,
    StalenessAware,
    StaleSynchronous,
)
from dsgd.sync.server import AbstractDesk, Letter, Model, letter_bytes
from gangs import run_gang
from reference import asynchronous as reference

PUSHING = (
    ASGD(),
    StalenessAware(arrivals=2),
    DelayCompensatedASGD(decay=0.95, compensation=2.0),
    StaleSynchronous(),
    BackupWorkers(),
)


def make_job(strategy: Any, epochs: int = 2, **options: Any) -> TrainJob:
    settings_of = {"schedule": "constant", "eta0": 0.05} | options
    optimizer = SGD(Objective("log_loss", "l2", settings_of.pop("alpha", 1e-3)), **settings_of)
    return TrainJob(optimizer, strategy, np.zeros(6), max_iter=epochs, tol=None, n_iter_no_change=5)


def make_data(n_ranks: int, n_rows: int = 96) -> list[TrainData]:
    rng = np.random.default_rng(5)
    X = rng.standard_normal((n_rows, 5))
    y = np.where(X @ rng.standard_normal(5) + 0.3 * rng.standard_normal(n_rows) > 0, 1.0, -1.0)
    return TrainData(make_shard(X, y, shuffle=False)).cut(n_ranks)


def fit(strategy: Any, n_ranks: int, epochs: int = 2, n_rows: int = 96, **options: Any) -> GangResult:
    job = make_job(strategy, epochs, **options)
    return run_on_threads(train, make_data(n_ranks, n_rows), (job,), timeout_s=30.0, mail=mail_for(job))


# -- desks, one event after the other --------------------------------------------------------------------------------


class Driver:
    """Workers with quadratic losses around a desk, driven by an order of arrivals."""

    def __init__(self, make_desk: Callable[[Model], AbstractDesk], n_workers: int, rate: float, rounds: int) -> None:
        self.x = np.linspace(-1.0, 1.0, 4)
        self.model = Model(self.x, self._step, lambda: None, n_workers, rounds)
        self.rate = rate
        self.desk = make_desk(self.model)
        self.seen = [self.x.copy() for _ in range(n_workers)]
        self.versions = [0] * n_workers
        self.parked: set[int] = set()
        self.delays: list[int] = []

    def _step(self, g: np.ndarray, factor: float) -> None:
        self.x -= self.rate * factor * g

    def arrive(self, worker: int) -> None:
        """Let the gradient of a worker arrive, and hand out the answers."""
        g = gradient(worker, self.seen[worker])
        self.delays.append(self.model.version - self.versions[worker])
        self.parked.add(worker)
        for other in list(self.desk.accept(worker, letter_of(g, self.versions[worker]))):
            self.parked.remove(other)
            self.desk.answer(other, self.seen[other])
            self.versions[other] = self.model.version


def letter_of(vector: np.ndarray, version: int) -> Letter:
    letter = Letter(vector.shape[0], vector.dtype)
    letter.body[:] = vector
    letter.version = version
    return letter


def gradient(worker: int, x: np.ndarray) -> np.ndarray:
    return (1.0 + 0.3 * worker) * x - 0.1 * worker


METHODS: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "ASGD": (ASGD(), "asgd", {}),
    "StalenessAware": (StalenessAware(arrivals=3), "aware", {"arrivals": 3}),
    "DelayCompensatedASGD": (
        DelayCompensatedASGD(compensation=0.5),
        "compensated",
        {"strength": 0.5, "decay": None},
    ),
    "adaptive": (
        DelayCompensatedASGD(compensation=0.5, decay=0.9),
        "compensated",
        {"strength": 0.5, "decay": 0.9},
    ),
    "StaleSynchronous": (StaleSynchronous(slack=1), "stale", {"slack": 1}),
    "BackupWorkers": (BackupWorkers(backups=1), "backup", {"wanted": 2}),
}


@settings(max_examples=25)
@given(name=st.sampled_from(sorted(METHODS)), order=st.lists(st.integers(0, 2), min_size=1, max_size=40))
def test_desks_equal_their_twins(name: str, order: list[int]) -> None:
    """In whatever order gradients arrive, a desk leaves the model that its twin in plain numpy leaves."""
    strategy, method, options = METHODS[name]
    driver = Driver(strategy.desk, 3, 0.1, rounds=10**6)
    twin = reference.Server(driver.x, 3, 0.1, gradient)
    for worker in reference.run(twin, order, method, **options):
        driver.arrive(worker)
    np.testing.assert_allclose(driver.x, twin.x, rtol=1e-12, atol=1e-14)
    assert driver.parked == set(twin.parked)


@pytest.mark.parametrize("n_workers", [1, 2, 5])
def test_round_robin_gives_a_staleness_of_all_others(n_workers: int) -> None:
    """Where workers take turns, every gradient is as many steps old as there are other workers."""
    driver = Driver(ASGD().desk, n_workers, 0.1, rounds=100)
    for number in range(6 * n_workers):
        driver.arrive(number % n_workers)
    assert driver.delays[n_workers:] == [n_workers - 1] * (5 * n_workers)


def test_compensation_of_nothing_is_asgd() -> None:
    """Without compensation, or without delay, a compensated gradient is the gradient, bit for bit."""
    rng = np.random.default_rng(3)
    for strategy, n_workers in ((DelayCompensatedASGD(compensation=0.0), 4), (DelayCompensatedASGD(), 1)):
        ours, plain = (Driver(s.desk, n_workers, 0.1, rounds=100) for s in (strategy, ASGD()))
        for worker in rng.integers(0, n_workers, size=50).tolist():
            ours.arrive(worker)
            plain.arrive(worker)
        np.testing.assert_array_equal(ours.x, plain.x)


@pytest.mark.parametrize("delay", [0, 1, 2, 3, 5, 8])
def test_steps_with_a_delay_are_stable_up_to_the_bound(delay: int) -> None:
    """On x**2 / 2 with a fixed delay d, rates below 2 sin(pi / (2 (2 d + 1))) converge and rates above diverge."""
    bound = 2.0 * math.sin(math.pi / (2.0 * (2.0 * delay + 1.0)))
    norms = []
    for rate in (0.97 * bound, 1.03 * bound):
        x = np.ones(1)

        def step(g: np.ndarray, factor: float, x: np.ndarray = x, rate: float = rate) -> None:
            x -= rate * factor * g

        model = Model(x, step, lambda: None, delay + 1, rounds=10**6)
        desk, seen = ASGD().desk(model), [x.copy() for _ in range(delay + 1)]
        largest = []
        for number in range(600 * (delay + 1)):
            worker = number % (delay + 1)
            desk.accept(worker, letter_of(seen[worker], 0))
            desk.answer(worker, seen[worker])
            largest.append(abs(float(x[0])))
        norms.append(max(largest[-50 * (delay + 1) :]))
    assert norms[0] < 1e-3
    assert norms[1] > 1e3


@settings(max_examples=30)
@given(
    n_workers=st.integers(1, 5),
    slack=st.integers(0, 3),
    order=st.lists(st.integers(0, 4), min_size=1, max_size=60),
)
def test_nobody_is_further_ahead_than_the_slack(n_workers: int, slack: int, order: list[int]) -> None:
    """Whoever may go on has sent at most `slack` gradients more than the slowest, and the slowest may always go on."""
    driver = Driver(StaleSynchronous(slack=slack).desk, n_workers, 0.01, rounds=10**6)
    sent = [0] * n_workers
    for wish in order:
        worker = next(w % n_workers for w in range(wish, wish + n_workers) if w % n_workers not in driver.parked)
        sent[worker] += 1
        driver.arrive(worker)
        free = [w for w in range(n_workers) if w not in driver.parked]
        assert all(sent[w] - min(sent) <= slack for w in free)
        assert any(sent[w] == min(sent) for w in free)


@settings(max_examples=30)
@given(
    n_workers=st.integers(1, 5),
    backups=st.integers(0, 5),
    rounds=st.integers(1, 4),
    seed=st.integers(0, 2**31),
)
def test_backup_workers_reach_the_end_of_every_epoch(n_workers: int, backups: int, rounds: int, seed: int) -> None:
    """In whatever order gradients come, all workers get through their epochs: none is left without an answer."""
    rng = np.random.default_rng(seed)
    driver = Driver(BackupWorkers(backups=backups).desk, n_workers, 0.01, rounds)
    sent = [0] * n_workers
    for epoch in range(3):
        while left := [w for w in range(n_workers) if sent[w] < (epoch + 1) * rounds and w not in driver.parked]:
            worker = left[int(rng.integers(len(left)))]
            sent[worker] += 1
            driver.arrive(worker)
        assert not driver.parked
        assert sent == [(epoch + 1) * rounds] * n_workers


# -- gangs ------------------------------------------------------------------------------------------------------------


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
    shards = [data.shard for data in make_data(n_ranks, n_rows)]
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
def test_servers_converge_and_count_their_letters(strategy: Any, n_ranks: int) -> None:
    """Every method learns, and what is sent is a letter per batch, one per worker at the end, and as many back."""
    epochs = 6
    result = fit(strategy, n_ranks, epochs)
    history = result.value.history
    assert history[-1].train_loss < 0.9 * history[0].train_loss
    rounds = strategy.period.rounds_per_epoch([data.n_rows for data in make_data(n_ranks)])
    server = result.ledger.per_rank()[n_ranks]
    letter, n_letters = letter_bytes(6, 8), n_ranks * (epochs * rounds + 1)
    assert server["messages"] == n_letters
    assert server["bytes_sent"] == n_letters * letter
    assert server["rounds"] == 0
    if n_ranks == 1:
        # All else that a worker sends is the model to start from, and seven numbers about the rows and the start.
        begun = 2 * HEADER_BYTES + 7 * 8 + 6 * 8
        assert result.ledger.per_rank()[0]["bytes_sent"] == n_letters * letter + begun
    assert len(result.stats) == n_ranks


@pytest.mark.parametrize(
    ("strategy", "tolerance"),
    [(ASGD(8), 0.0), (StaleSynchronous(8), 0.0), (BackupWorkers(8), 0.0), (AsyncEASGD(8, beta=0.6), 1e-12)],
    ids=repr,
)
@pytest.mark.parametrize("schedule", ["invscaling", "per_epoch"])
def test_a_server_goes_on_where_training_was(strategy: Any, tolerance: float, schedule: str, tmp_path: Path) -> None:
    """From a checkpoint a server goes on with its own model, rates and updates, as if nothing had happened."""
    job, data = make_job(strategy, 4, schedule=schedule), make_data(1)
    half = replace(job, max_iter=2, checkpoint=Checkpoint(tmp_path))
    first, whole = (run_on_threads(train, data, (j,), timeout_s=30.0, mail=mail_for(j)).value for j in (half, job))
    for epochs, expected in ((2, first), (4, whole)):
        resumed = replace(job, max_iter=epochs, resume_from=str(tmp_path))
        result = run_on_threads(train, data, (resumed,), timeout_s=30.0, mail=mail_for(resumed)).value
        np.testing.assert_allclose(result.params, expected.params, rtol=tolerance, atol=tolerance)


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


# -- methods that send models -----------------------------------------------------------------------------------------


@settings(max_examples=20)
@given(n_workers=st.integers(1, 4), order=st.lists(st.integers(0, 3), min_size=1, max_size=30))
def test_elastic_exchanges_conserve_the_sum(n_workers: int, order: list[int]) -> None:
    """What a worker gains the centre loses, and each moves its share of the distance, whoever comes when."""
    rng = np.random.default_rng(1)
    centre, models = rng.standard_normal(3), rng.standard_normal((n_workers, 3))
    model = Model(centre.copy(), lambda g, factor: None, lambda: None, n_workers, rounds=10**6)
    desk, expected = AsyncEASGD(beta=0.8).desk(model), centre.copy()
    total = centre + models.sum(axis=0)
    for wish in order:
        worker = wish % n_workers
        moved = 0.8 / n_workers * (models[worker] - expected)
        expected = expected + moved
        out = np.empty(3)
        assert list(desk.accept(worker, letter_of(models[worker], 0))) == [worker]
        desk.answer(worker, out)
        np.testing.assert_allclose(out, moved, rtol=1e-12, atol=1e-14)
        models[worker] -= out
        np.testing.assert_allclose(model.params, expected, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(model.params + models.sum(axis=0), total, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("fetch_every", [1, 3])
def test_downpour_of_one_worker_is_sgd(fetch_every: int) -> None:
    """With one worker the server adds up the steps of plain SGD, however seldom the worker fetches."""
    ours = fit(Downpour(8, fetch_every=fetch_every), 1, schedule="optimal").value
    plain = fit(LocalSGD(8), 1, schedule="optimal").value
    np.testing.assert_allclose(ours.params, plain.params, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose([r.train_loss for r in ours.history], [r.train_loss for r in plain.history], rtol=1e-10)


def test_a_server_adds_what_is_poured() -> None:
    """Changes of all workers are added in whatever order; only who asks for it gets the model."""
    model = Model(np.zeros(2), lambda g, factor: None, lambda: None, 3, rounds=10)
    desk = Downpour(share=0.5).desk(model)
    for worker, change in enumerate(([1.0, 2.0], [-3.0, 0.5], [4.0, 4.0])):
        letter = letter_of(np.array(change), 0)
        letter.say(wants_answer=worker != 1)
        assert list(desk.accept(worker, letter)) == ([] if worker == 1 else [worker])
    np.testing.assert_array_equal(model.params, [1.0, 3.25])


def test_the_lowest_score_among_as_many_letters_as_workers_leads() -> None:
    """A new leader comes when the counter of all is full, whoever filled it; no number leads nobody."""
    model = Model(np.zeros(1), lambda g, factor: None, lambda: None, 2, rounds=10)
    desk = AsyncLeaderSGD().desk(model)
    leaders = []
    for worker, score in enumerate([3.0, 5.0, 0.5, 0.7, np.nan, np.inf]):
        letter = letter_of(np.array([worker + 1.0]), 0)
        letter.score = score
        desk.accept(worker % 2, letter)
        leaders.append((float(model.params[0]), model.version))
    assert leaders == [(0.0, 0), (1.0, 1), (1.0, 1), (3.0, 2), (3.0, 2), (3.0, 2)]


@pytest.mark.parametrize("n_ranks", [2, 3])
@pytest.mark.parametrize("strategy", [AsyncLeaderSGD(8, pull=0.0), AsyncEASGD(8, beta=0.0)])
def test_without_a_pull_workers_are_alone(strategy: Any, n_ranks: int) -> None:
    """Workers that nothing pulls take the steps of ranks that never talk."""
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
    strategy = ADPSGD()

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


def test_nothing_is_under_way_where_pairs_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Half an exchange is in no checkpoint: before each one all ranks end what they have begun."""
    settle, left = ADPSGD.settle, []

    def watched(self: ADPSGD, group: Group, params: np.ndarray, state: Any) -> None:
        settle(self, group, params, state)
        left.append((group.rank, state.partner))

    monkeypatch.setattr(ADPSGD, "settle", watched)
    job = replace(make_job(ADPSGD(8), 3), checkpoint=Checkpoint(tmp_path, every_s=0))
    run_on_threads(train, make_data(2), (job,), timeout_s=30.0, mail=mail_for(job))
    # After every epoch, and once more when models are collected.
    assert sorted(left) == sorted(4 * [(0, -1), (1, -1)])


@pytest.mark.parametrize("strategy", [Downpour(8), AsyncEASGD(8), AsyncLeaderSGD(8), ADPSGD(8)], ids=repr)
@pytest.mark.parametrize("n_ranks", [1, 3])
def test_methods_that_send_models_converge(strategy: Any, n_ranks: int) -> None:
    """Every method learns, and all ranks end with a model that is finite."""
    result = fit(strategy, n_ranks, epochs=6).value
    assert result.history[-1].train_loss < 0.8 * result.history[0].train_loss
    assert np.isfinite(result.params).all()


# -- one model for all threads ----------------------------------------------------------------------------------------


def sparse_rows(n_rows: int, n_columns: int, groups: int) -> sparse.csr_matrix:
    """Return rows of which each group of consecutive ones has columns of its own."""
    rng = np.random.default_rng(4)
    X = np.zeros((n_rows, n_columns))
    for row in range(n_rows):
        width = n_columns // groups
        first = width * (row * groups // n_rows)
        X[row, first + rng.choice(width, size=3, replace=False)] = rng.standard_normal(3)
    return sparse.csr_matrix(X)


@pytest.mark.parametrize("n_ranks", [2, 4])
def test_threads_without_common_columns_are_one_thread(n_ranks: int) -> None:
    """Where rows of different threads share no column, the model is that of one thread, bit for bit."""
    X = sparse_rows(400, 40, n_ranks)
    y = np.where(np.arange(400) % 2, 1.0, -1.0)
    data = TrainData(make_shard(X, y, shuffle=False))
    optimizer = SGD(Objective("log_loss", "l2", 1e-3, fit_intercept=False), schedule="constant", eta0=0.1)
    job = TrainJob(optimizer, Hogwild(), np.zeros(41), max_iter=3, tol=None, n_iter_no_change=5)
    one, many = (run_on_threads(train, data.cut(n), (job,)).value.params for n in (1, n_ranks))
    np.testing.assert_array_equal(one, many)
    assert np.abs(one).max() > 0.1


@pytest.mark.parametrize("penalty", ["l2", "l1"])
def test_one_thread_takes_the_steps_of_the_source(penalty: str) -> None:
    """On one thread the steps are those of the twin in plain numpy, penalties on the columns of the row alone."""
    X, rate, alpha = sparse_rows(60, 12, 2), 0.1, 0.01
    y = np.where(np.arange(60) % 2, 1.0, -1.0)
    optimizer = SGD(Objective("log_loss", penalty, alpha), schedule="constant", eta0=rate)
    job = TrainJob(optimizer, Hogwild(), np.zeros(13), max_iter=2, tol=None, n_iter_no_change=5)
    params = run_on_threads(train, [TrainData(make_shard(X, y, shuffle=False))], (job,)).value.params
    twin = reference.hogwild(X.toarray(), y, rate, alpha, penalty, epochs=2, intercept_rate=0.01)
    np.testing.assert_allclose(params, twin, rtol=1e-10, atol=1e-13)


def test_on_dense_rows_one_thread_is_sgd() -> None:
    """Every column is in every dense row, so one thread takes the steps of plain SGD."""
    ours, plain = (fit(s, 1, schedule="optimal").value.params for s in (Hogwild(), LocalSGD()))
    np.testing.assert_allclose(ours, plain, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("n_ranks", [1, 3])
def test_threads_on_one_model_count_the_steps_of_all(n_ranks: int) -> None:
    """The counter that training goes on from is that of one thread which takes all steps, as rates in training are."""
    assert fit(Hogwild(), n_ranks, epochs=2, n_rows=96).value.t == 1 + 2 * 96


def test_threads_on_one_model_go_on_from_a_copy_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gang that is formed anew takes up a copy of the model as it is, though every thread has left one."""
    monkeypatch.setattr(keeping, "_COPY_S", 0.0)
    keepers, data = [SnapshotKeeper() for _ in range(3)], make_data(3)

    def program(group: Group, epochs: int) -> np.ndarray:
        rank = Rank(group, AbortFlag(), keeper=keepers[group.rank])
        return train(rank, data[group.rank], make_job(Hogwild(), epochs)).params

    run_gang("inproc", 3, partial(program, epochs=2))
    copies = [keeper.latest.arrays["params"][0].tobytes() for keeper in keepers if keeper.latest is not None]
    assert len(copies) == 3
    assert {params.tobytes() for params in run_gang("inproc", 3, partial(program, epochs=1))} <= set(copies)


def test_ranks_of_several_processes_cannot_share_a_model() -> None:
    """A gang whose ranks are not threads of one process is told why it cannot share a model, and what to do."""

    def program(group: Group) -> None:
        group.share(np.zeros(3))

    with pytest.raises(IncompatiblePartsError, match=r"not all threads of one process.*n_jobs"):
        run_gang("tcp", 2, program)


# -- on the virtual clock ---------------------------------------------------------------------------------------------


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
    """Among stragglers, methods by post take less time than a round that waits for all; without, about as much."""
    posted = [ASGD(8), StaleSynchronous(8, slack=8), BackupWorkers(8, backups=2)]
    waiting = MinibatchSGD(8 * 8)
    even = {s: simulate(s).ledger.elapsed_s for s in (*posted, waiting)}
    uneven = {s: simulate(s, "heavy-tail").ledger.elapsed_s for s in (*posted, waiting)}
    for strategy in posted:
        assert even[strategy] < 1.2 * even[waiting]
        assert uneven[strategy] < 0.9 * uneven[waiting]
