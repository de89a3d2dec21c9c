"""The jobs of a scheduler: which there are, what they do, and how to stop one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dsgd.errors import ClusterError
from dsgd.runtime.gang.client import call_scheduler, owner_here, require_cluster
from dsgd.runtime.gang.cluster import check_scheduler
from dsgd.runtime.scheduler.plugin import SCHEDULER_PLUGIN
from dsgd.runtime.timeouts import Timeouts


@dataclass(frozen=True)
class JobInfo:
    """What a scheduler knows about a job: a fit whose process waits for it, or a detached one.

    Parameters
    ----------
    id : str
        Its identity.
    title : str
        What is fitted.
    state : str
        ``"queued"``, ``"running"`` or ``"stopping"``; of a detached fit also ``"done"``, ``"failed"`` or
        ``"cancelled"``.
    detached : bool
        Whether it outlives its process; then the fields from `place` to `workers` are those of its present gang.
    owner : str
        Who started it: user, host and process.
    submitted : float
        When, in seconds since 1970.
    started : float or None
        When it began to run.
    elapsed_s : float
        Seconds since it was submitted, or until it ended.
    place : int or None
        Its place in the queue, from 1; None if it does not wait.
    ranks : int or None
        Number of its ranks.
    strategy : str
        When and what they exchange, once they train.
    epoch, max_iter : int or None
        The epoch it is in, and how many there are at most.
    train_loss : float or None
        The training loss of this epoch.
    workers : tuple of str
        The workers of its ranks.
    driver : str
        The worker that drives a detached fit.
    attempts : int or None
        How often a detached fit has begun.
    failure : str or None
        Why it failed, or stops.
    kept_until : float or None
        Until when the result of a detached fit stays, in seconds since 1970.
    """

    id: str
    title: str
    state: str
    detached: bool
    owner: str
    submitted: float
    started: float | None
    elapsed_s: float
    place: int | None
    ranks: int | None
    strategy: str
    epoch: int | None
    max_iter: int | None
    train_loss: float | None
    workers: tuple[str, ...]
    driver: str
    attempts: int | None
    failure: str | None
    kept_until: float | None


def list_jobs(client: Any = None) -> list[JobInfo]:
    """Return the jobs of a scheduler, and its detached fits until they are forgotten, of all users, newest first.

    Parameters
    ----------
    client : distributed.Client or None, default None
        A client of the scheduler; None takes the current client.

    Raises
    ------
    ClusterError
        There is no client.
    VersionMismatchError
        The scheduler has no dsgd, or another version.
    """
    client = require_cluster(client)
    if SCHEDULER_PLUGIN not in check_scheduler(client, _patience_s()):
        return []  # nobody has trained here
    return [JobInfo(**job) for job in call_scheduler(client, "dsgd_jobs", _patience_s())]


def find_job(job_id: str, client: Any = None) -> JobInfo:
    """Return the job whose identity begins with some digits.

    Raises
    ------
    ClusterError
        There is none, or several.
    """
    client = require_cluster(client)
    found = [job for job in list_jobs(client) if job.id.startswith(job_id)]
    if len(found) > 1:
        raise ClusterError(f"{len(found)} jobs begin with {job_id!r}: {', '.join(job.id for job in found)}.")
    if not found:
        raise ClusterError(
            f"the scheduler of {client!r} has no job {job_id!r}: it has ended, was forgotten, or another scheduler "
            "has it."
        )
    return found[0]


def cancel(job_id: str, client: Any = None) -> bool:
    """Stop a job of any user; return whether it had not ended yet.

    A job that is not detached raises `GangError` in its process. Whatever its ``on_failure`` says, it does not begin
    again.

    Parameters
    ----------
    job_id : str
        Its identity, in full.
    client : distributed.Client or None, default None
        A client of the scheduler; None takes the current client.
    """
    client = require_cluster(client)
    reason = f"it was cancelled by {owner_here()}"
    return bool(call_scheduler(client, "dsgd_cancel", _patience_s(), job_id=job_id, reason=reason))


def _patience_s() -> float:
    return Timeouts().seconds("scheduler")
