"""An all-reduce as a list of messages, and its execution on any wire.

Problem: many algorithms differ only in who sends which part of the vector to whom in which order. Written as a list of
messages, that can be run, counted and checked without a word about wires.

A plan lists what one rank does, move by move. In each it sends a part of its vector to one rank while it receives a
part from one, which is added to its own or takes its place. Every part of the sum is added up on one rank and then
copied, so every bit agrees on all ranks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from dsgd.collectives.cost import Cost
from dsgd.comm.base import AbstractTransport
from dsgd.comm.frames import HEADER_BYTES, OP_ALLREDUCE
from dsgd.types import AnyArray

__all__ = ["Move", "Part", "Plan", "plan_cost", "run_plan"]


class Part(NamedTuple):
    """The elements from `start` to `stop` of a vector."""

    start: int
    stop: int

    @property
    def length(self) -> int:
        """How many elements."""
        return self.stop - self.start


class Move(NamedTuple):
    """What a rank does at a time.

    Parameters
    ----------
    to : int or None
        Whom it sends to.
    outgoing : Part
        What; not looked at if `to` is None.
    source : int or None
        Whom it receives from.
    incoming : Part
        Where to; not looked at if `source` is None. It does not overlap with `outgoing`.
    adds : bool
        Whether what comes is added to what is there, and not put in its place.
    """

    to: int | None
    outgoing: Part
    source: int | None
    incoming: Part
    adds: bool


class Plan(NamedTuple):
    """What one rank does, from the first to the last move.

    Parameters
    ----------
    moves : tuple of Move
        In this order.
    n_scratch : int
        Elements of the longest part that is added.
    """

    moves: tuple[Move, ...]
    n_scratch: int

    @classmethod
    def of(cls, moves: Iterable[Move]) -> Plan:
        """Return the plan of these moves."""
        moves = tuple(moves)
        lengths = (move.incoming.length for move in moves if move.adds and move.source is not None)
        return cls(moves, max(lengths, default=0))


def run_plan(transport: AbstractTransport, vector: AnyArray, scratch: AnyArray, plan: Plan) -> None:
    """Replace `vector` by its sum over ranks.

    Parameters
    ----------
    transport : AbstractTransport
        Connects the ranks.
    vector : array, shape (n,)
        Summed in place.
    scratch : array, shape (plan.n_scratch,) or longer, dtype of `vector`
        Overwritten.
    plan : Plan
        What this rank does; those of the others are of the same algorithm for the same n.
    """
    exchange = transport.exchange
    for to, outgoing, source, incoming, adds in plan.moves:
        sent = None if to is None else vector[outgoing[0] : outgoing[1]]
        if source is None:
            exchange(to, sent, None, None, OP_ALLREDUCE)
            continue
        mine = vector[incoming[0] : incoming[1]]
        arrived = scratch[: mine.shape[0]] if adds else mine
        exchange(to, sent, source, arrived, OP_ALLREDUCE)
        if adds:
            np.add(mine, arrived, out=mine)
            transport.worked(n_bytes=mine.nbytes)


def plan_cost(plan: Plan, itemsize: int) -> Cost:
    """Return what a rank with this plan sends, counted message by message."""
    sent = [move.outgoing.length for move in plan.moves if move.to is not None]
    return Cost(sum(sent) * itemsize + len(sent) * HEADER_BYTES, len(sent))
