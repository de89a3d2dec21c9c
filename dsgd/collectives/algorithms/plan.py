"""An all-reduce as a list of messages, and its execution on any wire.

Problem: many algorithms differ only in who sends which part of the vector to whom in which order. Written as a list of
messages, that can be run, counted and checked without a word about wires.

A plan lists what one rank does, move by move. In each it sends a part of its vector to one rank while it receives a
part from one, which is added to its own or takes its place. Every part of the sum is added up on one rank and then
copied, or by two partners that both put the lower rank's part first, so every bit agrees on all ranks, those of a NaN
included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Literal, NamedTuple

import numpy as np

from dsgd.collectives.cost import Cost, fold_of, ring_bounds
from dsgd.comm.base import AbstractTransport
from dsgd.comm.frames import HEADER_BYTES, OP_ALLREDUCE
from dsgd.types import AnyArray

#: Makes one vector of two, as a `numpy.ufunc` does: ``combine(a, b)``, or ``combine(a, b, out=c)``.
Combine = Callable[..., AnyArray]
#: What an all-reduce does with the vectors of ranks.
Operation = Literal["sum", "min", "max"] | Combine


class Part(NamedTuple):
    """The elements from `start` to `stop` of a vector."""

    start: int
    stop: int

    @property
    def length(self) -> int:
        """How many elements."""
        return self.stop - self.start

    def cut(self, n_chunks: int) -> list[Part]:
        """Return chunks of it, as equal as can be."""
        bounds = ring_bounds(self.length, n_chunks)
        return [Part(self.start + bounds[k], self.start + bounds[k + 1]) for k in range(n_chunks)]


class Move(NamedTuple):
    """What a rank does at a time."""

    to: int | None
    outgoing: Part
    source: int | None
    incoming: Part
    adds: bool


class Plan(NamedTuple):
    """What one rank does, from the first to the last move."""

    moves: tuple[Move, ...]
    n_scratch: int

    @classmethod
    def of(cls, moves: Iterable[Move]) -> Plan:
        """Return the plan of these moves."""
        moves = tuple(moves)
        lengths = (move.incoming.length for move in moves if move.adds and move.source is not None)
        return cls(moves, max(lengths, default=0))


def folded(
    rank: int, size: int, whole: Part, among: Callable[[int, int, Callable[[int], int]], Iterable[Move]]
) -> Iterator[Move]:
    """Yield the moves of an algorithm for 2**q ranks on any number of them.

    Of the ranks beyond the largest power of two each is odd and hands its vector to the even one before it, which
    hands it the result in the end.
    """
    core, n_folded = fold_of(size)
    folds = rank < 2 * n_folded
    if folds and rank % 2:
        yield Move(rank - 1, whole, None, whole, adds=False)
        yield Move(None, whole, rank - 1, whole, adds=False)
        return
    if folds:
        yield Move(None, whole, rank + 1, whole, adds=True)
    number = rank // 2 if folds else rank - n_folded
    yield from among(number, core, lambda other: 2 * other if other < n_folded else other + n_folded)
    if folds:
        yield Move(rank + 1, whole, None, whole, adds=False)


def run_plan(
    transport: AbstractTransport, vector: AnyArray, scratch: AnyArray, plan: Plan, combine: Combine = np.add
) -> None:
    """Replace `vector` by its sum over ranks, or by what another `combine` makes of all of them."""
    exchange, rank = transport.exchange, transport.rank
    for to, outgoing, source, incoming, adds in plan.moves:
        sent = None if to is None else vector[outgoing[0] : outgoing[1]]
        if source is None:
            exchange(to, sent, None, None, OP_ALLREDUCE)
            continue
        mine = vector[incoming[0] : incoming[1]]
        if not adds:
            exchange(to, sent, source, mine, OP_ALLREDUCE)
            continue
        arrived = scratch[: mine.shape[0]]
        if to is None or sent is None or outgoing == incoming:
            exchange(to, sent, source, arrived, OP_ALLREDUCE)
            first, second = (mine, arrived) if rank < source else (arrived, mine)
            combine(first, second, out=mine)
        else:
            transport.exchange_and_add(to, sent, source, arrived, mine, OP_ALLREDUCE)
        transport.worked(n_bytes=mine.nbytes)


def plan_cost(plan: Plan, itemsize: int) -> Cost:
    """Return the cost of a rank with this plan, counted message by message."""
    sent = [move.outgoing.length for move in plan.moves if move.to is not None]
    return Cost(sum(sent) * itemsize + len(sent) * HEADER_BYTES, len(sent))
