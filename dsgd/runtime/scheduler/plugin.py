"""The scheduler plugin: requests of clients and members, and events of Dask.

Handlers do little and, but for the waiting ones, are synchronous: they share the event loop with all of Dask.
Calls that wait return after `wait_s` seconds at most and are asked again, so that every wait has a deadline on both
sides and a caller that died leaves nothing behind.

The names of the plugins carry the version of dsgd. Whoever registers the same version again finds it there, jobs and
leases with it; another version takes its place only when it has no jobs, so that two queues never lease one worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from distributed.core import Status
from distributed.diagnostics.plugin import SchedulerPlugin

from dsgd.errors import VersionMismatchError
from dsgd.runtime.messages import HEARTBEAT, JOB_ORDER, MEMBER_EVENT
from dsgd.runtime.scheduler.registry import Registry
from dsgd.runtime.versions import LOADED_VERSION

if TYPE_CHECKING:
    from distributed import Scheduler

__all__ = ["SCHEDULER_PLUGIN", "GangSchedulerPlugin"]

_SCHEDULER_PREFIX: Final = "dsgd-gangs-"
SCHEDULER_PLUGIN: Final = f"{_SCHEDULER_PREFIX}{LOADED_VERSION}"
# What Dask calls the reasons why a worker goes, where they say more than that its connection broke.
_DEPARTURES: Final = {
    "retire-workers": "was retired (the cluster was scaled down, or somebody closed it)",
    "check-worker-ttl": "was removed by Dask (no heartbeat within distributed.scheduler.worker-ttl)",
}
_SETTLE_STEP_S: Final = 0.05
_SETTLE_STEPS: Final = 40
# Clients ask about their jobs twice a second; after a longer pause silence proves nothing.
_DEAF_S: Final = 3.0


class GangSchedulerPlugin(SchedulerPlugin):
    """Admission, rendezvous and failure detection; see `Registry` for the protocol."""

    name = SCHEDULER_PLUGIN
    idempotent = True

    def __init__(self) -> None:
        # Travels with the plugin, while everything else here is of the version that the scheduler has loaded.
        self.sent_by = LOADED_VERSION

    async def start(self, scheduler: Scheduler) -> None:
        """Take the handlers into the scheduler.

        Raises
        ------
        VersionMismatchError
            The client has another version than the scheduler, or another version has jobs here.
        """
        self._give_way(scheduler)
        self.scheduler = scheduler
        self.registry = Registry(self._send, self._wake)
        self._changed: dict[str, asyncio.Event] = {}
        self._heard: dict[str, float] = {}
        before = scheduler.plugins.get(self.name)
        if isinstance(before, GangSchedulerPlugin):
            # Put on the scheduler once more: its jobs go on.
            self.registry, self._changed, self._heard = before.registry, before._changed, before._heard
        self._listened_at = self._awake_since = monotonic()
        scheduler.handlers.update(
            {
                "dsgd_survey": self.survey,
                "dsgd_admit": self.admit,
                "dsgd_watch": self.watch,
                "dsgd_abort": self.registry.abort,
                "dsgd_end_early": self.registry.end_early,
                "dsgd_close": self.registry.close,
                "dsgd_join": self.join,
                "dsgd_finish": self.registry.finish,
            }
        )
        if any(hasattr(app, "app_paths") for app in scheduler.http_application.applications):
            # It has a dashboard, and so has bokeh loaded.
            from dsgd.runtime.scheduler.dashboard import attach

            attach(scheduler, _registry_of)
        scheduler.stream_handlers[MEMBER_EVENT] = self.member_event
        scheduler.stream_handlers[HEARTBEAT] = self.heartbeat

    # ---- asked by the client

    async def survey(self, keys: Sequence[Any]) -> dict[str, Any]:
        """Return the workers, and of each block its size, its holders, and whether it can still be had.

        Workers are those that run and, apart, those that Dask has paused because their memory is full.

        Workers that have just registered are waited for a little: a job right after the start of a cluster would
        otherwise run on the few that were first.
        """
        for _ in range(_SETTLE_STEPS):
            if all(ws.status != Status.init for ws in self.scheduler.workers.values()):
                break
            await asyncio.sleep(_SETTLE_STEP_S)
        blocks = []
        for key in keys:
            task = self.scheduler.tasks.get(key)
            holders = [ws.address for ws in task.who_has or ()] if task is not None else []
            nbytes = max(task.nbytes, 0) if task is not None else 0
            blocks.append({"nbytes": nbytes, "holders": holders, "known": task is not None})
        return {"workers": self._workers(Status.running), "paused": self._workers(Status.paused), "blocks": blocks}

    def admit(
        self,
        job_id: str,
        epoch: int,
        token: bytes,
        client: str,
        members: Sequence[tuple[str, str, int]],
        hung_after_s: float = float("inf"),
        title: str = "",
    ) -> dict[str, Any]:
        """Put a job in the queue."""
        self.registry.admit(job_id, epoch, token, client, members, hung_after_s, title)
        for worker, *_ in members:
            if worker not in self.scheduler.workers:
                self.registry.worker_left(worker)
        if client not in self.scheduler.clients:
            self.registry.client_left(client)
        return self.registry.status(job_id)

    async def watch(self, job_id: str, seen: int, wait_s: float) -> dict[str, Any]:
        """Return the state of a job and its new events, as soon as it is no longer at version `seen`."""
        self._listen(job_id)
        await self._until(job_id, lambda: self.registry.status(job_id)["version"] != seen, wait_s)
        return {**self.registry.status(job_id), "events": self.registry.take_events(job_id)}

    # ---- asked by the members

    async def join(
        self, job_id: str, epoch: int, token: bytes, member: int, address: str, n_cores: int, wait_s: float
    ) -> dict[str, Any]:
        """Give a member's address; returns those of all when the last has come, or the state after `wait_s`."""

        def answer() -> dict[str, Any]:
            return self.registry.join(job_id, epoch, token, member, address, n_cores)

        await self._until(job_id, lambda: answer()["join_state"] != "waiting", wait_s)
        return answer()

    def member_event(
        self, worker: str, job_id: str, epoch: int, token: bytes, member: int, event: dict[str, Any] | None
    ) -> None:
        """Note that a member has begun (no event), or keep its progress event."""
        if event is None:
            self.registry.member_started(job_id, epoch, token, member)
        else:
            self.registry.publish(job_id, event)

    def heartbeat(self, worker: str) -> None:
        """Note that the event loop of a worker turns."""
        self._heard[worker] = monotonic()

    # ---- told by Dask

    def remove_worker(self, scheduler: Scheduler, worker: str, *, stimulus_id: str = "", **kwargs: Any) -> None:
        """Stop the job of a worker that left."""
        how = next((text for cause, text in _DEPARTURES.items() if stimulus_id.startswith(cause)), "left the cluster")
        self._heard.pop(worker, None)
        self.registry.worker_left(worker, how)

    def remove_client(self, scheduler: Scheduler, client: str) -> None:
        """Stop the jobs of a client that left."""
        self.registry.client_left(client)

    def restart(self, scheduler: Scheduler) -> None:
        """Stop all jobs: the workers are about to be restarted."""
        self.registry.stop_all("the cluster was restarted")

    def valid_workers_downscaling(self, scheduler: Scheduler, workers: list[Any]) -> list[Any]:
        """Keep adaptive scaling from taking a worker away from a gang."""
        return [ws for ws in workers if ws.address not in self.registry.leases]

    async def before_close(self) -> None:
        """Let nobody wait for a scheduler that goes."""
        self.registry.stop_all("the scheduler is closing")

    # ---- inside

    def _workers(self, status: Status) -> list[dict[str, Any]]:
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
            for ws in self.scheduler.workers.values()
            if ws.status == status
        ]

    def _give_way(self, scheduler: Scheduler) -> None:
        """Refuse to run beside the jobs of another version; one that has none is taken off."""
        if self.sent_by != LOADED_VERSION:
            raise VersionMismatchError(
                f"this client has dsgd {self.sent_by}, but the scheduler has dsgd {LOADED_VERSION} loaded. "
                "Install the same version everywhere, and restart what runs."
            )
        others = [name for name in scheduler.plugins if name.startswith(_SCHEDULER_PREFIX) and name != self.name]
        for name in others:
            n_jobs = len(scheduler.plugins[name].registry.jobs)
            if n_jobs:
                raise VersionMismatchError(
                    f"this client has dsgd {LOADED_VERSION}, but {n_jobs} job(s) of dsgd "
                    f"{name.removeprefix(_SCHEDULER_PREFIX)} hold workers of this cluster or wait for them. Fit again "
                    "when they are over, or use the same version everywhere."
                )
            scheduler.remove_plugin(name)

    def _listen(self, job_id: str) -> None:
        """Look whether a worker of the job has stopped sending heartbeats.

        They come from the worker's event loop, which runs on beside a kernel of any length that has released the
        interpreter lock, as ours do. They are not Dask's own: those rest while the wall clock of a worker that was set
        back catches up. When they come is measured here, by a clock that nobody sets.
        """
        now = monotonic()
        if now - self._listened_at > _DEAF_S:
            # It was this process that slept (or nobody asked): what workers have sent meanwhile is still to be read.
            self._awake_since = now
        self._listened_at = now
        self.registry.hear(job_id, {name: now - max(at, self._awake_since) for name, at in self._heard.items()})

    def _send(self, worker: str, message: dict[str, Any]) -> None:
        if worker in self.scheduler.stream_comms:
            if message["action"] == "open":
                # Silence begins when heartbeats are asked for.
                self._heard[worker] = monotonic()
            self.scheduler.worker_send(worker, {"op": JOB_ORDER, **message})

    def _wake(self, job_id: str) -> None:
        event = self._changed.pop(job_id, None)
        if event is not None:
            event.set()

    async def _until(self, job_id: str, ready: Callable[[], bool], wait_s: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        while not ready() and (remaining := deadline - loop.time()) > 0:
            event = self._changed.setdefault(job_id, asyncio.Event())
            try:
                await asyncio.wait_for(event.wait(), remaining)
            except TimeoutError:
                break
        # An event that nobody will set any more must not stay for a job that is over.
        if job_id not in self.registry.jobs:
            self._changed.pop(job_id, None)


def _registry_of(scheduler: Scheduler) -> Registry:
    plugin: GangSchedulerPlugin = scheduler.plugins[SCHEDULER_PLUGIN]
    return plugin.registry
