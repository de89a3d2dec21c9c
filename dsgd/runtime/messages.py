"""The names of the message streams between scheduler and workers, and what all members of a gang are told."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

#: From the scheduler to a worker: open, abort, end early or close a job.
JOB_ORDER: Final = "dsgd-job"
#: From a worker to the scheduler: a member has started, or tells of its progress.
MEMBER_EVENT: Final = "dsgd-member-event"
#: From a worker to the scheduler: a member has ended.
MEMBER_END: Final = "dsgd-member-end"
#: From a worker to the scheduler: its event loop turns.
HEARTBEAT: Final = "dsgd-heartbeat"
#: From a worker to the scheduler: it can run ranks, or why it cannot.
WORKER_ANSWER: Final = "dsgd-worker-answer"


def pack_table(addresses: Sequence[str], workers: Sequence[str], n_cores: int) -> bytes:
    """Return what every member of a gang is told when the last has come, the same bytes for each."""
    return json.dumps({"addresses": list(addresses), "workers": list(workers), "n_cores": n_cores}).encode()


def read_table(table: bytes) -> dict[str, Any]:
    """Return what `pack_table` was given, by name."""
    found: dict[str, Any] = json.loads(table)
    return found
