"""What a worker process stores for its jobs, and numbers of its ranks on /metrics.

Everything is keyed by job and held by one worker's plugin, never by the module: several workers may share a process.
The scheduler opens a job before any of its tasks can arrive and closes it at the end, so a task that comes late finds
no job and does nothing. A job that is opened again, when its gang is formed again, finds what it kept before.

The meters of a worker know the ledgers of the ranks that run and keep the sums of those that have ended. They are read
when somebody looks at the page, from another thread: a number may be a round old, and ranks do nothing for it.
"""

from __future__ import annotations

import hmac
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dsgd.comm.frames import AbortFlag
from dsgd.comm.wires.carried import Switchboard
from dsgd.ledger import RankLedger
from dsgd.runtime.checkpoints.checkpoint import SnapshotKeeper
from dsgd.runtime.worker.failures import Recorder


class RankMeters:
    """What the ranks of one worker have done since it began; sums over all jobs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: list[RankLedger] = []
        self._ended: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()

    @property
    def n_running(self) -> int:
        """How many ranks and servers run."""
        return len(self._running)

    def begin(self, ledgers: Collection[RankLedger]) -> None:
        """Follow the ledgers of ranks that begin."""
        with self._lock:
            self._running += ledgers

    def end(self, ledgers: Collection[RankLedger], refused: Mapping[str, int]) -> None:
        """Keep the sums of ranks that have ended, and let go of their ledgers."""
        with self._lock:
            for ledger in ledgers:
                self._running.remove(ledger)
                self._ended.update(ledger.totals())
            self.refused.update(refused)

    def totals(self) -> Counter[str]:
        """Return the sums over all ranks so far, by the names of `RankRecords.totals`."""
        with self._lock:
            found = Counter(self._ended)
            for ledger in self._running:
                found.update(ledger.totals())
        return found


@dataclass
class Kept:
    """What outlives an epoch of a job on its worker."""

    keepers: dict[int, SnapshotKeeper] = field(default_factory=lambda: {0: SnapshotKeeper()})
    blocks: tuple[int, ...] | None = None
    data: Any = None

    def drop_data(self) -> None:
        """Let go of the packed rows: others come."""
        self.blocks = self.data = None

    def next(self) -> Kept:
        """Return what the next epoch begins with; a rank of this one that still runs cannot reach it."""
        return Kept({place: keeper.next() for place, keeper in self.keepers.items()}, self.blocks, self.data)


@dataclass
class JobState:
    """What one worker keeps for one job."""

    job_id: str
    epoch: int
    token: bytes = field(repr=False)
    abort: AbortFlag = field(default_factory=AbortFlag)
    task_key: Any = None
    relays: Switchboard = field(default_factory=Switchboard)
    kept: Kept = field(default_factory=Kept)
    enough: threading.Event = field(default_factory=threading.Event)
    recorder: Recorder = field(default_factory=Recorder)


class PackedAs(NamedTuple):
    """Under which name workers keep what they pack, and until when."""

    name: str
    anchors: Mapping[str, Any]


class PackedForm(NamedTuple):
    """What packed rows are told apart by: name, anchor, the keys of the blocks, and the ranks they are for."""

    name: str
    anchor: Any
    keys: tuple[Any, ...]
    ranks: range


class PackedRows:
    """Packed rows that outlive their job: each form stays as long as its anchor."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[PackedForm, Sequence[Any]] = {}

    def find(self, form: PackedForm) -> Sequence[Any] | None:
        """Return the data of the ranks, or None."""
        with self._lock:
            return self._kept.get(form)

    def keep(self, form: PackedForm, data: Sequence[Any]) -> None:
        """Keep the data of the ranks."""
        with self._lock:
            self._kept[form] = data

    def forget(self, name: str) -> None:
        """Let go of a form, whatever blocks it was made of."""
        with self._lock:
            self._kept = {form: data for form, data in self._kept.items() if form.name != name}

    def release(self, key: Any) -> None:
        """Let go of what has the object of this key for its anchor: Dask has released it."""
        if self._kept:
            with self._lock:
                self._kept = {form: data for form, data in self._kept.items() if key != form.anchor}


class JobStore:
    """The jobs of one worker, and the packed rows that it keeps for later ones."""

    def __init__(self, tls_context: Callable[..., ssl.SSLContext] | None = None) -> None:
        self._jobs: dict[str, JobState] = {}
        self.packed = PackedRows()
        self.meters = RankMeters()
        self.tls_context = tls_context

    def __len__(self) -> int:
        return len(self._jobs)

    def open(self, job_id: str, epoch: int, token: bytes) -> None:
        """Make room for a job, or for its next epoch."""
        before = self._jobs.get(job_id)
        kept = before.kept.next() if before is not None and hmac.compare_digest(before.token, token) else Kept()
        self.close(job_id, "a new epoch of the job began")
        job = self._jobs[job_id] = JobState(job_id, epoch, token, kept=kept)
        job.abort.on_set(job.recorder.take)
        job.abort.on_set(job.relays.close)

    def find(self, job_id: str, epoch: int, token: bytes) -> JobState | None:
        """Return the job, or None if it is not open here or is another epoch."""
        job = self.look_up(job_id, token)
        return job if job is not None and job.epoch == epoch else None

    def look_up(self, job_id: str, token: bytes) -> JobState | None:
        """Return the job, of any epoch, or None if it is not open here."""
        job = self._jobs.get(job_id)
        return job if job is not None and hmac.compare_digest(job.token, token) else None

    def abort(self, job_id: str, epoch: int, reason: str) -> None:
        """Stop a job."""
        job = self._jobs.get(job_id)
        if job is not None and job.epoch == epoch:
            job.abort.set(reason)

    def end_early(self, job_id: str, epoch: int) -> None:
        """Ask the program of a job to end early with its present result."""
        job = self._jobs.get(job_id)
        if job is not None and job.epoch == epoch:
            job.enough.set()

    def abort_task(self, key: Any, reason: str) -> None:
        """Stop the job whose rank runs as the task `key`."""
        for job in list(self._jobs.values()):
            if job.task_key is not None and job.task_key == key:
                job.abort.set(reason)

    def close(self, job_id: str, reason: str = "the job was closed") -> None:
        """Forget a job; a rank of it that still runs is told to stop."""
        job = self._jobs.pop(job_id, None)
        if job is not None:
            job.abort.set(reason)

    def close_all(self, reason: str) -> None:
        """Forget every job."""
        for job_id in list(self._jobs):
            self.close(job_id, reason)
