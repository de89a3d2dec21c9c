"""Running a study of collectives: one row per sum, written when its gang is through."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from dsgd.runtime.threads import run_on_threads
from dsgd.study.collectives.grid import CollectiveRun, CollectiveStudy
from dsgd.study.collectives.measure import measure, take_blocks
from dsgd.study.frame.record import Record
from dsgd.study.frame.rows import StudyRun
from dsgd.study.frame.workers import cluster_where

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
    record = Record(out, force=force, command=command)
    for ranks, gangs in groupby(study.gangs(), key=lambda gang: gang[1]):
        grids = {wire: study.runs(wire, ranks) for wire, _ in gangs}
        in_processes = not all(record.has(runs) for wire, runs in grids.items() if wire != "inproc")
        with cluster_where(in_processes, ranks, scheduler) as client:
            for runs in grids.values():
                known = {run: record.recall(run) for run in runs}
                todo = [run for run in runs if known[run] is None]
                made = zip(todo, _measure(todo, client) if todo else (), strict=True)
                fresh = {run: record.add(run, found) for run, found in made}
                for run in runs:
                    yield known[run] or fresh[run]


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
