"""What a worker process keeps for the jobs it takes part in.

Everything is keyed by job and held by one worker's plugin, never by the module: several workers may share a process.
A job is opened by the scheduler before any of its tasks can arrive and closed by it in the end, so a task that comes
late finds no job and does nothing.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field
from typing import Any

from dsgd.comm.base import AbortFlag
from dsgd.comm.rpc import Switchboard

__all__ = ["JobState", "JobStore"]


@dataclass
class JobState:
    """What one worker keeps for one job.

    Parameters
    ----------
    job_id, epoch, token
        Which job this is; a task must show all three.
    abort : AbortFlag
        Set when the job stops.
    task_key : object
        Key of the rank's task, once it runs.
    relays : Switchboard
        Connections of this worker's ranks that go through its own port.
    """

    job_id: str
    epoch: int
    token: bytes
    abort: AbortFlag = field(default_factory=AbortFlag)
    task_key: Any = None
    relays: Switchboard = field(default_factory=Switchboard)


class JobStore:
    """The jobs of one worker."""

    def __init__(self) -> None:
        self._jobs: dict[str, JobState] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def open(self, job_id: str, epoch: int, token: bytes) -> None:
        """Make room for a job."""
        self.close(job_id, "a new epoch of the job began")
        job = self._jobs[job_id] = JobState(job_id, epoch, token)
        job.abort.on_set(job.relays.close)

    def find(self, job_id: str, epoch: int, token: bytes) -> JobState | None:
        """Return the job, or None if it is not open here or is another epoch."""
        job = self._jobs.get(job_id)
        if job is None or job.epoch != epoch or not hmac.compare_digest(job.token, token):
            return None
        return job

    def abort(self, job_id: str, epoch: int, reason: str) -> None:
        """Stop a job."""
        job = self._jobs.get(job_id)
        if job is not None and job.epoch == epoch:
            job.abort.set(reason)

    def abort_task(self, key: Any, reason: str) -> None:
        """Stop the job whose rank runs as the task `key`."""
        for job in list(self._jobs.values()):
            if job.task_key is not None and job.task_key == key:
                job.abort.set(reason)

    def close(self, job_id: str, reason: str = "the job was closed") -> None:
        """Forget a job; a rank of it that still runs is told to stop."""
        job = self._jobs.pop(job_id, None)
        if job is not None:
            job.abort.set(reason)

    def close_all(self, reason: str) -> None:
        """Forget every job."""
        for job_id in list(self._jobs):
            self.close(job_id, reason)
