"""The scheduler's record of each gang, which workers can run ranks, and how long a member has been silent."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import cloudpickle
import psutil

from dsgd.runtime.dask_internals import add_worker_plugin, make_installer, ping_worker, published_tasks, state_of
from dsgd.runtime.messages import FIT_PREFIX, LOADED_VERSION, WORKER_ANSWER, local_versions
from dsgd.runtime.plan import rank_names

if TYPE_CHECKING:
    from distributed import Scheduler


# After a longer pause between two readings silence proves nothing.
_PAUSE_S: Final = 3.0

# After how long to ask a worker again that could not be reached.
_AGAIN_S: Final = 1.0


class Vigil:
    """The time since when this process has been awake without a pause, by reading the clock twice a second.

    A scheduler that was stopped, or busy for long, finds all heartbeats old while newer ones are still unread: after a
    pause all silences are counted from zero again.
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


class Pulses:
    """Whether the event loops of workers on this machine are at work, though nothing is heard of them.

    A loop that waits for its core, or for the interpreter lock while a kernel is compiled, sends no heartbeats; nor
    does one that hangs. The first uses its core now and then, the second does not. Of workers elsewhere nothing is
    known.
    """

    def __init__(self) -> None:
        self._threads: dict[str, tuple[psutil.Process, int] | None] = {}  # None of those elsewhere
        self._spent_s: dict[str, float] = {}

    def hear(self, worker: str, pid: int, began: float, thread: int) -> None:
        """Record a heartbeat: its process, when that began, and the thread of its event loop."""
        self._spent_s.pop(worker, None)
        if worker not in self._threads:
            self._threads[worker] = None
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid)
                # Another machine, or another container, has other processes of the same numbers.
                if process.create_time() == began:
                    self._threads[worker] = process, thread

    def beats(self, worker: str) -> bool:
        """Return whether the loop of a silent worker has used its core since this was first asked in its silence."""
        found = self._threads.get(worker)
        if found is None:
            return False
        process, thread = found
        with contextlib.suppress(psutil.Error):
            spent_s: float = sum(one.user_time + one.system_time for one in process.threads() if one.id == thread)
            before_s = self._spent_s.setdefault(worker, spent_s)
            return spent_s > before_s
        return False

    def forget(self, worker: str) -> None:
        """Forget a worker that left."""
        self._threads.pop(worker, None)
        self._spent_s.pop(worker, None)


class Pings:
    """Questions to the event loops of workers, at most one to each at a time.

    The heartbeats of Dask pause for as long as the wall clock of a worker was set back.
    """

    def __init__(self, scheduler: Scheduler, vigil: Vigil) -> None:
        self._scheduler, self._vigil = scheduler, vigil
        self._asked: dict[str, float] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def silence_s(self, worker: str) -> float:
        """Return for how long a worker has not answered, and ask it; one that has left is silent no more."""
        if worker not in self._scheduler.workers:
            return 0.0
        self._asked.setdefault(worker, time.monotonic())
        if worker not in self._tasks:
            self._tasks[worker] = asyncio.create_task(self._ask(worker))
        return self._vigil.silence_s(self._asked[worker])

    def forget(self, worker: str) -> None:
        """Forget a worker that left."""
        self._asked.pop(worker, None)
        task = self._tasks.pop(worker, None)
        if task is not None:
            task.cancel()

    def close(self) -> None:
        """End all waits: the scheduler closes."""
        for worker in list(self._tasks):
            self.forget(worker)

    async def _ask(self, worker: str) -> None:
        while worker in self._scheduler.workers:
            try:
                await ping_worker(self._scheduler, worker)
                break
            except OSError:
                await asyncio.sleep(_AGAIN_S)
        self._asked.pop(worker, None)
        self._tasks.pop(worker, None)


# How often to check whether a worker that is waited for is still heard of.
_LOOK_S: Final = 0.25


class Admission:
    """The workers of a scheduler that have been asked to run ranks.

    A worker plugin that is registered with Dask goes to every worker that ever joins, and one without dsgd then refuses
    to start. So the scheduler plugin installs that of workers itself, on those that are there when a job asks for some.
    What it sends is pickled by value and needs nothing of dsgd; on the worker it compares versions, installs the plugin
    if they agree, and sends a message with its answer. Only workers that have said that they are ready are planned
    with; others keep nothing of ours and are left out, with the reason.
    """

    def __init__(self, scheduler: Scheduler, silence_s: Callable[[str], float]) -> None:
        self._scheduler, self._silence_s = scheduler, silence_s
        self.ready: set[str] = set()
        self.refused: dict[str, str] = {}
        self._asked: dict[str, asyncio.Task[None]] = {}
        self._answers: dict[str, asyncio.Event] = {}

    async def ask(self, hung_s: float, at_most_s: float) -> None:
        """Install the plugin where it is missing, also on workers that come meanwhile, and wait for the answers."""
        deadline = asyncio.get_running_loop().time() + at_most_s
        while True:
            for address, worker in list(self._scheduler.workers.items()):
                is_known = address in self.ready or address in self.refused or address in self._asked
                if not is_known and state_of(worker) in ("running", "paused"):
                    self._asked[address] = asyncio.create_task(self._install(address))
            waits = [task for address, task in self._asked.items() if self._silence_s(address) <= hung_s]
            if not waits or asyncio.get_running_loop().time() >= deadline:
                break
            await asyncio.wait(waits, timeout=_LOOK_S)

    def answer(self, worker: str, problem: str) -> None:
        """Record what a worker says: that it is ready, or why it cannot be."""
        if worker not in self._scheduler.workers:
            return
        if problem:
            self.refused[worker] = problem
        else:
            self.ready.add(worker)
        if worker in self._answers:
            self._answers[worker].set()

    def forget(self, worker: str) -> None:
        """Forget a worker that left: another may come with its address."""
        self.ready.discard(worker)
        self.refused.pop(worker, None)
        task = self._asked.pop(worker, None)
        if task is not None:
            task.cancel()

    def close(self) -> None:
        """End all waits: the scheduler closes."""
        for task in self._asked.values():
            task.cancel()

    async def _install(self, worker: str) -> None:
        answered = self._answers[worker] = asyncio.Event()
        installer: bytes = cloudpickle.dumps(make_installer(local_versions(), WORKER_ANSWER))
        try:
            while worker in self._scheduler.workers and not answered.is_set():
                try:
                    await add_worker_plugin(self._scheduler, worker, installer, f"dsgd-jobs-{LOADED_VERSION}")
                    await answered.wait()
                except OSError:
                    # Its end is not known yet, or only the connection broke.
                    await asyncio.sleep(_AGAIN_S)
        except Exception as error:
            self.answer(worker, f"{type(error).__name__}: {error}")
        finally:
            if self._answers.get(worker) is answered:
                del self._answers[worker]
                self._asked.pop(worker, None)


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


#: What the state of its task says of a detached fit that runs no gang.
_STATES: Final = {"processing": "running", "memory": "done", "erred": "failed"}


def list_rows(scheduler: Scheduler, views: Sequence[JobView]) -> list[dict[str, Any]]:
    """Return all jobs and detached fits, newest first, as `dsgd.jobs.list_jobs` describes them."""
    rows = []
    for task in published_tasks(scheduler, FIT_PREFIX):
        row = _row(task.name.removeprefix(FIT_PREFIX), *task.annotations.get("dsgd", ("", "", 0.0)))
        row |= {"detached": True, "state": _STATES.get(task.state, "queued"), "driver": task.worker}
        if task.state == "erred":
            row["failure"] = (task.error.strip().splitlines() or ["an error"])[-1]
        gang = next((view for view in views if drives(view.job.client, task.name)), None)
        if gang is not None and row["state"] == "running":
            row |= _progress(gang)
            row["state"] = "queued" if gang.state == "queued" else "running"
        rows.append(row)
    for view in views:
        if not view.job.client.startswith(_DRIVER):
            row = _row(view.job.job_id, view.job.label.title, view.job.label.owner, time.time() - view.elapsed_s)
            rows.append(row | {"state": view.state, "failure": view.failure or None} | _progress(view))
    return sorted(rows, key=lambda row: -row["submitted"])


#: What the identities of clients of detached fits begin with.
_DRIVER: Final = f"Client-{FIT_PREFIX}"


def drives(client: str, name: str) -> bool:
    """Return whether a client is that of the task of a detached fit."""
    return client.startswith(f"Client-{name}-")


def fit_of(client: str) -> str:
    """Return the name of the detached fit whose task has this client; empty if it is of somebody else."""
    return client.removeprefix("Client-")[: len(FIT_PREFIX) + 32] if client.startswith(_DRIVER) else ""


def _row(job_id: str, title: str, owner: str, submitted: float) -> dict[str, Any]:
    nothing = dict.fromkeys(("started", "place", "ranks", "epoch", "max_iter", "train_loss", "failure"))
    row = {"id": job_id, "title": title, "owner": owner, "submitted": submitted, "elapsed_s": time.time() - submitted}
    return {**nothing, **row, "detached": False, "strategy": "", "workers": [], "driver": ""}


def _progress(view: JobView) -> dict[str, Any]:
    job, latest = view.job, view.job.latest
    return {
        "started": None if job.granted is None else time.time() - (view.elapsed_s - (job.granted - job.began)),
        "place": view.position or None,
        "ranks": view.n_ranks,
        "workers": list(job.workers),
        "strategy": latest.get("strategy", ""),
        **{name: latest.get(name) for name in ("epoch", "max_iter", "train_loss")},
    }
