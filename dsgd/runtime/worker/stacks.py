"""Where the ranks of a worker were when their job stopped.

Problem: an error that says that a rank waited for another one too long does not say what that one did instead.

Method: a worker knows the threads of its ranks. When the job stops, for whatever reason, it looks where they are,
before any of them has heard of it; a rank that raised is where it raised. The client asks for that when it raises an
error that a deadline was missed. A process that is stopped, or whose interpreter lock is held, cannot answer.
"""

from __future__ import annotations

import sys
import threading
import traceback

_N_FRAMES = 16


class Recorder:
    """The stacks of the ranks of one job on one worker."""

    def __init__(self) -> None:
        self._threads: dict[int, int] = {}
        self._stacks: dict[int, str] = {}
        self._is_taken = False

    def enter(self, rank: int) -> None:
        """Say that a rank runs in this thread."""
        self._threads[rank] = threading.get_ident()

    def keep(self, rank: int, error: BaseException) -> None:
        """Note where a rank raised."""
        self._stacks.setdefault(rank, "".join(traceback.format_tb(error.__traceback__)[-_N_FRAMES:]))

    def take(self) -> None:
        """Note where the ranks are, once."""
        if self._is_taken:
            return
        self._is_taken = True
        frames = sys._current_frames()
        for rank, thread in list(self._threads.items()):
            frame = frames.get(thread)
            if frame is not None:
                self._stacks.setdefault(rank, "".join(traceback.format_stack(frame)[-_N_FRAMES:]))

    def stacks(self) -> dict[int, str]:
        """Return where each rank was when the job stopped or, of a job that goes on, where it is now."""
        self.take()
        return dict(self._stacks)
