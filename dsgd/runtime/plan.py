"""Who trains what: blocks to workers, workers to ranks.

Problem: a cluster holds blocks of rows here and there. Every member of a gang needs about the same number of bytes, or
the fastest waits for the slowest in every round; every byte that moves costs time before the first step.

Method: longest processing time first, with locality. Blocks go largest first, each to the least loaded worker that
already holds it, unless that worker would be clearly overloaded; then to the least loaded worker of all.

Law: no rank gets more than ``max(_OVERLOAD * mean, mean + largest block)`` bytes.

A plan is a pure function of its arguments: it knows no cluster, so it can be tested without one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dsgd.errors import ClusterError, InvalidParameterError

__all__ = ["Block", "Plan", "RankPlan", "WorkerInfo", "make_plan"]

# A holder keeps its block up to this many times the mean load: moving a block costs once, imbalance in every round.
_OVERLOAD = 1.2
# A rank needs its blocks and one packed copy of them in memory at the same time, ...
_COPIES = 2
# ... in what a Dask worker may fill before it pauses (distributed.worker.memory.pause is 0.8).
_USABLE = 0.8


@dataclass(frozen=True)
class Block:
    """One block of rows on the cluster.

    Parameters
    ----------
    index : int
        Its place among the blocks of the input, from 0.
    nbytes : int
        Its size in bytes.
    holders : tuple of str
        Addresses of the workers that have it in memory.
    rows : int or None
        How many rows it has, where that is known; reported only.
    """

    index: int
    nbytes: int
    holders: tuple[str, ...]
    rows: int | None = None


@dataclass(frozen=True)
class WorkerInfo:
    """One worker process of the cluster.

    Parameters
    ----------
    address : str
        Its Dask address, ``tcp://host:port``.
    host : str
        The host it runs on.
    name : str
        The name it was given.
    nthreads : int
        How many task threads it has.
    memory_limit : int
        Bytes of memory it may use; 0 where there is no limit.
    busy : bool
        Whether another gang holds it now.
    """

    address: str
    host: str
    name: str
    nthreads: int = 1
    memory_limit: int = 0
    busy: bool = False


@dataclass(frozen=True)
class RankPlan:
    """What one rank is: its number, its worker and its blocks.

    Parameters
    ----------
    rank : int
        From 0.
    worker : WorkerInfo
        Where it runs.
    blocks : tuple of int
        Indices of its blocks, ascending; may be empty.
    block_nbytes : tuple of int
        Bytes of each of those blocks.
    nbytes : int
        Their sum.
    nbytes_moved : int
        The part of them that comes from another worker.
    """

    rank: int
    worker: WorkerInfo
    blocks: tuple[int, ...]
    block_nbytes: tuple[int, ...]
    nbytes: int
    nbytes_moved: int


@dataclass(frozen=True)
class Plan:
    """The ranks of a gang, in rank order: those of one host are neighbours."""

    ranks: tuple[RankPlan, ...]

    @property
    def addresses(self) -> tuple[str, ...]:
        """The worker of each rank."""
        return tuple(r.worker.address for r in self.ranks)


def make_plan(blocks: Sequence[Block], workers: Sequence[WorkerInfo], n_ranks: int | None = None) -> Plan:
    """Assign blocks to ranks, one rank per worker process.

    Ranks of one host are numbered in a row. Inside that order a rank that has an earlier block comes earlier, so that
    the numbering does not depend on which worker happens to hold which blocks; ranks without blocks come last.

    Parameters
    ----------
    blocks : sequence of Block
        The input, cut by rows.
    workers : sequence of WorkerInfo
        The worker processes that may be used.
    n_ranks : int or None, default None
        How many of them to use; None takes all. Fewer ranks go to the workers that are free and hold most bytes.

    Returns
    -------
    Plan
        Equal for equal arguments, whatever the order of `workers`.

    Raises
    ------
    ClusterError
        There are no workers, fewer than `n_ranks`, or one has too little memory for its share.
    InvalidParameterError
        `n_ranks` is less than one.
    """
    if n_ranks is not None and n_ranks < 1:
        raise InvalidParameterError(f"n_ranks must be at least 1, got {n_ranks}.")
    if not workers:
        raise ClusterError("The cluster has no running worker: start one, or scale the cluster, and fit again.")
    if n_ranks is not None and n_ranks > len(workers):
        raise ClusterError(
            f"{n_ranks} ranks need {n_ranks} worker processes, one for each; the cluster has {len(workers)} running. "
            "Ask for fewer ranks, or add workers (threads of one worker do not count as workers)."
        )
    members = _choose(blocks, workers, len(workers) if n_ranks is None else n_ranks)
    shares = _assign(blocks, members)
    ranks = tuple(
        RankPlan(
            rank,
            worker,
            tuple(block.index for block in share),
            tuple(block.nbytes for block in share),
            sum(block.nbytes for block in share),
            sum(block.nbytes for block in share if worker.address not in block.holders),
        )
        for rank, (worker, share) in enumerate(_ordered(members, shares))
    )
    for rank in ranks:
        _check_memory(rank)
    return Plan(ranks)


def _stable(worker: WorkerInfo) -> tuple[str, int, str, str]:
    """Sort key: by host, then by name with 10 after 9; ports are drawn anew every time and come last."""
    return worker.host, len(worker.name), worker.name, worker.address


def _choose(blocks: Sequence[Block], workers: Sequence[WorkerInfo], n_ranks: int) -> list[WorkerInfo]:
    held = dict.fromkeys((worker.address for worker in workers), 0)
    for block in blocks:
        for holder in block.holders:
            if holder in held:
                held[holder] += block.nbytes
    best = sorted(workers, key=lambda worker: (worker.busy, -held[worker.address], _stable(worker)))
    return sorted(best[:n_ranks], key=_stable)


def _assign(blocks: Sequence[Block], members: Sequence[WorkerInfo]) -> list[list[Block]]:
    loads = [0] * len(members)
    shares: list[list[Block]] = [[] for _ in members]
    number = {worker.address: k for k, worker in enumerate(members)}
    limit = _OVERLOAD * sum(_size(block) for block in blocks) / len(members)
    for block in sorted(blocks, key=lambda block: (-_size(block), block.index)):
        lightest = min(range(len(members)), key=lambda k: (loads[k], k))
        holders = [number[address] for address in block.holders if address in number]
        chosen = min(holders, key=lambda k: (loads[k], k), default=lightest)
        if loads[chosen] + _size(block) > limit and loads[chosen] > loads[lightest]:
            chosen = lightest
        loads[chosen] += _size(block)
        shares[chosen].append(block)
    return [sorted(share, key=lambda block: block.index) for share in shares]


def _size(block: Block) -> int:
    # Blocks whose size is unknown or zero still cost a visit, and must not all land on one rank.
    return max(block.nbytes, 1)


def _ordered(members: Sequence[WorkerInfo], shares: Sequence[list[Block]]) -> list[tuple[WorkerInfo, list[Block]]]:
    last = 1 + max((block.index for share in shares for block in share), default=0)
    first = [share[0].index if share else last for share in shares]
    first_of_host: dict[str, int] = {}
    for worker, index in zip(members, first, strict=True):
        first_of_host[worker.host] = min(index, first_of_host.get(worker.host, last))
    numbers = sorted(
        range(len(members)),
        key=lambda k: (first_of_host[members[k].host], members[k].host, first[k], _stable(members[k])),
    )
    return [(members[k], shares[k]) for k in numbers]


def _check_memory(rank: RankPlan) -> None:
    needed = _COPIES * rank.nbytes
    usable = int(_USABLE * rank.worker.memory_limit)
    if rank.worker.memory_limit and needed > usable:
        raise ClusterError(
            f"rank {rank.rank} on worker {rank.worker.address} (host {rank.worker.host}) would need "
            f"{_gib(needed)} for its {len(rank.blocks)} blocks and their packed copy, but may use {_gib(usable)} "
            f"of its limit of {_gib(rank.worker.memory_limit)}. Give workers more memory, or use more of them."
        )


def _gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:.2f} GiB"
