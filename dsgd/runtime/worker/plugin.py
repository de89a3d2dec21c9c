"""The worker plugin: the jobs of a worker, and its heartbeats.

Its name carries the version of dsgd, as that of the scheduler's does (`dsgd.runtime.scheduler.plugin`).
"""

from __future__ import annotations

import asyncio
import threading
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

import psutil
from distributed.diagnostics.plugin import WorkerPlugin

from dsgd.errors import ClusterError
from dsgd.runtime.dask_internals import serve, ssl_context, tell_scheduler
from dsgd.runtime.logs import keep_log
from dsgd.runtime.messages import HEARTBEAT, JOB_ORDER, LOADED_VERSION
from dsgd.runtime.metrics import OF_WORKERS
from dsgd.runtime.worker.store import JobStore
from dsgd.runtime.worker.wires import RelayHandlers

if TYPE_CHECKING:
    from distributed import Worker


WORKER_PLUGIN: Final = f"dsgd-jobs-{LOADED_VERSION}"


class GangWorkerPlugin(WorkerPlugin):
    """Holds the jobs of a worker, sends heartbeats while it has one, and stops a member whose task was cancelled."""

    name = WORKER_PLUGIN
    idempotent = True

    def setup(self, worker: Worker) -> None:
        """Take the handler into the worker."""
        keep_log()
        self.worker = worker
        # Dask makes a context for each call and reads the certificates from disk for that. Its own connections keep
        # those that the worker has begun with, and so do ranks.
        self.store = JobStore(cache(partial(ssl_context, worker)))
        OF_WORKERS.expose(self.store.meters)
        self._heart: asyncio.Task[None] | None = None
        self.relays = RelayHandlers(worker, self.store)
        serve(worker, self.relays.calls(), {JOB_ORDER: self.order})

    def teardown(self, worker: Worker) -> None:
        """Stop everything: the worker closes."""
        if self._heart is not None:
            self._heart.cancel()
        self.store.close_all(f"worker {worker.address} is closing")
        OF_WORKERS.withdraw(self.store.meters)

    def order(
        self, action: str, job_id: str, epoch: int, token: bytes = b"", heartbeat_s: float = 1.0, reason: str = ""
    ) -> None:
        """Open, abort, end early or close a job, as the scheduler says."""
        if action == "open":
            self.store.open(job_id, epoch, token)
            if self._heart is not None:
                self._heart.cancel()
            self._heart = asyncio.create_task(self._beat(heartbeat_s))
        elif action == "abort":
            self.store.abort(job_id, epoch, reason)
        elif action == "end":
            self.store.end_early(job_id, epoch)
        elif action == "close":
            self.store.close(job_id)

    async def _beat(self, period_s: float) -> None:
        process = psutil.Process()
        about = {"pid": process.pid, "began": process.create_time(), "thread": threading.get_native_id()}
        while len(self.store):
            tell_scheduler(self.worker, {"op": HEARTBEAT, **about})
            await asyncio.sleep(period_s)

    def transition(self, key: Any, start: str, finish: str, **kwargs: Any) -> None:
        """Stop the member whose task was cancelled, or whose client went away; let go of rows that were kept until now.

        Dask cannot stop a running task; it only notes that its result is no longer wanted.
        """
        if start == "memory" and finish in ("released", "forgotten"):
            self.store.packed.release(key)
        if finish == "released" and start in ("executing", "long-running"):
            self.store.abort_task(key, "the task of the rank was cancelled")


def store_of(worker: Worker) -> JobStore:
    """Return the jobs of the worker that runs this task."""
    plugin = worker.plugins.get(WORKER_PLUGIN)
    if not isinstance(plugin, GangWorkerPlugin):
        raise ClusterError(
            f"worker {worker.address} runs without the plugin {WORKER_PLUGIN}: the cluster has refused it. "
            "See distributed.worker.blocked-handlers, and the log of the worker."
        )
    return plugin.store
