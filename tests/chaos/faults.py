"""What can go wrong in a scenario: one object per fault.

A fault says at which steps it makes sense, how it is injected, which errors a fit may end with, and whether a fit must
not notice it at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from distributed import Client

import gang_programs
from chaos.gates import Visit
from chaos.harness import Cluster, Fit

__all__ = ["FAULTS", "STEPS", "Fault", "Scene"]

STEPS = ("plan", "queue", "load", "rendezvous", "first round", "training", "epoch end", "collect", "after")
_RUNNING = ("load", "rendezvous", "first round", "training", "epoch end", "collect")
_CONNECTED = ("rendezvous", "first round", "training", "epoch end")


@dataclass
class Scene:
    """What a fault is injected into.

    Parameters
    ----------
    cluster : Cluster
        The cluster.
    observer : Client
        A client that has no part in the fit.
    fit : Fit
        The fit that is hit.
    victim : Visit
        The rank, process and worker that are hit.
    undo : list of callable
        What must be done when the fit has ended, so that the cluster can heal.
    """

    cluster: Cluster
    observer: Client
    fit: Fit
    victim: Visit
    undo: list[Callable[[], Any]] = field(default_factory=list)

    def end(self) -> None:
        """Undo what must be undone, once."""
        while self.undo:
            self.undo.pop(0)()


@dataclass(frozen=True)
class Fault:
    """One thing that can go wrong.

    Parameters
    ----------
    name : str
        As it appears in the tables.
    inject : callable
        Takes the scene and a generator, and does it.
    steps : tuple of str
        When it makes sense.
    errors : frozenset of str
        Names of the errors a fit may end with; empty if it must return its model.
    outcomes : frozenset of str
        How the fit may end, see `Outcome`.
    """

    name: str
    inject: Callable[[Scene, random.Random], None]
    steps: tuple[str, ...] = STEPS
    errors: frozenset[str] = frozenset()
    outcomes: frozenset[str] = frozenset({"model", "error"})

    @property
    def is_harmless(self) -> bool:
        """Whether fits must not notice."""
        return self.outcomes == {"model"}


# ---- processes


def _kill(scene: Scene, rng: random.Random) -> None:
    os.kill(scene.victim.pid, signal.SIGKILL)


def _stop(scene: Scene, rng: random.Random) -> None:
    pid = scene.victim.pid
    os.kill(pid, signal.SIGSTOP)
    last = rng.choice([signal.SIGCONT, signal.SIGKILL])
    scene.undo.append(lambda: _signal(pid, last))


def _delay(scene: Scene, rng: random.Random) -> None:
    """Let a rank fall behind: its process gets no processor for a while, less than would be taken for hung."""
    pid = scene.victim.pid
    os.kill(pid, signal.SIGSTOP)
    timer = threading.Timer(rng.uniform(0.2, 1.0), _signal, (pid, signal.SIGCONT))
    timer.start()
    scene.undo.append(timer.join)


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _kill_client(scene: Scene, rng: random.Random) -> None:
    os.kill(scene.fit.pid, signal.SIGKILL)


def _interrupt(scene: Scene, rng: random.Random) -> None:
    os.kill(scene.fit.pid, signal.SIGINT)


def _kill_scheduler(scene: Scene, rng: random.Random) -> None:
    assert scene.cluster.scheduler.pid is not None
    os.kill(scene.cluster.scheduler.pid, signal.SIGKILL)


def _sleep_scheduler(scene: Scene, rng: random.Random) -> None:
    """Let the scheduler stand still for longer than a worker may be silent."""
    pid = scene.cluster.scheduler.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    timer = threading.Timer(rng.uniform(4.0, 13.0), _signal, (pid, signal.SIGCONT))
    timer.start()
    scene.undo.append(timer.join)


# ---- Dask


def _retire(scene: Scene, rng: random.Random) -> None:
    _begin(scene, "retire_workers", workers=[scene.victim.worker])


def _restart_worker(scene: Scene, rng: random.Random) -> None:
    _begin(scene, "restart_workers", workers=[scene.victim.worker], timeout=30, on_error="return")


def _restart_cluster(scene: Scene, rng: random.Random) -> None:
    _begin(scene, "restart", timeout=30, wait_for_workers=False)


def _begin(scene: Scene, method: str, **options: Any) -> None:
    """Let the scheduler begin something; whether it has ended is asked when the fit has."""
    scene.observer.run_on_scheduler(_start_on_scheduler, method, options)
    scene.undo.append(lambda: scene.observer.run_on_scheduler(_end_on_scheduler))


async def _start_on_scheduler(method: str, options: dict[str, Any], dask_scheduler: Any) -> None:
    dask_scheduler._chaos = asyncio.ensure_future(getattr(dask_scheduler, method)(stimulus_id="chaos", **options))


async def _end_on_scheduler(dask_scheduler: Any) -> None:
    await asyncio.wait_for(dask_scheduler._chaos, 60.0)


def _downscale(scene: Scene, rng: random.Random) -> None:
    """Do what an adaptive cluster does when it wants one worker less."""
    scene.observer.run_on_scheduler(_adapt)


async def _adapt(dask_scheduler: Any) -> None:
    workers = dask_scheduler.workers_to_close(n=1)
    if workers:
        await dask_scheduler.retire_workers(workers=workers, stimulus_id="chaos")


# ---- the wire


def _strangers(scene: Scene, words: list[bytes]) -> None:
    """Connect to every data port, say something, and stay."""
    addresses = scene.observer.run_on_scheduler(_data_addresses)
    assert addresses, "no rank listens"
    for address in addresses:
        host, _, port = address.rpartition(":")
        for said in words:
            with contextlib.suppress(OSError):
                stranger = socket.create_connection((host, int(port)), timeout=2.0)
                scene.undo.append(stranger.close)
                stranger.sendall(said)


def _data_addresses(dask_scheduler: Any) -> list[str]:
    plugins = [plugin for name, plugin in dask_scheduler.plugins.items() if name.startswith("dsgd-gangs")]
    return [a for plugin in plugins for job in plugin.registry.jobs.values() for a in job.addresses.values()]


def _half_open(scene: Scene, rng: random.Random) -> None:
    _strangers(scene, [b"", b"\x00"])


def _garbage(scene: Scene, rng: random.Random) -> None:
    _strangers(scene, [rng.randbytes(rng.choice([1, 64, 100_000])), b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 4096])


# ---- the machine


def _fill_shared_memory(scene: Scene, rng: random.Random) -> None:
    """Let the system refuse every file of more than 64 KiB, as a /dev/shm without room does."""
    scene.observer.run(_limit_files, 65_536)
    scene.undo.append(lambda: scene.observer.run(_limit_files, -1))


def _limit_files(size: int) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def _shift_clock(scene: Scene, rng: random.Random) -> None:
    """Put the wall clock of a rank's process up to a day ahead or back."""
    ahead_s = rng.uniform(0.0, 86_400.0) * rng.choice([-1.0, 1.0])
    scene.observer.run(gang_programs.move_clock, ahead_s, workers=[scene.victim.worker])
    pid = scene.victim.pid
    # The timers of tornado, and so Dask's own heartbeats, may rest for a day: the worker is good for nothing else.
    scene.undo.append(lambda: _signal(pid, signal.SIGKILL))


_LOST = frozenset({"WorkerLostError"})
_MODEL = frozenset({"model"})

FAULTS = {
    fault.name: fault
    for fault in (
        Fault("SIGKILL", _kill, STEPS, _LOST),
        Fault("SIGSTOP", _stop, (*_RUNNING, "after"), frozenset({"GangTimeoutError"})),
        Fault("retire", _retire, STEPS, _LOST),
        Fault("worker restart", _restart_worker, STEPS, _LOST),
        Fault("cluster restart", _restart_cluster, ("plan", *_RUNNING), _LOST | {"GangError", "ClusterError"}),
        Fault("client SIGKILL", _kill_client, STEPS[:-1], outcomes=frozenset({"killed"})),
        Fault("ctrl-C", _interrupt, STEPS[:-1], outcomes=frozenset({"interrupted"})),
        Fault("scheduler SIGKILL", _kill_scheduler, STEPS[:-1], frozenset({"ClusterUnreachableError"})),
        Fault("scheduler sleep", _sleep_scheduler, _RUNNING, outcomes=_MODEL),
        Fault("half-open connection", _half_open, _CONNECTED, outcomes=_MODEL),
        Fault("garbage on the data port", _garbage, _CONNECTED, outcomes=_MODEL),
        Fault("full /dev/shm", _fill_shared_memory, ("plan",), outcomes=_MODEL),
        Fault("delay", _delay, _RUNNING, outcomes=_MODEL),
        Fault("wrong clock", _shift_clock, _RUNNING, outcomes=_MODEL),
        Fault("downscaling", _downscale, ("queue", *_RUNNING), outcomes=_MODEL),
    )
}
