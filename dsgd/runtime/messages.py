"""The names of the message streams between scheduler and workers."""

from __future__ import annotations

from typing import Final

__all__ = ["HEARTBEAT", "JOB_ORDER", "MEMBER_END", "MEMBER_EVENT"]

#: From the scheduler to a worker: open, abort, end early or close a job.
JOB_ORDER: Final = "dsgd-job"
#: From a worker to the scheduler: a member has started, or tells of its progress.
MEMBER_EVENT: Final = "dsgd-member-event"
#: From a worker to the scheduler: a member has ended.
MEMBER_END: Final = "dsgd-member-end"
#: From a worker to the scheduler: its event loop turns.
HEARTBEAT: Final = "dsgd-heartbeat"
