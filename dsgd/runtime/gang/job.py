"""Running a rank program on a Dask cluster: plan, admit, train, collect, and go on after a failure.

The longer a job and the more workers it has, the likelier it loses one. The results of the others still exist, and
mostly their rows, too. Only failures of machines count (a worker left, hangs, or cannot be reached by its peers); an
error of the program would be raised again. The remaining ranks stop, a new gang is planned as the next epoch of the
same job, and its program resumes from the newest snapshot that a survivor holds. With ``"restart"`` lost blocks are
computed again by Dask, or sent again by the client, and assigned to the current workers; a worker whose blocks are
unchanged packs nothing. With ``"shrink"`` the survivors continue with the rows they hold, and all averages are weighted
by the remaining rows.

Workers are shared by all users of the cluster. The job waits for a late worker, which may be packing rows, as long as
it sends heartbeats, up to the deadline of the job. A hung worker is set aside until its heartbeats return: the gang
continues without it, and blocks that only this worker holds are computed or sent again. Neither kind is removed, unless
a policy asks for it. With ``elastic`` a new gang is also formed when the cluster has grown, at the end of an epoch.
"""

from __future__ import annotations

import asyncio
import pickle
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

import cloudpickle

from dsgd.collectives.cost import Algorithm
from dsgd.errors import ClusterError, GangError, InvalidParameterError, MemoryLimitError, PausedError
from dsgd.ledger import Ledger
from dsgd.runtime.dask_internals import scheduler_address, servers_here
from dsgd.runtime.deployment import Gang, as_gang
from dsgd.runtime.gang.client import out_of_pool, require_cluster
from dsgd.runtime.gang.cluster import Cluster
from dsgd.runtime.gang.job_handle import JobHandle
from dsgd.runtime.logs import working_for
from dsgd.runtime.memory import MemoryDemand
from dsgd.runtime.plan import Block, MemberPlan, Plan, WorkerInfo, make_plan
from dsgd.runtime.rank import GangResult, Mail, RankProgram
from dsgd.runtime.timeouts import Shrink, as_policy
from dsgd.runtime.worker.member import (
    Cut,
    MemberOutcome,
    MemberTask,
    Orders,
    Pack,
    kept_blocks,
    request_pause,
    run_member,
)
from dsgd.runtime.worker.process import slow_timers
from dsgd.runtime.worker.store import PackedAs
from dsgd.runtime.worker.wires import WireOptions
from dsgd.stages import stage
from dsgd.validation import warn_user

if TYPE_CHECKING:
    from distributed import Client, Future


_SLICE_S: Final = 0.5

# Pause between two searches for the blocks of a lost worker.
_LOST_S: Final = 0.02


class JobBlocks:
    """The blocks that a job trains on; see `run_on_cluster`."""

    def __init__(
        self,
        futures: Sequence[Future],
        rows: Sequence[int] | None,
        nbytes: Sequence[int] | None,
        packed: Sequence[int] | None,
        reload: Callable[[int], Future] | None,
    ) -> None:
        self.futures = list(futures)
        self.rows = rows
        self._nbytes, self._packed, self._reload = nbytes, packed, reload
        for name, counts in (("block_rows", rows), ("block_nbytes", nbytes)):
            if counts is not None and len(counts) != len(self.futures):
                raise InvalidParameterError(
                    f"{name}=... must have one entry for each of {len(self.futures)} blocks, got {len(counts)}."
                )

    def described(self, survey: Mapping[str, Any]) -> list[Block]:
        """Return the data of a plan: what the caller knows about each block, and where a survey found it."""
        return [
            Block(
                index,
                block["nbytes"] if self._nbytes is None else int(self._nbytes[index]),
                tuple(block["holders"]),
                None if self.rows is None else int(self.rows[index]),
                None if self._packed is None else self._packed[index],
            )
            for index, block in enumerate(survey["blocks"])
        ]

    def wait(self, handle: JobHandle, missing: Callable[[Mapping[str, Any]], Sequence[int]]) -> dict[str, Any]:
        """Wait until every block that is needed is in memory; return the survey that found them.

        A block that was lost with its worker is computed again by Dask if Dask had computed it. A scattered block is
        forgotten, and the client has to send it again.
        """
        deadline = time.monotonic() + handle.timeout_s
        while True:
            handle.cluster.wait(self._settled, "waiting for rows")
            # Those too that were lost and are computed again, which Dask calls lost.
            awaited = {future.key: future.status for future in self.futures if not future.done()}
            if awaited:
                handle.cluster.check_silence("computing rows", keys=list(awaited), limit="peer")
            survey = handle.cluster.survey([future.key for future in self.futures])
            lost = missing(survey)
            if not lost:
                return survey
            for index in lost:
                status = self.futures[index].status
                if status == "error":
                    self.futures[index].result()  # raises the error of computing the block
                # What was pending and is unknown is on its way: Dask takes large graphs apart in a thread.
                is_known = survey["blocks"][index]["known"] or awaited.get(self.futures[index].key) == "pending"
                is_forgotten = status == "cancelled" or not is_known
                if is_forgotten and not self._is_sent_again(index, status, deadline):
                    break
            time.sleep(_LOST_S)

    async def _settled(self) -> None:
        """Wait a moment for blocks that are being computed."""
        # Not distributed.wait, which raises if one was cancelled: that block may be sent again.
        waits = [asyncio.ensure_future(future.exception()) for future in self.futures if not future.done()]
        if waits:
            _, pending = await asyncio.wait(waits, timeout=_SLICE_S)
            for wait in pending:
                wait.cancel()

    def _is_sent_again(self, index: int, status: str, deadline: float) -> bool:
        """Send a block that the cluster has forgotten; return False if a new survey is needed first."""
        if self._reload is None:
            raise ClusterError(
                f"block {index} is {status}: it cannot be recovered. It was cancelled, or its worker is gone and it "
                "was not computed by Dask, which could do so again. Load the data again."
            )
        try:
            self.futures[index] = self._reload(index)
        except (KeyError, OSError, ClusterError) as problem:
            # The worker that it was sent to has just left, or there is none for a moment.
            if time.monotonic() >= deadline:
                raise ClusterError(f"block {index} could not be sent to any worker: {problem!r}") from problem
            return False
        return True


# A worker may leave between planning and leasing; then the job is planned again.
_MAX_PLANS: Final = 3

# Pause between two searches for a worker that replaces a lost one.
_REPLAN_S: Final = 0.2

# A worker sends its next heartbeat within this time, on all but very large clusters.
_HEARTBEAT_S: Final = 1.0

# Ranks have priority over ordinary tasks that wait on the same worker.
_PRIORITY: Final = 100


def run_on_cluster(
    program: RankProgram,
    blocks: Sequence[Future],
    *,
    client: Gang | Client | None = None,
    pack: Pack,
    cut: Cut | None = None,
    args: tuple[Any, ...] = (),
    n_ranks: int | None = None,
    ranks_per_worker: int | None = None,
    algorithm: Algorithm = "auto",
    on_event: Callable[[Mapping[str, Any]], None] | None = None,
    block_rows: Sequence[int] | None = None,
    block_nbytes: Sequence[int] | None = None,
    demand: MemoryDemand | None = None,
    reload: Callable[[int], Future] | None = None,
    mail: Mail | None = None,
    given: Any = None,
    packed_as: PackedAs | None = None,
    title: str | None = None,
) -> GangResult:
    """Run a rank program on worker processes, over blocks of rows that are on the cluster.

    Every worker runs as many ranks as it has threads, over one copy of its rows; see `dsgd.comm.wires.inproc` for their
    connections. Blocks move from worker to worker if needed. Neither blocks nor messages between ranks pass through the
    scheduler or the client. Jobs that need the same workers run one after the other.

    Parameters
    ----------
    program : RankProgram
        Called on every rank as ``program(rank, data, *args)``. About every second of work it calls ``rank.check()``, so
        that it notices when the job stops.
    blocks : sequence of Future
        The input, cut by rows; each holds one block. They remain the caller's.
    client : `dsgd.Gang`, distributed.Client or None, default None
        A synchronous client, or a `Gang` around it that says how ranks exchange, on which workers they run, how long to
        wait, and what happens when a machine fails; None takes the current client. With `n_ranks`, a new gang after a
        failure has as many ranks as before. A program that uses ``rank.keeper`` resumes from its last snapshot; any
        other starts from the beginning. An error that the program raises always ends the job. Checkpoints, and rows on
        disk, are left to the program.
    pack : callable
        Called on every worker as ``pack(blocks, rank_number)`` with the sequence of its blocks in input order (maybe
        none) and the number of its first rank; returns the data. Every access to a block fetches it, so a packer that
        visits block after block has one of them in memory at a time. It must not change blocks: Dask still holds them.
    cut : callable, optional
        Called as ``cut(data, n)`` where a worker runs n > 1 ranks: returns the data of each of them, as views of what
        was packed. By default each rank gets some of the blocks of its worker and packs them by itself, with its own
        number.
    args : tuple
        Further arguments, pickled; small.
    n_ranks : int or None, default None
        How many ranks in all; None takes one for every thread of every worker. Fewer are spread over the workers.
    ranks_per_worker : int or None, default None
        How many ranks a worker may run at most. Programs that run threads of their own take 1 and ask
        ``rank.n_threads`` how many they have.
    algorithm : str, default "auto"
        How `Group.allreduce` works.
    on_event : callable, optional
        Called in this thread with the events that rank 0 publishes. Its errors stop the job, except
        `dsgd.progress.StopTraining`, which asks the program to end early (``rank.enough``).
    block_rows, block_nbytes : sequence of int, optional
        Rows and bytes of each block, if the caller knows them; else bytes are estimated by Dask.
    demand : MemoryDemand, optional
        Memory that ranks need on their workers; by default the size of their blocks.
    reload : callable, optional
        Called with the number of a block that was lost with its worker and that Dask cannot compute again (it was
        scattered); returns a future of the same block.
    mail : Mail, optional
        Whether ranks get mailboxes, and which servers follow them: threads beside the ranks of the first workers.
    given : object, optional
        An object for rank 0 only, pickled; see `dsgd.runtime.rank.Rank`. It is sent to one worker, so it may be large.
    packed_as : PackedAs, optional
        A name for the packed form of these blocks. Workers keep it under this name until their anchors are released,
        and a later job with the same name packs nothing. By default nothing is kept.
    title : str, optional
        Title of the job on the dashboard of the cluster; by default the name of the program.

    Returns
    -------
    GangResult
        The result of rank 0, and the measurements of every rank.

    Raises
    ------
    VersionMismatchError
        The scheduler, or every worker, has no dsgd or another version.
    ClusterError
        No worker is meant, the workers have too few threads, or the cluster uses TLS and the wire does not encrypt.
    MemoryLimitError
        A worker has too little memory for its share.
    WorkerLostError
        A worker left during the job, and ``on_failure`` does not let the job continue.
    GangTimeoutError
        A rank hangs, or a deadline passed; names the rank.
    RankError
        A rank raised; with the original error as ``__cause__`` if it can be pickled.
    DsgdError
        A rank raised an error of this library, which is raised unchanged, with a note that names the rank.
    ClusterUnreachableError
        The scheduler no longer answers.
    """
    began = time.perf_counter()
    gang = as_gang(client)
    client = require_cluster(gang.client)
    rows = JobBlocks(blocks, block_rows, block_nbytes, None if demand is None else demand.packed, reload)
    wires = WireOptions.configured(gang.transport)
    wires.check_cluster(scheduler_address(client))
    payload, of_first = cloudpickle.dumps((program, pack, cut, args)), cloudpickle.dumps(given)
    with stage("connect"):
        cluster = Cluster(client, gang)
    title = title or str(getattr(program, "__name__", type(program).__name__))
    handle = JobHandle(cluster, on_event, title)
    recovery = Recovery(handle, gang, block_rows, Limits(n_ranks, ranks_per_worker, demand))
    with out_of_pool(), handle.lease.attended, working_for(handle.job_id):
        orders = Orders(payload, cluster.limits, algorithm, wires, recovery.is_possible, mail, packed_as)
        try:
            outcomes = _outcomes(handle, recovery, rows, orders, of_first)
            with stage("gather"):
                handle.leave()
        except BaseException as error:
            handle.add_stacks(error)
            # KeyboardInterrupt above all: the ranks must not continue without a client.
            handle.break_off(f"the client stopped it ({type(error).__name__})")
            raise
    return _result(outcomes, recovery, time.perf_counter() - began, len(outcomes) * len(payload) + len(of_first))


def _result(outcomes: Sequence[MemberOutcome], recovery: Recovery, elapsed_s: float, n_sent: int) -> GangResult:
    """Return the outcomes of the members, to which Dask has taken so many bytes."""
    stats = [stats for o in outcomes for stats in o.stats]
    records = sorted((records for o in outcomes for records in o.records), key=lambda records: records.rank)
    brought = sum(one.records.nbytes + one.epochs.nbytes for one in records) + sum(len(o.value) for o in outcomes)
    workers = [str(entry["worker"]) for entry in stats]
    ledger = Ledger(records, elapsed_s=elapsed_s, workers=workers, dask_bytes=n_sent + brought)
    stages = [found for o in outcomes for found in o.stages]
    return GangResult(pickle.loads(outcomes[0].value), stats, ledger, recovery.events, stages)


def _outcomes(
    handle: JobHandle, recovery: Recovery, blocks: JobBlocks, orders: Orders, given: bytes
) -> list[MemberOutcome]:
    """Form the gang, and form it again after each survived failure; return the outcomes of its members."""
    while True:
        plan: Plan | None = None
        try:
            with stage("plan"):
                plan = _admitted(handle, recovery, blocks)
            with stage("workers"):
                return _train(handle, recovery, plan, blocks, orders, given)
        except GangError as error:
            recovery.heed(error, plan, [future.key for future in blocks.futures])


def _admitted(handle: JobHandle, recovery: Recovery, blocks: JobBlocks) -> Plan:
    """Return a plan of which the job holds all workers."""
    attempt, deadline = 0, time.monotonic() + handle.timeout_s
    looked_again = False
    while attempt < _MAX_PLANS:
        survey = blocks.wait(handle, recovery.missing)
        # Paused workers start no tasks: the plan includes them only to say what they lack.
        workers = [WorkerInfo(**worker) for worker in survey["workers"] or survey["paused"]]
        try:
            plan = recovery.plan(blocks.described(survey), workers)
            if not survey["workers"]:
                raise MemoryLimitError(
                    f"Dask has paused all {len(workers)} workers of the cluster: their memory is full."
                )
        except ClusterError as problem:
            # After a failure the cluster may be too small for a moment: a nanny starts its worker again.
            if recovery.cause is None and (looked_again or not isinstance(problem, MemoryLimitError)):
                raise
            if recovery.cause is None:
                # The memory use of workers is known from heartbeats; that of the last job may be free by now.
                looked_again = True
                time.sleep(_HEARTBEAT_S)
                continue
            if time.monotonic() >= deadline:
                recovery.cause.add_note(f"the gang could not be formed again: {problem}")
                raise recovery.cause from problem
            time.sleep(_REPLAN_S)
            continue
        if recovery.lacks_blocks(plan, survey):
            continue
        # Two jobs that plan at the same moment choose the same workers: the second searches again for free ones.
        if handle.admit(plan, patient=attempt > 0 or len(plan.members) == len(workers)):
            return plan
        attempt += 1
    raise ClusterError(
        f"workers left the cluster {_MAX_PLANS} times while the job was planned; wait until it is stable."
    )


def _train(
    handle: JobHandle, recovery: Recovery, plan: Plan, blocks: JobBlocks, orders: Orders, given: bytes
) -> list[MemberOutcome]:
    """Run the members and return their outcomes in order; `given` is for rank 0."""
    futures: list[Future] = []
    for number, member in enumerate(plan.members):
        keys = tuple(blocks.futures[index].key for index in member.blocks)
        for_first = given if number == 0 else b""
        task = MemberTask(handle.credentials(number), member, keys, plan.ranks_of, orders, for_first)
        future = handle.client.submit(
            run_member,
            task,
            key=f"dsgd-rank-{handle.job_id}-{handle.epoch}-{number}",
            workers=[member.worker.address],
            # The others could not reach a rank elsewhere; they know its worker from the plan.
            allow_other_workers=False,
            resources=handle.cluster.resources or None,
            priority=_PRIORITY,
        )
        futures.append(future)
        handle.futures.append(future)
    recovery.started(plan)
    needed, gone = recovery.fetched(plan), set[int]()

    def stalled(status: Mapping[str, Any]) -> list[MemberPlan]:
        recovery.look_for_newcomers(plan)
        # Ranks that have met need no blocks any more. Of others this status knew, if it was asked for after a loss.
        if not status["met"]:
            if gone:
                recovery.raise_lost(plan, min(gone))
            gone.update(index for index in needed if blocks.futures[index].status == "cancelled")
        return [plan.members[number] for number in sorted(set(range(len(futures))) - set(status["started"]))]

    with slow_timers(servers_here(handle.client)):
        outcomes: list[MemberOutcome] = _collect(handle, futures, stalled)
    if not all(outcome.ok for outcome in outcomes):
        handle.explain()
    return outcomes


def _collect(
    handle: JobHandle, futures: Sequence[Future], stalled: Callable[[Mapping[str, Any]], Sequence[MemberPlan]]
) -> list[Any]:
    async def settle() -> list[Any]:
        errors = await asyncio.gather(*(future.exception() for future in futures))
        if any(error is not None for error in errors) or any(future.status != "finished" for future in futures):
            return [None] * len(futures)
        values: list[Any] = await handle.client.gather(list(futures), asynchronous=True)
        return values

    values: list[Any] = [None]
    while None in values:  # a result was lost, and its task has run again meanwhile
        values = handle.run(settle, stalled)
        if any(future.status != "finished" for future in futures):
            handle.check()  # a restart, for example, also cancels tasks: the job knows the reason
        for future in futures:
            if future.status == "error":
                future.result()
            if future.status != "finished":
                raise ClusterError(f"task {future.key} was {future.status}: a user or another program cancelled it.")
    return values


_OF_MACHINES: Final = ("lost", "hung", "aborted", "unheard", "lapsed", "late", "rows")

#: Texts for the rank that a failure of a machine names.
_WHAT: Final = {
    "lost": "was lost",
    "hung": "hangs",
    "aborted": "could not reach its peers",
    "unheard": "waited for a peer in vain",
    "late": "did not start",
    "rows": "could not get its rows, which were lost",
}
_ASK_S: Final = 2.0
_LOOK_S: Final = 1.0


class Limits(NamedTuple):
    """The limits of every plan of a job; see `make_plan`."""

    n_ranks: int | None
    ranks_per_worker: int | None
    demand: MemoryDemand | None


class Recovery:
    """The failures of one job so far, and the plan of its next gang."""

    def __init__(self, handle: JobHandle, gang: Gang, block_rows: Sequence[int] | None, limits: Limits) -> None:
        self._handle, self._elastic = handle, gang.elastic
        self._policy = as_policy("Gang(on_failure=...)", gang.on_failure)
        self._left = 0 if self._policy is None else self._policy.at_most
        self._block_rows, self._limits = block_rows, limits
        self._out: set[str] = set()
        self._plan: Plan | None = None
        self._dropped: set[int] = set()
        self._began = self._looked = 0.0
        self._pausing = False
        self._fetched: set[int] = set()
        self.kept: dict[str, tuple[int, ...]] = {}
        self.events: list[dict[str, Any]] = []
        self.cause: BaseException | None = None

    @property
    def is_possible(self) -> bool:
        """Whether a new gang may be formed at all, so that workers keep its data."""
        return self._policy is not None or self._elastic

    def heed(self, error: GangError, plan: Plan | None, keys: Sequence[Any]) -> None:
        """Prepare to form a new gang after an error, or raise the error."""
        record = self._handle.failure or {}
        joined = isinstance(error, PausedError)
        is_survived = self._left > 0 and record.get("kind") in _OF_MACHINES
        if plan is None or not (joined or is_survived):
            if self.events:
                error.add_note(f"the gang had been formed again {len(self.events)} times before")
            raise error
        self._began, self.cause = time.monotonic(), error
        self._left -= not joined
        hung = {str(record["worker"])} if record.get("kind") == "hung" else set()
        silent, late = self._handle.renew(self._out | hung, plan.addresses)
        hung, late = hung | silent, late.union(record.get("late", ()))
        running = {worker["address"] for worker in self._handle.cluster.survey([])["workers"]}
        members = [address for address in plan.addresses if address in running - hung - late - self._out]
        answers = self._handle.ask(kept_blocks, members, self._patience_s)
        # A worker that does not answer hangs, or has just left.
        hung |= set(members) - set(answers)
        remove = self._policy is not None and self._policy.remove_hung
        # Also if the gang shrinks: a survivor that had not packed all its blocks would request them there.
        self._handle.set_aside(hung, keys, remove=remove)
        # A gang that shrinks takes no worker back. Any other does, but is not offered hung ones meanwhile.
        self._out |= late | hung if isinstance(self._policy, Shrink) else late
        self.kept = {worker: tuple(blocks) for worker, blocks in answers.items() if blocks is not None}
        self._plan, self._pausing, self._fetched = plan, False, set()
        if isinstance(self._policy, Shrink) and not joined:
            self._dropped |= {
                index for member in plan.members if member.worker.address not in answers for index in member.blocks
            }
        self.events.append(
            {
                "kind": "joined" if joined else record["kind"],
                "rank": None if joined else record["rank"],
                "worker": "" if joined else record["worker"],
                "host": "" if joined else record["host"],
                "policy": "elastic" if joined else type(self._policy).__name__.lower(),
            }
        )

    def missing(self, survey: Mapping[str, Any]) -> list[int]:
        """Return the blocks that the next gang needs and that are neither packed nor in the memory of a worker."""
        alive = {worker["address"] for worker in survey["workers"]}
        self.kept = {worker: packed for worker, packed in self.kept.items() if worker in alive}
        had = self._dropped.union(*self.kept.values()) - self._fetched
        return [k for k, block in enumerate(survey["blocks"]) if k not in had and not block["holders"]]

    def lacks_blocks(self, plan: Plan, survey: Mapping[str, Any]) -> bool:
        """Return whether members would have to fetch blocks that nobody holds, which are then missing, too.

        Such blocks are only packed: together with others, or for more ranks, they have to be packed again.
        """
        lost = {index for index in self.fetched(plan) if not survey["blocks"][index]["holders"]}
        self._fetched |= lost
        return bool(lost)

    def fetched(self, plan: Plan) -> set[int]:
        """Return the blocks of those members of a plan that have not packed them."""
        ranks = {} if self._plan is None else {one.worker.address: one.n_ranks for one in self._plan.members}
        packs = (
            member
            for member in plan.members
            if self.kept.get(member.worker.address) != member.blocks
            or ranks.get(member.worker.address) != member.n_ranks
        )
        return {index for member in packs for index in member.blocks}

    def raise_lost(self, plan: Plan, index: int) -> NoReturn:
        """Raise the error of a block that its last worker has taken with it before a rank had it."""
        member = next(member for member in plan.members if index in member.blocks)
        place = {"rank": member.first_rank, "worker": member.worker.address, "host": member.worker.host}
        self._handle.failure = {"kind": "rows", **place}
        raise GangError(f"block {index}, which {member} needs, was lost with the worker that held it.")

    def plan(self, blocks: Sequence[Block], workers: Sequence[WorkerInfo]) -> Plan:
        """Return the plan of the next gang; see `make_plan` for errors."""
        # Survivors are leased to this very job: they come before spare workers, which have no copy of the state.
        workers = [replace(worker, busy=worker.busy and worker.address not in self.kept) for worker in workers]
        free = [worker for worker in workers if worker.address not in self._out]
        if self._plan is not None and isinstance(self._policy, Shrink) and self.events[-1]["kind"] != "joined":
            return self._shrunk(self._plan, {worker.address for worker in free})
        wanted = [self._at_home(block) for block in blocks if block.index not in self._dropped]
        try:
            return make_plan(wanted, free, *self._limits)
        except ClusterError:
            # Late workers are better than none.
            if len(free) == len(workers):
                raise
            return make_plan(wanted, workers, *self._limits)

    @property
    def _patience_s(self) -> float:
        """How long a worker may take to answer: as long as it may be silent."""
        return max(_ASK_S, min(self._handle.hung_after_s, self._handle.timeout_s))

    def _at_home(self, block: Block) -> Block:
        """Keep a packed block where it is packed: elsewhere it would have to be loaded and packed again."""
        owners = tuple(worker for worker, packed in self.kept.items() if block.index in packed)
        # A packed block is already part of the memory use of its worker.
        return replace(block, holders=owners, packed=0) if owners else block

    def _shrunk(self, plan: Plan, workers: Collection[str]) -> Plan:
        left = [member for member in plan.members if member.worker.address in workers]
        if not left and self.cause is not None:
            raise self.cause
        self._dropped |= {index for member in plan.members if member not in left for index in member.blocks}
        first = accumulate((member.n_ranks for member in left), initial=0)
        return Plan(tuple(replace(member, first_rank=rank) for member, rank in zip(left, first, strict=False)))

    def started(self, plan: Plan) -> None:
        """Record that the ranks of a plan begin."""
        self._looked = time.monotonic()
        if not self.events or "ranks" in self.events[-1]:
            return
        lost = sorted(self._dropped)
        rows = None if self._block_rows is None else sum(self._block_rows[index] for index in lost)
        seconds = time.monotonic() - self._began
        self.events[-1] |= {"ranks": plan.n_ranks, "blocks_lost": lost, "rows_lost": rows, "seconds": seconds}
        self._warn(self.events[-1])

    def _warn(self, event: Mapping[str, Any]) -> None:
        if event["kind"] == "joined":
            return
        if event["policy"] == "restart":
            after = f"training goes on with {event['ranks']} ranks and all rows"
        else:
            rows = "unknown" if event["rows_lost"] is None else event["rows_lost"]
            after = f"training goes on with {event['ranks']} ranks; rows lost in all: {rows}"
        what = _WHAT.get(event["kind"])
        who = f"rank {event['rank']} on worker {event['worker']} (host {event['host']}) {what}"
        if what is None:
            who = "this process sent no heartbeat for so long that its workers went to other jobs"
        warn_user(f"{who}; {after}.", RuntimeWarning)

    def look_for_newcomers(self, plan: Plan) -> None:
        """Ask the ranks to stop at the end of their epoch if there are workers that could join them."""
        now = time.monotonic()
        full = self._limits.n_ranks is not None and plan.n_ranks >= self._limits.n_ranks
        if not self._elastic or self._pausing or full or now - self._looked < _LOOK_S:
            return
        self._looked = now
        known = self._out | set(plan.addresses)
        if any(not w["busy"] and w["address"] not in known for w in self._handle.cluster.survey([])["workers"]):
            self._pausing = bool(self._handle.ask(request_pause, plan.addresses, _ASK_S))
