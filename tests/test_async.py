"""Methods in which nobody waits for everybody: the laws of servers and of what they do with what comes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsgd.comm.wire import HEADER_BYTES
from dsgd.errors import IncompatiblePartsError, InvalidParameterError
from dsgd.local import SGD, Objective, make_shard
from dsgd.runtime.rank import GangResult
from dsgd.runtime.serving import mail_for
from dsgd.runtime.threads import run_on_threads
from dsgd.runtime.train import TrainData, TrainJob, train
from dsgd.sync import (
    ASGD,
    BackupWorkers,
    DelayCompensatedASGD,
    MinibatchSGD,
    StalenessAware,
    StaleSynchronous,
)
from dsgd.sync.server import AbstractDesk, Model, letter_bytes
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
        self.model = Model(self.x, self._step, n_workers, rounds)
        self.rate = rate
        self.desk = make_desk(self.model)
        self.seen = [self.x.copy() for _ in range(n_workers)]
        self.versions = [0] * n_workers
        self.parked: set[int] = set()
        self.delays: list[int] = []

    def _step(self, g: np.ndarray) -> None:
        self.x -= self.rate * g

    def arrive(self, worker: int) -> None:
        """Let the gradient of a worker arrive, and hand out the answers."""
        g = gradient(worker, self.seen[worker])
        self.delays.append(self.model.version - self.versions[worker])
        self.parked.add(worker)
        for other in list(self.desk.accept(worker, self.versions[worker], g)):
            self.parked.remove(other)
            self.desk.answer(other, self.seen[other])
            self.versions[other] = self.model.version


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

        def step(g: np.ndarray, x: np.ndarray = x, rate: float = rate) -> None:
            x -= rate * g

        model = Model(x, step, delay + 1, rounds=10**6)
        desk, seen = ASGD().desk(model), [x.copy() for _ in range(delay + 1)]
        largest = []
        for number in range(600 * (delay + 1)):
            worker = number % (delay + 1)
            desk.accept(worker, 0, seen[worker].copy())
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
        # All else that a worker sends is the model to start from, and five numbers about the rows.
        begun = 2 * HEADER_BYTES + 5 * 8 + 6 * 8
        assert result.ledger.per_rank()[0]["bytes_sent"] == n_letters * letter + begun
    assert len(result.stats) == n_ranks


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
