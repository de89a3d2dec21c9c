"""All-reduces by name, and collectives of all ranks at once, for wires that run them as one call (`dsgd.comm.base`).

Problem: such a wire, a simulated one, must know the messages of all ranks in advance, and the results of all, where
`dsgd.collectives.Group` knows what one rank has.

Method: the schedules here write down the messages as the algorithms send them (`tests/sim/test_offload.py` compares).
Results are made of the vectors of all ranks without any messages, by the additions of the algorithms in the same order
and with the same operand first; where all ranks add up the same numbers that is done once for all. A `Call` has both,
so that costs and bits are those of ranks that send messages themselves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from dsgd.collectives.algorithms.plan import Combine, Operation, Plan
from dsgd.collectives.algorithms.rings import doubling_plan, rabenseifner_plan, ring_plan, torus_plan
from dsgd.collectives.algorithms.trees import Blocks, binomial_plan, double_tree_plan
from dsgd.collectives.cost import Algorithm, fold_of, gather_steps, n_levels, ring_bounds
from dsgd.comm.base import Call, Schedule
from dsgd.comm.frames import HEADER_BYTES, OP_ALLGATHER, OP_ALLREDUCE, OP_BARRIER, OP_GATHER
from dsgd.types import AnyArray, IntMatrix, IntVector

if TYPE_CHECKING:
    from dsgd.comm.topology import Step


#: What a rank does in an all-reduce of n elements of some bytes, by algorithm: from rank, size, n and bytes.
PLANS: Final[dict[str, Callable[[int, int, int, int], Plan]]] = {
    "recursive_doubling": lambda rank, size, n, itemsize: doubling_plan(rank, size, n),
    "ring": lambda rank, size, n, itemsize: ring_plan(rank, size, n),
    "rabenseifner": lambda rank, size, n, itemsize: rabenseifner_plan(rank, size, n),
    "binomial": lambda rank, size, n, itemsize: binomial_plan(rank, size, n),
    "double_tree": double_tree_plan,
    "torus": lambda rank, size, n, itemsize: torus_plan(rank, size, n),
}

#: To, bytes, source and bytes added up; see `Schedule`.
Line = tuple[int, int, int, int]


def plan_schedule(plan_of: Callable[[int], Plan], size: int, itemsize: int) -> Schedule:
    """Return the messages of plans for vectors whose elements have `itemsize` bytes."""

    def lines(rank: int) -> Iterator[Line]:
        for to, outgoing, source, incoming, adds in plan_of(rank).moves:
            sent = 0 if to is None else HEADER_BYTES + (outgoing[1] - outgoing[0]) * itemsize
            added = (incoming[1] - incoming[0]) * itemsize if adds and source is not None else 0
            yield -1 if to is None else to, sent, -1 if source is None else source, added

    return _schedule(lines(rank) for rank in range(size))


def steps_schedule(steps: Sequence[Sequence[Step]], n_bytes: int, *, adds: bool) -> Schedule:
    """Return the messages of a round of gossip (`dsgd.collectives.means`) about vectors of so many bytes."""

    def lines(rank: int) -> Iterator[Line]:
        for to, source in steps[rank]:
            sent = 0 if to is None else HEADER_BYTES + n_bytes
            added = n_bytes if adds and source is not None else 0
            yield -1 if to is None else to, sent, -1 if source is None else source, added

    return _schedule(lines(rank) for rank in range(len(steps)))


def ring_schedule(size: int, n: int, itemsize: int) -> Schedule:
    """Return the messages of an all-reduce round a ring (`dsgd.collectives.algorithms.rings`)."""
    n_bytes = np.diff(np.array(ring_bounds(n, size), dtype=np.int64)) * itemsize
    ranks, steps = np.arange(size)[:, None], np.arange(size - 1)[None]
    sent = np.concatenate([n_bytes[(ranks - steps) % size], n_bytes[(ranks + 1 - steps) % size]], axis=1)
    added = n_bytes[(ranks - steps - 1) % size]
    return _round_ring(sent, np.concatenate([added, np.zeros_like(added)], axis=1))


def ring_allgather_schedule(n_bytes: Sequence[int]) -> Schedule:
    """Return the messages of `dsgd.collectives.algorithms.rings.ring_allgather`, of so many bytes of each rank."""
    size = len(n_bytes)
    places = (np.arange(size)[:, None] - np.arange(size - 1)[None]) % size
    sent = np.array(n_bytes, dtype=np.int64)[places]
    return _round_ring(sent, np.zeros_like(sent))


def bruck_schedule(n_bytes: Sequence[int]) -> Schedule:
    """Return the messages of `dsgd.collectives.algorithms.rings.bruck_allgather`, of so many bytes of each rank."""
    size = len(n_bytes)
    before = np.cumsum([0, *n_bytes, *n_bytes], dtype=np.int64)
    ranks, (distances, counts) = np.arange(size)[:, None], np.array(list(gather_steps(size))).T[:, None]
    sent = before[ranks + counts] - before[ranks]
    added = np.zeros_like(sent)
    added[:, -1] = before[size]  # all of them are copied at the end
    return _table((ranks - distances) % size, sent + HEADER_BYTES, (ranks + distances) % size, added)


def tally_schedule(blocks: Sequence[Sequence[int]], n_up: int, n_own: int, n_down: int, n_added: int) -> Schedule:
    """Return the messages of `dsgd.collectives.algorithms.trees.gather_sums`, and of a broadcast from rank 0."""
    size = sum(map(len, blocks))

    def lines(block: Sequence[int], rank: int) -> Iterator[Line]:
        leads = rank == block[0]
        if leads:
            yield from ((-1, 0, source, n_added) for source in block[1:])
        if rank:
            n_sent = n_up + n_own * (len(block) if leads else 1)
            yield 0 if leads else block[0], HEADER_BYTES + n_sent, -1, 0
        else:
            yield from ((-1, 0, other[0], n_added) for other in blocks[1:])
        # A rank is reached at the level of its highest bit and sends at every level after it.
        reached = rank.bit_length()
        if rank:
            yield -1, 0, rank - (1 << reached - 1), 0
        for level in range(reached, n_levels(size)):
            if rank + (1 << level) < size:
                yield rank + (1 << level), HEADER_BYTES + n_down, -1, 0

    by_rank = {rank: block for block in blocks for rank in block}
    return _schedule(lines(by_rank[rank], rank) for rank in range(size))


def barrier_schedule(size: int) -> Schedule:
    """Return the messages of `dsgd.collectives.algorithms.trees.dissemination_barrier`."""
    distances = 1 << np.arange(n_levels(size))[None]
    ranks = np.arange(size)[:, None]
    empty = np.full((size, n_levels(size)), HEADER_BYTES)
    return _table((ranks + distances) % size, empty, (ranks - distances) % size, np.zeros_like(empty))


def _round_ring(sent: IntMatrix, added: IntMatrix) -> Schedule:
    """Return messages that all go to the next rank: bytes sent and added up, shape (size, n_steps)."""
    size, n_steps = sent.shape
    ranks = np.repeat(np.arange(size)[:, None], n_steps, axis=1)
    return _table((ranks + 1) % size, sent + HEADER_BYTES, (ranks - 1) % size, added)


def _table(to: IntMatrix, sent: IntMatrix, source: IntMatrix, added: IntMatrix) -> Schedule:
    """Return the schedule of ranks that all take as many moves; every matrix has a row for each rank."""
    size, n_steps = to.shape
    moves = np.stack([to, sent, source, added], axis=-1).reshape(-1, 4).astype(np.int64)
    totals = np.stack([sent.sum(axis=1), np.full(size, n_steps)], axis=1).astype(np.int64)
    return Schedule(np.arange(size + 1, dtype=np.int64) * n_steps, moves, totals)


def _schedule(ranks: Iterable[Iterable[Line]]) -> Schedule:
    """Return the schedule of the lines of each rank."""
    lines = [list(found) for found in ranks]
    first: IntVector = np.cumsum([0, *map(len, lines)], dtype=np.int64)
    moves = np.array([line for found in lines for line in found], dtype=np.int64).reshape(-1, 4)
    totals = [(sum(line[1] for line in found), sum(line[0] >= 0 for line in found)) for found in lines]
    return Schedule(first, moves, np.array(totals, dtype=np.int64))


def reduce_by_doubling(vectors: Sequence[AnyArray], combine: Combine) -> None:
    """Do what `dsgd.collectives.algorithms.rings` does to the vectors of all ranks."""
    core, n_folded = fold_of(len(vectors))
    parts = np.stack(vectors)
    if n_folded:
        pairs = parts[: 2 * n_folded]
        parts = np.concatenate([combine(pairs[0::2], pairs[1::2]), parts[2 * n_folded :]])
    while core > 1:
        parts, core = combine(parts[0::2], parts[1::2]), core // 2
    for vector in vectors:
        vector[...] = parts[0]


def reduce_round_ring(vectors: Sequence[AnyArray]) -> None:
    """Do what `dsgd.collectives.algorithms.rings` does to the vectors of all ranks."""
    size, n = len(vectors), vectors[0].shape[0]
    chunk = np.repeat(np.arange(size), np.diff(ring_bounds(n, size)))
    columns, table = np.arange(n), np.stack(vectors)
    total = table[chunk % size, columns]
    for step in range(1, size):
        total = np.add(total, table[(chunk + step) % size, columns])
    for vector in vectors:
        vector[...] = total


def reduce_by_plans(vectors: Sequence[AnyArray], plan_of: Callable[[int], Plan], combine: Combine) -> None:
    """Do what ranks with these plans do to their vectors, message by message; see `run_plan`."""
    size = len(vectors)
    plans, at = [plan_of(rank).moves for rank in range(size)], [0] * size
    under_way: dict[tuple[int, int], deque[AnyArray]] = {}
    has_sent = [False] * size
    ready = deque(range(size))
    while ready:
        rank = ready.popleft()
        while at[rank] < len(plans[rank]):
            to, outgoing, source, incoming, adds = plans[rank][at[rank]]
            if to is not None and not has_sent[rank]:
                message = vectors[rank][outgoing[0] : outgoing[1]].copy()
                under_way.setdefault((rank, to), deque()).append(message)
                ready.append(to)
                has_sent[rank] = True
            if source is not None:
                if not under_way.get((source, rank)):
                    break
                arrived, mine = under_way[source, rank].popleft(), vectors[rank][incoming[0] : incoming[1]]
                if not adds:
                    mine[...] = arrived
                elif to is None or outgoing == incoming:
                    combine(*((mine, arrived) if rank < source else (arrived, mine)), out=mine)
                else:
                    np.add(arrived, mine, out=mine)
            at[rank], has_sent[rank] = at[rank] + 1, False


class Tallied:
    """What a rank brings to a tally, and what it finds."""

    def __init__(self, sums: AnyArray, own: AnyArray) -> None:
        self.sums, self.own = sums, own
        self.table: AnyArray | None = None


def tally_all(brought: Sequence[Tallied], blocks: Blocks) -> None:
    """Do what `dsgd.collectives.algorithms.trees.gather_sums` and a broadcast do; every rank finds the table."""
    parts = [tallied.sums.copy() for tallied in brought]
    for block in blocks:
        for rank in block[1:]:
            parts[block[0]] += parts[rank]
    for block in blocks[1:]:
        parts[0] += parts[block[0]]
    table = np.stack([tallied.own for tallied in brought])
    for tallied in brought:
        tallied.sums[...] = parts[0]
        tallied.table = table


def fill_all(wholes: Sequence[AnyArray], ends: Sequence[int]) -> None:
    """Do what an all-gather does, in whichever way; see `dsgd.collectives.Group.fill`."""
    whole = np.concatenate([own[a:b] for own, (a, b) in zip(wholes, pairwise(ends), strict=True)])
    for own in wholes:
        own[...] = whole


def allreduce_call(flat: AnyArray, size: int, algorithm: Algorithm, op: Operation, combine: Combine) -> Call:
    """Return an all-reduce of vectors of one dimension."""
    n, itemsize = flat.shape[0], flat.itemsize

    def plan_of(rank: int) -> Plan:
        return PLANS[algorithm](rank, size, n, itemsize)

    schedule: Callable[[], Schedule] = partial(plan_schedule, plan_of, size, itemsize)
    reduce: Callable[..., None] = partial(reduce_by_plans, plan_of=plan_of, combine=combine)
    if algorithm == "recursive_doubling":
        reduce = partial(reduce_by_doubling, combine=combine)
    elif algorithm == "ring":
        schedule, reduce = partial(ring_schedule, size, n, itemsize), reduce_round_ring
    return Call(OP_ALLREDUCE, (op, algorithm, n, flat.dtype), flat, flat, schedule, reduce)


def fill_call(whole: AnyArray, ends: Sequence[int], *, doubles: bool) -> Call:
    """Return an all-gather that fills `whole` as `dsgd.collectives.Group.fill` does: by Bruck's algorithm or a ring."""
    n_bytes = [whole.itemsize * (b - a) for a, b in pairwise(ends)]
    schedule = partial(bruck_schedule if doubles else ring_allgather_schedule, n_bytes)
    kind = ("fill", whole.dtype, *ends)
    return Call(OP_ALLGATHER, kind, whole, whole, schedule, partial(fill_all, ends=ends))


def tally_call(blocks: Blocks, brought: Tallied, n_down: int) -> Call:
    """Return a tally of what ranks bring, of which a message of `n_down` bytes comes down."""
    sums, own = brought.sums, brought.own
    schedule = partial(tally_schedule, blocks, sums.nbytes, own.nbytes, n_down, sums.nbytes)
    kind = ("tally", sums.dtype, sums.shape[0], own.shape[0], n_down)
    return Call(OP_GATHER, kind, sums, brought, schedule, partial(tally_all, blocks=blocks))


def barrier_call(size: int) -> Call:
    """Return a barrier."""
    nothing = np.empty(0, dtype=np.uint8)
    return Call(OP_BARRIER, "barrier", nothing, None, partial(barrier_schedule, size), lambda brought: None)
