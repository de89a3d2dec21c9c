"""What can go wrong in a scenario: the table of all faults, and those of processes and of Dask.

A fault says at which steps it makes sense, how it is injected, which errors a fit may end with, and whether a fit must
not notice it at all.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

from chaos.scarcity import exhaust_files, fill_disk, fill_shared_memory, hold_interpreter, pause_worker, shift_clock
from chaos.scene import ALL, CONNECTED, MODEL, RUNNING, STEPS, VICTIM, Fault, Scene, send_signal
from chaos.strangers import garbage, half_open, partition
from gang_cluster import plugins_of, wait_until

# Of fits whose client stands still.
_LEASE_S = 2.0
# Of fits whose ranks cannot hear each other.
_PEER_S = 5.0


# ---- processes


def _kill(scene: Scene, rng: random.Random) -> None:
    os.kill(scene.victim.pid, signal.SIGKILL)


def _stop(scene: Scene, rng: random.Random) -> None:
    pid = scene.victim.pid
    os.kill(pid, signal.SIGSTOP)
    last = rng.choice([signal.SIGCONT, signal.SIGKILL])
    scene.undo.append(lambda: send_signal(pid, last))


def _delay(scene: Scene, rng: random.Random) -> None:
    """Let a rank fall behind: its process gets no processor for a while, less than would be taken for hung."""
    pid = scene.victim.pid
    os.kill(pid, signal.SIGSTOP)
    timer = threading.Timer(rng.uniform(0.2, 1.0), send_signal, (pid, signal.SIGCONT))
    timer.start()
    scene.undo.append(timer.join)


def _kill_client(scene: Scene, rng: random.Random) -> None:
    os.kill(scene.fit.pid, signal.SIGKILL)


def _interrupt(scene: Scene, rng: random.Random) -> None:
    os.kill(scene.fit.pid, signal.SIGINT)


def _interrupt_twice(scene: Scene, rng: random.Random) -> None:
    """Press ctrl-C again while the first one is being handled."""
    os.kill(scene.fit.pid, signal.SIGINT)
    time.sleep(rng.uniform(0.0, 0.05))
    send_signal(scene.fit.pid, signal.SIGINT)


def _stop_client(scene: Scene, rng: random.Random) -> None:
    """Let the client stand still until its workers are free again; then it goes on, or is killed."""
    jobs = scene.observer.run_on_scheduler(_running_jobs)
    os.kill(scene.fit.pid, signal.SIGSTOP)
    scene.fit.gates.open()
    wait_until(lambda: set(jobs) & set(scene.observer.run_on_scheduler(_running_jobs)), 20 * _LEASE_S)
    send_signal(scene.fit.pid, rng.choice([signal.SIGCONT, signal.SIGKILL]))


def _running_jobs(dask_scheduler: Any) -> list[str]:
    return [lease for plugin in plugins_of(dask_scheduler) for lease in plugin.registry.leases.values()]


def _come_late(scene: Scene, rng: random.Random) -> None:
    """Let a rank rest for longer than its worker may be silent; the worker is not silent."""
    number = 0 if scene.held in ("training", "epoch end") else scene.victim.number
    rest = Path(scene.fit.gates.folder, f"late-{number}")
    rest.touch()
    timer = threading.Timer(rng.uniform(3.5, 7.0), rest.unlink)
    timer.start()
    scene.undo.append(timer.join)


def _second_user(scene: Scene, rng: random.Random) -> None:
    """Let somebody else fit on the same workers at the same time, and perhaps be killed soon after."""
    killed = rng.random() < 0.5
    other = scene.start(killed=killed)
    if killed:
        assert other.says("up"), "the other user did not come"
        time.sleep(rng.uniform(0.0, 0.5))
        send_signal(other.pid, signal.SIGKILL)


def _kill_scheduler(scene: Scene, rng: random.Random) -> None:
    assert scene.cluster.scheduler.pid is not None
    os.kill(scene.cluster.scheduler.pid, signal.SIGKILL)


def _sleep_scheduler(scene: Scene, rng: random.Random) -> None:
    """Let the scheduler stand still for longer than a worker may be silent, and up to half as long as it may itself."""
    pid = scene.cluster.scheduler.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    # As often from 5 to 10 s as from 30 to 60.
    timer = threading.Timer(5.0 * 12.0 ** rng.random(), send_signal, (pid, signal.SIGCONT))
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


_LOST = frozenset({"WorkerLostError"})
_LATE = frozenset({"GangTimeoutError"})
_STEPS = STEPS[:-1]

FAULTS = {
    fault.name: fault
    for fault in (
        Fault("SIGKILL", _kill, STEPS, _LOST, survived=True, hits=VICTIM),
        Fault("SIGSTOP", _stop, (*RUNNING, "after"), _LATE, survived=True, hits=VICTIM),
        Fault("retire", _retire, STEPS, _LOST, survived=True, hits=VICTIM),
        Fault("worker restart", _restart_worker, STEPS, _LOST, survived=True, hits=VICTIM),
        Fault("cluster restart", _restart_cluster, ("plan", *RUNNING), _LOST | {"GangError", "ClusterError"}, hits=ALL),
        Fault("client SIGKILL", _kill_client, _STEPS, outcomes=frozenset({"killed"})),
        Fault("ctrl-C", _interrupt, _STEPS, outcomes=frozenset({"interrupted"})),
        Fault("ctrl-C twice", _interrupt_twice, _STEPS, outcomes=frozenset({"interrupted", "killed"})),
        Fault(
            "client SIGSTOP",
            _stop_client,
            RUNNING,
            frozenset({"GangError"}),
            frozenset({"model", "error", "killed"}),
            survived=True,
            order={"lease_s": _LEASE_S},
        ),
        Fault("scheduler SIGKILL", _kill_scheduler, _STEPS, frozenset({"ClusterUnreachableError"}), hits=ALL),
        Fault("scheduler sleep", _sleep_scheduler, _STEPS, outcomes=MODEL),
        Fault("half-open connection", half_open, CONNECTED, outcomes=MODEL),
        Fault("garbage on the data port", garbage, CONNECTED, outcomes=MODEL),
        Fault(
            "partition",
            partition,
            CONNECTED[1:],
            _LATE,
            survived=True,
            passes=True,  # sums of few ranks need not use every connection
            order={"transport": "tcp", "timeout_s": _PEER_S},
        ),
        Fault("full /dev/shm", fill_shared_memory, ("plan", *RUNNING), outcomes=MODEL),
        Fault("EMFILE", exhaust_files, RUNNING, frozenset({"ClusterError"}), passes=True),
        Fault("ENOSPC", fill_disk, CONNECTED, outcomes=MODEL, order={"checkpoint": True}),
        Fault("delay", _delay, RUNNING, outcomes=MODEL),
        Fault("late rank", _come_late, RUNNING, outcomes=MODEL),
        Fault("paused worker", pause_worker, ("plan", "queue", *RUNNING), outcomes=MODEL),
        Fault("held interpreter", hold_interpreter, RUNNING, _LATE, survived=True, passes=True),
        Fault("second user", _second_user, STEPS, outcomes=MODEL),
        Fault("wrong clock", shift_clock, RUNNING, outcomes=MODEL, hits=VICTIM),
        Fault("downscaling", _downscale, ("queue", *RUNNING), outcomes=MODEL),
    )
}
