"""The registry of gangs in the scheduler: queue, leases, rendezvous, failures.

Problem: Dask starts tasks one by one. A gang must start as a whole or not at all (two gangs that each hold half of the
workers would wait forever), its members must find each other, and it must stop as a whole when one of them stops.

Method: a job requests a set of workers and gets all of them at once. First come, first served: a later job may only run
before an earlier one if it needs none of the workers that the earlier one waits for, so no job waits for ever. A job
has a member for every worker, or several on one, which is leased once; a member may run several ranks. Members send
their addresses and get the full list once the last has joined. Every message of a member carries (job, epoch, token),
so that repeated tasks and tasks of finished jobs are refused. The first failure is the cause; reports of members that
only noticed a silent peer count after a grace period, in which the cause itself usually arrives.

Cost: a member's message is recorded in constant time and wakes nobody, except that of the last; the list of all is made
once and is the same bytes for every member.

This module is independent of Dask: messages go out through `send`, and time comes from `clock`, so the protocol is
tested without a cluster. All calls come from one thread, the event loop of the scheduler.
"""

from __future__ import annotations

import hmac
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final

from dsgd.runtime.messages import pack_table
from dsgd.runtime.scheduler.jobs import Counts, Job, JobLabel, JobView, Member

# How long the report that a peer is gone waits for the peer's own report, or for the scheduler to miss its worker.
_GRACE_S: Final = 1.0
# How long a member that ignores an abort keeps its worker leased after its job was closed.
_LINGER_S: Final = 10.0
# Heartbeats in the time after which a worker counts as hung; few enough for clusters of hundreds.
_HEARTBEATS: Final = 8
# Of that time, after how many a worker whose event loop uses its core counts as hung.
_TIMES_AT_WORK: Final = 4.0
_LONGEST_HEARTBEAT_S: Final = 2.0
# Of how many jobs it is known why they ended, for clients that were away.
_N_OVER: Final = 8
# Members of a gang that stops whose end is told each.
_FEW: Final = 8
_NOBODY: Final = Member("", "", -1, 0)


class Registry:
    """All jobs of one scheduler."""

    def __init__(
        self,
        send: Callable[[str, dict[str, Any]], None],
        changed: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        met: Callable[[str], None] = lambda job_id: None,
        log: Callable[[dict[str, Any]], None] = lambda record: None,
    ) -> None:
        self._send = send
        self._notify = changed
        self._clock = clock
        self._met = met
        self._log = log
        self.jobs: dict[str, Job] = {}
        self.leases: dict[str, str] = {}
        self._n_jobs = 0
        self.n_ended: Counter[str] = Counter()
        self.counts = Counts()
        self._over: deque[tuple[str, dict[str, Any] | None]] = deque(maxlen=_N_OVER)

    # ---- the client's side

    def admit(
        self,
        job_id: str,
        epoch: int,
        token: bytes,
        client: str,
        members: Sequence[tuple[str, str, int]],
        hung_after_s: float = float("inf"),
        label: Sequence[Any] = (),
        lease_s: float = float("inf"),
    ) -> None:
        """Put a job in the queue, and grant it if its workers are free; repeating the call changes nothing.

        A later epoch replaces the one before, also in the queue: a new gang is formed. `label` is a `JobLabel`.
        """
        before = self.jobs.get(job_id)
        if before is None or (before.epoch < epoch and before.client == client):
            if before is not None:
                self.counts.formed_again += 1
                self._supersede(before, {worker for worker, *_ in members})
            first = accumulate((n for *_, n in members), initial=0)
            gang = tuple(Member(worker, host, rank, n) for (worker, host, n), rank in zip(members, first, strict=False))
            job = self.jobs[job_id] = Job(job_id, epoch, token, client, gang, hung_after_s, lease_s, self._clock())
            if before is None:
                job.label, job.began, job.number = JobLabel(*label), self._clock(), self._n_jobs
                self._n_jobs += 1
            else:
                job.label, job.began, job.number = before.label, before.began, before.number
                job.granted, job.latest, job.note = before.granted, before.latest, before.note
                job.opened = before.opened & set(job.workers)
            more = job.label._asdict()
            self._record("queued", job, **more, n_ranks=sum(n for *_, n in members))
        self._grant()

    def status(self, job_id: str) -> dict[str, Any]:
        """Return the state of a job for its client.

        - returned: ``state``: ``"unknown"``, ``"queued"``, ``"running"``, ``"done"`` (all members ended well)
          or ``"failed"``; ``version``, a count of changes; ``position`` in the queue, from 1 (0 for a job that
          is not in it), and ``ahead``, the workers it waits for that others hold; ``started`` and ``live``
          members; ``met``, whether all have joined; ``failure``, a record (kind, rank, worker, host, text, pickled)
          or None; ``why``, for an unknown job the record of how it ended, if it was known recently.
        """
        self._sweep()
        job = self.jobs.get(job_id)
        if job is None or job.phase == "closed":
            # A client that was away when the job ended needs to know why.
            why = next((failure for over, failure in self._over if over == job_id), None)
            return {"job_state": "unknown", "version": -1, "live": sorted(job.live) if job else [], "why": why}
        if job.failure is None and job.suspicion is not None and self._clock() - job.suspected_at >= _GRACE_S:
            job.failure = job.suspicion
        if job.failure is not None:
            state = "failed"
        elif job.phase == "queued":
            state = "queued"
        else:
            state = "done" if len(job.ended) == len(job.members) and not job.stopped else "running"
        return {
            "job_state": state,
            "version": job.version,
            "position": self._places().get(job_id, 0),
            "ahead": sorted(self._taken(job)) if state == "queued" else [],
            "started": sorted(job.started),
            "live": sorted(job.live),
            "met": bool(job.table),
            "failure": job.failure,
        }

    def version(self, job_id: str) -> int:
        """Return the `version` of `status`, and nothing else."""
        job = self.jobs.get(job_id)
        return -1 if job is None or job.phase == "closed" else job.version

    def take_events(self, job_id: str) -> list[dict[str, Any]]:
        """Return the progress events since the last call."""
        job = self.jobs.get(job_id)
        if job is None:
            return []
        events = list(job.events)
        job.events.clear()
        return events

    def renew(self, job_id: str, token: bytes) -> None:
        """Renew the leases of a job: its client attends to it."""
        job = self.jobs.get(job_id)
        if job is not None and hmac.compare_digest(job.token, token):
            job.renewed_at = self._clock()

    def expire(self, silence_s: Callable[[float], float]) -> None:
        """End the jobs whose leases were not renewed, and release workers whose ranks had their time to end."""
        for job in list(self.jobs.values()):
            if job.phase != "closed" and silence_s(job.renewed_at) > job.lease_s:
                text = f"its client was not heard of for {job.lease_s:g} s, and its workers went to others"
                self._fail(job, _failure("lapsed", _NOBODY, text))
                self.close(job.job_id)
        self._sweep()

    def abort(self, job_id: str, reason: str) -> None:
        """Stop a job from outside: its client asks for it, or is gone."""
        self._stop([job for job in [self.jobs.get(job_id)] if job is not None], reason)

    def stop_of(self, client: str, reason: str) -> None:
        """Stop all jobs of a client."""
        self._stop([job for job in self.jobs.values() if job.client == client], reason)

    def end_early(self, job_id: str) -> None:
        """Ask the program of a job to end early with its present result; not all programs do."""
        job = self.jobs.get(job_id)
        if job is not None and job.phase == "granted" and not job.stopped:
            for worker in job.opened:
                self._tell(worker, "end", job)

    def close(self, job_id: str) -> None:
        """End a job: its workers forget it; the next job gets its leases, those of running members when they end."""
        job = self.jobs.get(job_id)
        if job is None or job.phase == "closed":
            return
        for worker in job.workers:
            if worker in job.opened:
                self._tell(worker, "close", job)
        outcome, now = "done" if job.failure is None else "failed", self._clock()
        self.n_ended[outcome] += 1
        if job.failure is not None:
            self.counts.failures[job.failure["kind"]] += 1
        waited_s = (now if job.granted is None else job.granted) - job.began
        self._record(outcome, job, elapsed_s=now - job.began, waited_s=waited_s)
        self._over.append((job_id, job.failure))
        job.phase = "closed"
        job.closed_at = self._clock()
        self._changed(job)
        self._met(job_id)
        self._vacate(job, job.workers)
        self._sweep()

    def workers_of_users(self) -> Counter[str]:
        """Return how many workers the jobs of each user hold."""
        return Counter(self.jobs[job_id].user for job_id in self.leases.values() if job_id in self.jobs)

    def overview(self) -> list[JobView]:
        """Return views of the jobs that have not ended, newest first."""
        places, views = self._places(), []
        for job in self.jobs.values():
            if job.phase != "closed":
                state = "queued" if job.phase == "queued" else "stopping" if job.stopped else "running"
                elapsed_s = self._clock() - job.began
                views.append(JobView(job, state, elapsed_s, places.get(job.job_id, 0), self._reason(job)))
        return views[::-1]

    # ---- the members' side

    def member_started(self, job_id: str, epoch: int, token: bytes, member: int) -> None:
        """Record that the task of a member has begun; the client hears of the last at once, of the others later."""
        job = self._fenced(job_id, epoch, token, member)
        if job is not None and member not in job.ended:
            self._start(job, member)

    def join(
        self, job_id: str, epoch: int, token: bytes, member: int, address: str, n_cores: int = 1
    ) -> dict[str, Any]:
        """Register the data address of a member and the cores it may use; return those of all once the last has joined.

        - returned: ``join_state``: ``"waiting"``, ``"ready"`` (with ``table``, for
          `dsgd.runtime.messages.read_table`), ``"stopped"`` (with ``reason``) or ``"stale"``: this task does
          not, or no longer, belong to the gang.
        """
        job = self._fenced(job_id, epoch, token, member)
        if job is None or job.phase != "granted" or member in job.ended:
            return {"join_state": "stale"}
        if job.addresses.get(member, address) != address:
            return {"join_state": "stale"}
        if job.stopped:
            return {"join_state": "stopped", "reason": self._reason(job)}
        if member not in job.addresses:
            self._start(job, member)
            job.addresses[member] = address
            job.n_cores = min(job.n_cores or n_cores, n_cores)
            if len(job.addresses) == len(job.members):
                addresses = [job.addresses[k] for k in range(len(job.members))]
                job.table = pack_table(addresses, [member.worker for member in job.members], job.n_cores)
                self._met(job_id)
        return {"join_state": "ready", "table": job.table} if job.table else {"join_state": "waiting"}

    def missing(self, job_id: str, epoch: int, token: bytes, member: int) -> list[str]:
        """Return the names of the members that have not given their addresses."""
        job = self._fenced(job_id, epoch, token, member)
        return [] if job is None else [str(other) for k, other in enumerate(job.members) if k not in job.addresses]

    def finish(
        self, job_id: str, epoch: int, token: bytes, member: int, failure: Mapping[str, Any] | None = None
    ) -> None:
        """Record that a member has ended, successfully or with a failure."""
        job = self._fenced(job_id, epoch, token, member)
        if job is None or member in job.ended:
            return
        job.end([member])
        if failure is not None:
            place = job.members[member]
            record = {"rank": place.first_rank, **failure, "worker": place.worker, "host": place.host}
            if record["kind"] == "aborted":
                self._suspect(job, record)
            else:
                self._fail(job, record)
        # A failure has been told at once. What the client hears of an end is as long as the gang is large, so it hears
        # of the last few, and of every halving before.
        n_live = len(job.live)
        if (job.stopped and (n_live <= _FEW or n_live.bit_count() == 1)) or len(job.ended) == len(job.members):
            self._changed(job)
        self._vacate(job, [job.members[member].worker])
        self._sweep()

    def publish(self, job_id: str, epoch: int, token: bytes, member: int, event: dict[str, Any]) -> None:
        """Keep a progress event until the client asks for it; the oldest are dropped if there are too many."""
        job = self._fenced(job_id, epoch, token, member)
        if job is not None:
            job.events.append(event)
            self.counts.stragglers += event.get("phase") == "straggler"
            job.note_event(event)
            self._changed(job)

    # ---- the cluster's side

    def worker_left(self, worker: str, how: str = "left the cluster") -> None:
        """Stop the job of a worker that left, and the queued jobs that wait for it."""
        for job in list(self.jobs.values()):
            gone = job.members_on.get(worker)
            if gone is None:
                continue
            # All of them before the job fails, so that no stop is sent to workers that are gone.
            job.end(gone)
            job.opened.discard(worker)
            if job.phase != "closed":
                self._fail(job, _failure("lost", job.members[gone[0]], f"worker {worker} {how}"))
            self._changed(job)
        self.leases.pop(worker, None)
        self._sweep()

    def hear(
        self, job_id: str, silent_s: Mapping[str, float], is_at_work: Callable[[str], bool] = lambda worker: False
    ) -> None:
        """Stop a job with a worker that has been silent for too long; the longest silence is the cause.

        - `is_at_work`: whether a worker is known not to hang; asked of those that have been silent for half as long.
        """
        job = self.jobs.get(job_id)
        if job is None or job.phase != "granted":
            return
        late: list[tuple[float, int]] = []
        for number, member in enumerate(job.members):
            wait_s = silent_s.get(member.worker, 0.0)
            if number not in job.ended and wait_s > 0.5 * job.hung_after_s:
                most_s = job.hung_after_s * (_TIMES_AT_WORK if is_at_work(member.worker) else 1.0)
                late += [(wait_s, number)] if wait_s > most_s else []
        if late:
            longest_s, number = max(late)
            self._fail(job, _failure("hung", job.members[number], f"its worker was not heard of for {longest_s:.1f} s"))

    def client_left(self, client: str) -> None:
        """Stop and close every job of a client that left: its results have no recipient."""
        self.stop_of(client, "the client of the job left")
        for job in [job for job in self.jobs.values() if job.client == client]:
            self.close(job.job_id)

    def stop_all(self, reason: str) -> None:
        """Stop every job; its client learns why and closes it."""
        self._stop(list(self.jobs.values()), reason)

    # ---- inside

    def _fenced(self, job_id: str, epoch: int, token: bytes, member: int) -> Job | None:
        job = self.jobs.get(job_id)
        if job is None or job.epoch != epoch or not hmac.compare_digest(job.token, token):
            return None
        return job if 0 <= member < len(job.members) else None

    def _grant(self) -> None:
        """Give their workers to the jobs that need none of those that are held, or that an earlier one waits for."""
        queue = [job for job in self.jobs.values() if job.phase == "queued" and not job.stopped]
        taken = set(self.leases) if queue else set()
        for job in queue:
            is_blocked = not taken.isdisjoint(job.workers)
            taken.update(job.workers)
            if is_blocked:
                continue
            job.phase = "granted"
            job.granted = self._clock() if job.granted is None else job.granted
            self._record("running", job, n_workers=len(job.workers))
            for worker in job.workers:
                self.leases[worker] = job.job_id
                job.opened.add(worker)
                self._tell(worker, "open", job)
            self._changed(job)

    def _places(self) -> dict[str, int]:
        """Return the places in the queue, from 1, of the jobs that wait."""
        waiting = (job_id for job_id, job in self.jobs.items() if job.phase == "queued")
        return {job_id: place for place, job_id in enumerate(waiting, 1)}

    def _taken(self, job: Job) -> list[str]:
        """Return the workers of a job that others hold."""
        return [worker for worker in job.workers if self.leases.get(worker, job.job_id) != job.job_id]

    def _vacate(self, job: Job, workers: Iterable[str]) -> None:
        """Free those workers of a closed job on which no member runs."""
        for worker in workers:
            if job.phase == "closed" and self.leases.get(worker) == job.job_id and job.is_idle(worker):
                del self.leases[worker]

    def _sweep(self) -> None:
        """Forget closed jobs whose members have ended, or had their time to end, and grant what can be granted."""
        now = self._clock()
        for job in [job for job in self.jobs.values() if job.phase == "closed"]:
            if not job.live or now - job.closed_at >= _LINGER_S:
                job.end(list(job.live))
                self._vacate(job, job.workers)
                del self.jobs[job.job_id]
                self._notify(job.job_id)
        self._grant()

    def _supersede(self, job: Job, staying: set[str]) -> None:
        """Release the workers of an epoch; those that stay keep the job's data."""
        for worker in job.workers:
            if self.leases.get(worker) == job.job_id:
                del self.leases[worker]
            if worker in job.opened and worker not in staying:
                self._tell(worker, "close", job)
        self._met(job.job_id)

    def _suspect(self, job: Job, record: dict[str, Any]) -> None:
        if not job.stopped:
            job.suspicion = record
            job.suspected_at = self._clock()
            self._push_abort(job)
            self._met(job.job_id)

    def _fail(self, job: Job, record: dict[str, Any]) -> None:
        if job.failure is None:
            job.failure = record
            place = {name: record[name] for name in ("kind", "rank", "worker", "host")}
            self._record("stopping", job, **place, text=self._reason(job))
            self._push_abort(job)
            self._changed(job)
            self._met(job.job_id)

    def _stop(self, jobs: Sequence[Job], reason: str) -> None:
        for job in jobs:
            if job.phase != "closed":
                self._fail(job, _failure("stopped", _NOBODY, reason))
        # Those that waited keep their workers from others no longer.
        self._grant()

    def _push_abort(self, job: Job) -> None:
        if job.phase == "granted":
            for worker in job.workers_of(set(range(len(job.members))) - job.ended):
                self._tell(worker, "abort", job)

    def _tell(self, worker: str, action: str, job: Job) -> None:
        message: dict[str, Any] = {"action": action, "job_id": job.job_id, "epoch": job.epoch}
        if action == "open":
            message |= {"token": job.token, "heartbeat_s": min(job.hung_after_s / _HEARTBEATS, _LONGEST_HEARTBEAT_S)}
        if action == "abort":
            message["reason"] = self._reason(job)
        self._send(worker, message)

    def _reason(self, job: Job) -> str:
        record = job.failure or job.suspicion
        if record is None:
            return ""
        text = str(record["text"]).strip().splitlines()[-1:] or [record["kind"]]
        return text[0] if record["rank"] < 0 else f"rank {record['rank']} on worker {record['worker']}: {text[0]}"

    def _start(self, job: Job, member: int) -> None:
        n_before = len(job.started)
        job.begin(member)
        if n_before < len(job.started) == len(job.members):
            self._changed(job)

    def _record(self, state: str, job: Job, **more: Any) -> None:
        """Write to the log what has become of a job."""
        self._log({"state": state, "job": job.job_id, "formed": job.epoch, **more})

    def _changed(self, job: Job) -> None:
        job.version += 1
        self._notify(job.job_id)


def _failure(kind: str, member: Member, text: str) -> dict[str, Any]:
    """Return the record of a failure that the scheduler itself has noticed."""
    place = {"rank": member.first_rank, "worker": member.worker, "host": member.host}
    return {"kind": kind, **place, "text": text, "pickled": b""}
