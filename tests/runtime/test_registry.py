"""The protocol of gangs: queue, leases, rendezvous and failures, without a cluster."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dsgd.runtime.messages import read_table
from dsgd.runtime.scheduler.jobs import Vigil
from dsgd.runtime.scheduler.registry import Registry

TOKEN = b"t" * 32


class World:
    """A registry with a clock of its own and the messages it sent."""

    def __init__(self) -> None:
        self.now = 0.0
        self.sent: list[tuple[str, str, str]] = []
        self.log: list[dict[str, Any]] = []
        self.registry = Registry(self._send, lambda job_id: None, lambda: self.now, log=self.log.append)

    def _send(self, worker: str, message: dict[str, Any]) -> None:
        self.sent.append((worker, message["action"], message["job_id"]))

    def admit(self, job_id: str, workers: str, client: str = "me") -> str:
        """Ask for workers, one letter each."""
        self.registry.admit(job_id, 0, TOKEN, client, [(worker, "host", 1) for worker in workers])
        return self.state(job_id)

    def state(self, job_id: str) -> str:
        """Return the state the client sees."""
        return str(self.registry.status(job_id)["job_state"])

    def join(self, job_id: str, rank: int, address: str = "", n_cores: int = 1) -> dict[str, Any]:
        """Join as a rank."""
        return self.registry.join(job_id, 0, TOKEN, rank, address or f"h:{rank}", n_cores)

    def begin(self, job_id: str, workers: str) -> None:
        """Ask for workers, and have all ranks join."""
        self.admit(job_id, workers)
        for rank in range(len(workers)):
            self.join(job_id, rank)

    def publish(self, job_id: str, event: dict[str, Any]) -> None:
        """Publish as the first member."""
        self.registry.publish(job_id, 0, TOKEN, 0, event)

    def finish(self, job_id: str, rank: int, kind: str = "") -> None:
        """End a rank, with a failure if a kind is given."""
        failure = {"kind": kind, "text": f"story of {rank}", "pickled": b""} if kind else None
        self.registry.finish(job_id, 0, TOKEN, rank, failure)


@pytest.fixture
def world() -> World:
    return World()


def test_the_queue_is_first_come_first_served(world: World) -> None:
    """A later job passes an earlier one only where it wants none of its workers; a job takes all of them or none."""
    world.admit("a", "xy")
    assert world.admit("b", "yz") == "queued"
    assert world.admit("c", "z") == "queued"
    assert world.admit("d", "w") == "running"
    assert world.registry.leases == {"x": "a", "y": "a", "w": "d"}
    found = [(status["position"], status["ahead"]) for status in map(world.registry.status, "bc")]
    assert found == [(1, ["y"]), (2, [])]
    world.registry.close("a")
    assert (world.state("b"), world.state("c")) == ("running", "queued")
    world.registry.close("b")
    assert world.state("c") == "running"


def test_a_client_that_leaves_takes_no_more_workers(world: World) -> None:
    """As its jobs end, the workers go to those of others, and none of its own is opened on the way."""
    for job_id in "abc":
        world.admit(job_id, "x", client="gone")
    world.admit("d", "x", client="here")
    world.registry.client_left("gone")
    assert [job_id for _, action, job_id in world.sent if action == "open"] == ["a", "d"]
    assert list(world.registry.jobs) == ["d"]
    assert world.state("d") == "running"


def test_ranks_meet_when_the_last_has_come(world: World) -> None:
    """Every rank gets all addresses in rank order, and those who wait can learn who is missing."""
    world.admit("a", "xyz")
    assert world.join("a", 2, n_cores=8) == {"join_state": "waiting"}
    assert world.registry.missing("a", 0, TOKEN, 2) == ["rank 0 on worker x", "rank 1 on worker y"]
    assert world.registry.missing("a", 0, b"wrong", 2) == []
    world.join("a", 0, n_cores=2)
    ready = world.join("a", 1, n_cores=4)
    addresses, workers = ["h:0", "h:1", "h:2"], ["x", "y", "z"]
    assert read_table(ready["table"]) == {"addresses": addresses, "workers": workers, "n_cores": 2}
    assert world.join("a", 2) == ready


def test_strangers_are_turned_away(world: World) -> None:
    """A join of another job, epoch, token, rank or second incarnation is stale."""
    world.admit("a", "xy")
    world.join("a", 0)
    strangers = [("b", 0, TOKEN, 0), ("a", 1, TOKEN, 0), ("a", 0, b"wrong", 0), ("a", 0, TOKEN, 2)]
    assert all(world.registry.join(*each, "h:0") == {"join_state": "stale"} for each in strangers)
    assert world.join("a", 0, "h:9") == {"join_state": "stale"}
    world.finish("a", 0)
    assert world.join("a", 0) == {"join_state": "stale"}


def test_a_job_is_done_when_all_ranks_are(world: World) -> None:
    """The job runs until its last rank has ended, and closing it leaves nothing."""
    world.begin("a", "xy")
    world.finish("a", 1)
    assert world.state("a") == "running"
    world.finish("a", 0)
    assert world.state("a") == "done"
    world.registry.close("a")
    assert not world.registry.jobs
    assert not world.registry.leases
    assert [action for worker, action, _ in world.sent if worker == "x"] == ["open", "close"]


def test_the_first_failure_is_the_cause(world: World) -> None:
    """A rank that raises is the cause, and the others are told to stop."""
    world.begin("a", "xyz")
    world.finish("a", 1, "raised")
    world.finish("a", 0, "aborted")
    world.finish("a", 2, "raised")
    failure = world.registry.status("a")["failure"]
    assert (failure["rank"], failure["worker"], failure["text"]) == (1, "y", "story of 1")
    assert {worker for worker, action, _ in world.sent if action == "abort"} == {"x", "z"}


def test_an_echo_waits_for_the_cause(world: World) -> None:
    """A rank whose peer went away is not blamed when the scheduler misses the peer's worker a moment later."""
    world.begin("a", "xy")
    world.finish("a", 0, "aborted")
    assert world.state("a") == "running"
    world.now = 0.5
    world.registry.worker_left("y")
    failure = world.registry.status("a")["failure"]
    assert (failure["kind"], failure["rank"], failure["worker"]) == ("lost", 1, "y")


def test_an_echo_without_a_cause_is_told_in_the_end(world: World) -> None:
    """When nothing else comes, the first rank that noticed tells its story."""
    world.begin("a", "xy")
    world.finish("a", 0, "aborted")
    world.now = 0.5
    world.finish("a", 1, "aborted")
    world.now = 1.1
    assert world.registry.status("a")["failure"]["text"] == "story of 0"


def test_a_gang_that_ends_under_suspicion_is_not_done(world: World) -> None:
    """Where one rank noticed something and all others ended well, nothing is told before the grace is over."""
    world.begin("a", "xy")
    world.finish("a", 0, "aborted")
    world.finish("a", 1)
    assert world.state("a") == "running"
    world.now = 1.5
    assert world.state("a") == "failed"


def test_a_job_is_formed_again_by_its_own_client_alone(world: World) -> None:
    """Who knows the name of a job takes neither its workers nor its place with a later epoch of it."""
    world.admit("a", "x")
    world.registry.admit("a", 1, b"s" * 32, "somebody else", [("y", "host", 1)])
    assert world.registry.leases == {"x": "a"}
    assert world.join("a", 0)["join_state"] == "ready"
    world.registry.admit("a", 1, TOKEN, "me", [("y", "host", 1)])
    assert world.registry.leases == {"y": "a"}
    assert world.join("a", 0)["join_state"] == "stale"


def test_a_worker_that_left_ends_running_and_queued_jobs(world: World) -> None:
    """Jobs that hold it or wait for it fail, no others; it is told nothing, as another may come with its address."""
    world.admit("a", "xy")
    world.admit("b", "yz")
    world.admit("c", "w")
    world.registry.worker_left("y")
    assert [world.state(job) for job in "abc"] == ["failed", "failed", "running"]
    world.registry.close("a")
    world.registry.close("b")
    assert world.registry.leases == {"w": "c"}
    assert [message for message in world.sent if message[0] == "y"] == [("y", "open", "a")]
    assert ("x", "abort", "a") in world.sent


def test_a_gang_that_is_formed_again_keeps_the_data_of_workers_that_stay(world: World) -> None:
    """Only a worker that is no longer of the gang forgets the job; one that comes is opened."""
    world.admit("a", "xy")
    world.sent.clear()
    world.registry.admit("a", 1, TOKEN, "me", [(worker, "host", 1) for worker in "xz"])
    assert sorted(world.sent) == [("x", "open", "a"), ("y", "close", "a"), ("z", "open", "a")]


def test_a_rank_that_still_runs_keeps_its_worker_for_a_while(world: World) -> None:
    """A closed job releases idle workers at once, a busy one when its rank ends or after ten seconds."""
    for job_id in "ab":
        world.now = 0.0
        world.admit(job_id, "xy")
        world.registry.member_started(job_id, 0, TOKEN, 0)
        world.registry.close(job_id)
        assert world.registry.leases == {"x": job_id}
        if job_id == "a":
            world.finish("a", 0, "aborted")
        else:
            world.now = 11.0
            world.state("b")
        assert not world.registry.leases
        assert not world.registry.jobs


def test_of_a_closed_job_each_rank_keeps_its_own_worker(world: World) -> None:
    """The worker of a rank that has ended goes to the next job, though another rank of the gang still runs."""
    world.begin("a", "xy")
    world.registry.close("a")
    assert world.admit("b", "x") == "queued"
    world.finish("a", 0, "aborted")
    assert world.state("b") == "running"
    assert world.registry.leases == {"x": "b", "y": "a"}


def test_events_are_kept_until_taken_and_bounded(world: World) -> None:
    """The client gets each event once; if it does not ask, the oldest are dropped."""
    world.admit("a", "x")
    for number in range(1000):
        world.publish("a", {"number": number})
    events = world.registry.take_events("a")
    assert [event["number"] for event in events][-1] == 999
    assert len(events) < 1000
    assert world.registry.take_events("a") == []


@pytest.mark.parametrize(
    "credentials", [("b", 0, TOKEN, 0), ("a", 1, TOKEN, 0), ("a", 0, b"wrong", 0), ("a", 0, TOKEN, 2)]
)
def test_events_of_strangers_are_not_kept(world: World, credentials: Any) -> None:
    """An event of another job, epoch, token or member reaches neither the client nor observers."""
    world.admit("a", "xy")
    version = world.registry.status("a")["version"]
    world.registry.publish(*credentials, {"phase": "straggler", "rank": 99})
    assert world.registry.take_events("a") == []
    assert world.registry.status("a")["version"] == version
    assert not world.registry.jobs["a"].note


def test_the_rank_that_is_silent_longest_is_the_cause(world: World) -> None:
    """Silence beyond the limit of the job stops it; ranks that ended, other jobs and short silences do not."""
    world.registry.admit("a", 0, TOKEN, "me", [(worker, "host", 1) for worker in "wxyz"], hung_after_s=5.0)
    for rank in range(4):
        world.join("a", rank)
    world.finish("a", 3)
    world.registry.hear("a", {"x": 4.9, "z": 99.0, "elsewhere": 99.0})
    world.registry.hear("unknown", {"x": 99.0})
    assert world.state("a") == "running"
    world.registry.hear("a", {"w": 19.0}, "w".__eq__)
    assert world.state("a") == "running"
    world.registry.hear("a", {"w": 5.5, "x": 6.0, "z": 99.0})
    failure = world.registry.status("a")["failure"]
    assert (failure["kind"], failure["rank"], failure["worker"]) == ("hung", 1, "x")
    assert "6.0 s" in failure["text"]
    assert {worker for worker, action, _ in world.sent if action == "abort"} == {"w", "x", "y"}


def test_the_overview_shows_what_jobs_do(world: World) -> None:
    """The newest job comes first, one that waits has a place, and one that is over is not shown."""
    world.registry.admit("a", 0, TOKEN, "me", [("x", "host", 2), ("y", "host", 1)], label=("SVC", "me@host:1"))
    world.admit("b", "yz")
    world.now = 3.0
    world.publish("a", {"epoch": 1, "train_loss": 0.5, "seconds": 1.0, "comm_share": 0.0})
    world.publish("a", {"phase": "straggler", "text": "rank 1 is slow"})
    newest, oldest = world.registry.overview()
    assert (newest.job.job_id, newest.state, oldest.state) == ("b", "queued", "running")
    assert (oldest.job.label, oldest.job.places, oldest.elapsed_s) == (("SVC", "me@host:1"), ["x", "x", "y"], 3.0)
    assert (oldest.job.client, oldest.position, oldest.job.granted, oldest.n_ranks) == ("me", 0, 0.0, 3)
    assert (newest.position, newest.job.granted, newest.failure) == (1, None, "")
    assert (oldest.job.latest["train_loss"], oldest.job.note) == (0.5, "rank 1 is slow")
    world.registry.abort("a", "enough")
    assert (world.registry.overview()[1].state, world.registry.overview()[1].failure) == ("stopping", "enough")
    world.registry.close("a")
    world.now = 9.0
    assert [(view.job.job_id, view.state, view.elapsed_s) for view in world.registry.overview()] == [
        ("b", "running", 9.0)
    ]


def test_a_gang_that_is_formed_again_shows_what_it_has_done(world: World) -> None:
    """Title, owner, the times and the last events of a job are those of all its epochs."""
    members = [("x", "host", 1)]
    world.registry.admit("a", 0, TOKEN, "me", members, label=("SVC", "me@host:1"))
    world.publish("a", {"epoch": 1, "train_loss": 0.5, "seconds": 1.0, "comm_share": 0.0})
    world.now = 4.0
    world.registry.admit("a", 1, TOKEN, "me", members, label=("other", "other"))
    (view,) = world.registry.overview()
    assert (view.job.epoch, view.job.label, view.job.began, view.job.granted) == (1, ("SVC", "me@host:1"), 0.0, 0.0)
    assert (view.elapsed_s, view.job.latest["epoch"]) == (4.0, 1)


def test_the_log_tells_the_life_of_a_job(world: World) -> None:
    """Each change of a job is one record, which names the job, its start and, where it fails, the rank; ends count."""
    world.registry.admit("a", 0, TOKEN, "me", [("x", "host", 2), ("y", "host", 1)], label=("SVC", "me@host:1"))
    world.admit("b", "y")
    world.now = 2.0
    world.registry.member_started("a", 0, TOKEN, 1)
    world.finish("a", 1, "raised")
    world.registry.close("a")
    of_a = [record for record in world.log if record["job"] == "a"]
    assert [record["state"] for record in of_a] == ["queued", "running", "stopping", "failed"]
    assert {record["formed"] for record in of_a} == {0}
    assert (of_a[0]["owner"], of_a[0]["n_ranks"], of_a[1]["n_workers"]) == ("me@host:1", 3, 2)
    assert (of_a[2]["rank"], of_a[2]["worker"], of_a[2]["kind"], of_a[3]["elapsed_s"]) == (2, "y", "raised", 2.0)
    assert [record["state"] for record in world.log if record["job"] == "b"] == ["queued", "running"]
    assert world.registry.n_ended == {"failed": 1}


def test_a_job_is_asked_to_end_early(world: World) -> None:
    """Each of its workers is told once; a job that waits or is stopped is not asked."""
    world.admit("a", "xy")
    world.admit("b", "y")
    for job in ("a", "b", "unknown"):
        world.registry.end_early(job)
    assert sorted(message for message in world.sent if message[1] == "end") == [("x", "end", "a"), ("y", "end", "a")]


def test_a_lease_that_nobody_renews_ends(world: World) -> None:
    """A job whose client is silent for longer than its lease lives is closed, and the next one gets its workers."""
    world.registry.admit("a", 0, TOKEN, "me", [("x", "host", 1)], lease_s=10.0)
    assert world.admit("b", "x", client="you") == "queued"
    for world.now in (6.0, 12.0):
        world.registry.renew("a", TOKEN)
        world.registry.renew("a", b"wrong")
        world.registry.expire(lambda at: world.now - at)
    world.now = 21.0
    world.registry.renew("a", b"wrong")
    world.registry.expire(lambda at: world.now - at)
    assert (world.state("a"), world.state("b")) == ("running", "queued")
    world.now = 22.5
    world.registry.expire(lambda at: world.now - at)
    assert (world.state("a"), world.state("b")) == ("unknown", "running")
    assert world.registry.status("a")["why"]["kind"] == "lapsed"
    assert ("x", "close", "a") in world.sent


def test_the_lease_of_a_job_in_the_queue_ends_too(world: World) -> None:
    """A client that waits for workers and is no longer heard of keeps nobody behind it waiting."""
    world.admit("a", "x")
    world.registry.admit("b", 0, TOKEN, "gone", [("x", "host", 1), ("y", "host", 1)], lease_s=10.0)
    assert world.admit("c", "y") == "queued"
    world.now = 10.5
    world.registry.expire(lambda at: world.now - at)
    assert (world.state("a"), world.state("b"), world.state("c")) == ("running", "unknown", "running")


def test_a_scheduler_that_slept_holds_nobody_silent() -> None:
    """Silence counts while the scheduler looks; after a pause it begins anew."""
    time = {"now": 0.0}
    vigil = Vigil(lambda: time["now"])
    for time["now"] in np.arange(0.5, 10.0, 0.5):
        vigil.look()
    assert vigil.silence_s(2.0) == 7.5
    time["now"] = 70.0
    assert vigil.silence_s(2.0) == 0.0
    for time["now"] in np.arange(70.5, 75.0, 0.5):
        vigil.look()
    assert (vigil.silence_s(2.0), vigil.silence_s(73.0)) == (4.5, 1.5)
