"""A small cluster of real processes, fits in processes of their own, and a look at what they leave.

Everything listens on 127.0.0.1, on ports that the system picks. Processes are ended by their pids, every wait ends, and
what outlives its wait is killed and reported.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Self

import psutil
from distributed import Client
from distributed.comm import CommClosedError

from chaos import nodes
from chaos.gates import Visit
from forks import forking, server_pid
from gang_cluster import assert_clean, wait_until
from shared_memory import shared_names

_START_S = 60.0
_END_S = 20.0
_STEP_S = 0.01


def fork(target: Callable[..., None], *args: Any) -> tuple[BaseProcess, Connection]:
    """Start a process and return it with our end of its pipe."""
    context = forking()
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(theirs, *args))
    process.start()
    theirs.close()
    return process, ours


def _forked() -> list[psutil.Process]:
    """Return all processes of this suite that live."""
    server = server_pid()
    if server is None:
        return []
    return [child for child in psutil.Process(server).children(recursive=True) if _lives(child)]


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:  # it has ended between the two
        return False


@dataclass(frozen=True)
class Outcome:
    """How a fit ended.

    Parameters
    ----------
    kind : {"model", "error", "interrupted", "killed"}
        ``"killed"`` when its process went without a word.
    at_s : float
        Monotonic time.
    name, text : str
        Of the error.
    facts : dict
        Of the model.
    """

    kind: str
    at_s: float
    name: str = ""
    text: str = ""
    facts: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.kind} {self.name} {self.text.strip().splitlines()[-1:]} {self.facts.get('accuracy', '')}"


class Fit:
    """A fit in a client process of its own."""

    def __init__(self, cluster: Cluster, order: nodes.FitOrder) -> None:
        self.gates = order.gates
        self.process, self._pipe = fork(nodes.run_client, cluster.address, order)
        self._said: list[tuple[Any, ...]] = []

    @property
    def pid(self) -> int:
        """The client's process."""
        assert self.process.pid is not None
        return self.process.pid

    def says(self, kind: str, timeout_s: float = _START_S) -> bool:
        """Wait until the client has said something of this kind; false if it ended before."""
        deadline = time.monotonic() + timeout_s
        while not any(message[0] == kind for message in self._said):
            if self._ended() or not self._hear(deadline - time.monotonic()):
                return any(message[0] == kind for message in self._said)
        return True

    def has_ended(self) -> bool:
        """Return whether the client has said how its fit ended."""
        while not self._ended() and self._pipe.poll() and self._hear(0.0):
            pass
        return self._ended()

    def reaches(self, step: str, n_visits: int, timeout_s: float = _START_S) -> list[Visit]:
        """Wait until `n_visits` have come to a step, or the fit has ended; return who has."""
        deadline = time.monotonic() + timeout_s
        while len(self.gates.visits(step)) < n_visits and not self._ended() and time.monotonic() < deadline:
            self._hear(_STEP_S)
        return self.gates.visits(step)

    def outcome(self, timeout_s: float = _START_S) -> Outcome:
        """Wait until the fit has ended and return how.

        Raises
        ------
        AssertionError
            It did not end, or its process did not; both are ended by force then.
        """
        deadline = time.monotonic() + timeout_s
        while not self._ended() and time.monotonic() < deadline and self._hear(deadline - time.monotonic()):
            pass
        late = not self._ended() and time.monotonic() >= deadline
        said = self._said[-1] if self._ended() else ("killed", time.monotonic())
        self.process.join(0.0 if late else _END_S)
        code = self.process.exitcode
        self.close()
        assert not late, f"the fit did not end within {timeout_s:g} s"
        assert code is not None, f"the client process did not end within {_END_S:g} s of its fit, which {said}"
        if said[0] == "model":
            return Outcome("model", said[1], facts=said[2])
        if said[0] == "error":
            return Outcome("error", said[1], said[2], said[3])
        return Outcome(said[0], said[1], text=f"exit code {code}")

    def close(self) -> None:
        """End the process if it still runs."""
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join(_END_S)
        self._pipe.close()

    def _ended(self) -> bool:
        return bool(self._said) and self._said[-1][0] in ("model", "error", "interrupted")

    def _hear(self, timeout_s: float) -> bool:
        """Take in a message; false when there will be none any more."""
        try:
            if self._pipe.poll(max(0.0, timeout_s)):
                self._said.append(self._pipe.recv())
        except (EOFError, OSError):
            return False
        return True


class Cluster:
    """A scheduler and workers under nannies; a context manager.

    Parameters
    ----------
    n_workers, n_threads : int
        Workers, and threads of each.
    """

    def __init__(self, n_workers: int = 3, n_threads: int = 1) -> None:
        self.n_workers, self.n_threads = n_workers, n_threads
        self._shared_memory = shared_names()
        self._n_started = 0
        self.accuracy = self.epoch_s = 0.0
        self._start()

    @property
    def n_ranks(self) -> int:
        """How many ranks a fit has when all is well: one for each thread of each worker."""
        return self.n_workers * self.n_threads

    def _start(self) -> None:
        self.scheduler, self._scheduler_pipe = fork(nodes.run_scheduler)
        assert self._scheduler_pipe.poll(_START_S), "no scheduler"
        self.address: str = self._scheduler_pipe.recv()
        self._nannies, self._orders = fork(nodes.run_workers, self.address, self.n_threads)
        self._order("start", self._names(self.n_workers))

    def _names(self, n: int) -> list[str]:
        self._n_started += n
        return [f"w{number}" for number in range(self._n_started - n, self._n_started)]

    def _order(self, *order: Any) -> list[str]:
        self._orders.send(order)
        assert self._orders.poll(_START_S), f"nannies do not {order}"
        names: list[str] = self._orders.recv()
        return names

    @contextlib.contextmanager
    def observer(self) -> Iterator[Client]:
        """Give a client for one look."""
        with Client(self.address, set_as_default=False, timeout=20) as client:
            yield client

    def restart(self) -> None:
        """Start again after the scheduler is gone: first everything else must have ended by itself."""
        left: list[str] = []
        with contextlib.suppress(AssertionError):
            wait_until(lambda: [p for p in _forked() if p.pid != self._nannies.pid], _END_S)
        for process in _forked():
            if process.pid != self._nannies.pid:
                left.append(f"{process.pid} {process.status()}")
                process.kill()
        self.stop()
        self._start()
        assert not left, f"processes that outlived their scheduler: {left}"

    def heal(self, client: Client) -> None:
        """Wait until there are as many workers as in the beginning; replace those whose nannies have left."""
        deadline = time.monotonic() + _START_S
        while True:
            alive = self._order("names")
            if len(alive) < self.n_workers:
                self._order("start", self._names(self.n_workers - len(alive)))
            workers = client.run_on_scheduler(_running)
            if len(workers) == self.n_workers == len(alive):
                # One that was killed just now may not have been missed yet.
                with contextlib.suppress(OSError, CommClosedError):
                    client.run(os.getpid)
                    return
            assert time.monotonic() < deadline, f"workers {workers} of nannies {alive} after {_START_S:g} s"
            time.sleep(0.05)

    def check_clean(self, client: Client) -> None:
        """Fail if a task, job, lease, store, socket, thread, mapping, file or process of a fit is left."""
        assert_clean(client)
        wait_until(lambda: client.run_on_scheduler(_all_tasks))
        wait_until(lambda: [f"{w}: {item}" for w, items in client.run(_held_by_worker).items() for item in items])
        wait_until(lambda: sorted(shared_names() - self._shared_memory))
        expected = 2 + self.n_workers
        wait_until(lambda: _forked()[expected:] and [str(process.pid) for process in _forked()])

    def stop(self) -> None:
        """End all processes."""
        for pipe in (self._orders, self._scheduler_pipe):
            pipe.close()
        for process in (self._nannies, self.scheduler):
            process.join(_END_S)
            if process.exitcode is None:
                process.kill()
                process.join(_END_S)
        for process in _forked():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        wait_until(_forked)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()


def _running(dask_scheduler: Any) -> list[str]:
    return [ws.address for ws in dask_scheduler.running]


def _all_tasks(dask_scheduler: Any) -> list[str]:
    return [f"task {key}: {task.state}" for key, task in dask_scheduler.tasks.items()]


def _held_by_worker(dask_worker: Any) -> list[str]:
    import threading

    held = [f"data {key}" for key in dask_worker.data]
    held += [thread.name for thread in threading.enumerate() if thread.name.startswith("dsgd")]
    maps = Path("/proc/self/maps")
    if maps.exists():
        held += [line for line in maps.read_text().splitlines() if "/dsgd-" in line and "/dev/shm" in line]
    return held
