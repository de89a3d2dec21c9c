r"""Fair shares: in which order the jobs of several users get the workers that they want.

Problem: who submits a hundred jobs at once keeps everybody else waiting until the last of them is done, if the first to
come is the first to be served. Order by need alone keeps wide gangs waiting for ever, because all their workers have to
be free at once.

Method: the user who had least comes first (J. Kay and P. Lauder, A fair share scheduler, Communications of the ACM
31(1), 1988). What users had is counted in seconds times workers, of which half is forgotten every hour,

.. math:: u' = h - u \\, \\ln 2 / T,

with h workers held and T the half-life. Users who had the same take their jobs by how many workers they hold, and then
in the order in which these came. Jobs of a higher priority come before, whoever wants them. A job keeps its place: one
behind it may only run first if it needs none of its workers. Two things bound this:

* No job is passed more than `MOST_PASSES` times by later ones; then it comes first. So a wide gang runs in the end.
* A user may hold a limited number of workers. Jobs beyond that wait, and keep nobody waiting; a gang that is wider than
  the limit runs when its user holds nothing else.

Cost: a sort of the queue for each job that gets its workers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from dsgd.runtime.scheduler.jobs import Job

__all__ = ["MOST_PASSES", "FairQueue", "Shares"]

#: How often later jobs may take a worker that a job in the queue wants.
MOST_PASSES: Final = 8
#: After so many seconds half of what a user had is forgotten.
_HALF_LIFE_S: Final = 3600.0
# Below this many seconds of one worker it is as if a user had had nothing.
_NOTHING_S: Final = 0.01


class Shares:
    """Which user holds which worker, and what users had lately.

    Parameters
    ----------
    clock : callable
        Returns seconds.
    half_life_s : float, default 3600
        After so many seconds half of what a user had is forgotten.
    """

    def __init__(self, clock: Callable[[], float], half_life_s: float = _HALF_LIFE_S) -> None:
        self._clock, self._decay = clock, math.log(2.0) / half_life_s
        self._holder: dict[str, str] = {}
        self._had: dict[str, tuple[float, float]] = {}
        self.held: Counter[str] = Counter()

    def lease(self, worker: str, user: str) -> None:
        """Record that a user holds a worker from now on."""
        self.free(worker)
        self._settle(user)
        self._holder[worker] = user
        self.held[user] += 1

    def free(self, worker: str) -> None:
        """Record that nobody holds a worker any more."""
        user = self._holder.pop(worker, None)
        if user is not None:
            self._settle(user)
            self.held[user] -= 1
            if not self.held[user]:
                del self.held[user]

    def used_s(self, user: str) -> float:
        """Return what a user had lately, in seconds times workers."""
        had, at = self._had.get(user, (0.0, 0.0))
        left = math.exp(-self._decay * (self._clock() - at))
        return had * left + self.held[user] * (1.0 - left) / self._decay

    def _settle(self, user: str) -> None:
        self._had[user] = self.used_s(user), self._clock()
        for other in [other for other in self._had if not self.held[other] and self.used_s(other) < _NOTHING_S]:
            if other != user:
                del self._had[other]


class FairQueue:
    """The jobs of a registry that wait, in the order in which they get their workers.

    Parameters
    ----------
    jobs : mapping of str to Job
        All jobs, in the order in which they came.
    leases : mapping of str to str
        The workers that are held.
    clock : callable
        Returns seconds.
    most_workers : int or None
        How many workers a user may hold; None sets no limit.

    Attributes
    ----------
    shares : Shares
        Who holds the workers; told by the registry.
    """

    def __init__(
        self,
        jobs: Mapping[str, Job],
        leases: Mapping[str, str],
        clock: Callable[[], float],
        most_workers: int | None = None,
    ) -> None:
        self._jobs, self._leases, self.most_workers = jobs, leases, most_workers
        self.shares = Shares(clock)

    def order(self) -> list[Job]:
        """Return the jobs that wait, the next first."""
        waiting = [job for job in self._jobs.values() if job.phase == "queued"]
        # Once for each user: time passes from one reading to the next, and would put the jobs of a user in disorder.
        had = {user: (self.shares.used_s(user), self.shares.held[user]) for user in {job.user for job in waiting}}
        return sorted(waiting, key=lambda job: _key(job, *had[job.user]))

    def place(self, job: Job) -> int:
        """Return the place of a job among those that wait, from 1; 0 if it does not."""
        return next((place for place, other in enumerate(self.order(), 1) if other is job), 0)

    def next(self) -> Job | None:
        """Return the first job whose workers are free and wanted by none before it; None if there is none."""
        wanted: set[str] = set()
        for job in self.order():
            if job.stopped or self.is_limited(job):
                continue
            workers = set(job.workers)
            if not workers & (wanted | self._leases.keys()):
                return job
            wanted |= workers
        return None

    def pass_over(self, job: Job) -> None:
        """Record that a job gets its workers, for earlier ones that want some of them; called before it holds them."""
        workers = set(job.workers)
        for other in self._jobs.values():
            if other is job:
                return
            waits = other.phase == "queued" and not other.stopped and not self.is_limited(other)
            if waits and workers & set(other.workers):
                other.passes += 1

    def is_limited(self, job: Job) -> bool:
        """Return whether a job waits because its user holds as many workers as one may."""
        held = self.shares.held[job.user]
        return self.most_workers is not None and held > 0 and held + len(job.workers) > self.most_workers


def _key(job: Job, used_s: float, held: int) -> tuple[bool, int, float, int]:
    # Sorting keeps the order of those that are equal, in which they came.
    if job.passes >= MOST_PASSES:
        return False, 0, 0.0, 0
    return True, -job.priority, used_s, held
