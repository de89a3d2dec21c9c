"""The record of a study while it runs: runs that were made before are there, and those that are made now come to it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dsgd.report import origin
from dsgd.study.frame.rows import ROWS_FILE, AbstractRun, RowFile, StudyRun

__all__ = ["Record"]


class Record:
    """The finished runs of a study, one row each, in the folder of the study.

    Parameters
    ----------
    out : str or path-like
        The folder; rows go to ``rows.jsonl`` in it.
    force : bool, default False
        Drop the rows that are there.
    command : str, optional
        What new rows say they were made by; the command line of this process by default.
    **about
        What new rows say besides, such as where their ranks were.
    """

    def __init__(
        self, out: str | os.PathLike[str], *, force: bool = False, command: str | None = None, **about: Any
    ) -> None:
        self._rows = RowFile(Path(out) / ROWS_FILE, force=force)
        self._about = {**origin(command), **about}

    def has(self, runs: Iterable[AbstractRun]) -> bool:
        """Return whether all of these runs are finished."""
        return all(run.key in self._rows for run in runs)

    def recall(self, run: AbstractRun) -> StudyRun | None:
        """Return a run that was finished before; None if it has yet to be made."""
        return self._finished(run, resumed=True) if run.key in self._rows else None

    def add(self, run: AbstractRun, found: Mapping[str, Any]) -> StudyRun:
        """Return a run that has just been made, with what was found; its row is on disk when this returns."""
        when = datetime.now(UTC).isoformat(timespec="seconds")
        self._rows.append({"key": run.key, **run.settings(), **found, "when": when, **self._about})
        return self._finished(run, resumed=False)

    def _finished(self, run: AbstractRun, *, resumed: bool) -> StudyRun:
        return StudyRun(self._rows.select([run.key])[0], resumed=resumed)
