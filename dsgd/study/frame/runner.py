"""Running a study: missing runs are made, on worker processes if needed.

A study can be interrupted and resumed at any time, because its record is on disk after every run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dsgd.report import origin
from dsgd.study.frame.missing import MissingData
from dsgd.study.frame.rows import ROWS_FILE, AbstractRun, Row, RowFile, StudyRun
from dsgd.study.frame.workers import cluster_where

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["Record", "by_ranks", "run_grids"]

RunT = TypeVar("RunT", bound=AbstractRun)
DataT = TypeVar("DataT")


class Record:
    """The finished runs of a study, one row each, in the folder of the study.

    Parameters
    ----------
    out : str or path-like
        The folder; rows go to ``rows.jsonl`` in it.
    force : bool, default False
        Drop the rows that are there.
    command : str, optional
        The command recorded in new rows; the command line of this process by default.
    **about
        Further columns of new rows, such as where their ranks were.
    """

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
        """Yield all of these runs in their order, each when its row is on disk.

        Parameters
        ----------
        runs : sequence of AbstractRun
            The runs.
        measure : callable
            Takes the runs that have no row yet, and returns the contents of their rows. It is called only if there are
            any. As a generator it makes each run on demand, and can share variables between runs. For runs that are
            made together it returns a list, whose rows are all on disk before the first is yielded.
        """
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


def by_ranks(study: Any, sets: Sequence[Any], network: str | None = None) -> Iterator[Any]:
    """Yield the grids of a study on some data sets for `run_grids`, by ranks. Simulated ranks need no workers."""
    for ranks in study.all_ranks():
        parts = [(data, study.runs(data.name, len(data.y), len(data.y_test), ranks)) for data in sets]
        yield ranks if network is None else 0, parts


def run_grids(
    record: Record,
    grids: Iterable[tuple[int, Sequence[tuple[DataT | MissingData, Sequence[RunT]]]]],
    measure: Callable[[Client | None, DataT, list[RunT]], Iterable[Row]],
    scheduler: str | None = None,
) -> Iterator[StudyRun]:
    """Yield the runs of a study in their order, each when its row is on disk.

    Parameters
    ----------
    record : Record
        Where rows are and go.
    grids : iterable of (int, sequence of (data, sequence of AbstractRun))
        Runs, grouped by the number of worker processes that they need (0 for none) and by data. Workers are started
        once for each entry, and only if one of its runs has no row yet. Of data that are missing only the rows are
        yielded that are there.
    measure : callable
        Takes a client (None without workers), the data and the runs to make, and yields the contents of their rows.
    scheduler : str, optional
        Address of a cluster to use in place of worker processes on this machine.
    """
    for n_workers, parts in grids:
        needed = n_workers > 0 and not all(isinstance(data, MissingData) or record.has(runs) for data, runs in parts)
        with cluster_where(needed, n_workers, scheduler) as client:
            for data, runs in parts:
                if isinstance(data, MissingData):
                    yield from record.kept(runs)
                else:
                    yield from record.finish(runs, partial(measure, client, data))
