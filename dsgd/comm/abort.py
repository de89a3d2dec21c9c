"""The flag that stops all waiting ranks of a gang, and their deadlines."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from dsgd.errors import AbortedError, InvalidParameterError

# Eleven days; the kernel counts some deadlines in 32-bit milliseconds.
MAX_LIMIT_S: Final = 1e6


def check_limit(name: str, limit_s: float) -> None:
    """Raise `InvalidParameterError` unless a time limit in seconds can be kept."""
    if not 0 < limit_s <= MAX_LIMIT_S:
        raise InvalidParameterError(
            f"{name}=... must be a positive number of seconds, at most {MAX_LIMIT_S:g}. Got {limit_s}."
        )


class AbortFlag:
    """Tells a rank that its job has stopped; set from any thread, once.

    A rank reads it between slices of work with `check`. A transport that blocks registers a callback that wakes it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reason: str | None = None
        self._callbacks: list[Callable[[], None]] = []

    @property
    def is_set(self) -> bool:
        """Whether the job has stopped."""
        return self._reason is not None

    @property
    def reason(self) -> str:
        """Why the job has stopped; empty while it has not."""
        return self._reason or ""

    def set(self, reason: str) -> None:
        """Stop the job. The first reason stays; later calls do nothing."""
        with self._lock:
            if self._reason is not None:
                return
            self._reason = reason
            callbacks, self._callbacks = self._callbacks, []
        # Without the lock: callbacks take locks of their own, and none is asked for while this one is held.
        for wake in callbacks:
            wake()

    def on_set(self, wake: Callable[[], None]) -> None:
        """Call `wake` when the flag is set, at once if it already is."""
        with self._lock:
            if self._reason is None:
                self._callbacks.append(wake)
                return
        wake()

    def check(self) -> None:
        """Raise `AbortedError` if the job has stopped."""
        if self._reason is not None:
            raise AbortedError(self._reason)
