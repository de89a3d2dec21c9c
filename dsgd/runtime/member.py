"""What runs on the workers: the task that is a member of the gang.

A member is one Dask task per worker process. It packs the worker's rows once and runs one or several ranks over them:
the first in its own thread, the others in threads that it starts and joins. It leaves Dask's thread pool at once
(`secede`): gangs that are interleaved cannot block each other, and adaptive scaling leaves the worker alone. It never
raises into Dask, which would run it again and fill the logs: it tells the scheduler plugin how it ended, before its
sockets close, so that the first story told is that of the rank that failed and not that of its startled peers.
"""

from __future__ import annotations

import contextlib
import pickle
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cloudpickle
from distributed import get_worker, secede

from dsgd.collectives.group import Algorithm, Group
from dsgd.comm import nested
from dsgd.ledger import RankLedger, RankRecords
from dsgd.local import split
from dsgd.runtime.failures import describe
from dsgd.runtime.fetch import HeldBlocks
from dsgd.runtime.mailroom import MailRoom, servers_of, wants_mailboxes
from dsgd.runtime.plugins import store_of
from dsgd.runtime.pools import limit_pools
from dsgd.runtime.progress import Publisher
from dsgd.runtime.rank import Mail, Rank, RankProgram, Server
from dsgd.runtime.rendezvous import Fence, SchedulerLink, meet
from dsgd.runtime.snapshot import SnapshotKeeper
from dsgd.runtime.store import JobState
from dsgd.runtime.threads import peak_rss_bytes, run_threads
from dsgd.runtime.wires import WireOptions

if TYPE_CHECKING:
    from distributed import Worker

__all__ = ["Cut", "MemberOutcome", "MemberTask", "Pack", "kept_blocks", "request_pause", "run_member"]

Pack = Callable[[Sequence[Any], int], Any]
Cut = Callable[[Any, int], Sequence[Any]]


@dataclass(frozen=True)
class MemberTask:
    """All that a member is told.

    Parameters
    ----------
    fence : Fence
        Job, epoch, token and number of the member.
    worker : str
        The worker it is meant for.
    host : str
        The host of that worker.
    n_threads : int
        How many threads that worker has.
    ranks_of : tuple of int
        How many ranks each member of the gang runs.
    blocks : tuple of int
        The blocks it packs, in this order.
    keys : tuple
        The keys by which Dask knows them.
    block_nbytes : tuple of int
        Their sizes in bytes.
    payload : bytes
        The pickled (program, pack, cut, args), the same for all members.
    timeout_s : float
        Longest wait for a peer.
    algorithm : str
        How `Group.allreduce` works.
    wires : WireOptions
        What the ranks talk over.
    keeps : bool
        Whether the packed rows and snapshots of the rank stay until the job is closed, for its next epoch.
    mail : Mail or None
        Whether ranks get mailboxes, and which servers the gang has.
    """

    fence: Fence
    worker: str
    host: str
    n_threads: int
    ranks_of: tuple[int, ...]
    blocks: tuple[int, ...]
    keys: tuple[Any, ...]
    block_nbytes: tuple[int, ...]
    payload: bytes
    timeout_s: float
    algorithm: Algorithm
    wires: WireOptions
    keeps: bool = False
    mail: Mail | None = None

    @property
    def servers(self) -> range:
        """Numbers of the servers it runs."""
        return servers_of(self.mail, self.fence.member, self.ranks_of)

    @property
    def ranks(self) -> range:
        """Numbers of the ranks it runs."""
        first = sum(self.ranks_of[: self.fence.member])
        return range(first, first + self.ranks_of[self.fence.member])


@dataclass(frozen=True)
class MemberOutcome:
    """What a member brings home by value.

    Parameters
    ----------
    ok : bool
        Whether the program returned on all its ranks.
    value : bytes
        The pickled value of the program on rank 0; empty on other members.
    stats : list of dict
        One per rank; see `GangResult`.
    records : list of RankRecords
        The accounts of the ranks and of the servers.
    """

    ok: bool
    value: bytes
    stats: list[dict[str, Any]]
    records: list[RankRecords]


_NOTHING = MemberOutcome(False, b"", [], [])


def kept_blocks(job_id: str, token: bytes, dask_worker: Worker) -> tuple[int, ...] | None:
    """Return which blocks a job has packed on this worker; None if it has packed none. Sent to run on the worker."""
    job = store_of(dask_worker).look_up(job_id, token)
    return None if job is None else job.kept.blocks


def request_pause(job_id: str, token: bytes, dask_worker: Worker) -> None:
    """Ask the ranks on this worker to stop at the end of its epoch. Sent to run on the worker."""
    job = store_of(dask_worker).look_up(job_id, token)
    if job is not None:
        for keeper in list(job.kept.keepers.values()):
            keeper.pause_requested = True


def run_member(task: MemberTask) -> MemberOutcome:
    """Run one member of a gang: pack its blocks, meet the others, run the program on every rank of this worker.

    Returns
    -------
    MemberOutcome
        With ``ok=False`` when a rank failed; the scheduler plugin then knows which, and why.
    """
    worker = get_worker()
    fence = task.fence
    job = store_of(worker).find(fence.job_id, fence.epoch, fence.token)
    if job is None or job.task_key is not None or worker.address != task.worker:
        # Dask ran a task of a gang that is over, or ran one twice: it has no place in the gang.
        return _NOTHING
    job.task_key = worker.get_current_task()
    secede()
    link = SchedulerLink(worker, fence)
    link.started()
    failures = _Failures(link, job)
    with contextlib.ExitStack() as cleanup:
        try:
            outcome = _run(task, worker, job, link, failures, cleanup)
            if outcome.ok:
                link.finish(None)
            return outcome
        except BaseException as error:
            # KeyboardInterrupt and SystemExit too: whatever stops this member must reach its peers and the client.
            failures.tell(task.ranks[0], error)
            return _NOTHING


class _Failures:
    """Tells the scheduler of the first rank of a member that failed, and then stops the others."""

    def __init__(self, link: SchedulerLink, job: JobState) -> None:
        self._link, self._job = link, job
        self._lock = threading.Lock()
        self.are_told = False

    def tell(self, rank: int, error: BaseException) -> None:
        """Say that `rank` raised `error`; of the ranks of a member only the first is heard."""
        with self._lock:
            told, self.are_told = self.are_told, True
        if told:
            return
        failure = describe(error, aborted=self._job.abort.is_set)
        with contextlib.suppress(Exception):
            self._link.finish({**failure, "rank": rank})
        self._job.abort.set(f"rank {rank} raised {type(error).__name__}: {error}")


def _run(
    task: MemberTask,
    worker: Worker,
    job: JobState,
    link: SchedulerLink,
    failures: _Failures,
    cleanup: contextlib.ExitStack,
) -> MemberOutcome:
    program: RankProgram
    program, pack, cut, args = pickle.loads(task.payload)
    ranks = task.ranks
    first, n = ranks[0], len(ranks)
    job.abort.check()
    if not task.keeps or job.kept.blocks != task.blocks or len(job.kept.data) != n:
        # Memory for the rows of before and for those to come is not to be had.
        job.kept.drop_data()
        blocks = HeldBlocks(worker, task.keys, task.block_nbytes, job.abort, task.timeout_s)
        data = _shares(blocks, ranks, pack, cut)
        blocks.close()
        if task.keeps:
            job.kept.blocks, job.kept.data = task.blocks, data
    else:
        data = job.kept.data
    job.abort.check()

    ledgers = [RankLedger(rank) for rank in ranks]
    ends = dict(zip(ranks, ledgers, strict=True)) | {server: RankLedger(server) for server in task.servers}
    between, refused = meet(worker, job, link, task.fence, task.wires, ledger=ledgers[0], timeout_s=task.timeout_s)
    cleanup.callback(between.close)
    transports = nested.connect(between, task.ranks_of, ledgers=ledgers, abort=job.abort, timeout_s=task.timeout_s)
    mailroom: MailRoom | None = None
    if wants_mailboxes(task.mail, task.ranks_of):
        mailroom = MailRoom(worker, job, task.fence, task.wires, between, ends, task.timeout_s)
        cleanup.callback(mailroom.close)
    publisher = Publisher(link.publish)
    n_threads = max(1, task.n_threads // n)
    values: list[Any] = [None] * n

    def attend(number: int) -> None:
        assert mailroom is not None  # servers talk by post
        assert task.mail is not None
        assert task.mail.serve is not None
        try:
            with contextlib.closing(mailroom.open(number)) as mailbox:
                task.mail.serve(Server(mailbox, sum(task.ranks_of), job.abort), *args)
        except BaseException as error:
            failures.tell(number, error)

    def work(number: int) -> None:
        if number not in ranks:
            attend(number)
            return
        transport = transports[number - first]
        extras: dict[str, Any] = {"publish": publisher} if number == 0 else {}
        if task.keeps:
            extras["keeper"] = job.kept.keepers.setdefault(number - first, SnapshotKeeper())
        try:
            if mailroom is not None:
                transport.mailbox = mailroom.open(number)
            rank = Rank(
                Group(transport, task.algorithm),
                job.abort,
                n_threads=n_threads,
                job_id=task.fence.job_id,
                formed=task.fence.epoch,
                enough=job.enough,
                **extras,
            )
            with limit_pools(n_threads):
                values[number - first] = program(rank, data[number - first], *args)
        except BaseException as error:
            failures.tell(number, error)
        finally:
            if transport.mailbox is not None:
                transport.mailbox.close()
            if transport is not between:
                transport.close()

    run_threads(work, list(ends), job.abort)
    if failures.are_told:
        return _NOTHING
    if first == 0:
        publisher.flush()
    return MemberOutcome(
        True,
        cloudpickle.dumps(values[0]) if first == 0 else b"",
        [
            {
                "rank": rank,
                "worker": task.worker,
                "host": task.host,
                "rows": getattr(rows, "n_rows", None),
                "n_blocks": len(task.blocks),
                "peak_rss_bytes": peak_rss_bytes(),
                "transport": transport.wire,
                "refused": refused if rank == first else {},
            }
            for rank, rows, transport in zip(ranks, data, transports, strict=True)
        ],
        [ledger.records() for ledger in ends.values()],
    )


def _shares(blocks: Sequence[Any], ranks: range, pack: Pack, cut: Cut | None) -> Sequence[Any]:
    """Return the data of each rank: cut from what all blocks pack into or, without a cut, packed from some of them."""
    n = len(ranks)
    if n == 1:
        return [pack(blocks, ranks[0])]
    if cut is not None:
        return cut(pack(blocks, ranks[0]), n)
    return [pack(blocks[slice(*split(len(blocks), n, k))], rank) for k, rank in enumerate(ranks)]
