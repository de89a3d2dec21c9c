"""The messages of a collective of all ranks, as a table.

Problem: a simulated wire plays the messages of all ranks (`dsgd.comm.base`), for which it must know all of them in
advance. Here they are written down as the algorithms send them, which `tests/sim/test_offload.py` compares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from dsgd.collectives.algorithms.plan import Plan
from dsgd.collectives.cost import gather_steps, ring_bounds
from dsgd.collectives.model import n_levels
from dsgd.comm.base import Schedule
from dsgd.comm.frames import HEADER_BYTES
from dsgd.types import IntMatrix, IntVector

if TYPE_CHECKING:
    from dsgd.comm.topology.mixing import Step


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
    """Return the messages of a round of gossip (`dsgd.collectives.gossip`) about vectors of so many bytes."""

    def lines(rank: int) -> Iterator[Line]:
        for to, source in steps[rank]:
            sent = 0 if to is None else HEADER_BYTES + n_bytes
            added = n_bytes if adds and source is not None else 0
            yield -1 if to is None else to, sent, -1 if source is None else source, added

    return _schedule(lines(rank) for rank in range(len(steps)))


def ring_schedule(size: int, n: int, itemsize: int) -> Schedule:
    """Return the messages of an all-reduce round a ring (`dsgd.collectives.algorithms.ring`)."""
    n_bytes = np.diff(np.array(ring_bounds(n, size), dtype=np.int64)) * itemsize
    ranks, steps = np.arange(size)[:, None], np.arange(size - 1)[None]
    sent = np.concatenate([n_bytes[(ranks - steps) % size], n_bytes[(ranks + 1 - steps) % size]], axis=1)
    added = n_bytes[(ranks - steps - 1) % size]
    return _round_ring(sent, np.concatenate([added, np.zeros_like(added)], axis=1))


def ring_allgather_schedule(n_bytes: Sequence[int]) -> Schedule:
    """Return the messages of `dsgd.collectives.algorithms.ring.ring_allgather`, of so many bytes of each rank."""
    size = len(n_bytes)
    places = (np.arange(size)[:, None] - np.arange(size - 1)[None]) % size
    sent = np.array(n_bytes, dtype=np.int64)[places]
    return _round_ring(sent, np.zeros_like(sent))


def bruck_schedule(n_bytes: Sequence[int]) -> Schedule:
    """Return the messages of `dsgd.collectives.algorithms.bruck.bruck_allgather`, of so many bytes of each rank."""
    size = len(n_bytes)
    before = np.cumsum([0, *n_bytes, *n_bytes], dtype=np.int64)
    ranks, (distances, counts) = np.arange(size)[:, None], np.array(list(gather_steps(size))).T[:, None]
    sent = before[ranks + counts] - before[ranks]
    added = np.zeros_like(sent)
    added[:, -1] = before[size]  # all of them are copied at the end
    return _table((ranks - distances) % size, sent + HEADER_BYTES, (ranks + distances) % size, added)


def tally_schedule(blocks: Sequence[Sequence[int]], n_up: int, n_own: int, n_down: int, n_added: int) -> Schedule:
    """Return the messages of `dsgd.collectives.algorithms.tally.gather_sums`, and of a broadcast from rank 0."""
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
    """Return the messages of `dsgd.collectives.algorithms.tree.dissemination_barrier`."""
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
