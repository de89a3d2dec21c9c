"""What servers do with the messages that come, in any order: the laws of their handlers."""

from __future__ import annotations

import math
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
        self.delays: list[int] = []

    def _step(self, g: np.ndarray, factor: float) -> None:
        self.x -= self.rate * factor * g

    def arrive(self, worker: int) -> None:
        """Let the gradient of a worker arrive, and hand out the answers."""
        g = gradient(worker, self.seen[worker])
        self.delays.append(self.model.version - self.versions[worker])
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


@pytest.mark.parametrize("n_workers", [1, 2, 5])
def test_round_robin_gives_a_staleness_of_all_others(n_workers: int) -> None:
    """Where workers take turns, every gradient is as many steps old as there are other workers."""
    driver = Driver(ASGD().handler, n_workers, 0.1, rounds=100)
    for number in range(6 * n_workers):
        driver.arrive(number % n_workers)
    assert driver.delays[n_workers:] == [n_workers - 1] * (5 * n_workers)


@pytest.mark.parametrize("n_workers", [1, 2, 6, 12])
@pytest.mark.parametrize("split", [1, 2, 3, 6])
def test_gradients_of_a_split_are_as_stale_as_the_source_says(n_workers: int, split: int) -> None:
    """With c = P / n arrivals in a step, gradients of workers that take turns are n steps old, less a part of one."""
    if n_workers % split:
        pytest.skip("the source's c is a whole number")
    arrivals = n_workers // split
    driver = Driver(StalenessAware(arrivals=arrivals).handler, n_workers, 0.01, rounds=10**6)
    for number in range(20 * n_workers):
        driver.arrive(number % n_workers)
    settled = driver.delays[2 * n_workers :]
    # A worker sends with the model of the step that its last gradient went into, or of the one before.
    assert np.mean(settled) == pytest.approx(split - 1 / arrivals)
    assert max(settled) <= 2 * split


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


def test_compensation_of_nothing_is_asgd() -> None:
    """Without compensation, or without delay, a compensated gradient is the gradient, bit for bit."""
    rng = np.random.default_rng(3)
    for strategy, n_workers in ((DelayCompensatedASGD(compensation=0.0), 4), (DelayCompensatedASGD(), 1)):
        ours, plain = (Driver(s.handler, n_workers, 0.1, rounds=100) for s in (strategy, ASGD()))
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
        handler, seen = ASGD().handler(model), [x.copy() for _ in range(delay + 1)]
        largest = []
        for number in range(600 * (delay + 1)):
            worker = number % (delay + 1)
            handler.accept(worker, message_of(seen[worker], 0))
            handler.answer(worker, seen[worker])
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
@given(
    n_workers=st.integers(1, 5),
    backups=st.integers(0, 5),
    rounds=st.integers(1, 4),
    seed=st.integers(0, 2**31),
)
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


def test_groups_have_leaders_of_their_own_and_one_of_all() -> None:
    """Workers are pulled to the leader of their group, and every second time to that of all; leaders not to themselves.

    The models of four workers are 1, 2, 3, 4; losses fall from worker to worker, so 2 leads the first group, and 4 the
    other and all.
    """
    model = Model(np.zeros(1), lambda g, factor: None, lambda: None, 4, rounds=10)
    handler = AsyncLeaderSGD(pull=0.5, n_groups=2, global_pull=0.1, global_every=2).handler(model)

    def tell(worker: int, known: int) -> float:
        message = message_of(np.array([worker + 1.0]), known)
        message.head["score"] = -worker
        assert list(handler.accept(worker, message)) == [worker]
        handler.answer(worker, message.body)
        return float(message.body[0])

    assert [tell(worker, 0) for worker in range(3)] == [1.0, 2.0, 3.0]
    # Of the first leaders of groups there is none of all.
    assert tell(3, 0) == 4.0
    assert [tell(worker, 0) for worker in range(3)] == [1.5, 2.0, 3.5]
    assert model.version == 1
    # The next leaders come with one of all, which is the model of worker 3.
    assert tell(3, 1) == 4.0
    assert (model.version, model.author, model.params[0]) == (2, 3, 4.0)
    assert [tell(worker, 1) for worker in range(3)] == pytest.approx(
        [1.5 + 0.1 * 2.5, 2.0 + 0.1 * 2.0, 3.5 + 0.1 * 0.5]
    )
    # The third ones come with none of all.
    assert tell(0, 2) == 1.5
    assert (tell(0, 3), model.version) == (1.0, 3)
    assert [tell(worker, 3) for worker in (2, 3)] == [3.0, 4.0]
    assert tell(3, 3) == 4.0
    assert (model.version, model.author) == (4, 3)
    assert [tell(worker, 4) for worker in (2, 3, 3, 2)] == [3.0, 4.0, 4.0, 3.5]
    assert model.version == 5
    # Worker 0 was the only one of its group that had sent before, and still leads it.
    assert tell(1, 4) == 1.5


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
