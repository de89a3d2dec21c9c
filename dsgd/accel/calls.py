"""The record of fits of accelerated estimators: which solver trained each, in how many seconds, and why."""

from __future__ import annotations

import logging
import sys
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final, Literal

LOG: Final = logging.getLogger("dsgd.accel")
_MOST_CALLS: Final = 10_000


@dataclass(frozen=True)
class Call:
    """A fit of an accelerated estimator.

    Parameters
    ----------
    estimator : str
        Name of the class.
    shape : tuple of int
        Rows and columns.
    by : {"dsgd", "scikit-learn"}
        The solver that trained it.
    seconds : float
        Wall time of the call, without `compared_s`.
    reason : str
        Why scikit-learn trained it; empty if it did not.
    compared_s : float or None
        Wall time of the same fit with scikit-learn, if it was asked for.
    """

    estimator: str
    shape: tuple[int, int]
    by: Literal["dsgd", "scikit-learn"]
    seconds: float
    reason: str = ""
    compared_s: float | None = None

    @property
    def saved_s(self) -> float | None:
        """Seconds saved, negative if lost; None without a comparison."""
        return None if self.compared_s is None else self.compared_s - self.seconds

    def __str__(self) -> str:
        rows, columns = self.shape
        text = f"{self.estimator}.fit of {rows:,} x {columns:,}: {self.by} {self.seconds:.3g} s"
        if self.saved_s is not None:
            text += f", {'saved' if self.saved_s >= 0 else 'cost'} {abs(self.saved_s):.3g} s"
        return f"{text} ({self.reason})" if self.reason else text


@dataclass
class Settings:
    """The settings of `dsgd.accel.install`."""

    verbose: bool = False
    compare: bool = False
    excluded: frozenset[str] = frozenset()
    told: set[tuple[str, str]] = field(default_factory=set)
    origin: int | None = None
    is_on: bool = False


SETTINGS: Final = Settings()
_calls: deque[Call] = deque(maxlen=_MOST_CALLS)
_lock: Final = threading.Lock()


def note(call: Call, *, expected: bool) -> None:
    """Record a call; print it if verbose, otherwise log the reason once if it was not expected."""
    with _lock:
        _calls.append(call)
        is_news = not expected and (call.estimator, call.reason) not in SETTINGS.told
        SETTINGS.told.add((call.estimator, call.reason))
    if SETTINGS.verbose:
        sys.stderr.write(f"dsgd.accel: {call}\n")
    elif is_news:
        LOG.warning("dsgd.accel: scikit-learn trains this %s: %s", call.estimator, call.reason)


def note_refusal(estimator: str, reason: str) -> None:
    """Log, once for each reason, that scikit-learn predicts because our estimator could not be made from its own."""
    with _lock:
        is_news = (estimator, reason) not in SETTINGS.told
        SETTINGS.told.add((estimator, reason))
    if SETTINGS.verbose:
        sys.stderr.write(f"dsgd.accel: {estimator} predicts by scikit-learn ({reason})\n")
    elif is_news:
        LOG.warning("dsgd.accel: scikit-learn predicts by this %s: %s", estimator, reason)


def recorded_calls() -> list[Call]:
    """Return the last 10,000 fits since `install`."""
    with _lock:
        return list(_calls)


def clear_calls() -> None:
    """Clear the record, and forget which reasons have been logged."""
    with _lock:
        _calls.clear()
        SETTINGS.told.clear()


def table_of(calls: list[Call]) -> Any:
    """Return a rich table of fits, seconds and seconds saved (if compared), by estimator and solver."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=f"dsgd.accel: {len(calls):,} fits")
    for name in ("estimator", "solver"):
        table.add_column(name)
    for name in ("fits", "seconds", "saved"):
        table.add_column(name, justify="right")
    table.add_column("why")
    groups: dict[tuple[str, str, str], list[Call]] = {}
    for call in calls:
        groups.setdefault((call.estimator, call.by, call.reason), []).append(call)
    for (estimator, by, reason), found in sorted(groups.items()):
        saved = [call.saved_s for call in found if call.saved_s is not None]
        cells = f"{len(found):,}", f"{sum(call.seconds for call in found):.2f}", f"{sum(saved):.2f}" if saved else ""
        table.add_row(estimator, by, *cells, Text(reason))
    return table
