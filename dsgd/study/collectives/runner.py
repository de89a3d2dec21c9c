"""Running a study of collectives: one row per sum, written when its gang is through."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from dsgd.runtime.threads import run_on_threads
from dsgd.study.collectives.grid import CollectiveRun, CollectiveStudy
from dsgd.study.collectives.measure import measure, take_blocks
from dsgd.study.frame.rows import Row, StudyRun
from dsgd.study.frame.runner import Record, run_grids

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
    """Run what of a study has no row yet; yield every run: by ranks, wires, lengths and algorithms.

    Parameters and errors are those of `dsgd.study.run_study`.
    The sums of a gang are made together.
    """
    record = Record(out, force=force, command=command)
    grids = (
        (0 if in_threads else ranks, [(None, study.runs(*gang)) for gang in gangs])
        for (ranks, in_threads), gangs in groupby(study.gangs(), key=lambda gang: (gang[1], gang[0] == "inproc"))
    )
    yield from run_grids(record, grids, _measure, scheduler)


def _measure(client: Client | None, data: None, runs: Sequence[CollectiveRun]) -> list[Row]:
    """Let a gang make sums; return what it says of each."""
    wire, ranks = runs[0].wire, runs[0].ranks
    if client is None:
        threads: list[Row] = run_on_threads(measure, [None] * ranks, (runs,)).value
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
    found: list[Row] = workers.value
    return found
