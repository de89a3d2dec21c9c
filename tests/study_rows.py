"""Rows of a study as if it had been run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dsgd.study.frame.rows import Run
from dsgd.study.frame.study import Study

_ABOUT = {
    "when": "2026-01-01T00:00:00+00:00", "versions": {"dsgd": "0"}, "load_at_start": 0.1, "commit": None,
    "command": "dsgd study", "cluster": "local", "source": "<made>", "features": 3, "density": 0.5, "checksum": "0",
    "majority_accuracy": 0.6, "bayes_accuracy": None,
    "machine": {"cpu": "<one & only>", "cores": 2, "memory_gib": 8, "system": "Linux"},
}  # fmt: skip


def made_rows(study: Study, found: Callable[[Run], dict[str, Any]], **about: Any) -> list[dict[str, Any]]:
    """Return a row for each run of a study on sets of 1000 and 250 rows, with what is found of it."""
    return [{"key": run.key, **_ABOUT, **run.settings(), **found(run), **about} for run in study.runs(1000, 250)]
