"""Durations of silence, as far as this process can tell.

Problem: a scheduler that was stopped, or busy for long, finds all heartbeats old when it wakes, while newer ones are
still unread. It must not consider all workers hung because it slept itself.

Method: it reads the clock twice a second. After a longer pause all silences are counted from zero again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

__all__ = ["Vigil"]

# After a longer pause between two readings silence proves nothing.
_PAUSE_S: Final = 3.0


class Vigil:
    """The time since when this process has been awake without a pause.

    Parameters
    ----------
    clock : callable, default time.monotonic
        Returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._looked_at = self._awake_since = clock()

    def look(self) -> None:
        """Record that this process is awake; called twice a second."""
        now = self._clock()
        if now - self._looked_at > _PAUSE_S:
            self._awake_since = now
        self._looked_at = now

    def silence_s(self, heard_at: float) -> float:
        """Return the seconds awake since `heard_at`, the time of the last message of a sender."""
        self.look()
        return self._looked_at - max(heard_at, self._awake_since)
