"""In which order jobs get workers: first come, first served, and nobody waits for ever."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dsgd.runtime.scheduler.registry import Registry

TOKEN = b"t" * 32


class Cluster:
    """A registry whose workers are letters; checks whenever a job gets its workers that no earlier one wants them."""

    def __init__(self) -> None:
        self.registry = Registry(lambda worker, message: None, lambda job_id: None, log=self._log)
        self.order: list[str] = []

    def _log(self, record: dict[str, Any]) -> None:
        if record["state"] != "running":
            return
        self.order.append(record["job"])
        jobs = list(self.registry.jobs.values())
        mine = next(job for job in jobs if job.job_id == record["job"])
        for earlier in jobs[: jobs.index(mine)]:
            assert earlier.phase != "queued" or not set(earlier.workers) & set(mine.workers)

    def ask(self, job_id: str, workers: str, epoch: int = 0) -> None:
        """Ask for workers."""
        self.registry.admit(job_id, epoch, TOKEN, "client", [(worker, "host", 1) for worker in workers])

    @property
    def running(self) -> list[str]:
        """Jobs that have their workers."""
        return [job.job_id for job in self.registry.jobs.values() if job.phase == "granted"]

    def drain(self) -> list[str]:
        """End one job after another, the longest running first; return all in the order in which they ran."""
        for _ in range(10_000):
            if not self.running:
                return self.order
            self.registry.close(min(self.running, key=self.order.index))
        raise AssertionError("jobs wait for ever")


def test_jobs_run_in_the_order_they_came() -> None:
    """Of jobs that want the same workers the first to come is the first to be served."""
    cluster = Cluster()
    for k in range(5):
        cluster.ask(f"a{k}", "xy" if k % 2 else "yz")
    assert cluster.drain() == [f"a{k}" for k in range(5)]


def test_a_wide_gang_is_not_passed_by_narrow_ones() -> None:
    """It gets its workers when those who came before it have ended, however many come after it."""
    cluster = Cluster()
    for k, worker in enumerate("wxyz"):
        cluster.ask(f"a{k}", worker)
    cluster.ask("wide", "wxyz")
    for k in range(40):
        cluster.ask(f"n{k}", "wxyz"[k % 4])
    assert cluster.drain().index("wide") == 4


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
    assert (cluster.registry.status("b0")["ahead"], cluster.registry.status("b1")["ahead"]) == (["x"], [])


def test_a_gang_that_is_formed_again_keeps_its_place() -> None:
    """A job that asks again in the queue, for other workers, has waited since it came."""
    cluster = Cluster()
    cluster.ask("a0", "x")
    cluster.ask("wide", "xy")
    cluster.ask("b0", "y")
    cluster.ask("wide", "xz", epoch=1)
    assert cluster.running == ["a0", "b0"]
    cluster.ask("c0", "z")
    assert cluster.drain() == ["a0", "b0", "wide", "c0"]


@settings(deadline=None)
@given(
    jobs=st.lists(st.text("wxyz", min_size=1, max_size=4), max_size=40),
    early=st.integers(0, 40),
    ends=st.lists(st.integers(0, 3), min_size=40, max_size=40),
)
def test_nobody_waits_for_ever(jobs: list[str], early: int, ends: list[int]) -> None:
    """All jobs run, whatever they want and in whatever order they end; none before an earlier one that it blocks."""
    cluster = Cluster()
    for k, workers in enumerate(jobs):
        cluster.ask(f"j{k}", workers)
        if k >= early and cluster.running:
            cluster.registry.close(cluster.running[ends[k] % len(cluster.running)])
    assert sorted(cluster.drain()) == sorted(f"j{k}" for k in range(len(jobs)))
    assert not cluster.registry.leases
