"""Places in a fit where it can be watched and held.

A gate is a folder that every process of a scenario sees. A rank that reaches a step leaves a line there (when, which
process, which worker) and, if the step is held, waits until the gate is opened. So a fault hits exactly the step it is
meant for, whatever the machine is busy with, and a process that is killed while it waits leaves nothing to clean up.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from distributed import Worker
from distributed.core import Status

from dsgd.runtime import Rank

# Longer than it takes to inject any fault: a gate that stays shut must not look like a rank that hangs.
_HOLD_S = 10.0
_STEP_S = 0.005
_OVER = (Status.closed, Status.failed)
# Rank 0 has trained for a while when it publishes for the second time.
_EPOCH_END = 2


@dataclass(frozen=True)
class Visit:
    """That a rank (or a block) has come to a step.

    Parameters
    ----------
    number : int
        The rank, or the block in the step ``"plan"``.
    at_s : float
        Monotonic time, the same clock in all processes of a host.
    pid : int
        The process.
    worker : str
        Its Dask address.
    """

    number: int
    at_s: float
    pid: int
    worker: str


@dataclass(frozen=True)
class Gates:
    """The gates of one fit.

    Parameters
    ----------
    folder : str
        Where visits are written down.
    held : str
        The step at which ranks wait, or an empty string.
    late : int
        In the step ``"rendezvous"`` the worker whose first rank this is comes late; all others wait for it there.
    """

    folder: str
    held: str = ""
    late: int = 0

    def reach(self, step: str, number: int) -> None:
        """Leave a line, and wait if the step is held."""
        # Ranks run in threads that Dask does not know, so `get_worker` finds nothing there.
        worker = next(worker for worker in Worker._instances if worker.status not in _OVER)
        line = f"{number} {time.monotonic()} {os.getpid()} {worker.address}\n"
        deadline = time.monotonic() + _HOLD_S
        while not _append(Path(self.folder, step), line):
            assert time.monotonic() < deadline, "a rank could not write down where it is"
            time.sleep(_STEP_S)
        if step == self.held or (step == "load" and self.held == "rendezvous" and number == self.late):
            deadline = time.monotonic() + _HOLD_S
            opened = Path(self.folder, "open")
            while not opened.exists() and time.monotonic() < deadline:
                time.sleep(_STEP_S)
            late = Path(self.folder, f"late-{number}")
            while late.exists() and time.monotonic() < deadline:
                time.sleep(_STEP_S)

    def open(self) -> None:
        """Let everybody pass from now on."""
        Path(self.folder, "open").touch()

    def visits(self, step: str) -> list[Visit]:
        """Return who has come to a step, in order."""
        path = Path(self.folder, step)
        if not path.exists():
            return []
        fields = [line.split() for line in path.read_text().splitlines()]
        return [Visit(int(number), float(at), int(pid), worker) for number, at, pid, worker in fields]


def _append(path: Path, line: str) -> bool:
    """Append a line to a file; false if this process may open no more files for now."""
    try:
        with path.open("a") as file:
            file.write(line)
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
        return False
    return True


@dataclass(frozen=True)
class GatedPack:
    """Packs as `pack` does; the step ``"load"`` is before it, on every worker."""

    pack: Callable[[Sequence[Any], int], Any]
    gates: Gates

    def __call__(self, blocks: Sequence[Any], rank_number: int) -> Any:
        """Come by, and pack."""
        self.gates.reach("load", rank_number)
        return self.pack(blocks, rank_number)


@dataclass(frozen=True)
class GatedProgram:
    """Runs as `program` does, through the steps ``"first round"``, ``"training"``, ``"epoch end"``, ``"collect"``."""

    program: Callable[..., Any]
    gates: Gates

    def __call__(self, rank: Rank, data: Any, *args: Any) -> Any:
        """Come by, train, and come by again."""
        self.gates.reach("first round", rank.number)
        published: list[Mapping[str, Any]] = []

        def publish(event: Mapping[str, Any]) -> None:
            published.append(event)
            self.gates.reach("training", rank.number)
            if len(published) == _EPOCH_END:
                self.gates.reach("epoch end", rank.number)
            rank.publish(event)

        value = self.program(replace(rank, publish=publish), data, *args)
        self.gates.reach("collect", rank.number)
        return value


def gated_block(gates: Gates, index: int, make: Callable[[int], Any]) -> Any:
    """Return a block as `make` does; the step ``"plan"`` is while it is computed."""
    gates.reach("plan", index)
    return make(index)
