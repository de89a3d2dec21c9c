"""The product on the clock and the network of `simulation.clock`: what of it is replaced, and what is watched."""

from __future__ import annotations

import contextlib
import gc
import logging
import queue
import sys
import threading
import uuid
import warnings
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import psutil

from dsgd.runtime import dask_internals, messages
from dsgd.runtime.checkpoints import checkpoint
from dsgd.runtime.gang import client as client_module
from dsgd.runtime.gang import cluster, job, job_handle
from dsgd.runtime.scheduler import jobs, plugin, registry
from dsgd.runtime.worker import member as member_module
from dsgd.runtime.worker import plugin as worker_plugin
from dsgd.runtime.worker import rendezvous
from simulation.clock import WORLD, Answer, Clock, Event, Queue
from simulation.nodes import Client, Worker
from simulation.ranks import Member


class WatchedRegistry(registry.Registry):
    """The registry, whose promises are checked."""

    def admit(self, job_id: str, epoch: int, token: bytes, client: str, members: Any, *more: Any) -> None:
        super().admit(job_id, epoch, token, client, members, *more)
        WORLD[0].places[job_id, epoch] = {worker for worker, *_ in members}

    def close(self, job_id: str) -> None:
        super().close(job_id)
        WORLD[0].kept = {place: kept for place, kept in WORLD[0].kept.items() if place[0] != job_id}

    def _fail(self, job: Any, record: dict[str, Any]) -> None:
        if record["kind"] == "hung" and WORLD[0].answers(record["worker"]):
            WORLD[0].broken(f"{record['worker']} is said to hang, which answers")
        super()._fail(job, record)

    def _fenced(self, job_id: str, epoch: int, token: bytes, member: int) -> Any:
        found = super()._fenced(job_id, epoch, token, member)
        if found is not None and found.epoch != epoch:
            WORLD[0].broken("an epoch that is over was heard")
        return found

    def check(self) -> None:
        """Check leases and queue."""
        if not (self.jobs or self.leases):
            return
        world: Any = WORLD[0]
        for worker, job_id in self.leases.items():
            found = self.jobs.get(job_id)
            if found is None or found.phase == "queued" or worker not in found.workers:
                world.broken(f"{worker} is leased to a job that does not hold it")
        earlier: set[str] = set()
        for found in self.jobs.values():
            if found.phase == "granted" and found.failure is None:
                if not all(self.leases.get(worker) == found.job_id for worker in found.workers):
                    world.broken("a gang runs on a worker that is leased to another")
                if (found.job_id, found.epoch) not in world.granted and not earlier.isdisjoint(found.workers):
                    world.broken("a later job was let past an earlier one that waits for its workers")
            if found.phase != "queued":
                world.granted.add((found.job_id, found.epoch))
            elif not found.stopped:
                if earlier.isdisjoint(found.workers) and self.leases.keys().isdisjoint(found.workers):
                    world.broken("a job waits for workers that are free")
                earlier.update(found.workers)


class WatchedHandle(job_handle.JobHandle):
    """The job of a client, which has to ask workers until they answer."""

    def set_aside(self, workers: Any, keys: Any, *, remove: bool) -> None:
        """Check whom the client takes to hang, unless it or the scheduler was late itself."""
        world: Any = WORLD[0]
        if not {"stall_scheduler", "pause_client", "cut_client"} & set(world.faults):
            for worker in workers:
                if world.answers(worker, for_s=6.0):
                    world.broken(f"{worker} is taken to hang, which answers")
        if workers and world.chance("replaced").random() < 0.5:
            world.replace(min(workers))
        super().set_aside(workers, keys, remove=remove)


def _worker_of_thread() -> Worker:
    running = WORLD[0].running
    assert running is not None
    worker = running.process
    assert isinstance(worker, Worker)
    return worker


class _Log:
    def exception(self, text: str, *args: Any) -> None:
        WORLD[0].broken(f"a message was not understood: {sys.exc_info()[1]!r}", sys.exc_info()[1])

    def warning(self, *args: Any) -> None:
        pass


class _Psutil:
    """What a worker says of its process is of no use."""

    Error = psutil.Error

    class Process:
        pid = -1

        def __init__(self, pid: int | None = None) -> None:
            if pid is not None:
                raise psutil.NoSuchProcess(pid)

        def create_time(self) -> float:
            return 0.0


def _noted(client: Client, call: str, *args: Any, **options: Any) -> Any:
    """Call the scheduler; note when it is asked for blocks."""
    if call == "dsgd_survey":
        WORLD[0].surveyed_at.update(dict.fromkeys(options["keys"], WORLD[0].now))
    return client_module.call_scheduler(client, call, *args, **options)


@contextlib.contextmanager
def _garbage_kept() -> Iterator[None]:
    """Collect garbage after a schedule, and not among all that was imported."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


@contextlib.contextmanager
def simulated() -> Iterator[None]:
    """Put the product on virtual time, in a ``with`` block."""
    versions = messages.local_versions()
    now = Clock.monotonic
    unmeasured = SimpleNamespace(expose=lambda found: None, withdraw=lambda found: None)
    plain = SimpleNamespace(dumps=lambda value: value)
    events = SimpleNamespace(Lock=threading.Lock, Event=Event)

    def draw_id() -> Any:
        return uuid.UUID(int=WORLD[0].chance("ids").getrandbits(128))

    def draw_token(n: int) -> bytes:
        return WORLD[0].chance("ids").randbytes(n)

    patches = [
        (client_module, {"queue": SimpleNamespace(SimpleQueue=Queue, Empty=queue.Empty)}),
        (cluster, {"time": Clock, "local_versions": lambda: versions, "call_scheduler": _noted}),
        (job, {"time": Clock, "require_cluster": lambda found: found, "out_of_pool": contextlib.nullcontext}),
        (job, {"servers_here": lambda found: [], "JobHandle": WatchedHandle}),
        (job_handle, {"time": Clock, "threading": events, "uuid": SimpleNamespace(uuid4=draw_id), "_log": _Log()}),
        (job_handle, {"_LOOK_S": 0.5}),  # ten times a second, half of all events would be its
        (job_handle, {"secrets": SimpleNamespace(token_bytes=draw_token), "owner_here": lambda: "somebody"}),
        (plugin, {"monotonic": now, "Registry": partial(WatchedRegistry, clock=now), "keep_log": lambda: None}),
        (plugin, {"Vigil": partial(jobs.Vigil, now), "OF_SCHEDULER": unmeasured}),
        (jobs, {"time": Clock, "cloudpickle": plain, "make_installer": lambda *args: b"", "psutil": _Psutil}),
        (messages, {"local_versions": lambda: versions}),
        (jobs, {"local_versions": lambda: versions, "_PAUSE_S": 1.0}),  # less than `hung`, as ever
        (dask_internals, {"_log": _Log(), "has_dashboard": lambda found: False}),
        (rendezvous, {"time": Clock, "asyncio": SimpleNamespace(run_coroutine_threadsafe=Answer), "_log": _Log()}),
        (rendezvous, {"cpu_count": lambda: 1}),
        (member_module, {"get_worker": _worker_of_thread, "secede": lambda: None, "_Member": Member}),
        (member_module, {"gc": SimpleNamespace(collect=lambda: None)}),
        (checkpoint, {"folder_of": lambda path: WORLD[0].folder(path), "time": Clock, "version": lambda name: ""}),
        (worker_plugin, {"psutil": _Psutil, "keep_log": lambda: None, "OF_WORKERS": unmeasured}),
    ]
    with contextlib.ExitStack() as stack:
        for module, changes in patches:
            stack.enter_context(mock.patch.multiple(module, **changes))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(_garbage_kept())
        level = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        stack.callback(logging.disable, level)
        yield
