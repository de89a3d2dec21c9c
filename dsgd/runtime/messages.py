"""What members of a gang tell each other: names of streams, the job that a message belongs to, versions."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
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

#: Of the names of detached fits: of their tasks, of the datasets that hold these, and of the clients of these.
FIT_PREFIX: Final = "dsgd-fit-"


def pack_table(addresses: Sequence[str], workers: Sequence[str], n_cores: int) -> bytes:
    """Return what every member of a gang is told when the last has come, the same bytes for each."""
    return json.dumps({"addresses": list(addresses), "workers": list(workers), "n_cores": n_cores}).encode()


def read_table(table: bytes) -> dict[str, Any]:
    """Return what `pack_table` was given, by name."""
    found: dict[str, Any] = json.loads(table)
    return found


@dataclass(frozen=True)
class MemberCredentials:
    """The identity of a gang's member: every message carries it, and messages of finished jobs are refused."""

    job_id: str
    epoch: int
    token: bytes = field(repr=False)
    member: int

    def as_message(self) -> dict[str, Any]:
        """Return the fields as message arguments."""
        return {"job_id": self.job_id, "epoch": self.epoch, "token": self.token, "member": self.member}


#: The dsgd that this process runs; another version may be installed by now.
LOADED_VERSION: Final = version("dsgd")


def local_versions() -> dict[str, str]:
    """Return the versions that must agree: dsgd exactly, Python to the minor version, numpy to the major one."""
    return {
        "dsgd": LOADED_VERSION,
        "python": ".".join(platform.python_version_tuple()[:2]),
        "numpy": version("numpy").split(".")[0],
    }
