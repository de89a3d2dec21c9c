"""Progress events of a running job, limited in rate at their source."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from dsgd.progress.callback import StopTraining

_PERIOD_S: Final = 0.2


class Publisher:
    """Passes events on at most every 0.2 s, and always the last one.

    A program may publish at any rate: an event that comes too early replaces the one that waits. Events with a
    ``phase`` are rare and are not repeated, so they pass at once.
    """

    def __init__(self, send: Callable[[Mapping[str, Any]], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._send = send
        self._clock = clock
        self._next = -np.inf
        self._waiting: Mapping[str, Any] | None = None

    def __call__(self, event: Mapping[str, Any]) -> None:
        """Pass an event on, now or when its time has come."""
        if "phase" in event:
            self._send({str(name): _plain(value) for name, value in event.items()})
            return
        self._waiting = event
        if self._clock() >= self._next:
            self.flush()

    def flush(self) -> None:
        """Pass on the event that waits, if one does."""
        if self._waiting is not None:
            event, self._waiting = self._waiting, None
            self._next = self._clock() + _PERIOD_S
            self._send({str(name): _plain(value) for name, value in event.items()})


def heeding(
    on_event: Callable[[Mapping[str, Any]], None], enough: threading.Event
) -> Callable[[Mapping[str, Any]], None]:
    """Return `on_event`, which sets `enough` where it would raise `StopTraining`."""

    def tell(event: Mapping[str, Any]) -> None:
        try:
            on_event(event)
        except StopTraining:
            enough.set()

    return tell


def _plain(value: Any) -> Any:
    # msgpack carries neither numpy scalars nor arrays.
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, bool | int | float | str | None) else str(value)
