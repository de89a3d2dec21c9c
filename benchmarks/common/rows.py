"""Rows that say where and when they were measured."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any


def machine() -> dict[str, Any]:
    """Return commit, processor, cores and versions."""
    from dsgd.report import provenance

    here, versions = provenance.machine(), provenance.versions()
    return {
        "commit": provenance.commit() or "unknown",
        "cpu": here["cpu"],
        "cores": here["cores"],
        **{name: versions[name] for name in ("python", "dsgd", "numpy", "numba", "scikit-learn")},
    }


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
