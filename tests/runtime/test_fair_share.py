"""In which order the jobs of several users get workers: laws of the queue, and two users on a real cluster."""

from __future__ import annotations

import math
import threading
from typing import Any

import dask
import numpy as np
import pytest
from distributed import Client
from hypothesis import given, settings
from hypothesis import strategies as st

import dsgd
from dsgd import SGDClassifier
from dsgd.errors import ClusterError, InvalidParameterError
from dsgd.jobs import list_jobs
from dsgd.progress import Callback
from dsgd.runtime.plan import Block, WorkerInfo, make_plan
from dsgd.runtime.scheduler.fair_share import MOST_PASSES, Shares
from dsgd.runtime.scheduler.registry import Registry
from dsgd.runtime.sharing import priority_of, user_here, workers_per_user
from gang_cluster import assert_clean, start_cluster, wait_until

TOKEN = b"t" * 32


class Cluster:
    """A registry with a clock that goes on when it is read, workers named by letters, and jobs of users."""

    def __init__(self, most_workers: int | None = None) -> None:
        self.now = 0.0
        self.registry = Registry(
            lambda worker, message: None, lambda job_id: None, self._clock, most_workers=most_workers
        )
        self.order: list[str] = []
        self.arrived: list[str] = []

    def _clock(self) -> float:
        self.now += 1e-6
        return self.now

    def ask(self, job_id: str, workers: str, user: str = "", priority: int = 0) -> None:
        """Ask for workers in the name of a user."""
        label = ("job", f"{user or job_id[0]}@host:1", priority)
        self.arrived.append(job_id)
        self.registry.admit(job_id, 0, TOKEN, "client", [(worker, "host", 1) for worker in workers], label=label)
        self._look()

    def end(self, job_id: str, after_s: float = 1.0) -> None:
        """Let a job end after some time."""
        self.now += after_s
        self.registry.close(job_id)
        self._look()

    def _look(self) -> None:
        for job in self.registry.jobs.values():
            if job.phase == "granted" and job.job_id not in self.order:
                self.order.append(job.job_id)

    @property
    def running(self) -> list[str]:
        """Jobs that have their workers."""
        return [job.job_id for job in self.registry.jobs.values() if job.phase == "granted"]

    def drain(self) -> list[str]:
        """End one job after another, the longest running first; return all in the order in which they ran."""
        for _ in range(10_000):
            if not self.running:
                return self.order
            self.end(min(self.running, key=self.order.index))
        raise AssertionError("jobs wait for ever")


def test_users_take_turns() -> None:
    """Who submits many jobs at once keeps another user waiting for one of them, and not for all."""
    cluster = Cluster()
    for k in range(4):
        cluster.ask(f"a{k}", "xy")
    cluster.ask("b0", "xy")
    cluster.ask("b1", "xy")
    assert cluster.drain() == ["a0", "b0", "a1", "b1", "a2", "a3"]


def test_jobs_of_one_user_run_in_the_order_they_came() -> None:
    """Among jobs of one user and priority the first to come is the first to be served."""
    cluster = Cluster()
    for k in range(5):
        cluster.ask(f"a{k}", "xy")
    assert cluster.drain() == [f"a{k}" for k in range(5)]


def test_the_user_who_had_less_comes_first() -> None:
    """Seconds of many workers count as many: a user of one worker comes before a user of three."""
    cluster = Cluster()
    cluster.ask("a0", "xyz")
    cluster.end("a0", after_s=10.0)
    cluster.ask("b0", "x")
    cluster.end("b0", after_s=20.0)
    cluster.ask("c0", "x")
    cluster.ask("a1", "x")
    cluster.ask("b1", "x")
    assert cluster.drain()[2:] == ["c0", "b1", "a1"]


def test_jobs_of_higher_priority_come_first() -> None:
    """Whoever wants them, and among the same priority in fair order."""
    cluster = Cluster()
    cluster.ask("a0", "x")
    for job_id, priority in (("a1", 0), ("a2", 5), ("b0", 0), ("a3", 1)):
        cluster.ask(job_id, "x", priority=priority)
    assert cluster.drain() == ["a0", "a2", "a3", "b0", "a1"]


@pytest.mark.parametrize("priority", [0, 3])
def test_a_wide_gang_is_passed_so_often_and_no_more(priority: int) -> None:
    """New users, and jobs of higher priority, pass a gang that wants all workers a limited number of times."""
    cluster = Cluster()
    cluster.ask("a0", "wxyz", "heavy")
    cluster.ask("wide", "wxyz", "heavy")
    for k in range(3 * MOST_PASSES):
        cluster.ask(f"n{k}", "wxyz"[k % 4], f"user {k}", priority)
    order = cluster.drain()
    assert order.index("wide") == 1 + MOST_PASSES


def test_a_job_keeps_its_place_from_one_that_needs_none_of_its_workers() -> None:
    """Jobs behind it run first only on workers that it does not want."""
    cluster = Cluster()
    cluster.ask("a0", "x")
    cluster.ask("b0", "xy")
    cluster.ask("b1", "y")
    cluster.ask("b2", "z")
    assert cluster.running == ["a0", "b2"]
    assert cluster.registry.status("b0")["position"] == 1
    assert cluster.registry.status("b1")["position"] == 2


def test_a_user_at_the_limit_waits_and_keeps_nobody_waiting() -> None:
    """Jobs beyond what their user may hold wait for that user's own; others pass them, which counts as no pass."""
    cluster = Cluster(most_workers=2)
    cluster.ask("a0", "wx")
    cluster.ask("a1", "yz")
    status = cluster.registry.status("a1")
    assert (status["job_state"], status["ahead"], status["most"]) == ("queued", [], 2)
    cluster.ask("b0", "yz")
    assert cluster.running == ["a0", "b0"]
    assert cluster.registry.status("a1")["most"] == 2
    assert cluster.registry.jobs["a1"].passes == 0
    cluster.end("a0")
    assert cluster.registry.status("a1") == cluster.registry.status("a1") | {"ahead": ["y", "z"], "most": None}
    cluster.end("b0")
    assert cluster.running == ["a1"]


def test_a_user_may_hold_as_many_workers_as_the_limit_says() -> None:
    """Jobs run side by side up to the limit, and only those beyond it wait."""
    cluster = Cluster(most_workers=3)
    for job_id, workers in (("a0", "w"), ("a1", "xy"), ("a2", "z")):
        cluster.ask(job_id, workers)
    assert cluster.running == ["a0", "a1"]


def test_a_gang_that_is_formed_again_was_passed_as_often() -> None:
    """A job that asks again in the queue, with other workers, has waited since it came."""
    cluster = Cluster()
    cluster.ask("a0", "x")
    cluster.ask("wide", "xy")
    cluster.ask("b0", "y", priority=1)
    assert cluster.registry.jobs["wide"].passes == 1
    cluster.registry.admit("wide", 1, TOKEN, "client", [(worker, "host", 1) for worker in "xz"])
    assert cluster.registry.jobs["wide"].epoch == 1
    assert cluster.registry.jobs["wide"].passes == 1


def test_a_gang_wider_than_the_limit_runs_alone() -> None:
    """It waits until its user holds nothing, and keeps that user's other jobs waiting while it runs."""
    cluster = Cluster(most_workers=2)
    cluster.ask("a0", "w")
    cluster.ask("a1", "xyz")
    cluster.ask("a2", "w")
    assert cluster.drain() == ["a0", "a1", "a2"]
    assert not cluster.registry.queue.shares.held


asks = st.tuples(st.text("wxyz", min_size=1, max_size=4), st.sampled_from("abc"), st.integers(0, 2), st.floats(0, 500))


@settings(deadline=None)
@given(jobs=st.lists(asks, max_size=40), most=st.none() | st.integers(1, 4), early=st.integers(0, 40))
def test_nobody_is_passed_for_ever(jobs: list[Any], most: int | None, early: int) -> None:
    """All jobs run, none is passed too often, and no user holds more than the limit unless by a single wide gang."""
    cluster = Cluster(most)
    held: dict[str, int] = {}

    def look() -> None:
        for job in cluster.registry.jobs.values():
            assert job.passes <= MOST_PASSES
        for user in "abc":
            mine = [job for job in cluster.registry.jobs.values() if job.user == user and job.phase == "granted"]
            held[user] = sum(len(job.workers) for job in mine)
            assert held[user] == cluster.registry.queue.shares.held[user]
            assert most is None or held[user] <= most or len(mine) == 1

    for k, (workers, user, priority, after_s) in enumerate(jobs):
        cluster.ask(f"j{k}", workers, user, priority)
        look()
        if k >= early and cluster.running:
            cluster.end(cluster.running[0], after_s)
            look()
    assert sorted(cluster.drain()) == sorted(f"j{k}" for k in range(len(jobs)))
    assert not held or not any(cluster.registry.queue.shares.held.values())


@given(
    spans=st.lists(st.tuples(st.floats(0.1, 5000.0), st.integers(0, 4)), min_size=1, max_size=6),
    half_life_s=st.floats(10.0, 1000.0),
)
def test_what_a_user_had_is_an_integral(spans: list[tuple[float, int]], half_life_s: float) -> None:
    """The closed form of what a user had equals the sum over each span of workers times what is left of each second."""
    now = 0.0
    shares = Shares(lambda: now, half_life_s)
    began: list[tuple[float, float, int]] = []
    for seconds, n in spans:
        for worker in range(4):
            if worker < n:
                shares.lease(str(worker), "me")
            else:
                shares.free(str(worker))
        began.append((now, now + seconds, n))
        now += seconds
    rate = math.log(2.0) / half_life_s
    twin = sum(n * (math.exp(-rate * (now - end)) - math.exp(-rate * (now - at))) / rate for at, end, n in began)
    np.testing.assert_allclose(shares.used_s("me"), twin, rtol=1e-9, atol=1e-9)


def test_users_who_had_nothing_lately_are_forgotten() -> None:
    """The record of users does not grow for ever."""
    now = 0.0
    shares = Shares(lambda: now, half_life_s=1.0)
    for k in range(100):
        shares.lease("w", f"user {k}")
        now += 30.0
    assert len(shares._had) <= 3


def test_a_plan_takes_as_many_workers_as_a_user_may_hold() -> None:
    """Those that are free and hold most bytes; asking for more ranks than they have room for says why."""
    workers = [WorkerInfo(f"tcp://{k}", "host", str(k), busy=k == 0) for k in range(4)]
    blocks = [Block(0, 100, ("tcp://0",)), Block(1, 50, ("tcp://2",)), Block(2, 10, ("tcp://3",))]
    assert set(make_plan(blocks, workers, most_workers=2).addresses) == {"tcp://2", "tcp://3"}
    assert len(make_plan(blocks, workers, most_workers=9).members) == 4
    with pytest.raises(
        ClusterError, match=r"the 2 of 4 workers that a user may hold \(dsgd\.runtime\.workers-per-user"
    ):
        make_plan(blocks, workers, n_ranks=3, most_workers=2)


def test_settings_of_sharing() -> None:
    """A call comes before the configuration, and what makes no sense names its setting."""
    with dask.config.set({"dsgd.runtime": {"priority": 2, "user": "team", "workers-per-user": 3}}):
        assert (priority_of("fit", None), priority_of("fit", -1)) == (2, -1)
        assert (user_here(), workers_per_user()) == ("team", 3)
    assert (priority_of("fit", None), workers_per_user()) == (0, None)
    with pytest.raises(InvalidParameterError, match=r"fit\(priority=\.\.\.\)"):
        priority_of("fit", 1.5)  # type: ignore[arg-type]
    with (
        dask.config.set({"dsgd.runtime.priority": "high"}),
        pytest.raises(InvalidParameterError, match=r"dsgd\.runtime"),
    ):
        priority_of("fit", None)
    with (
        dask.config.set({"dsgd.runtime.workers-per-user": 0}),
        pytest.raises(InvalidParameterError, match="workers-per-user"),
    ):
        workers_per_user()
    with pytest.raises(InvalidParameterError, match=r"SGDClassifier\(priority=\.\.\.\)"):
        SGDClassifier(priority="high").fit(np.eye(2), [0, 1])  # type: ignore[arg-type]


@pytest.mark.cluster
def test_two_users_share_a_cluster(rng: np.random.Generator) -> None:
    """A user may hold one of two workers: the second fit waits and says why, and that of another user does not."""
    X = rng.standard_normal((200, 3))
    y = X[:, 0] > 0
    endless = SGDClassifier(max_iter=10**8, tol=None, sync=16)
    told: list[Any] = []

    class Told(Callback):
        def on_event(self, estimator: Any, event: Any) -> None:
            told.append(event)

    with (
        dask.config.set({"dsgd.runtime.workers-per-user": 1, "dsgd.runtime.user": "ann"}),
        start_cluster(2, processes=False) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        first = dsgd.submit(endless, X, y, client=client)
        wait_until(lambda: not first.info().epoch)
        second = SGDClassifier(max_iter=1, tol=None, client=client, priority=4).set_callbacks(Told())
        thread = threading.Thread(target=second.fit, args=(X, y))
        thread.start()
        wait_until(lambda: not told)
        assert told[0].text == "waiting for workers: a user may hold 1 of this cluster, place 1 in the queue"
        jobs = {job.owner.partition("@")[0]: job for job in list_jobs(client) if not job.detached}
        assert (jobs["ann"].state, jobs["ann"].place, jobs["ann"].priority) == ("queued", 1, 4)
        with dask.config.set({"dsgd.runtime.user": "bob"}):
            other = SGDClassifier(max_iter=1, tol=None, client=client).fit(X, y)
        assert other.fit_report_["workers"] == 1
        assert thread.is_alive()
        first.cancel()
        thread.join(60.0)
        assert second.n_iter_ == 1
        first.forget()
        assert_clean(client)
