"""What an SVM does when a machine of its gang fails, and what it keeps on disk: checks of these parameters."""

from __future__ import annotations

import os
from typing import Any

from dsgd.errors import InvalidParameterError
from dsgd.runtime.checkpoints.checkpoint import AUTO, Checkpoint
from dsgd.runtime.timeouts import FailurePolicy, Shrink, as_policy


def check_restart(name: str, value: FailurePolicy) -> None:
    """Refuse what is no policy, and to go on without rows."""
    if isinstance(as_policy(f"{name}(on_failure=...)", value), Shrink):
        raise InvalidParameterError(
            f"{name}(on_failure={value!r}) would go on without the rows of the lost machine, but its gap is proven "
            'over all rows. Take "restart", which brings them back, or "raise".'
        )


def check_saving(name: str, checkpoint: Any, resume_from: Any) -> None:
    """Refuse places of checkpoints that are none."""
    for what, value, kinds in (
        ("checkpoint", checkpoint, (str, os.PathLike, Checkpoint, type(None))),
        ("resume_from", resume_from, (str, os.PathLike, type(None))),
    ):
        if not isinstance(value, kinds) or value == "":
            also = " or a Checkpoint" if Checkpoint in kinds else ""
            raise InvalidParameterError(f"{name}({what}=...) must be None, a folder, a URL{also}. Got {value!r}.")
    if resume_from == AUTO and checkpoint is None:
        raise InvalidParameterError(
            f"{name}(resume_from='auto') resumes from the folder of the checkpoints: set checkpoint=... as well."
        )
