"""Rows that say where and when they were measured."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

__all__ = ["Rows", "machine"]


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
