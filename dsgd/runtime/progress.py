"""Progress of a running job: events, limited in rate at their source, and ranks that are slower than others.

All ranks wait for the slowest one in every round, and the one that never waits is the slow one. With the control
message of an epoch every rank sends rank 0 the seconds that it has computed and the rows that it has visited. Over a
window of at least 20 rounds and two seconds, a rank is slow that takes more than twice as long per row as the median
rank, if its computing is a good part of that time at all. Of two ranks the faster one counts as the median. Cost: two
numbers per rank in a message that is sent anyway.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from dsgd.ledger import COMPUTE, RankLedger
from dsgd.progress import StopTraining
from dsgd.types import FloatMatrix, FloatVector

_PERIOD_S: Final = 0.2


class Publisher:
    """Passes events on at most every 0.2 s, those with a ``phase`` at once, and always the last one."""

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


_SLOW: Final = 2.0
_MIN_ROUNDS: Final = 20
_MIN_WINDOW_S: Final = 2.0

# A rank that computes for less of its time than this does not delay the others, however slow it is.
_MIN_SHARE: Final = 0.2


@dataclass(frozen=True)
class Straggler:
    """A rank that was slow."""

    rank: int
    slowdown: float
    rounds: int
    seconds: float


class StragglerWatch:
    """A rank's record of its own pace and, on rank 0, of which ranks are slow."""

    def __init__(
        self, rank: int, size: int, ledger: RankLedger, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.found: dict[int, Straggler] = {}
        self._rank, self._size, self._ledger, self._clock = rank, size, ledger, clock
        self._open()

    @property
    def window_s(self) -> float:
        """How long the present window is, on rank 0; zero on the others, so that the sum is what rank 0 says."""
        return self._clock() - self._begin if self._rank == 0 else 0.0

    def pace(self, n_rows: int) -> FloatVector:
        """Return what this rank has done in the window, after another `n_rows` rows: seconds of computing, and rows."""
        self._n_rows += n_rows
        return np.array([self._ledger.total_s(COMPUTE) - self._compute_s, self._n_rows])

    def update(self, paces: FloatMatrix | None, window_s: float, n_rounds: int) -> list[Straggler]:
        """Take in what ranks have said after another `n_rounds` rounds; return the ranks that are newly found slow."""
        self._n_rounds += n_rounds
        if self._size == 1 or self._n_rounds < _MIN_ROUNDS or window_s < _MIN_WINDOW_S:
            return []
        if paces is None:
            self._open()
            return []
        seconds, rows = paces.T
        slow = [
            Straggler(rank, slowdown, self._n_rounds, window_s)
            for rank, slowdown in slowdowns(seconds, rows).items()
            if slowdown > _SLOW and seconds[rank] >= _MIN_SHARE * window_s
        ]
        fresh = [straggler for straggler in slow if straggler.rank not in self.found]
        self.found |= {straggler.rank: straggler for straggler in slow}
        self._open()
        return fresh

    def _open(self) -> None:
        """Begin a window."""
        self._begin = self._clock()
        self._compute_s = self._ledger.total_s(COMPUTE)
        self._n_rows = self._n_rounds = 0


def slowdowns(seconds: FloatVector, rows: FloatVector) -> dict[int, float]:
    """Return the seconds per row of each rank over the (lower) median of them; without ranks that have done nothing."""
    pace = seconds / np.maximum(rows, 1.0)
    busy = np.flatnonzero((pace > 0.0) & (rows > 0.0))
    if busy.size < 2:
        return {}
    middle = float(np.sort(pace[busy])[(busy.size - 1) // 2])
    return {int(rank): float(pace[rank]) / middle for rank in busy}


def straggler_text(event: Mapping[str, Any], worker: str = "", host: str = "") -> str:
    """Return what to tell the user of a straggler."""
    where = f" on worker {worker} (host {host})" if worker else ""
    return (
        f"rank {event['rank']}{where} is slow: over {event['rounds']} rounds ({event['seconds']:.1f} s) a row took it "
        f"{event['slowdown']:.1f} times as long as the median rank. Look for other work on its cores, a slower "
        "machine, or rows with more nonzeros; sync=AnytimeSGD(seconds=...) lets no rank wait for it."
    )
