"""Names in the folder of shared memory: what this process, or one that comes from it, has left there."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import psutil

_FOLDER = Path("/dev/shm")
_PREFIX = "dsgd"


def shared_names() -> frozenset[str]:
    """Return the names of shared memory, but for what another process that runs tests has open."""
    if not _FOLDER.is_dir():
        return frozenset()
    names = {path for path in _FOLDER.iterdir() if path.name.startswith(_PREFIX)}
    held = _opened_elsewhere() if names else set()
    return frozenset(path.name for path in names if path.with_suffix("") not in held)


def _opened_elsewhere() -> set[Path]:
    """Return the files that processes have open which neither are this one nor come from it."""
    ours = {os.getpid(), *(pid for pid, _ in descendants(os.getpid()))}
    found = set()
    for pid in set(psutil.pids()) - ours:
        # Such a process, or a file of it, may be gone by now, or be another user's.
        with contextlib.suppress(OSError):
            for link in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    found.add(link.readlink())
    return found


def descendants(pid: int) -> list[tuple[int, int]]:
    """Return the processes below one, each with its parent."""
    tasks = Path(f"/proc/{pid}/task")
    if not Path("/proc/self/task").is_dir():
        return [(child.pid, child.ppid()) for child in psutil.Process(pid).children(recursive=True)]
    # Linux says it at once; psutil would look at every process of the machine, twice for each test.
    found: list[tuple[int, int]] = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in tasks.iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found += [(child, pid), *descendants(child)]
    return found
