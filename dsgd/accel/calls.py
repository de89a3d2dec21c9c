"""What accelerated estimators were asked to do, who did it, and in how many seconds."""

from __future__ import annotations

import logging
import sys
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final, Literal

__all__ = ["LOG", "SETTINGS", "Call", "Settings", "clear_calls", "note", "note_refusal", "recorded_calls", "table_of"]

LOG: Final = logging.getLogger("dsgd.accel")
_MOST_CALLS: Final = 10_000


@dataclass(frozen=True)
class Call:
    """A fit of an accelerated estimator.

    Parameters
    ----------
    estimator : str
        Name of its class.
    shape : tuple of int
        Rows and columns.
    by : {"dsgd", "scikit-learn"}
        Whose solver has trained it.
    seconds : float
        From call to return, without what `compared_s` took.
    reason : str
        Why it was scikit-learn's, and nothing else; empty if it was ours.
    compared_s : float or None
        Seconds of scikit-learn's solver for the same, if that was asked for.
    """

    estimator: str
    shape: tuple[int, int]
    by: Literal["dsgd", "scikit-learn"]
    seconds: float
    reason: str = ""
    compared_s: float | None = None

    @property
    def saved_s(self) -> float | None:
        """Seconds saved, or lost if negative; None if nobody has compared."""
        return None if self.compared_s is None else self.compared_s - self.seconds

    def __str__(self) -> str:
        rows, columns = self.shape
        text = f"{self.estimator}.fit of {rows:,} x {columns:,}: {self.by} {self.seconds:.3g} s"
        if self.saved_s is not None:
            text += f", {'saved' if self.saved_s >= 0 else 'cost'} {abs(self.saved_s):.3g} s"
        return f"{text} ({self.reason})" if self.reason else text


@dataclass
class Settings:
    """What `dsgd.accel.install` was told.

    Parameters
    ----------
    verbose, compare : bool
        As there.
    excluded : frozenset of str
        Names of classes that stay scikit-learn's.
    told : set of (str, str)
        Estimators and reasons that the log has.
    """

    verbose: bool = False
    compare: bool = False
    excluded: frozenset[str] = frozenset()
    told: set[tuple[str, str]] = field(default_factory=set)


SETTINGS: Final = Settings()
_calls: deque[Call] = deque(maxlen=_MOST_CALLS)
_lock: Final = threading.Lock()


def note(call: Call, *, expected: bool) -> None:
    """Keep a call; say so if that was asked for, or once for each reason that one would not expect."""
    with _lock:
        _calls.append(call)
        is_news = not expected and (call.estimator, call.reason) not in SETTINGS.told
        SETTINGS.told.add((call.estimator, call.reason))
    if SETTINGS.verbose:
        sys.stderr.write(f"dsgd.accel: {call}\n")
    elif is_news:
        LOG.warning("dsgd.accel: scikit-learn trains this %s: %s", call.estimator, call.reason)


def note_refusal(estimator: str, reason: str) -> None:
    """Say, once for each reason, that scikit-learn predicts by a machine that we could not take over from it."""
    with _lock:
        is_news = (estimator, reason) not in SETTINGS.told
        SETTINGS.told.add((estimator, reason))
    if SETTINGS.verbose:
        sys.stderr.write(f"dsgd.accel: {estimator} predicts by scikit-learn ({reason})\n")
    elif is_news:
        LOG.warning("dsgd.accel: scikit-learn predicts by this %s: %s", estimator, reason)


def recorded_calls() -> list[Call]:
    """Return the fits since `install`, the last 10,000 of them."""
    with _lock:
        return list(_calls)


def clear_calls() -> None:
    """Forget them, and what was said about them."""
    with _lock:
        _calls.clear()
        SETTINGS.told.clear()


def table_of(calls: list[Call]) -> Any:
    """Return a table of rich: fits, seconds and, where it was compared, seconds saved, by estimator and solver."""
    from rich.table import Table

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
        table.add_row(estimator, by, *cells, reason)
    return table
