"""The scheduler plugin: requests of clients and members, and events of Dask.

Handlers do little and, except for those that wait, are synchronous: they share the event loop with all of Dask. Calls
that wait return after at most `wait_s` seconds and are repeated, so that every wait has a deadline on both sides and a
dead caller leaves nothing behind.

The names of the plugins include the version of dsgd. Registering the same version again keeps its jobs and leases;
another version replaces it only if it has no jobs, so that two queues never lease the same worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from distributed.diagnostics.plugin import SchedulerPlugin

from dsgd.errors import VersionMismatchError
from dsgd.runtime import dask_internals, messages
from dsgd.runtime.logs import keep_log
from dsgd.runtime.metrics import OF_SCHEDULER
from dsgd.runtime.scheduler.jobs import Admission, Pings, Pulses, Vigil, drives, fit_of, list_rows
from dsgd.runtime.scheduler.registry import Registry

if TYPE_CHECKING:
    from distributed import Scheduler
    from distributed.scheduler import WorkerState


#: Dask keeps records of jobs and detached fits under this topic, for ``client.get_events``.
LOG_TOPIC: Final = "dsgd"

_SCHEDULER_PREFIX: Final = "dsgd-gangs-"
SCHEDULER_PLUGIN: Final = f"{_SCHEDULER_PREFIX}{messages.LOADED_VERSION}"
_SETTLE_STEP_S: Final = 0.05
_SETTLE_STEPS: Final = 40
# Of the longest gap between heartbeats so far, after how many a worker may be hung.
_TIMES_LATE: Final = 4.0
# How often the scheduler checks jobs and workers.
_TICK_S: Final = 0.5


class GangSchedulerPlugin(SchedulerPlugin):
    """Admission, rendezvous and failure detection; see `Registry` for the protocol."""

    name = SCHEDULER_PLUGIN
    idempotent = True

    def __init__(self) -> None:
        # Sent with the plugin, while all other code here is of the version that the scheduler has loaded.
        self.sent_by = messages.LOADED_VERSION

    async def start(self, scheduler: Scheduler) -> None:
        """Install the handlers in the scheduler."""
        keep_log()
        self._give_way(scheduler)
        self.scheduler = scheduler
        self.registry = Registry(self._send, self._wake, met=self._meet, log=self._log)
        self._changed: dict[str, asyncio.Event] = {}
        self._meetings: dict[str, asyncio.Event] = {}
        self._heard: dict[str, float] = {}
        self._gaps: dict[str, float] = {}
        self._aside: dict[str, float] = {}
        self._vigil, self._pulses = Vigil(), Pulses()
        self._pings = Pings(scheduler, self._vigil)
        self.admission = Admission(scheduler, self._pings.silence_s)
        before = dask_internals.plugins_of(scheduler).get(self.name)
        if isinstance(before, GangSchedulerPlugin):
            # Installed again: its jobs continue.
            self.registry, self._changed = before.registry, before._changed
            self._heard, self._gaps = before._heard, before._gaps
            self._meetings = before._meetings
            self._aside, self._vigil, self._pings = before._aside, before._vigil, before._pings
            self._pulses = before._pulses
            self.admission = before.admission
            before._next_tick.cancel()
        self._tick()
        dask_internals.serve(
            scheduler,
            {
                "dsgd_survey": self.survey,
                "dsgd_silence": self.silence,
                "dsgd_set_aside": self.set_aside,
                "dsgd_admit": self.admit,
                "dsgd_watch": self.watch,
                "dsgd_renew": self.registry.renew,
                "dsgd_abort": self.registry.abort,
                "dsgd_end_early": self.registry.end_early,
                "dsgd_close": self.registry.close,
                "dsgd_join": self.join,
                "dsgd_missing": self.registry.missing,
                "dsgd_finish": self.registry.finish,
                "dsgd_jobs": self.jobs,
                "dsgd_cancel": self.cancel,
            },
            {
                messages.MEMBER_EVENT: self.member_event,
                messages.MEMBER_END: self.member_end,
                messages.HEARTBEAT: self.heartbeat,
                messages.WORKER_ANSWER: self.admission.answer,
            },
        )
        OF_SCHEDULER.expose(self.registry)
        if dask_internals.has_dashboard(scheduler):
            # So bokeh is loaded.
            from dsgd.runtime.scheduler.dashboard import attach

            attach(scheduler, _registry_of)

    # ---- asked by the client

    async def survey(
        self,
        keys: Sequence[Any],
        hung_s: float = 0.0,
        at_most_s: float = 0.0,
        names: Sequence[str] | None = None,
        resources: Mapping[str, float] | None = None,
    ) -> dict[str, Any]:
        """Return the workers, and for each block its size, its holders, and whether it is still available.

        Workers are those that can run ranks and, apart, those that Dask has paused because their memory is full;
        ``left_out`` says why others cannot. Waits briefly if workers have just registered: else a job would run on the
        first few.
        """
        for _ in range(_SETTLE_STEPS):
            if all(dask_internals.state_of(ws) != "init" for ws in self.scheduler.workers.values()):
                break
            await asyncio.sleep(_SETTLE_STEP_S)
        await self.admission.ask(hung_s, at_most_s)
        blocks = []
        for key in keys:
            task = self.scheduler.tasks.get(key)
            holders = [ws.address for ws in task.who_has or ()] if task is not None else []
            nbytes = max(task.nbytes, 0) if task is not None else 0
            blocks.append({"nbytes": nbytes, "holders": holders, "known": task is not None})
        meant = [ws for ws in self.scheduler.workers.values() if dask_internals.offers(ws, names, resources or {})]
        refused = self.admission.refused
        return {
            "workers": self._workers(meant, "running"),
            "paused": self._workers(meant, "paused"),
            "left_out": {ws.address: refused[ws.address] for ws in meant if ws.address in refused},
            "n_meant": len(meant),
            "blocks": blocks,
        }

    def silence(self, workers: Sequence[str], keys: Sequence[Any]) -> tuple[float, str, str]:
        """Return for how long a worker that a client waits for was not heard of: seconds, address and host.

        The silence is endless where a key needs a worker that has left.
        """
        silences = [(self._pings.silence_s(address), address) for address in workers]
        for any_of in dask_internals.needed_workers(self.scheduler, keys):
            there = [address for address in any_of if address in self.scheduler.workers]
            silences.append(min(((self._pings.silence_s(each), each) for each in there), default=(inf, any_of[0])))
        silence_s, worker = max(silences, default=(0.0, ""))
        return silence_s, worker, self.scheduler.workers[worker].host if worker in self.scheduler.workers else ""

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
    ) -> dict[str, Any]:
        """Put a job in the queue."""
        self.registry.admit(job_id, epoch, token, client, members, hung_after_s, label, lease_s)
        if (fit := fit_of(client)) and fit not in self.scheduler.tasks:
            self.registry.abort(job_id, "the fit was cancelled")  # between two gangs
        for worker, *_ in members:
            # Gone since it was planned with, or another process with its address, which knows no orders.
            if worker not in self.admission.ready:
                self.registry.worker_left(worker)
        if client not in self.scheduler.clients:
            self.registry.client_left(client)
        return self.registry.status(job_id)

    async def watch(self, job_id: str, seen: int, wait_s: float) -> dict[str, Any]:
        """Return the state of a job and its new events, as soon as it is no longer at version `seen`."""
        await self._until_changed(job_id, seen, wait_s)
        return {
            **self.registry.status(job_id),
            "events": self.registry.take_events(job_id),
            "silent_s": self._silences(),
        }

    async def set_aside(self, job_id: str, workers: Sequence[str], keys: Sequence[Any], remove: bool) -> None:
        """Set hung workers of a job aside until their heartbeats return: Dask gives them no new tasks meanwhile.

        Blocks of the job that only they hold are given up and made again; tasks and data of other users are left alone.
        """
        stimulus, job = f"dsgd-hung-{monotonic()}", self.registry.jobs.get(job_id)
        if job is None or job.phase == "closed":
            return
        # Another process, even one without dsgd, may have come at the address of one, or others have got the workers.
        own = job.opened.intersection(self.admission.ready)
        for ws in [self.scheduler.workers[name] for name in workers if name in own and name in self.scheduler.workers]:
            if self._vigil.silence_s(self._heard.get(ws.address, 0.0)) < 0.5 * job.hung_after_s:
                continue  # only its answer to the client was late
            if remove:
                await dask_internals.remove_worker(self.scheduler, ws, stimulus)
                continue
            if dask_internals.state_of(ws) == "running":
                self._aside[ws.address] = ws.last_seen
                dask_internals.pause_worker(self.scheduler, ws, stimulus)
            dask_internals.forget_replicas(self.scheduler, ws, keys, stimulus)

    def jobs(self) -> list[dict[str, Any]]:
        """Return all jobs and detached fits, newest first."""
        return list_rows(self.scheduler, self.registry.overview())

    def cancel(self, job_id: str, reason: str) -> bool:
        """Stop a job or a detached fit; return whether it had not ended yet."""
        name = f"{messages.FIT_PREFIX}{job_id}"
        task = self.scheduler.tasks.get(name)
        if task is not None and task.state not in ("memory", "erred"):
            dask_internals.cancel_task(self.scheduler, name, reason)
            for client in {job.client for job in self.registry.jobs.values() if drives(job.client, name)}:
                self.registry.stop_of(client, reason)
            return True
        job = self.registry.jobs.get(job_id)
        if job is None or job.phase == "closed" or job.stopped:
            return False
        self.registry.abort(job_id, reason)
        return True

    # ---- asked by the members

    async def join(
        self, job_id: str, epoch: int, token: bytes, member: int, address: str, n_cores: int, wait_s: float
    ) -> dict[str, Any]:
        """Register a member's address; return those of all once the last has joined, or the state after `wait_s`."""
        mine = job_id, epoch, token, member, address, n_cores
        answer = self.registry.join(*mine)
        if answer["join_state"] != "waiting":
            return answer
        meeting = self._meetings.setdefault(job_id, asyncio.Event())
        with suppress(TimeoutError):
            await asyncio.wait_for(meeting.wait(), wait_s)
        return self.registry.join(*mine)

    def member_event(
        self, worker: str, job_id: str, epoch: int, token: bytes, member: int, event: dict[str, Any] | None
    ) -> None:
        """Record that a member has begun (no event), or keep its progress event."""
        if event is None:
            self.registry.member_started(job_id, epoch, token, member)
        else:
            self.registry.publish(job_id, epoch, token, member, event)

    def member_end(
        self, worker: str, job_id: str, epoch: int, token: bytes, member: int, failure: dict[str, Any] | None
    ) -> None:
        """Record that a member has ended, unless that is known."""
        self.registry.finish(job_id, epoch, token, member, failure)

    def heartbeat(self, worker: str, pid: int, began: float, thread: int) -> None:
        """Record a heartbeat of the event loop of a worker, which is a thread of its process."""
        self._pulses.hear(worker, pid, began, thread)
        if worker in self._heard:
            gap_s = self._vigil.silence_s(self._heard[worker])
            self._gaps[worker] = max(gap_s, self._gaps.get(worker, 0.0))
        self._heard[worker] = monotonic()
        self._take_back(worker)

    # ---- told by Dask

    def remove_worker(self, scheduler: Scheduler, worker: str, *, stimulus_id: str = "", **kwargs: Any) -> None:
        """Stop the job of a worker that left."""
        how = dask_internals.departure(stimulus_id)
        self._heard.pop(worker, None)
        self._gaps.pop(worker, None)
        self._aside.pop(worker, None)
        self._pings.forget(worker)
        self._pulses.forget(worker)
        self.admission.forget(worker)
        self.registry.worker_left(worker, how)

    def remove_client(self, scheduler: Scheduler, client: str) -> None:
        """Stop the jobs of a client that left."""
        self.registry.client_left(client)

    def restart(self, scheduler: Scheduler) -> None:
        """Stop all jobs: the workers are about to be restarted."""
        self.registry.stop_all("the cluster was restarted")

    def valid_workers_downscaling(self, scheduler: Scheduler, workers: list[Any]) -> list[Any]:
        """Keep adaptive scaling from removing a worker of a gang, or one that drives a detached fit."""
        needed = self.registry.leases.keys() | {
            task.worker for task in dask_internals.published_tasks(scheduler, messages.FIT_PREFIX)
        }
        return [ws for ws in workers if ws.address not in needed]

    async def before_close(self) -> None:
        """End all waits when the scheduler closes."""
        self.registry.stop_all("the scheduler is closing")
        OF_SCHEDULER.withdraw(self.registry)
        self.admission.close()
        self._pings.close()
        self._next_tick.cancel()

    # ---- inside

    def _workers(self, meant: Sequence[WorkerState], state: str) -> list[dict[str, Any]]:
        return [
            {
                "address": ws.address,
                "host": ws.host,
                "name": str(ws.name),
                "nthreads": ws.nthreads,
                "memory_limit": ws.memory_limit or 0,
                "memory_used": ws.memory.optimistic,
                "busy": ws.address in self.registry.leases,
            }
            for ws in meant
            if dask_internals.state_of(ws) == state and ws.address in self.admission.ready
        ]

    def _give_way(self, scheduler: Scheduler) -> None:
        """Refuse to run beside jobs of another version; remove another version without jobs."""
        if self.sent_by != messages.LOADED_VERSION:
            raise VersionMismatchError(
                f"this client has dsgd {self.sent_by}, but the scheduler has dsgd {messages.LOADED_VERSION} loaded. "
                "Install the same version everywhere, and restart what runs."
            )
        plugins = dask_internals.plugins_of(scheduler)
        for name in [name for name in plugins if name.startswith(_SCHEDULER_PREFIX) and name != self.name]:
            other = plugins[name]
            n_jobs = len(other.registry.jobs)
            if n_jobs:
                raise VersionMismatchError(
                    f"this client has dsgd {messages.LOADED_VERSION}, but {n_jobs} job(s) of dsgd "
                    f"{name.removeprefix(_SCHEDULER_PREFIX)} hold workers of this cluster or wait for them. Fit again "
                    "when they are over, or use the same version everywhere."
                )
            other._next_tick.cancel()
            scheduler.remove_plugin(name)

    def _tick(self) -> None:
        """Find workers that have stopped sending heartbeats, and those whose heartbeats have returned.

        They come from the event loop of the worker, which runs beside a kernel of any length that has released the
        interpreter lock. They are not Dask's own, which pause after the wall clock of a worker was set back. A worker
        whose heartbeats come late, since its machine has more to do than it can, is given several times the longest gap
        between two of them, and one whose event loop uses its core four times as long as others.
        """
        # By the clock of the event loop: timers of tornado pause after the wall clock was set back.
        self._next_tick = asyncio.get_running_loop().call_later(_TICK_S, self._tick)
        self._vigil.look()
        silences = {
            worker: silent_s
            for worker, silent_s in self._silences().items()
            if silent_s > _TIMES_LATE * self._gaps.get(worker, 0.0)
        }
        for job_id in list(self.registry.jobs):
            self.registry.hear(job_id, silences, self._pulses.beats)
        self.registry.expire(self._vigil.silence_s)
        for worker, seen_at in list(self._aside.items()):
            ws = self.scheduler.workers.get(worker)
            if ws is None or ws.last_seen != seen_at:
                self._take_back(worker)

    def _silences(self) -> dict[str, float]:
        """Return the seconds since the last heartbeat of each worker with a rank."""
        return {worker: self._vigil.silence_s(at) for worker, at in self._heard.items()}

    def _take_back(self, worker: str) -> None:
        """Let Dask use a worker again after it was set aside."""
        if self._aside.pop(worker, None) is not None and worker in self.scheduler.workers:
            dask_internals.resume_worker(self.scheduler, self.scheduler.workers[worker], f"dsgd-heard-{monotonic()}")

    def _send(self, worker: str, message: dict[str, Any]) -> None:
        # A process that has just come at the address of a worker knows no orders: Dask would end it for this one.
        if (
            worker in self.admission.ready
            and dask_internals.tell_worker(self.scheduler, worker, {"op": messages.JOB_ORDER, **message})
            and message["action"] == "open"
        ):
            # Silence begins when heartbeats are asked for.
            self._heard[worker] = monotonic()
            self._gaps.pop(worker, None)

    def _log(self, record: dict[str, Any]) -> None:
        self.scheduler.log_event(LOG_TOPIC, record)

    def _wake(self, job_id: str) -> None:
        event = self._changed.pop(job_id, None)
        if event is not None:
            event.set()

    def _meet(self, job_id: str) -> None:
        meeting = self._meetings.pop(job_id, None)
        if meeting is not None:
            meeting.set()

    async def _until_changed(self, job_id: str, seen: int, wait_s: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        while self.registry.version(job_id) == seen and (remaining := deadline - loop.time()) > 0:
            event = self._changed.setdefault(job_id, asyncio.Event())
            try:
                await asyncio.wait_for(event.wait(), remaining)
            except TimeoutError:
                break
        # An event that will never be set again must not remain for a finished job.
        if job_id not in self.registry.jobs:
            self._changed.pop(job_id, None)


def _registry_of(scheduler: Scheduler) -> Registry:
    plugin: GangSchedulerPlugin = dask_internals.plugins_of(scheduler)[SCHEDULER_PLUGIN]
    return plugin.registry
