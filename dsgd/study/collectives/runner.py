"""Running the study of collectives."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from dsgd.collectives import Group, allreduce_cost, allreduce_seconds, calibrate
from dsgd.runtime.rank import Rank
from dsgd.sim.calibration import run_measurement
from dsgd.study.collectives.grid import CollectiveRun, CollectiveStudy
from dsgd.study.frame.rows import Row, StudyRun
from dsgd.study.frame.runner import Record, run_grids
from dsgd.study.frame.workers import place_name
from dsgd.types import AnyArray

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["measure", "run_collective_study"]

# Sums between two readings of the clock.
_MOST: Final = 20
_BATCH_BYTES: Final = 8 << 20


def run_collective_study(
    study: CollectiveStudy,
    out: str | os.PathLike[str],
    *,
    scheduler: str | None = None,
    force: bool = False,
    command: str | None = None,
) -> Iterator[StudyRun]:
    """Make the runs of a study that have no row yet; yield every run: by ranks, wires, lengths and algorithms.

    Parameters and errors are those of `dsgd.study.run_study`.
    The sums of a gang are made together.
    """
    record = Record(out, force=force, command=command, cluster=place_name(scheduler, None))
    grids = (
        (0 if in_threads else ranks, [(None, study.runs(*gang)) for gang in gangs])
        for (ranks, in_threads), gangs in groupby(study.gangs(), key=lambda gang: (gang[1], gang[0] == "inproc"))
    )
    yield from run_grids(record, grids, _measure, scheduler)


def _measure(client: Client | None, data: None, runs: Sequence[CollectiveRun]) -> list[Row]:
    """Let a gang make sums; return its rows."""
    wire: Any = runs[0].wire
    gang = run_measurement(
        measure, (tuple(runs),), client=client, ranks=runs[0].ranks, transport=wire, ranks_per_worker=1
    )
    found: list[Row] = gang.value
    return found


def measure(rank: Rank, data: Any, runs: Sequence[CollectiveRun]) -> list[dict[str, Any]]:
    """Time sums; a rank program.

    Short sums are timed in batches, one after the other as in training. The time of a sum is that of the slowest rank.
    The algorithms of one length take turns, so that other load on the machine affects all of them.

    Parameters
    ----------
    rank : Rank
        This member of the gang.
    data : object
        Not used.
    runs : sequence of CollectiveRun
        What to sum, and how.

    Returns
    -------
    list of dict
        Of each run: seconds (the median, and of each repetition), what was predicted from a calibration in the same
        gang, and what was sent.
    """
    transport = rank.group.transport
    link = calibrate(rank.group)
    found: dict[CollectiveRun, list[float]] = {}
    for n_bytes in dict.fromkeys(run.n_bytes for run in runs):
        same = [run for run in runs if run.n_bytes == n_bytes]
        groups = [Group(transport, run.algorithm, hosts=[0] * rank.size) for run in same]
        vector = np.zeros(n_bytes // 4, dtype=np.float32)
        batch = max(2, min(_MOST, _BATCH_BYTES // n_bytes))
        seconds = np.zeros((same[0].repeats + 2, len(same)))
        for line in seconds:
            for k, group in enumerate(groups):
                line[k] = _timed(rank, group, vector, batch)
        rank.group.allreduce(seconds, "max")
        # The first two repetitions also make plans and scratch memory.
        found |= {run: seconds[2:, k].tolist() for k, run in enumerate(same)}
    rows = []
    for run, times in found.items():
        costs = [allreduce_cost(r, rank.size, run.n_bytes // 4, 4, run.algorithm) for r in range(rank.size)]
        rows.append(
            {
                "seconds": statistics.median(times),
                "fastest_s": min(times),
                "times_s": times,
                "predicted_s": allreduce_seconds(run.algorithm, run.n_bytes, rank.size, link),
                "bytes_sent": sum(cost.n_bytes for cost in costs),
                "messages": sum(cost.messages for cost in costs),
                **vars(link),
            }
        )
    return rows


def _timed(rank: Rank, group: Group, vector: AnyArray, batch: int) -> float:
    rank.check()
    clock = rank.ledger.clock
    rank.group.barrier()
    begin = clock()
    for _ in range(batch):
        group.allreduce(vector)
    seconds: float = clock() - begin
    return seconds / batch
