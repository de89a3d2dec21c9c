"""What runs on the workers: the task that is a rank.

A rank's task leaves Dask's thread pool at once (`secede`): gangs that are interleaved cannot block each other, and
adaptive scaling leaves the worker alone. It talks to its peers over blocking sockets in its own thread. It never
raises into Dask, which would run it again and fill the logs: it tells the scheduler plugin how it ended, before its
sockets close, so that the first story told is that of the rank that failed and not that of its startled peers.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cloudpickle
from distributed import get_worker, secede

from dsgd.collectives.group import Algorithm, Group
from dsgd.ledger import RankLedger, RankRecords
from dsgd.runtime.failures import describe
from dsgd.runtime.fetch import HeldBlocks
from dsgd.runtime.plugins import store_of
from dsgd.runtime.progress import Publisher
from dsgd.runtime.rank import Rank, RankProgram
from dsgd.runtime.rendezvous import Fence, SchedulerLink, meet
from dsgd.runtime.store import JobState
from dsgd.runtime.threads import peak_rss_bytes
from dsgd.runtime.wires import WireOptions

if TYPE_CHECKING:
    from distributed import Worker

__all__ = ["MemberTask", "RankOutcome", "kept_blocks", "request_pause", "run_member"]


@dataclass(frozen=True)
class MemberTask:
    """All that a rank is told.

    Parameters
    ----------
    fence : Fence
        Job, epoch, token and rank.
    worker : str
        The worker it is meant for.
    host : str
        The host of that worker.
    blocks : tuple of int
        The blocks it packs, in this order.
    keys : tuple
        The keys by which Dask knows them.
    block_nbytes : tuple of int
        Their sizes in bytes.
    payload : bytes
        The pickled (program, pack, args), the same for all ranks.
    timeout_s : float
        Longest wait for a peer.
    algorithm : str
        How `Group.allreduce` works.
    wires : WireOptions
        What the ranks talk over.
    keeps : bool
        Whether the packed rows and snapshots of the rank stay until the job is closed, for its next epoch.
    """

    fence: Fence
    worker: str
    host: str
    blocks: tuple[int, ...]
    keys: tuple[Any, ...]
    block_nbytes: tuple[int, ...]
    payload: bytes
    timeout_s: float
    algorithm: Algorithm
    wires: WireOptions
    keeps: bool = False


@dataclass(frozen=True)
class RankOutcome:
    """What a rank brings home by value.

    Parameters
    ----------
    rank : int
        The rank.
    ok : bool
        Whether the program returned.
    value : bytes
        The pickled value of the program on rank 0; empty on the others.
    stats : dict
        See `GangResult`.
    records : RankRecords or None
        The account of the rank.
    """

    rank: int
    ok: bool
    value: bytes
    stats: dict[str, Any]
    records: RankRecords | None


def kept_blocks(job_id: str, token: bytes, dask_worker: Worker) -> tuple[int, ...] | None:
    """Return which blocks a job has packed on this worker; None if it has packed none. Sent to run on the worker."""
    job = store_of(dask_worker).look_up(job_id, token)
    return None if job is None else job.kept.blocks


def request_pause(job_id: str, token: bytes, dask_worker: Worker) -> None:
    """Ask the rank on this worker to stop at the end of its epoch. Sent to run on the worker."""
    job = store_of(dask_worker).look_up(job_id, token)
    if job is not None:
        job.kept.keeper.pause_requested = True


def run_member(task: MemberTask) -> RankOutcome:
    """Run one rank of a gang: pack its blocks, meet the others, run the program.

    Returns
    -------
    RankOutcome
        With ``ok=False`` when the rank failed; the scheduler plugin then knows why.
    """
    worker = get_worker()
    fence = task.fence
    nothing = RankOutcome(fence.rank, False, b"", {}, None)
    job = store_of(worker).find(fence.job_id, fence.epoch, fence.token)
    if job is None or job.task_key is not None or worker.address != task.worker:
        # Dask ran a task of a gang that is over, or ran one twice: it has no place in the gang.
        return nothing
    job.task_key = worker.get_current_task()
    secede()
    link = SchedulerLink(worker, fence)
    link.started()
    with contextlib.ExitStack() as cleanup:
        try:
            outcome = _run(task, worker, job, link, cleanup)
            link.finish(None)
            return outcome
        except BaseException as error:
            # KeyboardInterrupt and SystemExit too: whatever stops this rank must reach its peers and the client.
            failure = describe(error, aborted=job.abort.is_set)
            with contextlib.suppress(Exception):
                link.finish(failure)
            return nothing


def _run(
    task: MemberTask, worker: Worker, job: JobState, link: SchedulerLink, cleanup: contextlib.ExitStack
) -> RankOutcome:
    program: RankProgram
    pack: Callable[[Sequence[Any], int], Any]
    program, pack, args = pickle.loads(task.payload)
    rank_number = task.fence.rank
    job.abort.check()
    if not task.keeps or job.kept.blocks != task.blocks:
        # Memory for the rows of before and for those to come is not to be had.
        job.kept.drop_data()
        blocks = HeldBlocks(worker, task.keys, task.block_nbytes, job.abort, task.timeout_s)
        data = pack(blocks, rank_number)
        blocks.close()
        if task.keeps:
            job.kept.blocks, job.kept.data = task.blocks, data
    else:
        data = job.kept.data
    keeper = job.kept.keeper if task.keeps else None
    job.abort.check()

    ledger = RankLedger(rank_number)
    transport, refused = meet(worker, job, link, task.fence, task.wires, ledger=ledger, timeout_s=task.timeout_s)
    cleanup.callback(transport.close)
    group = Group(transport, task.algorithm)
    if rank_number == 0:
        publisher = Publisher(link.publish)
        value = program(Rank(group, job.abort, publisher, keeper), data, *args)
        publisher.flush()
    else:
        value = program(Rank(group, job.abort, keeper=keeper), data, *args)

    return RankOutcome(
        rank_number,
        True,
        cloudpickle.dumps(value) if rank_number == 0 else b"",
        {
            "rank": rank_number,
            "worker": task.worker,
            "host": task.host,
            "rows": getattr(data, "n_rows", None),
            "n_blocks": len(task.blocks),
            "peak_rss_bytes": peak_rss_bytes(),
            "transport": transport.wire,
            "refused": refused,
        },
        ledger.records(),
    )
