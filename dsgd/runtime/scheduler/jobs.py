"""The scheduler's record of each gang, which `dsgd.runtime.scheduler.registry` maintains."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, NamedTuple

from dsgd.runtime.plan import rank_names

_MAX_EVENTS: Final = 256


class JobLabel(NamedTuple):
    """What a client says of its job: title, and owner (user, host and process)."""

    title: str = ""
    owner: str = ""


@dataclass
class Counts:
    """What has happened to the jobs of a scheduler so far."""

    failures: Counter[str] = field(default_factory=Counter)
    formed_again: int = 0
    stragglers: int = 0


@dataclass(frozen=True)
class Member:
    """The worker of one member: its address, its host and the ranks it runs."""

    worker: str
    host: str
    first_rank: int
    n_ranks: int

    def __str__(self) -> str:
        return f"{rank_names(self.first_rank, self.n_ranks)} on worker {self.worker}"


@dataclass
class Job:
    """One gang, from admission to the end of its last member.

    `phase` is ``"queued"``, ``"granted"`` or ``"closed"``; `failure` and `suspicion` say whether it failed; `opened`
    are the workers that hold data of it, perhaps from an earlier epoch; `live` members have begun and not ended;
    `table` is what all members get once the last has joined; `events` wait for the client. For observers: its label,
    when it was requested (`began`) and first got its workers (`granted`), the number of jobs before it, the last
    progress event (`latest`), and the text of the last other one (`note`).
    """

    job_id: str
    epoch: int
    token: bytes = field(repr=False)
    client: str
    members: tuple[Member, ...]
    hung_after_s: float = float("inf")
    lease_s: float = float("inf")
    renewed_at: float = 0.0
    phase: str = "queued"
    opened: set[str] = field(default_factory=set)
    started: set[int] = field(default_factory=set)
    live: set[int] = field(default_factory=set)
    addresses: dict[int, str] = field(default_factory=dict)
    n_cores: int | None = None
    table: bytes = b""
    ended: set[int] = field(default_factory=set)
    failure: dict[str, Any] | None = None
    suspicion: dict[str, Any] | None = None
    suspected_at: float = 0.0
    closed_at: float = 0.0
    version: int = 0
    events: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=_MAX_EVENTS))
    label: JobLabel = field(default_factory=JobLabel)
    began: float = 0.0
    granted: float | None = None
    number: int = 0
    latest: dict[str, Any] = field(default_factory=dict)
    note: str = ""

    @property
    def user(self) -> str:
        """Whose it is: the first part of its owner, else its client."""
        return self.label.owner.partition("@")[0] or self.client

    @cached_property
    def members_on(self) -> dict[str, tuple[int, ...]]:
        """The members on each worker; workers come in the order of their first members."""
        found: dict[str, list[int]] = {}
        for number, member in enumerate(self.members):
            found.setdefault(member.worker, []).append(number)
        return {worker: tuple(numbers) for worker, numbers in found.items()}

    @cached_property
    def workers(self) -> tuple[str, ...]:
        """The workers of the job, each once, in the order of their members."""
        return tuple(self.members_on)

    def begin(self, member: int) -> None:
        """Record that a member has begun."""
        self.started.add(member)
        self.live.add(member)

    def end(self, members: Iterable[int]) -> None:
        """Record that members have ended, or are gone."""
        self.ended.update(members)
        self.live.difference_update(members)

    def is_idle(self, worker: str) -> bool:
        """Whether no member runs on a worker."""
        return self.live.isdisjoint(self.members_on.get(worker, ()))

    def workers_of(self, members: Iterable[int]) -> tuple[str, ...]:
        """Return the workers of some members, each once."""
        return tuple(dict.fromkeys(self.members[member].worker for member in sorted(members)))

    @property
    def places(self) -> list[str]:
        """The worker of each rank."""
        return [member.worker for member in self.members for _ in range(member.n_ranks)]

    def note_event(self, event: dict[str, Any]) -> None:
        """Keep an event for observers, in the place of the one before."""
        if "comm_share" in event:
            self.latest = event
        else:
            self.note = str(event.get("text", event.get("phase", self.note)))

    @property
    def stopped(self) -> bool:
        """Whether it failed or is suspected to have."""
        return self.failure is not None or self.suspicion is not None


class JobView(NamedTuple):
    """A job as shown to observers.

    `state` is ``"queued"``, ``"running"`` or ``"stopping"``; `elapsed_s` are the seconds since it was requested;
    `position` is its place in the queue, from 1, or 0; `failure` says why it stops.
    """

    job: Job
    state: str
    elapsed_s: float
    position: int
    failure: str

    @property
    def n_ranks(self) -> int:
        """Number of its ranks."""
        return len(self.job.places)
