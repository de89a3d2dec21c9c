"""A job as the client sees it: requesting workers, the lease on them, watching, and releasing everything at the end.

A client may be interrupted twice with ctrl-C, stopped by a debugger, or cut off, and then its workers would stay with a
job that never ends. So a coroutine on the client's event loop, which no interrupt reaches, renews the lease every sixth
of its time to live and checks whether the thread of the job still attends to it. That thread holds a lock for the
length of a ``with`` block; a lock is released in C, where no interrupt can intervene. Once the lock is free, the
coroutine ends the job, unless the thread has already done so; it retries for as long as the lease lives. If the event
loop itself stands still, nothing is renewed, and the scheduler ends the job (`Registry.expire`).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import secrets
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

from dsgd.errors import ClusterUnreachableError, GangError, GangTimeoutError, StragglerWarning
from dsgd.progress import StopTraining
from dsgd.runtime.dask_internals import ask_scheduler, event_loop
from dsgd.runtime.gang.client import call_scheduler, guarded, owner_here
from dsgd.runtime.gang.cluster import Cluster
from dsgd.runtime.messages import MemberCredentials
from dsgd.runtime.plan import MemberPlan, Plan
from dsgd.runtime.progress import straggler_text
from dsgd.runtime.scheduler.jobs import JobLabel
from dsgd.runtime.worker.failures import as_error
from dsgd.runtime.worker.member import recorded_stacks
from dsgd.validation import warn_user

if TYPE_CHECKING:
    from distributed import Future


_RENEWALS: Final = 6

# How often to check whether the thread attends to the job.
_LOOK_S: Final = 0.1
_RETRY_S: Final = 0.5


class Lease:
    """The lease of one job."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        renew: Callable[[], Awaitable[object]],
        give_up: Callable[[str], Awaitable[None]],
        lease_s: float,
    ) -> None:
        self.attended = threading.Lock()
        self._loop, self._renew, self._give_up, self._lease_s = loop, renew, give_up, lease_s
        self._reason: str | None = "its client no longer attends to it"
        self._over = False
        self._tried = threading.Event()
        self._woken = asyncio.Event()
        self._keeper: concurrent.futures.Future[None] | None = None

    def begin(self) -> None:
        """Keep the lease from now on."""
        if self._keeper is None:
            self._keeper = asyncio.run_coroutine_threadsafe(self._keep(), self._loop)

    def end(self, reason: str | None, timeout_s: float) -> None:
        """Give the lease up, and wait for the first attempt; an interrupt ends only this wait."""
        self._reason, self._over = reason, True
        if self._keeper is not None:
            # A loop that has been closed keeps nothing any more.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._woken.set)
            self._tried.wait(timeout_s)

    async def _keep(self) -> None:
        renewed_at = time.monotonic()
        renewal: asyncio.Future[object] | None = None
        while self.attended.locked() and not self._over:
            if renewal is None and time.monotonic() - renewed_at >= self._lease_s / _RENEWALS:
                renewed_at, renewal = time.monotonic(), asyncio.ensure_future(self._renew())
            if renewal is not None and renewal.done():
                # A failed call is repeated, soon enough.
                await asyncio.gather(renewal, return_exceptions=True)
                renewal = None
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), _LOOK_S)
        if renewal is not None:
            renewal.cancel()
            await asyncio.gather(renewal, return_exceptions=True)
        try:
            if self._reason is not None:
                await self._try_to_give_up(self._reason)
        finally:
            self._tried.set()

    async def _try_to_give_up(self, reason: str) -> None:
        """End the job; retry if the scheduler stands still. A scheduler that is gone has no jobs."""
        deadline = time.monotonic() + self._lease_s
        while True:
            with contextlib.suppress(TimeoutError):
                await self._give_up(reason)
                return
            self._tried.set()
            if time.monotonic() >= deadline:
                return
            await asyncio.sleep(_RETRY_S)


T = TypeVar("T")
_log: Final = logging.getLogger("dsgd.runtime")
_SLICE_S: Final = 0.5
_EXPLAIN_S: Final = 3.0
_CHECK_S: Final = 0.1

# Ctrl-C returns in under 3 s: while leaving, each call gets the first of these times, and all ranks together the
# second.
_LEAVE_CALL_S: Final = 1.0
_LEAVE_S: Final = 1.5
_STACKS_S: Final = 2.0
_NO_STACK: Final = "  it did not run"
_MUTE: Final = "  its worker does not answer"

# Limit for all of it.
_BREAK_OFF_S: Final = 6.0


class JobHandle:
    """One job on one cluster; used by one thread."""

    def __init__(
        self,
        cluster: Cluster,
        on_event: Callable[[Mapping[str, Any]], None] | None = None,
        title: str = "",
    ) -> None:
        self.cluster, self.client, limits = cluster, cluster.client, cluster.limits
        self._title = title
        self.job_id = uuid.uuid4().hex
        self.epoch = 0
        self.timeout_s, self.hung_after_s = limits.seconds("peer"), limits.seconds("hung")
        self._queue_s, self._lease_s = limits.seconds("queue"), limits.seconds("lease")
        self._call_s = limits.seconds("scheduler")
        self.futures: list[Future] = []
        self.failure: Mapping[str, Any] | None = None
        self._token = secrets.token_bytes(32)
        self._on_event = on_event
        self._seen = -2  # a version no job has
        self._admitted = False
        self._members: list[tuple[str, str, int]] = []
        self._watch: asyncio.Task[Any] | None = None
        self._work: asyncio.Future[Any] | None = None
        self.lease = Lease(event_loop(self.client), self._renew_lease, self._give_up, self._lease_s)

    def credentials(self, member: int) -> MemberCredentials:
        """Return the credentials that a member shows in its messages."""
        return MemberCredentials(self.job_id, self.epoch, self._token, member)

    def admit(self, plan: Plan, *, patient: bool = True) -> bool:
        """Wait for the lease of all workers of the plan.

        - returned: False if the caller should plan again: a worker left before the job began or, unless
          `patient`, another job has leased one.
        """
        deadline = time.monotonic() + self._queue_s
        self._admitted = True
        self.lease.begin()
        self._members = [(member.worker.address, member.worker.host, member.n_ranks) for member in plan.members]
        status = self._call(
            "dsgd_admit",
            job_id=self.job_id,
            epoch=self.epoch,
            token=self._token,
            client=self.client.id,
            members=self._members,
            hung_after_s=self.hung_after_s,
            label=JobLabel(self._title, owner_here()),
            lease_s=self._lease_s,
        )
        told = 0
        while status["job_state"] == "queued" and patient:
            place = status["position"]
            if place != told:
                told = place
                n_workers = len(status["ahead"])
                text = f"waiting for workers: {n_workers} belong to other jobs, place {place} in the queue"
                self._emit({"phase": "queued", "position": place, "workers": n_workers, "text": text})
            if time.monotonic() >= deadline:
                workers = ", ".join(status["ahead"]) or "workers"
                raise GangTimeoutError(f"the job waited {self._queue_s:g} s for other jobs to release {workers}.")
            status = self._status(status["version"])
        if status["job_state"] == "running":
            return True
        failure = status.get("failure")
        if status["job_state"] != "queued" and (failure is None or failure["kind"] != "lost"):
            self._raise(status)
        # Nothing has begun yet: the next attempt takes its place in the queue.
        self.epoch, self._seen = self.epoch + 1, -2
        return False

    def run(
        self,
        make: Callable[[], Awaitable[Any]],
        stalled: Callable[[Mapping[str, Any]], Sequence[MemberPlan]] | None = None,
    ) -> Any:
        """Wait for something on the cluster while watching the job."""
        idle_since, waiting_for = time.monotonic(), None
        done_at: float | None = None
        missing: Sequence[MemberPlan]
        while True:
            work, status = self._guard(self._slice, make, timeout_s=_SLICE_S + self._call_s)
            if status is not None:
                self._heed(status)
            if work is not None:
                return work.result()
            if status is None:
                continue
            if status["job_state"] == "done":
                done_at = time.monotonic() if done_at is None else done_at
                self._check_results(time.monotonic() - done_at)
            missing = stalled(status) if stalled is not None else ()
            culprit = missing[0] if missing else None
            if culprit is None or culprit != waiting_for:
                idle_since, waiting_for = time.monotonic(), culprit
            elif time.monotonic() - idle_since >= self.timeout_s:
                place = {"rank": culprit.first_rank, "worker": culprit.worker.address, "host": culprit.worker.host}
                late = [member.worker.address for member in missing]
                self.failure = {"kind": "late", **place, "late": late}
                raise GangTimeoutError(
                    f"no progress for {self.timeout_s:g} s: waiting for {culprit} to start. "
                    "The worker may be busy with other tasks, or paused because its memory is full."
                )

    def ask(self, function: Callable[..., Any], workers: Sequence[str], timeout_s: float) -> dict[str, Any]:
        """Call ``function(credentials, dask_worker=...)`` on workers; return the answers received, by worker."""
        # Dask writes the arguments of a call that fails to the log of the worker: a record that hides its token.
        shown = self.credentials(0)

        async def one(worker: str) -> Any:
            while True:
                try:
                    return (await self.client.run(function, shown, workers=[worker], on_error="ignore"))[worker]
                except OSError:  # the call was lost, which says nothing of the worker
                    await asyncio.sleep(_RETRY_S)

        async def call_all() -> list[Any]:
            waits = (asyncio.wait_for(one(worker), timeout_s) for worker in workers)
            return await asyncio.gather(*waits, return_exceptions=True)

        answers = self._guard(call_all, timeout_s=timeout_s + self._call_s)
        return {w: answer for w, answer in zip(workers, answers, strict=True) if not isinstance(answer, BaseException)}

    def add_stacks(self, error: BaseException) -> None:
        """Add a note to a missed deadline with the places of all ranks when the job stopped."""
        if not (isinstance(error, GangTimeoutError) and self._members):
            return
        try:
            answers = self.ask(recorded_stacks, list(dict.fromkeys(worker for worker, *_ in self._members)), _STACKS_S)
        except ClusterUnreachableError as problem:
            error.add_note(f"where the ranks were is not known: {problem}")
            return
        stacks = {rank: stack for found in answers.values() for rank, stack in found.items()}
        places = [worker for worker, _, n in self._members for _ in range(n)]
        lines = [
            f"rank {rank} on worker {worker}:\n{stacks.get(rank, _NO_STACK if worker in answers else _MUTE)}"
            for rank, worker in enumerate(places)
        ]
        error.add_note("Where the ranks were when the job stopped:\n" + "\n".join(line.rstrip() for line in lines))

    def renew(self, deaf: Collection[str], addresses: Sequence[str]) -> tuple[set[str], set[str]]:
        """Begin the next epoch of the job: wait until its ranks have ended, and release its tasks.

        A rank that is packing its rows, for example, ends afterwards. The job waits for it as long as its worker sends
        heartbeats, up to `timeout_s`.

        - returned: workers whose ranks have not ended: those without a heartbeat for `hung_after_s`, and the
          others.
        """
        self._call("dsgd_abort", job_id=self.job_id, reason="the gang is formed again")
        deadline, seen = time.monotonic() + self.timeout_s, -2
        while True:
            status = self._status(seen)
            seen, silent_s = status["version"], status["silent_s"]
            # If the message that a member ended was lost, the end of its task replaces it.
            done = {member for member, future in enumerate(self.futures) if future.done()}
            unended = {addresses[member] for member in set(status["live"]) - done}.difference(deaf)
            hung = {worker for worker in unended if silent_s.get(worker, 0.0) > self.hung_after_s}
            if unended == hung or time.monotonic() >= deadline:
                break
        self._drop()
        self.epoch, self._seen, self.failure = self.epoch + 1, -2, None
        return hung, unended - hung

    def set_aside(self, workers: Collection[str], keys: Sequence[Any], *, remove: bool) -> None:
        """Set hung workers aside; see `GangSchedulerPlugin.set_aside`."""
        self._call("dsgd_set_aside", job_id=self.job_id, workers=sorted(workers), keys=list(keys), remove=remove)

    def check(self) -> None:
        """Raise the error of the job, if the scheduler knows one."""
        self._heed(self._status(self._seen, _CHECK_S))

    def explain(self) -> NoReturn:
        """Raise the error that made a rank end early; the scheduler may learn of it a moment later."""
        deadline = time.monotonic() + _EXPLAIN_S
        while time.monotonic() < deadline:
            self._heed(self._status(self._seen))
        raise GangError(
            f"a rank of job {self.job_id} ended early without giving a reason; see the logs of the workers."
        )

    def leave(self) -> None:
        """End a successful job.

        The results of its ranks are here: if the scheduler does not answer now, the lease tells it later.
        """
        try:
            last = self._status(-2, 0.0)
            self._call("dsgd_close", job_id=self.job_id)
        except ClusterUnreachableError as problem:
            _log.warning("the job is done, and its workers are given back later: %s", problem)
            self.lease.end("the job is done", 0.0)
            return
        self._drop()
        self.lease.end(None, _BREAK_OFF_S)
        for event in last["events"]:
            self._emit(event)

    def break_off(self, reason: str) -> None:
        """End a failed job: stop its ranks, wait for them briefly, and leave nothing behind.

        Never raises an ordinary error, so that the user sees the one that ended the job.
        """
        self.lease.begin()
        self.lease.end(reason, _BREAK_OFF_S)

    # ---- on the event loop of the client

    async def _renew_lease(self) -> None:
        await ask_scheduler(self.client, "dsgd_renew", job_id=self.job_id, token=self._token)

    async def _give_up(self, reason: str) -> None:
        """Stop the ranks, wait for them briefly, close the job and release its tasks."""
        patience_s = _LEAVE_CALL_S

        def ask(op: str, **arguments: Any) -> Coroutine[Any, Any, Any]:
            return ask_scheduler(self.client, op, job_id=self.job_id, **arguments)

        try:
            if self._admitted:
                await asyncio.wait_for(ask("dsgd_abort", reason=reason), patience_s)
                deadline = time.monotonic() + _LEAVE_S
                # A hung rank does not react: waiting for it would only delay the user.
                deaf = self.failure["worker"] if self.failure and self.failure["kind"] == "hung" else None
                seen, live = -2, [0]
                while live and (remaining := deadline - time.monotonic()) > 0:
                    watch = ask("dsgd_watch", seen=seen, wait_s=remaining)
                    status = await asyncio.wait_for(watch, remaining + patience_s)
                    seen = status["version"]
                    live = [member for member in status["live"] if self._members[member][0] != deaf]
                await asyncio.wait_for(ask("dsgd_close"), patience_s)
        finally:
            await self._end_waits()
            self._release()

    # ---- inside

    async def _slice(
        self, make: Callable[[], Awaitable[Any]]
    ) -> tuple[asyncio.Future[Any] | None, dict[str, Any] | None]:
        # The two waits outlive a slice: cancelling a call would cost the connection it waits on.
        if self._work is None:
            self._work = asyncio.ensure_future(make())
        if self._watch is None:
            call = ask_scheduler(self.client, "dsgd_watch", job_id=self.job_id, seen=self._seen, wait_s=_SLICE_S)
            self._watch = asyncio.ensure_future(call)
        await asyncio.wait(
            {self._work, self._watch}, timeout=_SLICE_S + self._call_s / 2, return_when=asyncio.FIRST_COMPLETED
        )
        status = work = None
        if self._watch.done():
            watch, self._watch = self._watch, None
            status = watch.result()
        if self._work.done():
            work, self._work = self._work, None
        return work, status

    def _drop(self) -> None:
        self._guard(self._end_waits, timeout_s=2 * _LEAVE_CALL_S)
        self._release()

    def _release(self) -> None:
        for future in self.futures:
            # This cancels a task that still runs: its result is no longer needed.
            future.release()
        self.futures.clear()

    async def _end_waits(self) -> None:
        waits = [wait for wait in (self._work, self._watch) if wait is not None]
        # Calls that are about to end may end by themselves, which is cleaner: a finished job answers the watch, and
        # results that exist are gathered in a moment.
        ending = waits if all(future.done() for future in self.futures) else [w for w in waits if w is self._watch]
        if ending:
            await asyncio.wait(ending, timeout=_LEAVE_CALL_S / 4)
        self._work = self._watch = None
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)

    def _status(self, seen: int, wait_s: float = _SLICE_S) -> dict[str, Any]:
        """Return the state of the job as soon as it is no longer at version `seen`, or after `wait_s`."""
        arguments = {"job_id": self.job_id, "seen": seen, "wait_s": wait_s}
        status: dict[str, Any] = self._call("dsgd_watch", **arguments)
        return status

    def _call(self, op: str, **arguments: Any) -> Any:
        return call_scheduler(self.client, op, self._call_s, **arguments)

    def _guard(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any, timeout_s: float) -> T:
        return guarded(self.client, function, *args, timeout_s=timeout_s)

    def _heed(self, status: Mapping[str, Any]) -> None:
        self._seen = status["version"]
        for event in status["events"]:
            self._emit(event)
        if status["job_state"] in ("failed", "unknown"):
            self._raise(status)

    def _check_results(self, waited_s: float) -> None:
        """Raise if what ranks returned does not come: their workers send no heartbeats of ours any more."""
        if waited_s > self.timeout_s:
            raise GangTimeoutError(
                f"all ranks have ended, but their results did not arrive within {self.timeout_s:g} s. Can the "
                "scheduler and this process reach the workers?"
            )
        silent_s, worker, _ = self.cluster.silence(keys=[future.key for future in self.futures])
        if silent_s > self.hung_after_s:
            places = [address for address, _, n in self._members for _ in range(n)]
            # The scheduler has forgotten that of a worker that left.
            host = next(host for address, host, _ in self._members if address == worker)
            has_left = silent_s == inf
            text = f"its worker was not heard of for {silent_s:.1f} s"
            place = {"rank": places.index(worker), "worker": worker, "host": host}
            self.failure = {"kind": "hung", **place, "text": text, "pickled": b""}
            if has_left:
                self.failure |= {"kind": "lost", "text": "left the cluster with its result"}
            raise as_error(self.failure)

    def _raise(self, status: Mapping[str, Any]) -> NoReturn:
        failure = status.get("failure") or status.get("why")
        if failure is None:
            raise GangError(
                "the scheduler no longer knows this job: it was restarted, or this client was cut off from it."
            )
        self.failure = failure
        raise as_error(failure)

    def _emit(self, event: Mapping[str, Any]) -> None:
        if event.get("phase") == "straggler":
            # A rank does not know the workers of the others.
            places = [(worker, host) for worker, host, n in self._members for _ in range(n)]
            worker, host = places[event["rank"]]
            event = {**event, "worker": worker, "host": host, "text": straggler_text(event, worker, host)}
            warn_user(event["text"], StragglerWarning)
        if self._on_event is None:
            return
        try:
            self._on_event(event)
        except StopTraining:
            self._call("dsgd_end_early", job_id=self.job_id)
