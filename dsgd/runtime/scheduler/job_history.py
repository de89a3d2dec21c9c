"""The history of a job for observers: its last event and its losses.

The events themselves are passed on to the client and forgotten. A curve has at most a few hundred points: when it is
full, every second point is dropped and from then on only every second one is recorded, so a history stays small however
long a job runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

__all__ = ["JobHistory", "JobView"]

_MAX_POINTS: Final = 400


class JobView(NamedTuple):
    """A job as shown to observers.

    Parameters
    ----------
    job_id : str
        The job.
    number : int
        Number of earlier jobs.
    state : str
        ``"queued"``, ``"running"``, ``"stopping"``, ``"done"`` or ``"failed"``.
    places : sequence of str
        The worker of each rank.
    elapsed_s : float
        Seconds since it was requested, or its duration.
    history : JobHistory
        Its history.
    client : str, default ""
        The Dask client that requested it.
    position : int, default 0
        Its place in the queue, from 1; 0 if it is not in it.
    failure : str, default ""
        Why it stops or has stopped; empty if it does not.
    priority : int, default 0
        Jobs of a higher one come first.
    """

    job_id: str
    number: int
    state: str
    places: Sequence[str]
    elapsed_s: float
    history: JobHistory
    client: str = ""
    position: int = 0
    failure: str = ""
    priority: int = 0

    @property
    def n_ranks(self) -> int:
        """Number of its ranks."""
        return len(self.places)

    @property
    def title(self) -> str:
        """Its title."""
        return self.history.title

    @property
    def owner(self) -> str:
        """Who requested it."""
        return self.history.owner

    @property
    def name(self) -> str:
        """The first digits of its identity."""
        return self.job_id[:6]


@dataclass
class JobHistory:
    """The history of one job.

    Parameters
    ----------
    title : str
        Title of the job.
    owner : str
        Who requested it: user, host and process.
    began : float
        When it was requested, by the clock of the registry.
    number : int
        Number of earlier jobs of the scheduler.
    granted : float or None
        When it first got its workers.
    ended : float or None
        When it ended.
    outcome : str
        ``"done"`` or ``"failed"`` once it has ended.
    latest : dict
        The last progress event.
    note : str
        The text of the last other event.
    curve : list of (float, float)
        Seconds of training and loss.
    """

    title: str = ""
    owner: str = ""
    began: float = 0.0
    number: int = 0
    granted: float | None = None
    ended: float | None = None
    outcome: str = ""
    latest: dict[str, Any] = field(default_factory=dict)
    note: str = ""
    curve: list[tuple[float, float]] = field(default_factory=list)
    _stride: int = field(default=1, init=False, repr=False)
    _skipped: int = field(default=0, init=False, repr=False)

    def note_event(self, event: Mapping[str, Any]) -> None:
        """Record an event of the job."""
        if "comm_share" not in event:
            self.note = str(event.get("text", event.get("phase", self.note)))
            return
        self.latest = dict(event)
        self._skipped += 1
        if self._skipped < self._stride:
            return
        self._skipped = 0
        self.curve.append((float(event["seconds"]), float(event["train_loss"])))
        if len(self.curve) > _MAX_POINTS:
            del self.curve[1::2]
            self._stride *= 2

    def points(self) -> list[tuple[float, float]]:
        """Return the curve up to the last event, shape (n_points, 2): seconds of training and loss."""
        last = [(float(self.latest["seconds"]), float(self.latest["train_loss"]))] if self.latest else []
        return self.curve if self.curve[-1:] == last else self.curve + last

    def grant(self, now: float) -> None:
        """Record that the job has its workers."""
        self.granted = now if self.granted is None else self.granted

    def close(self, outcome: str, now: float) -> None:
        """Record that the job has ended."""
        self.outcome, self.ended = outcome, now
