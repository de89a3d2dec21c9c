"""The queue and the leases of gangs under any sequence of events."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dsgd.runtime.messages import read_table
from dsgd.runtime.scheduler.jobs import Job
from dsgd.runtime.scheduler.registry import Registry

WORKERS = "wxyz"
CLIENTS = "abc"
TOKEN = b"t" * 32
LINGER_S = 10.0

numbers = st.integers(0, 30)
ranks = st.integers(0, 5)


class Gangs(RuleBasedStateMachine):
    """Clients, ranks, workers and the clock do what they like; ranks may share a worker."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.registry = Registry(self.deliver, lambda job_id: None, lambda: self.now)
        self.n_jobs = 0
        #: Jobs each worker has open, with their epochs: what its plugin would hold.
        self.open: dict[str, dict[str, int]] = {worker: {} for worker in WORKERS}
        self.versions: dict[str, int] = {}

    def deliver(self, worker: str, message: dict[str, Any]) -> None:
        """Do as a worker would, and check what the registry may not say."""
        job_id = message["job_id"]
        if message["action"] == "open":
            job = self.registry.jobs[job_id]
            assert self.open[worker].get(job_id, -1) < message["epoch"] == job.epoch, "a worker is told twice"
            self.open[worker][job_id] = job.epoch
            self.check_turn(job)
        elif message["action"] == "close":
            # The worker may have left and come back meanwhile.
            self.open[worker].pop(job_id, None)

    def check_turn(self, job: Job) -> None:
        """Check that a job which gets its workers needs none that an earlier one waits for."""
        for other in self.registry.jobs.values():
            if other is job:
                return
            assert not (waits(other) and set(other.workers) & set(job.workers)), "a later job was let past"

    def some_job(self, number: int) -> Job | None:
        """Return one of the jobs, if there is one."""
        jobs = list(self.registry.jobs.values())
        return jobs[number % len(jobs)] if jobs else None

    @rule(members=st.lists(st.sampled_from(WORKERS), min_size=1, max_size=5), client=st.sampled_from(CLIENTS))
    def admit(self, members: list[str], client: str) -> None:
        """Queue a new job."""
        self.n_jobs += 1
        self.registry.admit(str(self.n_jobs), 0, TOKEN, client, [(worker, "host", 1) for worker in members], 5.0)

    @rule(number=numbers)
    def admit_again(self, number: int) -> None:
        """Ask for a job once more, which changes nothing."""
        job = self.some_job(number)
        if job is not None:
            before = (job.phase, dict(self.registry.leases))
            self.registry.admit(job.job_id, job.epoch, TOKEN, job.client, [])
            assert before == (job.phase, self.registry.leases)

    @rule(number=numbers, members=st.lists(st.sampled_from(WORKERS), min_size=1, max_size=5))
    def form_anew(self, number: int, members: list[str]) -> None:
        """Ask for workers for the next epoch of a job, which keeps its place in the queue."""
        job = self.some_job(number)
        if job is not None:
            place = list(self.registry.jobs).index(job.job_id)
            gang = [(worker, "host", 2) for worker in members]
            self.registry.admit(job.job_id, job.epoch + 1, TOKEN, job.client, gang, 5.0)
            assert list(self.registry.jobs).index(job.job_id) == place
            self.versions.pop(job.job_id, None)
            before = dict(self.registry.leases)
            self.registry.finish(job.job_id, job.epoch, TOKEN, 0, {"kind": "raised", "text": "", "pickled": b""})
            assert self.registry.jobs[job.job_id].failure is None, "an epoch that is over was heard"
            assert before == self.registry.leases

    @rule(number=numbers, rank=ranks)
    def start(self, number: int, rank: int) -> None:
        """Begin a rank, or one that the job does not have."""
        job = self.some_job(number)
        if job is not None and job.phase == "granted":
            self.registry.member_started(job.job_id, job.epoch, TOKEN, rank)

    @rule(number=numbers, rank=ranks)
    def join(self, number: int, rank: int) -> None:
        """Give the address of a rank."""
        job = self.some_job(number)
        if job is None:
            return
        answer = self.registry.join(job.job_id, job.epoch, TOKEN, rank, f"h:{rank}")
        state = answer["join_state"]
        if job.phase != "granted" or rank >= len(job.members):
            assert state == "stale"
        if state == "ready":
            assert len(read_table(answer["table"])["addresses"]) == len(job.members)
            assert not job.stopped

    @rule(number=numbers, rank=ranks, kind=st.sampled_from(["", "raised", "aborted"]))
    def finish(self, number: int, rank: int, kind: str) -> None:
        """End a rank, well or not."""
        job = self.some_job(number)
        if job is not None and job.phase != "queued":
            failure = {"kind": kind, "text": "story", "pickled": b""} if kind else None
            self.registry.finish(job.job_id, job.epoch, TOKEN, rank, failure)

    @rule(number=numbers, rank=ranks, later=st.integers(0, 1))
    def say_something_stale(self, number: int, rank: int, later: int) -> None:
        """Speak with the wrong epoch or token, which is not heard."""
        job = self.some_job(number)
        if job is not None:
            before = (set(job.started), set(job.ended), dict(job.addresses), job.failure)
            epoch, token = job.epoch + later, TOKEN if later else b"wrong"
            self.registry.member_started(job.job_id, epoch, token, rank)
            self.registry.finish(job.job_id, epoch, token, rank, {"kind": "raised", "text": "", "pickled": b""})
            assert self.registry.join(job.job_id, epoch, token, rank, "h:9") == {"join_state": "stale"}
            assert before == (job.started, job.ended, job.addresses, job.failure)

    @rule(number=numbers)
    def abort(self, number: int) -> None:
        """Stop a job."""
        job = self.some_job(number)
        if job is not None:
            self.registry.abort(job.job_id, "enough")

    @rule(number=numbers)
    def close(self, number: int) -> None:
        """End a job."""
        job = self.some_job(number)
        if job is not None:
            self.registry.close(job.job_id)

    @rule(worker=st.sampled_from(WORKERS))
    def lose_worker(self, worker: str) -> None:
        """Take a worker away."""
        # Another one may come at the same address later.
        self.open[worker].clear()
        self.registry.worker_left(worker)
        for job in self.registry.jobs.values():
            assert worker not in job.workers or job.failure is not None or job.phase == "closed"

    @rule(client=st.sampled_from(CLIENTS))
    def lose_client(self, client: str) -> None:
        """Take a client away."""
        self.registry.client_left(client)
        assert all(job.client != client or job.phase == "closed" for job in self.registry.jobs.values())

    @rule(number=numbers, silent_s=st.dictionaries(st.sampled_from(WORKERS), st.floats(0, 10)))
    def hear(self, number: int, silent_s: dict[str, float]) -> None:
        """Find workers silent."""
        job = self.some_job(number)
        if job is not None:
            self.registry.hear(job.job_id, silent_s)

    @rule(seconds=st.floats(0, 12))
    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds

    @rule(number=numbers)
    def ask(self, number: int) -> None:
        """Look at a job as its client does."""
        job = self.some_job(number)
        if job is None:
            return
        status = self.registry.status(job.job_id)
        assert status["job_state"] in ("unknown", "queued", "running", "done", "failed")
        assert (status["position"] > 0) == (job.phase == "queued") if job.phase != "closed" else True
        assert (status.get("failure") is not None) == (status["job_state"] == "failed")
        if job.phase != "closed":
            assert status["version"] >= self.versions.get(job.job_id, 0)
            self.versions[job.job_id] = status["version"]

    @invariant()
    def every_lease_has_its_job(self) -> None:
        """No worker is held by a job that is unknown, still queued or elsewhere."""
        for worker, job_id in self.registry.leases.items():
            job = self.registry.jobs[job_id]
            assert job.phase != "queued"
            assert worker in job.workers

    @invariant()
    def a_worker_has_one_running_job(self) -> None:
        """A job that runs holds every worker of it, so that no two can meet on one."""
        for job in self.registry.jobs.values():
            if job.phase == "granted" and job.failure is None:
                assert all(self.registry.leases[worker] == job.job_id for worker in job.workers)

    @invariant()
    def nobody_waits_for_nothing(self) -> None:
        """A job in the queue waits for a lease, or for workers that a job wants which does."""
        waiting = [set(job.workers) for job in self.registry.jobs.values() if waits(job)]
        taken = set(self.registry.leases)
        while blocked := [workers for workers in waiting if workers & taken]:
            waiting = [workers for workers in waiting if not workers & taken]
            taken = taken.union(*blocked)
        assert not waiting

    @invariant()
    def workers_hold_open_what_runs(self) -> None:
        """A worker has a job open only while the job is granted there, or waits for its next epoch there."""
        for worker, held in self.open.items():
            for job_id, epoch in held.items():
                job = self.registry.jobs[job_id]
                assert worker in job.workers
                assert job.phase == "granted" if epoch == job.epoch else job.phase == "queued"

    @rule(number=numbers)
    def lapse(self, number: int) -> None:
        """Let the lease of a job run out, and of no other."""
        job = self.some_job(number)
        if job is not None:
            others = [j for j in self.registry.jobs.values() if j is not job and j.phase != "closed"]
            job.lease_s, job.renewed_at = 60.0, self.now - 61.0
            self.registry.expire(lambda at: self.now - at)
            assert job.phase == "closed"
            assert all(other.phase != "closed" for other in others)
            job.lease_s = float("inf")

    def teardown(self) -> None:
        """Whatever happened, when the clients have gone and ranks had their time, nothing is left."""
        for client in CLIENTS:
            self.registry.client_left(client)
        self.now += LINGER_S + 1.0
        self.registry.status("")
        assert not self.registry.jobs
        assert not self.registry.leases
        assert not any(self.open.values())


def waits(job: Job) -> bool:
    return job.phase == "queued" and not job.stopped


TestGangs = Gangs.TestCase
TestGangs.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestGangs.__doc__ = "Admission, leases and the end of jobs hold their promises under any sequence of events."
