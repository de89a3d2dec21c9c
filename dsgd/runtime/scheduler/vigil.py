"""For how long somebody was silent, as far as this process can tell.

Problem: a scheduler that was stopped, or that was busy for long, finds all heartbeats old when it wakes, and what has
been sent meanwhile is still to be read. It must not take everybody for hung because it slept itself.

Method: it looks at the clock twice a second. After a longer pause everybody's silence begins anew: no more is known.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

__all__ = ["Vigil"]

# After a longer pause between two looks silence proves nothing.
_PAUSE_S: Final = 3.0


class Vigil:
    """Since when this process has been awake without a pause.

    Parameters
    ----------
    clock : callable, default time.monotonic
        Returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._looked_at = self._awake_since = clock()

    def look(self) -> None:
        """Say that this process is awake; called twice a second."""
        now = self._clock()
        if now - self._looked_at > _PAUSE_S:
            self._awake_since = now
        self._looked_at = now

    def silence_s(self, heard_at: float) -> float:
        """Return for how many seconds of being awake nothing has come from somebody last heard at `heard_at`."""
        self.look()
        return self._looked_at - max(heard_at, self._awake_since)
