"""Running a study: missing runs are made, on worker processes if needed.

A study can be interrupted and resumed at any time, because its record is on disk after every run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from dsgd.report import origin
from dsgd.study.frame.rows import ROWS_FILE, AbstractRun, Row, RowFile, StudyRun

RunT = TypeVar("RunT", bound=AbstractRun)


class Record:
    """The finished runs of a study, one row each, in the folder of the study."""

    def __init__(
        self, out: str | os.PathLike[str], *, force: bool = False, command: str | None = None, **about: Any
    ) -> None:
        self._rows = RowFile(Path(out) / ROWS_FILE, force=force)
        self._about = {**origin(command), **about}

    def has(self, runs: Iterable[AbstractRun]) -> bool:
        """Return whether all of these runs are finished."""
        return all(run.key in self._rows for run in runs)

    def rows(self, **columns: Any) -> list[Row]:
        """Return the rows that have these values, in the order in which they were made."""
        return self._rows.matching(columns)

    def kept(self, runs: Iterable[AbstractRun]) -> Iterator[StudyRun]:
        """Yield those of some runs that have a row; nothing is run."""
        for row in self._rows.select(run.key for run in runs):
            yield StudyRun(row, resumed=True)

    def finish(self, runs: Sequence[RunT], measure: Callable[[list[RunT]], Iterable[Row]]) -> Iterator[StudyRun]:
        """Yield all of these runs in their order, each when its row is on disk."""
        missing = {run.key: run for run in runs if run.key not in self._rows}
        found = measure(list(missing.values())) if missing else ()
        made = zip(missing.values(), found, strict=True)
        if isinstance(found, list):
            for run, row in made:
                self._add(run, row)
        for run in runs:
            if run.key not in self._rows:
                self._add(*next(made))
            yield StudyRun(self._rows.select([run.key])[0], resumed=run.key not in missing)

    def _add(self, run: AbstractRun, found: Mapping[str, Any]) -> None:
        when = datetime.now(UTC).isoformat(timespec="seconds")
        self._rows.append({"key": run.key, **run.settings(), **found, "when": when, **self._about})
