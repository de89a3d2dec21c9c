"""Jobs of a cluster: fits that outlive their process, and lists of all that run.

`submit` sends a fit, `driver` runs it on a worker, `listing` asks the scheduler. The scheduler's side is
`dsgd.runtime.scheduler.detached`. Start reading in `detached`.
"""

from __future__ import annotations

from dsgd.jobs.detached import DetachedFit, JobInfo, attach, cancel, find_job, list_jobs, submit

__all__ = ["DetachedFit", "JobInfo", "attach", "cancel", "find_job", "list_jobs", "submit"]
