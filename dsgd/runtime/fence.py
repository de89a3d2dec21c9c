"""The job and epoch that every message carries, so that messages of finished jobs are refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Fence"]


@dataclass(frozen=True)
class Fence:
    """What every message of a member shows, so that one of a job that is over is turned away.

    Parameters
    ----------
    job_id : str
        The job.
    epoch : int
        Which start of it.
    token : bytes
        32 secret bytes, known to the members of the gang alone.
    member : int
        Number of the member; one worker process, which may run several ranks.
    """

    job_id: str
    epoch: int
    token: bytes
    member: int

    def as_message(self) -> dict[str, Any]:
        """Return the fields as message arguments."""
        return {"job_id": self.job_id, "epoch": self.epoch, "token": self.token, "member": self.member}
