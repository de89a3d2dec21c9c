"""An array shared by the threads of a process.

Problem: methods without locks have all ranks read and write one model, at any time, and not copies of it.

Cost: two barriers, once.
"""

from __future__ import annotations

from typing import final

from dsgd.types import AnyArray


@final
class SharedArray:
    """Where the ranks of a process leave an array for each other; see `dsgd.collectives.Group.share`."""

    def __init__(self) -> None:
        self.array: AnyArray | None = None
