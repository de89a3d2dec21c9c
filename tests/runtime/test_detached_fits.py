"""The scheduler's record of detached fits, without a cluster."""

from __future__ import annotations

import pytest

from dsgd.runtime.scheduler.detached import DetachedFits, failed_with, result_of, rows_of


class World:
    """A record with a clock of its own, and what it has released and stopped."""

    def __init__(self) -> None:
        self.now = 0.0
        self.released: set[str] = set()
        self.stopped: list[str] = []
        self.ended: list[str] = []
        self.fits = DetachedFits(
            self.released.add, lambda client, reason: self.stopped.append(client), self.ended.append, lambda: self.now
        )

    def announce(self, fit_id: str, *, restarts: int = 0) -> None:
        """Announce a fit of client "me", kept for a minute."""
        self.fits.announce(fit_id, "SVC", "me@host:1", "me", 60.0, restarts)

    def begin(self, fit_id: str, number: int = 1) -> int:
        """Begin a driver."""
        return self.fits.begin(fit_id, f"driver-{number}", f"worker-{number}", "host", lease_s=30.0)

    def expire(self) -> None:
        """Let the time that has passed have its effect."""
        self.fits.expire(lambda heard_at: self.now - heard_at)

    def state(self, fit_id: str) -> str:
        """Return the state that clients see."""
        return str(self.fits.status(fit_id)["state"])


@pytest.fixture
def world() -> World:
    return World()


def test_rows_are_held_until_the_end_and_the_result_for_its_time(world: World) -> None:
    """A fit that ends well releases its rows at once, and its result when its time is over, not before."""
    world.announce("a")
    assert world.state("a") == "queued"
    attempt = world.begin("a")
    assert (attempt, world.state("a"), world.released) == (1, "running", set())
    world.now = 10.0
    assert world.fits.end("a", attempt, None)
    assert (world.state("a"), world.released, world.ended) == ("done", {rows_of("a")}, ["a"])
    world.now = 69.9
    world.expire()
    assert world.state("a") == "done"
    world.now = 70.0
    world.expire()
    assert world.released == {rows_of("a"), result_of("a")}
    assert world.fits.status("a") == {"state": "unknown", "why": "its result was kept for 60 s"}


def test_a_fit_is_kept_as_long_as_its_driver_is_heard_of(world: World) -> None:
    """A fit may take any time; one whose driver is silent has failed, whatever it may do after a lost worker."""
    world.announce("a", restarts=3)
    attempt = world.begin("a")
    for _ in range(100):
        world.now += 29.0
        world.fits.renew("a", attempt)
        world.expire()
        assert world.state("a") == "running"
    world.now += 29.0
    world.fits.renew("a", attempt + 1)  # not this driver
    world.now += 2.0
    world.expire()
    status = world.fits.status("a")
    assert (status["state"], status["failure"]["kind"]) == ("failed", "lost")
    assert status["failure"]["text"] == "worker worker-1 was not heard of for 30 s"
    assert (world.stopped, world.fits.is_barred("driver-1")) == (["driver-1"], status["failure"]["text"])


@pytest.mark.parametrize("restarts", [0, 1])
def test_a_lost_driver_begins_again_as_often_as_it_may(world: World, restarts: int) -> None:
    """The loss of a worker is an attempt; the last one ends the fit and releases everything."""
    world.announce("a", restarts=restarts)
    for number in range(1, restarts + 1):
        assert world.begin("a", number) == number
        world.fits.worker_left(f"worker-{number}")
        assert world.state("a") == "queued"
    assert world.begin("a", restarts + 1) == restarts + 1
    world.fits.worker_left(f"worker-{restarts + 1}", "was retired")
    status = world.fits.status("a")
    assert status["state"] == "failed"
    assert (status["failure"]["kind"], status["failure"]["worker"]) == ("lost", f"worker-{restarts + 1}")
    assert world.released == {rows_of("a"), result_of("a")}
    assert world.begin("a", 9) == 0


def test_an_earlier_driver_is_refused(world: World) -> None:
    """A driver that was only cut off ends nothing, and gets no gang, once another has begun."""
    world.announce("a", restarts=1)
    first = world.begin("a", 1)
    second = world.begin("a", 2)
    assert world.stopped == ["driver-1"]
    assert world.fits.is_barred("driver-1")
    assert not world.fits.is_barred("driver-2")
    assert not world.fits.end("a", first, failed_with("raised", "late"))
    assert world.state("a") == "running"
    assert world.fits.end("a", second, None)


def test_a_driver_that_begins_too_often_is_refused(world: World) -> None:
    """Dask may run a task again before the scheduler hears that its worker left: that is an attempt as well."""
    world.announce("a", restarts=1)
    assert [world.begin("a", number) for number in (1, 2, 3)] == [1, 2, 0]
    assert world.state("a") == "failed"
    assert world.fits.is_barred("driver-2")


def test_cancelling_stops_the_gangs_and_bars_further_ones(world: World) -> None:
    """A cancelled fit has no gang, its driver gets no other, its end is ignored, and everything is released."""
    world.announce("a")
    attempt = world.begin("a")
    assert world.fits.cancel("a", "enough")
    assert (world.stopped, world.fits.is_barred("driver-1")) == (["driver-1"], "enough")
    assert world.released == {rows_of("a"), result_of("a")}
    assert not world.fits.end("a", attempt, None)
    assert not world.fits.cancel("a", "again")
    assert world.state("a") == "cancelled"


def test_a_fit_whose_client_left_in_the_middle_of_submitting_is_forgotten(world: World) -> None:
    """Only a fit of which Dask holds the task outlives its client."""
    world.announce("a")
    world.announce("b")
    world.fits.client_left("me", {result_of("b")}.__contains__)
    assert world.fits.status("a")["why"] == "its client left while it was submitted"
    assert world.state("b") == "queued"


@pytest.mark.parametrize(
    ("loses_worker", "state", "kind"), [(True, "failed", "lost"), (False, "cancelled", "cancelled")]
)
def test_a_task_that_is_gone_ends_its_fit(world: World, loses_worker: bool, state: str, kind: str) -> None:
    """A task that Dask cannot run again was lost with its worker; one released by hand was cancelled."""
    world.announce("a", restarts=3)
    world.begin("a")
    if loses_worker:
        world.fits.worker_left("worker-1")
    world.fits.result_left("a")
    status = world.fits.status("a")
    assert (status["state"], status["failure"]["kind"]) == (state, kind)


def test_a_result_that_is_lost_is_not_computed_again(world: World) -> None:
    """When the worker with the fitted estimator is gone, the fit has failed, and its driver may not begin again."""
    world.announce("a", restarts=3)
    world.fits.end("a", world.begin("a"), None)
    assert world.begin("a", 2) == 0
    status = world.fits.status("a")
    assert (status["state"], status["failure"]["text"]) == (
        "failed",
        "the worker that held the fitted estimator has left",
    )


def test_a_driver_that_returns_without_a_word_has_ended(world: World) -> None:
    """What a driver was cut off from telling is in its result; one that Dask gave up is lost."""
    world.announce("a")
    world.begin("a")
    world.fits.driver_left("a", returned=True)
    world.announce("b")
    world.begin("b", 2)
    world.fits.driver_left("b", returned=False)
    assert (world.state("a"), world.state("b")) == ("done", "failed")


def test_a_restart_of_the_cluster_fails_all_fits(world: World) -> None:
    """Workers that restart lose fits that run and results that wait; how other fits ended is kept."""
    for fit_id in "abc":
        world.announce(fit_id)
    world.fits.end("b", world.begin("b"), None)
    world.fits.cancel("c", "enough")
    world.fits.stop_all("the cluster was restarted")
    assert [world.state(fit_id) for fit_id in "abc"] == ["failed", "failed", "cancelled"]
    assert {result_of("a"), result_of("b")} <= world.released
