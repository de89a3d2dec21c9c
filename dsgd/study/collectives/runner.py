"""Running a study of collectives: one row per sum, written when its gang is through."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsgd.report import provenance
from dsgd.runtime.threads import run_on_threads
from dsgd.study.collectives.grid import CollectiveRun, CollectiveStudy
from dsgd.study.collectives.measure import measure, take_blocks
from dsgd.study.rows import ROWS_FILE, RowFile, StudyRun
from dsgd.study.workers import cluster_of

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["run_collective_study"]


def run_collective_study(
    study: CollectiveStudy,
    out: str | os.PathLike[str],
    *,
    scheduler: str | None = None,
    force: bool = False,
    command: str | None = None,
) -> Iterator[StudyRun]:
    """Run what of a study is not yet in its file of rows; yield every run of the grid when its gang is through.

    Parameters
    ----------
    study : CollectiveStudy
        What to run.
    out : str or path-like
        Folder of the study; rows go to ``rows.jsonl`` in it.
    scheduler : str, optional
        Address of a cluster to run on; worker processes are started here by default.
    force : bool, default False
        Run everything anew.
    command : str, optional
        What rows say they were made by; the command line of this process by default.

    Yields
    ------
    StudyRun
        By ranks, wire, length and algorithm.
    """
    rows = RowFile(Path(out) / ROWS_FILE, force=force)
    context = provenance.origin(command)
    for ranks, gangs in groupby(study.gangs(), key=lambda gang: gang[1]):
        todo = {wire: [run for run in study.runs(wire, ranks) if run.key not in rows] for wire, _ in gangs}
        in_processes = any(runs for wire, runs in todo.items() if wire != "inproc")
        opened: AbstractContextManager[Client | None] = cluster_of(ranks, scheduler) if in_processes else nullcontext()
        with opened as client:
            for wire, runs in todo.items():
                for run, found in zip(runs, _measure(runs, client) if runs else (), strict=True):
                    when = datetime.now(UTC).isoformat(timespec="seconds")
                    rows.append({"key": run.key, **vars(run), **found, "when": when, **context})
                fresh = {run.key for run in runs}
                for run in study.runs(wire, ranks):
                    yield StudyRun(rows.select([run.key])[0], resumed=run.key not in fresh)


def _measure(runs: Sequence[CollectiveRun], client: Client | None) -> list[dict[str, Any]]:
    """Let a gang make sums; return what it says of each."""
    wire, ranks = runs[0].wire, runs[0].ranks
    if wire == "inproc" or client is None:
        threads: list[dict[str, Any]] = run_on_threads(measure, [None] * ranks, (runs,)).value
        return threads
    from dsgd.runtime import run_on_cluster

    blocks = client.scatter(list(range(ranks)), hash=False)
    workers = run_on_cluster(
        measure,
        blocks,
        client=client,
        pack=take_blocks,
        args=(tuple(runs),),
        n_ranks=ranks,
        ranks_per_worker=1,
        transport=wire,  # type: ignore[arg-type]
    )
    found: list[dict[str, Any]] = workers.value
    return found
