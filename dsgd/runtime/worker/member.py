"""The member of a gang: the Dask task that runs the ranks of one worker.

A member packs the worker's rows once and runs one or several ranks over them: the first in its own thread, the others
in threads that it starts and joins. It leaves Dask's thread pool at once (`secede`): interleaved gangs cannot block
each other, and adaptive scaling leaves the worker alone. It never raises into Dask, which would run it again and fill
the logs. Instead it reports to the scheduler plugin how it ended, before its sockets close, so that the error of the
rank that failed is reported before those of its peers.

A task that lists its blocks as inputs has all of them in memory before it begins, and packing needs one at a time. So
the rank gets keys. It asks its own worker for a block (Dask reads it back from disk if it was spilled) or, if the block
is elsewhere, the worker that has it; the block is released after reading. Dask does not know of the copies sent between
workers, so it keeps none of them. Up to a tenth of the worker's memory (Dask's limit for data in transit) they are kept
until the rank has finished with its blocks, so that a second read does not transfer them again.
"""

from __future__ import annotations

import contextlib
import gc
import pickle
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, overload

import cloudpickle
from distributed import get_worker, secede

from dsgd.collectives.cost import Algorithm
from dsgd.collectives.group import Group
from dsgd.comm.base import AbstractTransport
from dsgd.comm.frames import AbortFlag
from dsgd.comm.wires.inproc import connect_nested
from dsgd.errors import ClusterError, GangTimeoutError
from dsgd.ledger import RankLedger, RankRecords
from dsgd.local.shard import split
from dsgd.runtime.checkpoints.checkpoint import SnapshotKeeper
from dsgd.runtime.dask_internals import fetch_block
from dsgd.runtime.logs import working_for
from dsgd.runtime.memory import KEPT_SHARE
from dsgd.runtime.messages import MemberCredentials
from dsgd.runtime.plan import MemberPlan
from dsgd.runtime.pools import limit_pools
from dsgd.runtime.progress import Publisher
from dsgd.runtime.rank import Mail, Rank, RankProgram, Server
from dsgd.runtime.threads import peak_rss_bytes, run_threads
from dsgd.runtime.timeouts import Timeouts
from dsgd.runtime.worker import rendezvous
from dsgd.runtime.worker.failures import describe, release_frames
from dsgd.runtime.worker.plugin import store_of
from dsgd.runtime.worker.process import keep_freed_memory, slow_timers
from dsgd.runtime.worker.store import JobState, PackedAs, PackedForm
from dsgd.runtime.worker.wires import WireOptions
from dsgd.stages import Stage, recorded, recording, stage

if TYPE_CHECKING:
    from distributed import Worker


_RETRY_S: Final = 0.1


class HeldBlocks(Sequence[Any]):
    """Blocks that Dask holds somewhere on the cluster; every access fetches one."""

    def __init__(
        self,
        worker: Worker,
        keys: Sequence[Any],
        nbytes: Sequence[int],
        abort: AbortFlag,
        timeout_s: float,
        memory_limit: int = 0,
    ) -> None:
        self._worker = worker
        self._keys = tuple(keys)
        self._nbytes = tuple(nbytes)
        self._abort = abort
        self._timeout_s = timeout_s
        self._kept: dict[int, Any] = {}
        self._room = KEPT_SHARE * memory_limit if memory_limit else float("inf")

    def __len__(self) -> int:
        return len(self._keys)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[k] for k in range(*index.indices(len(self)))]
        index = range(len(self))[index]
        self._abort.check()
        if index in self._kept:
            return self._kept[index]
        with stage("fetch", self._nbytes[index]):
            return self._fetch(index)

    def close(self) -> None:
        """Let go of the blocks that were kept."""
        self._kept.clear()

    def _fetch(self, index: int) -> Any:
        """Wait for a block: as long as its future is held, Dask computes it again where it was lost."""
        key = self._keys[index]
        deadline = time.monotonic() + self._timeout_s
        while (remaining := deadline - time.monotonic()) > 0:
            problem = f"no worker is known to have block {key!r}"
            found, travelled = rendezvous.on_loop(
                self._worker, fetch_block(self._worker, key), remaining, problem, self._abort.check
            )
            if found:
                if travelled and self._nbytes[index] <= self._room:
                    self._kept[index] = found[0]
                    self._room -= self._nbytes[index]
                return found[0]
            self._abort.check()
            time.sleep(_RETRY_S)
        raise GangTimeoutError(
            f"worker {self._worker.address} waited {self._timeout_s:g} s for block {key!r}, which no worker holds."
        )


Pack = Callable[[Sequence[Any], int], Any]
Cut = Callable[[Any, int], Sequence[Any]]


@dataclass(frozen=True)
class Orders:
    """The instructions that all members of a job get."""

    payload: bytes
    limits: Timeouts
    algorithm: Algorithm
    wires: WireOptions
    keeps: bool
    mail: Mail | None
    packed_as: PackedAs | None = None

    @property
    def timeout_s(self) -> float:
        """Longest wait for a peer."""
        return self.limits.seconds("peer")


@dataclass(frozen=True)
class MemberTask:
    """The instructions that one member gets."""

    credentials: MemberCredentials
    place: MemberPlan
    keys: tuple[Any, ...]
    ranks_of: tuple[int, ...]
    orders: Orders
    given: bytes

    @property
    def servers(self) -> range:
        """Numbers of the servers it runs."""
        return rendezvous.servers_of(self.orders.mail, self.credentials.member, self.ranks_of)

    @property
    def ranks(self) -> range:
        """Numbers of the ranks it runs."""
        return range(self.place.first_rank, self.place.first_rank + self.place.n_ranks)


@dataclass(frozen=True)
class MemberOutcome:
    """The result of a member."""

    ok: bool
    value: bytes
    stats: list[dict[str, Any]]
    records: list[RankRecords]
    stages: list[Stage]


_NOTHING = MemberOutcome(False, b"", [], [], [])


def kept_blocks(shown: MemberCredentials, dask_worker: Worker) -> tuple[int, ...] | None:
    """Return which blocks a job has packed on this worker; None if it has packed none. Sent to run on the worker."""
    job = store_of(dask_worker).look_up(shown.job_id, shown.token)
    return None if job is None else job.kept.blocks


def request_pause(shown: MemberCredentials, dask_worker: Worker) -> None:
    """Ask the ranks on this worker to stop at the end of its epoch. Sent to run on the worker."""
    job = store_of(dask_worker).look_up(shown.job_id, shown.token)
    if job is not None:
        for keeper in list(job.kept.keepers.values()):
            keeper.pause_requested = True


def forget_packed(name: str, dask_worker: Worker) -> None:
    """Let go of what was packed under a name. Sent to run on the worker."""
    store_of(dask_worker).packed.forget(name)


def recorded_stacks(shown: MemberCredentials, dask_worker: Worker) -> dict[int, str]:
    """Return where the ranks of a job on this worker were when it stopped. Sent to run on the worker."""
    job = store_of(dask_worker).look_up(shown.job_id, shown.token)
    return {} if job is None else job.recorder.stacks()


def run_member(task: MemberTask) -> MemberOutcome:
    """Run one member of a gang: pack its blocks, connect with the others, run the program on every rank of this worker.

    - returned: with ``ok=False`` when a rank failed; the scheduler plugin then knows which, and why.
    """
    worker = get_worker()
    credentials = task.credentials
    # Another process may have come at the address of a worker that is gone: it has no plugin before a job asks for it.
    job = None
    with contextlib.suppress(ClusterError):
        job = store_of(worker).find(credentials.job_id, credentials.epoch, credentials.token)
    if job is None or job.task_key is not None or worker.address != task.place.worker.address:
        # Dask ran a task of a gang that is over, or ran one twice: it has no place in the gang.
        return _NOTHING
    job.task_key = worker.get_current_task()
    secede()
    link = rendezvous.SchedulerLink(worker, credentials, task.orders.limits.seconds("scheduler"))
    link.started()
    failures = _Failures(link, job)
    here = working_for(credentials.job_id, credentials.epoch, task.ranks[0])
    with _circles_freed(failures), here, contextlib.ExitStack() as cleanup, recording():
        try:
            outcome = _Member(task, worker, job, link, failures).run(cleanup)
            if outcome.ok:
                link.finish(None)
            return outcome
        except BaseException as error:
            # KeyboardInterrupt and SystemExit too: peers and the client must learn of anything that stops this member.
            failures.tell(task.ranks[0], error)
            release_frames(error)
            return _NOTHING


@contextlib.contextmanager
def _circles_freed(failures: _Failures) -> Iterator[None]:
    """Run the collector when a member has failed.

    What an error has passed may hang together in a circle, shared memory with it, and an idle worker never collects.
    """
    yield
    if failures.are_told:
        gc.collect()


class _Failures:
    """Tells the scheduler of the first rank of a member that failed, and then stops the others."""

    def __init__(self, link: rendezvous.SchedulerLink, job: JobState) -> None:
        self._link, self._job = link, job
        self._lock = threading.Lock()
        self.are_told = False

    def tell(self, rank: int, error: BaseException) -> None:
        """Report that `rank` raised `error`; only the first error of a member is reported."""
        with self._lock:
            told, self.are_told = self.are_told, True
        if told:
            return
        self._job.recorder.keep(rank, error)
        failure = describe(error, aborted=self._job.abort.is_set)
        with contextlib.suppress(Exception):
            self._link.finish({**failure, "rank": rank})
        self._job.abort.set(f"rank {rank} raised {type(error).__name__}: {error}")


@dataclass(frozen=True)
class _Ends:
    """The transports of the ranks and servers of a member."""

    ledgers: dict[int, RankLedger]
    between: AbstractTransport
    transports: list[AbstractTransport]
    mailboxes: rendezvous.MemberMailboxes | None
    refused: dict[str, int]


class _Member:
    """One member of a gang at work."""

    def __init__(
        self, task: MemberTask, worker: Worker, job: JobState, link: rendezvous.SchedulerLink, failures: _Failures
    ):
        self._task, self._worker, self._job, self._link, self._failures = task, worker, job, link, failures
        self._program: RankProgram
        self._program, self._pack, self._cut, self._args = pickle.loads(task.orders.payload)
        self._n_threads = max(1, task.place.worker.nthreads // len(task.ranks))
        self._publisher = Publisher(link.publish)

    def run(self, cleanup: contextlib.ExitStack) -> MemberOutcome:
        """Pack the rows, connect with the other members, run the ranks and servers of this one; say how it went."""
        job, ranks = self._job, self._task.ranks
        job.recorder.enter(ranks[0])
        job.abort.check()
        # Dask's profiler walks the stack of the thread that runs a task a hundred times a second, and keeps the
        # interpreter meanwhile: of a rank it took an eighth of its time, and of many workers that wait for each other
        # on few cores a third of them.
        cleanup.enter_context(slow_timers([self._worker]))
        cleanup.enter_context(keep_freed_memory(self._task.place.worker.memory_limit))
        with stage("pack"):
            data = self._pack_rows()
        job.abort.check()
        with stage("meet"):
            ends = self._meet(cleanup)
        values: list[Any] = [None] * len(ranks)

        shown = self._task.credentials

        def work(number: int) -> None:
            with working_for(shown.job_id, shown.epoch, number):
                if number in ranks:
                    k = number - ranks[0]
                    values[k] = self._run_rank(number, ends.transports[k], ends, data[k])
                else:
                    self._run_server(number, ends)

        with stage("train"):
            run_threads(work, list(ends.ledgers), job.abort, apart=True)
        if self._failures.are_told:
            return _NOTHING
        is_first = ranks[0] == 0
        if is_first:
            self._publisher.flush()
        return MemberOutcome(
            True,
            cloudpickle.dumps(values[0]) if is_first else b"",
            self._stats(data, ends),
            [ledger.records() for ledger in ends.ledgers.values()],
            recorded(self._task.place.worker.address),
        )

    def _pack_rows(self) -> Sequence[Any]:
        """Return the data of each rank: what an epoch of the job before has kept, or what the blocks pack into."""
        task, place, orders, kept = self._task, self._task.place, self._task.orders, self._job.kept
        data: Sequence[Any] = kept.data
        if orders.keeps and kept.blocks == place.blocks and len(data) == len(task.ranks):
            return data
        # Memory for the rows of before and for those to come is not to be had.
        kept.drop_data()
        stored, form = store_of(self._worker).packed, self._form()
        found = None if form is None else stored.find(form)
        if found is None:
            limits = orders.timeout_s, place.worker.memory_limit
            blocks = HeldBlocks(self._worker, task.keys, place.block_nbytes, self._job.abort, *limits)
            found = _shares(blocks, task.ranks, self._pack, self._cut)
            blocks.close()
            if form is not None:
                stored.keep(form, found)
        data = found
        if orders.keeps:
            kept.blocks, kept.data = place.blocks, data
        return data

    def _form(self) -> PackedForm | None:
        """Return what packed rows are kept as; None if they are not, or if there is no anchor to let go of them."""
        told = self._task.orders.packed_as
        anchor = None if told is None else told.anchors.get(self._worker.address)
        if told is None or anchor not in self._worker.data:
            return None
        return PackedForm(told.name, anchor, self._task.keys, self._task.ranks)

    def _meet(self, cleanup: contextlib.ExitStack) -> _Ends:
        """Meet the other members, and connect ranks and servers; connections between members end with `cleanup`."""
        task, job, orders = self._task, self._job, self._task.orders
        own = [RankLedger(rank) for rank in task.ranks]
        ledgers = {ledger.rank: ledger for ledger in [*own, *map(RankLedger, task.servers)]}
        context = rendezvous.MemberContext(self._worker, job, task.credentials, orders.wires, orders.timeout_s)
        meters, refused = store_of(self._worker).meters, dict[str, int]()
        meters.begin(ledgers.values())
        cleanup.callback(meters.end, ledgers.values(), refused)
        between, found = rendezvous.join_gang(context, self._link, own[0])
        refused |= found
        cleanup.callback(between.close)
        transports = connect_nested(between, task.ranks_of, ledgers=own, abort=job.abort, timeout_s=orders.timeout_s)
        mailboxes: rendezvous.MemberMailboxes | None = None
        if rendezvous.wants_mailboxes(orders.mail, task.ranks_of):
            mailboxes = rendezvous.MemberMailboxes(context, between, ledgers)
            cleanup.callback(mailboxes.close)
        return _Ends(ledgers, between, transports, mailboxes, refused)

    def _run_rank(self, number: int, transport: AbstractTransport, ends: _Ends, data: Any) -> Any:
        """Run the program on a rank, in its own thread; return its result, None if it fails."""
        task, job = self._task, self._job
        job.recorder.enter(number)
        extras: dict[str, Any] = {}
        if number == 0:
            extras = {"publish": self._publisher, "given": pickle.loads(task.given)}
        if task.orders.keeps:
            extras["keeper"] = job.kept.keepers.setdefault(number - task.ranks[0], SnapshotKeeper())
        try:
            if ends.mailboxes is not None:
                transport.mailbox = ends.mailboxes.open(number)
            rank = Rank(
                Group(transport, task.orders.algorithm),
                job.abort,
                n_threads=self._n_threads,
                job_id=task.credentials.job_id,
                formed=task.credentials.epoch,
                enough=job.enough,
                **extras,
            )
            with limit_pools(self._n_threads):
                return self._program(rank, data, *self._args)
        except BaseException as error:
            self._failures.tell(number, error)
            release_frames(error)
            return None
        finally:
            if transport.mailbox is not None:
                transport.mailbox.close()
            if transport is not ends.between:
                transport.close()

    def _run_server(self, number: int, ends: _Ends) -> None:
        """Serve the ranks of all members until they are done, in a thread of its own."""
        mail = self._task.orders.mail
        assert ends.mailboxes is not None  # servers use mailboxes
        assert mail is not None
        assert mail.serve is not None
        try:
            with contextlib.closing(ends.mailboxes.open(number)) as mailbox:
                mail.serve(Server(mailbox, sum(self._task.ranks_of), self._job.abort), *self._args)
        except BaseException as error:
            self._failures.tell(number, error)
            release_frames(error)

    def _stats(self, data: Sequence[Any], ends: _Ends) -> list[dict[str, Any]]:
        """Return what `GangResult` says of each rank."""
        task = self._task
        return [
            {
                "rank": rank,
                "worker": task.place.worker.address,
                "host": task.place.worker.host,
                "rows": getattr(rows, "n_rows", None),
                "n_blocks": len(task.place.blocks),
                "peak_rss_bytes": peak_rss_bytes(),
                "transport": transport.wire,
                "refused": ends.refused if rank == task.ranks[0] else {},
            }
            for rank, rows, transport in zip(task.ranks, data, ends.transports, strict=True)
        ]


def _shares(blocks: Sequence[Any], ranks: range, pack: Pack, cut: Cut | None) -> Sequence[Any]:
    """Return the data of each rank: cut from what all blocks pack into or, without a cut, packed from some of them."""
    n = len(ranks)
    if n == 1:
        return [pack(blocks, ranks[0])]
    if cut is not None:
        return cut(pack(blocks, ranks[0]), n)
    return [pack(blocks[slice(*split(len(blocks), n, k))], rank) for k, rank in enumerate(ranks)]
