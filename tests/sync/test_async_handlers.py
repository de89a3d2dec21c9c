"""What servers do with the messages that come, in any order: the laws of their handlers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from async_jobs import PUSHING, make_data, make_job, message_of
from dsgd.runtime.train import TrainData, train
from dsgd.runtime.train.serving import mail_for
from dsgd.sim import Compute, SimulatedCluster
from dsgd.sync import (
    ASGD,
    AsyncEASGD,
    AsyncLeaderSGD,
    BackupWorkers,
    DecoupledDiLoCo,
    DelayCompensatedASGD,
    Downpour,
    StalenessAware,
    StaleSynchronous,
)
from dsgd.sync.server import NEWS, QUESTION, AbstractServerHandler, Model
from reference import asynchronous as reference


class Driver:
    """Workers with quadratic losses around a handler, driven by an order of arrivals."""

    def __init__(
        self, make_handler: Callable[[Model], AbstractServerHandler], n_workers: int, rate: float, rounds: int
    ) -> None:
        self.x = np.linspace(-1.0, 1.0, 4)
        self.model = Model(self.x, self._step, lambda: None, n_workers, rounds)
        self.rate = rate
        self.handler = make_handler(self.model)
        self.seen = [self.x.copy() for _ in range(n_workers)]
        self.versions = [0] * n_workers
        self.parked: set[int] = set()

    def _step(self, g: np.ndarray, factor: float) -> None:
        self.x -= self.rate * factor * g

    def arrive(self, worker: int) -> None:
        """Let the gradient of a worker arrive, and hand out the answers."""
        g = gradient(worker, self.seen[worker])
        self.parked.add(worker)
        for other in list(self.handler.accept(worker, message_of(g, self.versions[worker]))):
            self.parked.remove(other)
            self.handler.answer(other, self.seen[other])
            self.versions[other] = self.model.version


def gradient(worker: int, x: np.ndarray) -> np.ndarray:
    return (1.0 + 0.3 * worker) * x - 0.1 * worker


METHODS: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "ASGD": (ASGD(), "asgd", {}),
    "StalenessAware": (StalenessAware(arrivals=2), "aware", {"arrivals": 2, "usual": 1.5}),
    "softsync": (StalenessAware(arrivals=3, usual=1.0), "aware", {"arrivals": 3, "usual": 1.0}),
    "DelayCompensatedASGD": (DelayCompensatedASGD(compensation=0.5), "compensated", {"strength": 0.5, "decay": None}),
    "adaptive": (DelayCompensatedASGD(compensation=0.5, decay=0.9), "compensated", {"strength": 0.5, "decay": 0.9}),
    "StaleSynchronous": (StaleSynchronous(slack=1), "stale", {"slack": 1}),
    "BackupWorkers": (BackupWorkers(backups=1), "backup", {"wanted": 2}),
}


@pytest.mark.parametrize("name", METHODS)
@settings(max_examples=15)
@given(order=st.lists(st.integers(0, 2), min_size=1, max_size=40))
def test_handlers_equal_their_twins(name: str, order: list[int]) -> None:
    """In whatever order gradients arrive, a handler leaves the model that its twin in plain numpy leaves."""
    strategy, method, options = METHODS[name]
    driver = Driver(strategy.handler, 3, 0.1, rounds=10**6)
    twin = reference.Server(driver.x, 3, 0.1, gradient)
    for worker in reference.run(twin, order, method, **options):
        driver.arrive(worker)
    np.testing.assert_allclose(driver.x, twin.x, rtol=1e-12, atol=1e-14)
    assert driver.parked == set(twin.parked)


@pytest.mark.parametrize("share", [0.25, 1.0, 3.0])
@pytest.mark.parametrize("decay", [None, 0.9])
def test_a_share_weighs_what_compensation_makes_of_a_gradient(share: float, decay: float | None) -> None:
    """The step is that of the paper along g + lambda g * g * (x - b) of the worker's own gradient, times its share."""
    rng = np.random.default_rng(5)
    strategy, rate, strength = DelayCompensatedASGD(compensation=0.7, decay=decay), 0.1, 0.7
    x = rng.standard_normal(4)
    first, moved, mean_square = x.copy(), x.copy(), np.zeros(4)

    def step(g: np.ndarray, factor: float) -> None:
        x[:] -= rate * factor * g

    handler = strategy.handler(Model(x, step, lambda: None, 2, rounds=10**6))
    for worker, weight, behind in ((0, 1.0, False), (1, share, True)):
        g = rng.standard_normal(4)
        scale = np.ones(4)
        if decay is not None:
            mean_square = decay * mean_square + (1 - decay) * g * g
            scale = 1.0 / np.sqrt(mean_square + 1e-7)
        delayed = moved - first if behind else np.zeros(4)
        moved = moved - rate * weight * (g + strength * scale * g * g * delayed)
        handler.accept(worker, message_of(weight * g, 0, weight))
        np.testing.assert_allclose(x, moved, rtol=1e-12, atol=1e-14)


def test_a_worker_without_rows_compensates_nothing() -> None:
    """Its share is zero, and so is what it sends: the model and the running mean stay as they are."""
    x = np.ones(3)
    handler = DelayCompensatedASGD(decay=0.9).handler(Model(x, lambda g, factor: None, lambda: None, 2, rounds=10))
    message = message_of(np.zeros(3), 0, 0.0)
    assert list(handler.accept(1, message)) == [1]
    np.testing.assert_array_equal(message.body, np.zeros(3))


@settings(max_examples=30)
@given(n_workers=st.integers(1, 5), slack=st.integers(0, 3), order=st.lists(st.integers(0, 4), min_size=1, max_size=60))
def test_nobody_is_further_ahead_than_the_slack(n_workers: int, slack: int, order: list[int]) -> None:
    """A worker that may continue is at most `slack` gradients ahead of the slowest, which may always continue."""
    driver = Driver(StaleSynchronous(slack=slack).handler, n_workers, 0.01, rounds=10**6)
    sent = [0] * n_workers
    for wish in order:
        worker = next(w % n_workers for w in range(wish, wish + n_workers) if w % n_workers not in driver.parked)
        sent[worker] += 1
        driver.arrive(worker)
        free = [w for w in range(n_workers) if w not in driver.parked]
        assert all(sent[w] - min(sent) <= slack for w in free)
        assert any(sent[w] == min(sent) for w in free)


@settings(max_examples=30)
@given(n_workers=st.integers(1, 5), backups=st.integers(0, 5), rounds=st.integers(1, 4), seed=st.integers(0, 2**31))
def test_backup_workers_reach_the_end_of_every_epoch(n_workers: int, backups: int, rounds: int, seed: int) -> None:
    """In whatever order gradients come, all workers get through their epochs: none is left without an answer."""
    rng = np.random.default_rng(seed)
    driver = Driver(BackupWorkers(backups=backups).handler, n_workers, 0.01, rounds)
    sent = [0] * n_workers
    for epoch in range(3):
        while left := [w for w in range(n_workers) if sent[w] < (epoch + 1) * rounds and w not in driver.parked]:
            worker = left[int(rng.integers(len(left)))]
            sent[worker] += 1
            driver.arrive(worker)
        assert not driver.parked
        assert sent == [(epoch + 1) * rounds] * n_workers


@settings(max_examples=20)
@given(n_workers=st.integers(1, 4), order=st.lists(st.integers(0, 3), min_size=1, max_size=30))
def test_elastic_exchanges_conserve_the_sum(n_workers: int, order: list[int]) -> None:
    """What a worker gains the centre loses, and each moves its share of the distance, in any order of messages."""
    rng = np.random.default_rng(1)
    centre, models = rng.standard_normal(3), rng.standard_normal((n_workers, 3))
    model = Model(centre.copy(), lambda g, factor: None, lambda: None, n_workers, rounds=10**6)
    handler, expected = AsyncEASGD(beta=0.8).handler(model), centre.copy()
    total = centre + models.sum(axis=0)
    for wish in order:
        worker = wish % n_workers
        moved = 0.8 / n_workers * (models[worker] - expected)
        expected = expected + moved
        out = np.empty(3)
        assert list(handler.accept(worker, message_of(models[worker], 0))) == [worker]
        handler.answer(worker, out)
        np.testing.assert_allclose(out, moved, rtol=1e-12, atol=1e-14)
        models[worker] -= out
        np.testing.assert_allclose(model.params, expected, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(model.params + models.sum(axis=0), total, rtol=1e-12, atol=1e-13)


def test_a_server_adds_what_is_poured() -> None:
    """Changes of all workers are added in whatever order; only who asks for it gets the model."""
    model = Model(np.zeros(2), lambda g, factor: None, lambda: None, 3, rounds=10)
    handler = Downpour(share=0.5).handler(model)
    for worker, change in enumerate(([1.0, 2.0], [-3.0, 0.5], [4.0, 4.0])):
        message = message_of(np.array(change), 0)
        message.head["kind"] = NEWS if worker == 1 else QUESTION
        assert list(handler.accept(worker, message)) == ([] if worker == 1 else [worker])
    np.testing.assert_array_equal(model.params, [1.0, 3.25])


def test_the_lowest_score_among_as_many_messages_as_workers_leads() -> None:
    """There is a new leader when the common counter is full, whoever filled it; a rank with a NaN loss never leads."""
    model = Model(np.zeros(1), lambda g, factor: None, lambda: None, 2, rounds=10)
    handler = AsyncLeaderSGD().handler(model)
    leaders = []
    for worker, score in enumerate([3.0, 5.0, 0.5, 0.7, np.nan, np.inf]):
        message = message_of(np.array([worker + 1.0]), 0)
        message.head["score"] = score
        handler.accept(worker % 2, message)
        leaders.append((float(model.params[0]), model.version))
    assert leaders == [(0.0, 0), (1.0, 1), (1.0, 1), (3.0, 2), (3.0, 2), (3.0, 2)]


def test_a_quorum_steps_and_is_answered() -> None:
    """The quorum moves the model by its share of the changes, with momentum, and the last of an epoch wait for none."""
    model = Model(np.zeros(1), lambda g, factor: None, lambda: None, 4, rounds=2)
    handler = DecoupledDiLoCo(quorum=2, outer_rate=0.5, outer_momentum=0.5).handler(model)
    tell = lambda worker, change: list(handler.accept(worker, message_of(np.array([change]), 0)))  # noqa: E731
    assert tell(3, 4.0) == []
    assert tell(1, 8.0) == [3, 1]
    # A quarter of 12 each: g = 3, u = 3.
    assert model.params[0] == -0.5 * (3.0 + 0.5 * 3.0)
    assert tell(1, -4.0) == []
    assert tell(3, 0.0) == [1, 3]
    # g = -1, u = 0.5.
    assert model.params[0] == -2.25 - 0.5 * (-1.0 + 0.5 * 0.5)
    assert [tell(0, 0.0), tell(2, 0.0), tell(0, 0.0)] == [[], [0, 2], []]
    assert tell(2, 0.0) == [0, 2]
    assert model.version == 4


@pytest.mark.parametrize("strategy", PUSHING, ids=repr)
def test_workers_without_rows_change_nothing(strategy: Any) -> None:
    """Two workers with rows beside others without any take the steps that they take alone, as many and at one rate."""
    job = make_job(strategy)
    shard = make_data(1)[0].shard
    # Of unlike speeds, so that no wire decides whose message is first.
    data = [TrainData(shard.rows(0, 40)), TrainData(shard.rows(40, 96))]
    nothing = TrainData(shard.rows(0, 0))
    found = []
    for gang in (data, [*data, nothing, nothing]):
        cluster = SimulatedCluster(len(gang), compute=Compute(row_s=1.0))
        found.append(cluster.run(train, gang, (job,), mail=mail_for(job)).value)
    np.testing.assert_allclose(found[1].params, found[0].params, rtol=1e-9)
    assert found[1].t == found[0].t
