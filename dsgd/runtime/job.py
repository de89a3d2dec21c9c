"""Run a rank program as a gang on a Dask cluster: plan, admit, train, collect."""

from __future__ import annotations

import asyncio
import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import cloudpickle

from dsgd.collectives.group import Algorithm
from dsgd.comm.base import TransportName
from dsgd.errors import ClusterError, InvalidParameterError
from dsgd.ledger import Ledger
from dsgd.runtime.client import require_cluster
from dsgd.runtime.member import MemberTask, RankOutcome, run_member
from dsgd.runtime.plan import Block, Plan, WorkerInfo, make_plan
from dsgd.runtime.plugins import register
from dsgd.runtime.rank import GangResult, RankProgram
from dsgd.runtime.session import Session
from dsgd.runtime.versions import check_versions
from dsgd.runtime.wires import WireOptions
from dsgd.validation import check_number

if TYPE_CHECKING:
    from distributed import Client, Future

__all__ = ["run_on_cluster"]

# A worker may leave between the plan and the lease; then the job is planned again.
_MAX_PLANS: Final = 3
# Ranks go before ordinary tasks that wait on the same worker.
_PRIORITY: Final = 100


def run_on_cluster(
    program: RankProgram,
    blocks: Sequence[Future],
    *,
    client: Client | None = None,
    pack: Callable[[Sequence[Any], int], Any],
    args: tuple[Any, ...] = (),
    n_ranks: int | None = None,
    timeout_s: float = 300.0,
    queue_timeout_s: float = 86_400.0,
    hung_after_s: float = 15.0,
    algorithm: Algorithm = "auto",
    transport: TransportName = "auto",
    ports: str | int | None = None,
    interface: str | None = None,
    on_event: Callable[[Mapping[str, Any]], None] | None = None,
    block_rows: Sequence[int] | None = None,
    block_nbytes: Sequence[int] | None = None,
) -> GangResult:
    """Run a rank program on worker processes, one rank on each, over blocks of rows that are on the cluster.

    Blocks move from worker to worker where they must; neither they nor anything the ranks say to each other passes
    through the scheduler or the client. Jobs that want the same workers run one after the other.

    Parameters
    ----------
    program : RankProgram
        Called on every rank as ``program(rank, data, *args)``. Between slices of work of about a second it calls
        ``rank.check()``, so that it notices when the job stops.
    blocks : sequence of Future
        The input, cut by rows; each holds one block. They stay the caller's.
    client : distributed.Client or None, default None
        A synchronous client; None takes the current one.
    pack : callable
        Called on every rank as ``pack(blocks, rank_number)`` with the sequence of its blocks in input order (maybe
        none); returns the data of the rank. Every access to a block fetches it, so a packer that goes from block to
        block has one of them in memory at a time. It must not change them: Dask still holds them.
    args : tuple
        Further arguments, pickled; small.
    n_ranks : int or None, default None
        How many ranks; None takes one on every worker process.
    timeout_s : float, default 300
        How long a rank waits for a peer that says nothing.
    queue_timeout_s : float, default 86400
        How long the job waits for other jobs to release its workers.
    hung_after_s : float, default 15
        How long a worker may send no heartbeat before its rank is taken to hang. Dask's workers send one every half
        second (every 5 s on clusters of hundreds), also while a kernel runs that releases the interpreter lock.
    algorithm : {"auto", "recursive_doubling", "ring", "hierarchical"}
        How `Group.allreduce` works.
    transport : {"auto", "spin", "shm", "tcp", "rpc"}, default "auto"
        ``"auto"`` lets ranks of one host talk through shared memory and all others over TCP, or over the RPC of their
        workers where no connection can be opened, which the log of the worker says; ``"spin"`` is the same, but a rank
        that waits for a neighbour keeps its core busy for up to 10 ms before it sleeps (for rounds of a few
        microseconds and a core per rank); ``"shm"`` is an error where not all ranks share memory; ``"tcp"`` takes TCP
        alone, ``"rpc"`` the ports of the workers alone.
    ports : str or int, optional
        Ports that ranks may listen on, ``"40000-40100"`` or one; one per rank of a host is needed. By default what the
        setting ``dsgd.comm.ports`` of dask says, else any.
    interface : str, optional
        Network interface that ranks listen on, ``"ib0"``. By default what the setting ``dsgd.comm.interface`` of dask
        says, else the one of the worker's own address.
    on_event : callable, optional
        Called in this thread with what rank 0 publishes; what it raises stops the job.
    block_rows, block_nbytes : sequence of int, optional
        Rows and bytes of each block where the caller knows them; else bytes are what Dask estimates.

    Returns
    -------
    GangResult
        What rank 0 returned, and what every rank measured.

    Raises
    ------
    VersionMismatchError
        A worker, or the scheduler, has no dsgd or another version.
    ClusterError
        There are too few workers, or one has too little memory for its share.
    WorkerLostError
        A worker left during the job.
    GangTimeoutError
        A rank hangs, or a wait outlived its deadline; names the rank.
    RankError
        A rank raised; with the original error as ``__cause__`` where it can be pickled.
    DsgdError
        A rank raised an error of this library: it is raised as itself, with a note that names the rank.
    ClusterUnreachableError
        The scheduler does not answer any more.
    """
    began = time.perf_counter()
    client = require_cluster(client)
    blocks = list(blocks)
    for name, given in (("block_rows", block_rows), ("block_nbytes", block_nbytes)):
        if given is not None and len(given) != len(blocks):
            raise InvalidParameterError(
                f"{name}=... must have one entry for each of {len(blocks)} blocks, got {len(given)}."
            )
    check_number("run_on_cluster(hung_after_s=...)", hung_after_s, low=0, open_low=True)
    wires = WireOptions.of_call("run_on_cluster", transport, ports, interface)
    payload = cloudpickle.dumps((program, pack, args))
    check_versions(client)
    register(client)
    session = Session(client, timeout_s, on_event, hung_after_s)
    try:
        plan = _admitted(session, blocks, n_ranks, queue_timeout_s, block_rows, block_nbytes)
        outcomes = _train(session, plan, blocks, payload, algorithm, wires)
        session.leave()
    except BaseException as error:
        # KeyboardInterrupt above all: the ranks must not train on for nobody.
        session.break_off(f"the client stopped it ({type(error).__name__})")
        raise
    ledger = Ledger([o.records for o in outcomes if o.records is not None], elapsed_s=time.perf_counter() - began)
    return GangResult(pickle.loads(outcomes[0].value), [outcome.stats for outcome in outcomes], ledger)


def _admitted(
    session: Session,
    blocks: Sequence[Future],
    n_ranks: int | None,
    queue_timeout_s: float,
    block_rows: Sequence[int] | None,
    block_nbytes: Sequence[int] | None,
) -> Plan:
    for attempt in range(_MAX_PLANS):
        _await_blocks(session.client, blocks)
        survey = session.survey([future.key for future in blocks])
        workers = [WorkerInfo(**worker) for worker in survey["workers"]]
        parts = [
            Block(
                index,
                block["nbytes"] if block_nbytes is None else int(block_nbytes[index]),
                tuple(block["holders"]),
                None if block_rows is None else int(block_rows[index]),
            )
            for index, block in enumerate(survey["blocks"])
        ]
        plan = make_plan(parts, workers, n_ranks)
        # Two jobs that plan at the same moment choose the same workers: the second looks once more for free ones.
        if session.admit(plan, queue_timeout_s, patient=attempt > 0 or len(plan.ranks) == len(workers)):
            return plan
    raise ClusterError(
        f"workers left the cluster {_MAX_PLANS} times while the job was planned; wait until it is stable."
    )


def _await_blocks(client: Client, blocks: Sequence[Future]) -> None:
    async def settled() -> None:
        await asyncio.gather(*(block.exception() for block in blocks))

    client.sync(settled)
    for index, block in enumerate(blocks):
        if block.status == "error":
            block.result()  # raises what computing the block raised
        if block.status != "finished":
            raise ClusterError(f"block {index} is {block.status}: it can be had no more. Load the data again.")


def _train(
    session: Session,
    plan: Plan,
    blocks: Sequence[Future],
    payload: bytes,
    algorithm: Algorithm,
    wires: WireOptions,
) -> list[RankOutcome]:
    """Run the ranks and return their outcomes in rank order."""
    futures = [
        session.client.submit(
            run_member,
            MemberTask(
                session.fence(rank.rank),
                rank.worker.address,
                rank.worker.host,
                rank.blocks,
                tuple(blocks[index].key for index in rank.blocks),
                rank.block_nbytes,
                payload,
                session.timeout_s,
                algorithm,
                wires,
            ),
            key=f"dsgd-rank-{session.job_id}-{rank.rank}",
            workers=[rank.worker.address],
            allow_other_workers=False,
            pure=False,
            priority=_PRIORITY,
        )
        for rank in plan.ranks
    ]
    session.futures += futures

    def stalled(status: Mapping[str, Any]) -> str | None:
        missing = sorted(set(range(len(futures))) - set(status["started"]))
        return f"rank {missing[0]} on worker {plan.addresses[missing[0]]} to start" if missing else None

    outcomes: list[RankOutcome] = _collect(session, futures, stalled)
    if not all(outcome.ok for outcome in outcomes):
        session.explain()
    return outcomes


def _collect(
    session: Session, futures: Sequence[Future], stalled: Callable[[Mapping[str, Any]], str | None]
) -> list[Any]:
    async def settle() -> list[Any]:
        errors = await asyncio.gather(*(future.exception() for future in futures))
        if any(error is not None for error in errors) or any(future.status != "finished" for future in futures):
            return [None] * len(futures)
        values: list[Any] = await session.client.gather(list(futures), asynchronous=True)
        return values

    values: list[Any] = session.run(settle, stalled)
    if any(future.status != "finished" for future in futures):
        session.check()  # a restart, say, cancels tasks as well: the job knows better why
    for future in futures:
        if future.status == "error":
            future.result()
        if future.status != "finished":
            raise ClusterError(f"task {future.key} was {future.status}: a user or another program cancelled it.")
    return values
