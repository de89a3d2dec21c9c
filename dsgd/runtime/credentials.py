"""The job and epoch that every message carries, so that messages of finished jobs are refused."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


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
