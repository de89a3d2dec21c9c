"""What the benchmarks share: rows that say where and when they were measured."""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import subprocess
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

__all__ = ["Rows", "in_processes", "machine"]


def machine() -> dict[str, Any]:
    """Return commit, processor, cores and versions."""
    import numba
    import numpy
    import sklearn

    import dsgd

    here = Path(__file__).parent
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=here, capture_output=True, text=True, check=False)
    return {
        "commit": git.stdout.strip() or "unknown",
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "dsgd": dsgd.__version__,
        "numpy": numpy.__version__,
        "numba": numba.__version__,
        "scikit-learn": sklearn.__version__,
    }


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    names = (
        [line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
        if info.exists()
        else []
    )
    return names[0] if names else platform.processor()


class Rows:
    """Appends measurements to a file of JSON lines; a no-op without a file.

    Parameters
    ----------
    benchmark : str
        Name of the benchmark.
    path : str or None
        The file.
    """

    def __init__(self, benchmark: str, path: str | None) -> None:
        self._head = {"benchmark": benchmark, **machine()} if path else {}
        self._path = Path(path) if path else None

    def add(self, **values: Any) -> None:
        """Append one row."""
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        row = {**self._head, "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **values}
        with self._path.open("a") as file:
            file.write(json.dumps(row) + "\n")


def in_processes(
    size: int,
    target: Callable[..., None],
    arguments: Callable[[int, Connection], Sequence[Any]],
    meet: Callable[[list[Any]], Any],
) -> Any:
    """Run a rank in each of several fresh processes; return what that of rank 0 has sent in the end.

    Parameters
    ----------
    size : int
        How many.
    target : callable
        What a process runs. It sends where it can be found, receives what `meet` returns, and sends what it has found.
    arguments : callable
        Returns the arguments of `target` for a rank and its end of the pipe.
    meet : callable
        Takes what the ranks have sent at first.
    """
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    try:
        for rank in range(size):
            ours, theirs = context.Pipe()
            processes.append(context.Process(target=target, args=tuple(arguments(rank, theirs))))
            processes[-1].start()
            theirs.close()
            pipes.append(ours)
        common = meet([pipe.recv() for pipe in pipes])
        for pipe in pipes:
            pipe.send(common)
        found = [pipe.recv() for pipe in pipes]
        return found[0]
    finally:
        for process in processes:
            process.join(10.0)
            if process.is_alive():
                process.kill()
                process.join()
