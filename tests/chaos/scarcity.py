"""Faults of a machine: no room for files or in memory, no processor, a wrong clock, a lock that somebody else holds."""

from __future__ import annotations

import random
import signal
import threading
import time
from typing import Any

from distributed.core import Status

import gang_programs
from chaos.scene import Scene, send_signal
from chaos.strangers import knock


def fill_shared_memory(scene: Scene, rng: random.Random) -> None:
    """Let the system refuse every file of more than 64 KiB, as a /dev/shm without room does."""
    scene.observer.run(_limit_files, 65_536)
    scene.undo.append(lambda: scene.observer.run(_limit_files, -1))


def _limit_files(size: int) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def fill_disk(scene: Scene, rng: random.Random) -> None:
    """Let no checkpoint reach the disk for a while; the fit tries for two seconds before it gives up."""
    for_s = rng.uniform(0.2, 1.2)
    scene.observer.run(_refuse_to_sync, for_s)
    scene.undo.append(lambda: time.sleep(for_s))


def _refuse_to_sync(for_s: float) -> None:
    import errno
    import os

    sync = os.fsync

    def refuse(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    os.fsync = refuse
    _later(for_s, lambda: setattr(os, "fsync", sync))


def exhaust_files(scene: Scene, rng: random.Random) -> None:
    """Let the victim's process open no more files for a while, and strangers knock at all ports that are open."""
    for_s = rng.uniform(0.2, 2.0)
    scene.observer.run(_allow_no_files, for_s, workers=[scene.victim.worker])
    scene.undo.append(lambda: time.sleep(for_s))
    if scene.held == "rendezvous":
        knock(scene, [b"", b"\x00"])


def _allow_no_files(for_s: float) -> None:
    import os
    import resource

    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")), before[1]))
    _later(for_s, lambda: resource.setrlimit(resource.RLIMIT_NOFILE, before))


def _later(after_s: float, do: Any) -> None:
    """Do something in this process, whatever its event loop can do by then."""
    timer = threading.Timer(after_s, do)
    timer.name, timer.daemon = "chaos", True
    timer.start()


def pause_worker(scene: Scene, rng: random.Random) -> None:
    """Let Dask take the victim's memory to be full for a while: it starts no tasks."""
    scene.observer.run(_pause, rng.uniform(0.2, 3.0), workers=[scene.victim.worker])


async def _pause(for_s: float, dask_worker: Any) -> None:
    import asyncio

    dask_worker.status = Status.paused
    asyncio.get_running_loop().call_later(for_s, setattr, dask_worker, "status", Status.running)


def hold_interpreter(scene: Scene, rng: random.Random) -> None:
    """Let another user's task hold the interpreter lock of the victim's worker, mostly until it counts as hung."""
    seconds = rng.choice([1, 5, 6])
    task = scene.observer.submit(gang_programs.hold_lock, seconds, workers=[scene.victim.worker], pure=False)

    def finish() -> None:
        # Run once, to its end: a worker that was taken away would have it run again elsewhere, or not at all.
        assert task.result(timeout=30.0) == "held"
        task.release()

    scene.undo.append(finish)


def shift_clock(scene: Scene, rng: random.Random) -> None:
    """Put the wall clock of a rank's process up to a day ahead or back."""
    ahead_s = rng.uniform(0.0, 86_400.0) * rng.choice([-1.0, 1.0])
    scene.observer.run(gang_programs.move_clock, ahead_s, workers=[scene.victim.worker])
    pid = scene.victim.pid
    # The timers of tornado, and so Dask's own heartbeats, may rest for a day: the worker is good for nothing else.
    scene.undo.append(lambda: send_signal(pid, signal.SIGKILL))
