"""The plan of a job: ranks to worker processes, row blocks to ranks.

Problem: a cluster holds blocks of rows here and there, on workers of one or several threads. A gang has one member on
every worker process; a member runs as many ranks as its worker has threads, over one copy of its rows. Every rank
needs about the same number of bytes, or the fastest waits for the slowest in every round; every byte that moves costs
time before the first step.

Method: longest processing time first, with locality, on machines as fast as they have ranks. Blocks go largest first,
each to the worker that holds it and would be done first, unless that worker would be clearly overloaded; then to the
one that would be done first of all.

Law: no member gets more than ``max(_OVERLOAD * mean, mean + largest block)`` bytes per rank.

A plan is a pure function of its arguments: it knows no cluster, so it can be tested without one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dsgd.errors import ClusterError, InvalidParameterError
from dsgd.runtime.memory import MemoryDemand, needed_bytes, refuse

# A holder keeps its block up to this many times the mean load: moving a block costs once, imbalance in every round.
_OVERLOAD = 1.2


@dataclass(frozen=True)
class Block:
    """One block of rows on the cluster."""

    index: int
    nbytes: int
    holders: tuple[str, ...]
    rows: int | None = None
    packed: int | None = None

    @property
    def packed_nbytes(self) -> int:
        """Bytes that it packs into."""
        return self.nbytes if self.packed is None else self.packed


@dataclass(frozen=True)
class WorkerInfo:
    """One worker process of the cluster."""

    address: str
    host: str
    name: str
    nthreads: int = 1
    memory_limit: int = 0
    memory_used: int = 0
    busy: bool = False


@dataclass(frozen=True)
class MemberPlan:
    """One member of the gang: a worker process, the ranks it runs and the blocks they share."""

    worker: WorkerInfo
    first_rank: int
    n_ranks: int
    blocks: tuple[int, ...]
    block_nbytes: tuple[int, ...]
    nbytes: int
    nbytes_moved: int

    def __str__(self) -> str:
        return f"{rank_names(self.first_rank, self.n_ranks)} on worker {self.worker.address}"


@dataclass(frozen=True)
class Plan:
    """The members of a gang in the order of their ranks: those of one host are neighbours."""

    members: tuple[MemberPlan, ...]

    @property
    def addresses(self) -> tuple[str, ...]:
        """The worker of each member."""
        return tuple(member.worker.address for member in self.members)

    @property
    def ranks_of(self) -> tuple[int, ...]:
        """How many ranks each member runs."""
        return tuple(member.n_ranks for member in self.members)

    @property
    def n_ranks(self) -> int:
        """How many ranks the gang has."""
        return sum(self.ranks_of)


def rank_names(first: int, n: int) -> str:
    """Return ``"rank 3"`` or ``"ranks 4 to 7"``."""
    return f"rank {first}" if n == 1 else f"ranks {first} to {first + n - 1}"


def make_plan(
    blocks: Sequence[Block],
    workers: Sequence[WorkerInfo],
    n_ranks: int | None = None,
    ranks_per_worker: int | None = None,
    demand: MemoryDemand | None = None,
) -> Plan:
    """Give ranks to workers, and blocks to the workers that run them.

    Members on one host are numbered in a row. Inside that order a member that has an earlier block comes earlier, so
    that the numbering does not depend on which worker happens to hold which blocks; those without blocks come last.
    """
    for name, number in (("n_ranks", n_ranks), ("ranks_per_worker", ranks_per_worker)):
        if number is not None and number < 1:
            raise InvalidParameterError(f"{name} must be at least 1, got {number}.")
    if not workers:
        raise ClusterError("The cluster has no running worker: start one, or scale the cluster, and fit again.")
    members = _choose(_by_use(blocks, workers), n_ranks, ranks_per_worker)
    shares = _assign(blocks, members)
    planned: list[MemberPlan] = []
    first = 0
    for worker, count, share in _ordered(members, shares):
        indices = tuple(block.index for block in share)
        sizes = tuple(block.nbytes for block in share)
        moved = sum(block.nbytes for block in share if worker.address not in block.holders)
        planned.append(MemberPlan(worker, first, count, indices, sizes, sum(sizes), moved))
        first += count
    packed = {block.index: block.packed_nbytes for block in blocks}
    for member in planned:
        _check_memory(member, sum(packed[index] for index in member.blocks), demand or MemoryDemand())
    return Plan(tuple(planned))


def _stable(worker: WorkerInfo) -> tuple[str, int, str, str]:
    """Sort key: by host, then by name with 10 after 9; ports, which are new every time, come last."""
    return worker.host, len(worker.name), worker.name, worker.address


def _by_use(blocks: Sequence[Block], workers: Sequence[WorkerInfo]) -> list[WorkerInfo]:
    """Return the workers, those first that are free and hold most bytes."""
    held = dict.fromkeys((worker.address for worker in workers), 0)
    for block in blocks:
        for holder in block.holders:
            if holder in held:
                held[holder] += block.nbytes
    return sorted(workers, key=lambda worker: (worker.busy, -held[worker.address], _stable(worker)))


def _choose(
    best: Sequence[WorkerInfo], n_ranks: int | None, ranks_per_worker: int | None
) -> list[tuple[WorkerInfo, int]]:
    """Return the workers of the gang with the number of ranks of each."""
    room = {w.address: min(max(w.nthreads, 1), ranks_per_worker or max(w.nthreads, 1)) for w in best}
    total = sum(room.values())
    if n_ranks is not None and n_ranks > total:
        raise ClusterError(
            f"{n_ranks} ranks need {n_ranks} threads, one for each; the {len(best)} running workers have room for "
            f"{total}. Ask for fewer ranks, or add workers."
        )
    counts = dict.fromkeys(room, 0)
    left = total if n_ranks is None else n_ranks
    while left:
        for worker in best:
            if left and counts[worker.address] < room[worker.address]:
                counts[worker.address] += 1
                left -= 1
    return [(worker, counts[worker.address]) for worker in sorted(best, key=_stable) if counts[worker.address]]


def _assign(blocks: Sequence[Block], members: Sequence[tuple[WorkerInfo, int]]) -> list[list[Block]]:
    loads = [0] * len(members)
    shares: list[list[Block]] = [[] for _ in members]
    number = {worker.address: k for k, (worker, _) in enumerate(members)}
    ranks = [count for _, count in members]
    limit = _OVERLOAD * sum(_size(block) for block in blocks) / sum(ranks)
    for block in sorted(blocks, key=lambda block: (-_size(block), block.index)):
        # What a rank of each member would have to walk, with this block.
        done = [(load + _size(block)) / count for load, count in zip(loads, ranks, strict=True)]
        soonest = min(range(len(members)), key=lambda k: (done[k], k))
        holders = [number[address] for address in block.holders if address in number]
        chosen = min(holders, key=lambda k: (done[k], k), default=soonest)
        if done[chosen] > limit and done[chosen] > done[soonest]:
            chosen = soonest
        loads[chosen] += _size(block)
        shares[chosen].append(block)
    return [sorted(share, key=lambda block: block.index) for share in shares]


def _size(block: Block) -> int:
    # Blocks whose size is unknown or zero still cost a visit, and must not all land on one worker.
    return max(block.nbytes, 1)


def _ordered(
    members: Sequence[tuple[WorkerInfo, int]], shares: Sequence[list[Block]]
) -> list[tuple[WorkerInfo, int, list[Block]]]:
    last = 1 + max((block.index for share in shares for block in share), default=0)
    first = [share[0].index if share else last for share in shares]
    first_of_host: dict[str, int] = {}
    for (worker, _), index in zip(members, first, strict=True):
        first_of_host[worker.host] = min(index, first_of_host.get(worker.host, last))

    def place(k: int) -> tuple[int, str, int, tuple[str, int, str, str]]:
        worker, _ = members[k]
        return first_of_host[worker.host], worker.host, first[k], _stable(worker)

    return [(*members[k], shares[k]) for k in sorted(range(len(members)), key=place)]


def _check_memory(member: MemberPlan, packed: int, demand: MemoryDemand) -> None:
    worker = member.worker
    needed = needed_bytes(demand, packed, member.block_nbytes, member.nbytes_moved, worker.memory_limit, member.n_ranks)
    refuse(
        f"{member} (host {worker.host}), with {len(member.blocks)} blocks,",
        needed,
        used=worker.memory_used,
        memory_limit=worker.memory_limit,
        advice=demand.advice,
    )
