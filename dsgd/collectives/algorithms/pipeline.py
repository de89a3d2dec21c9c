"""Reduction up trees and broadcast down them, pipelined over pieces and over all trees at once.

Problem: a tree keeps most ranks idle while a vector moves up. If the vector is cut into pieces, they follow each other,
and several trees can carry parts of it at the same time. The order of all messages must then be fixed in advance, or
ranks wait for each other for ever.

Update: the messages of all trees and pieces are assigned to steps, in each of which a rank sends to at most one and
receives from at most one other. A rank sends a piece up when those of all its children have arrived, and down when it
has the sum; of the possible messages those up go first, then those of earlier pieces. A rank sends and receives in the
order of steps, so the ranks in the earliest step can always proceed.

A piece is added up in the order of a rank's children under any schedule: the bits do not depend on the pieces.

Cost: the messages of the trees, one up and one down each edge and piece. For the steps, see `dsgd.collectives.model`.

Source: Sanders, Speck and Träff 2009, who colour the edges of two trees; scheduled here for any trees.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from dsgd.collectives.algorithms.plan import Move, Part, Plan
from dsgd.collectives.cost import ring_bounds

#: A tree over ranks: the parent of each; that of the root is -1.
Parents = tuple[int, ...]


class _Message(NamedTuple):
    """One piece on its way along one edge."""

    tree: int
    piece: int
    source: int
    to: int
    goes_up: bool


def children_of(parents: Parents) -> list[list[int]]:
    """Return the children of every rank of a tree, ascending."""
    children: list[list[int]] = [[] for _ in parents]
    for rank, parent in enumerate(parents):
        if parent >= 0:
            children[parent].append(rank)
    return children


def tree_plan(
    rank: int, trees: Sequence[Parents], parts: Sequence[Part], pieces: int, down: Sequence[Parents] = ()
) -> Plan:
    """Return what `rank` does to sum vectors up and down trees."""
    cuts = [[part.start + bound for bound in ring_bounds(part.length, pieces)] for part in parts]
    nothing = Part(0, 0)
    moves = []
    for sent, received in _schedule(tuple(trees), pieces, tuple(down))[rank]:
        outgoing = nothing if sent is None else Part(*cuts[sent.tree][sent.piece : sent.piece + 2])
        incoming = nothing if received is None else Part(*cuts[received.tree][received.piece : received.piece + 2])
        moves.append(
            Move(
                None if sent is None else sent.to,
                outgoing,
                None if received is None else received.source,
                incoming,
                adds=received is not None and received.goes_up,
            )
        )
    return Plan.of(moves)


def n_steps(trees: Sequence[Parents], pieces: int) -> int:
    """Return the steps of the schedule."""
    return len(_steps(tuple(trees), pieces))


@lru_cache(maxsize=64)
def _schedule(
    trees: tuple[Parents, ...], pieces: int, down: tuple[Parents, ...]
) -> tuple[tuple[tuple[_Message | None, _Message | None], ...], ...]:
    """Return what every rank sends and receives, step by step."""
    plans: list[list[tuple[_Message | None, _Message | None]]] = [[] for _ in trees[0]]
    for messages in _steps(trees, pieces, down):
        sent = {message.source: message for message in messages}
        received = {message.to: message for message in messages}
        for rank in sorted(sent.keys() | received.keys()):
            plans[rank].append((sent.get(rank), received.get(rank)))
    return tuple(tuple(plan) for plan in plans)


@lru_cache(maxsize=64)
def _steps(trees: tuple[Parents, ...], pieces: int, down: tuple[Parents, ...] = ()) -> tuple[tuple[_Message, ...], ...]:
    """Deal the messages to steps."""
    children = [children_of(parents) for parents in trees]
    heirs = [children_of(parents) for parents in down or trees]
    ready: list[_Message] = []
    # By tree, piece and rank: how many of its children's pieces a rank has added, and which ones are waiting to be.
    n_added: dict[tuple[int, int, int], int] = {}
    waiting: set[tuple[int, int, int]] = set()

    def climb(tree: int, piece: int, rank: int) -> None:
        """Let a rank that has its sum pass it on: up, or from the root down."""
        parent = trees[tree][rank]
        if parent < 0:
            ready.extend(_Message(tree, piece, rank, child, goes_up=False) for child in heirs[tree][rank])
        elif children[tree][parent][n_added.get((tree, piece, parent), 0)] == rank:
            ready.append(_Message(tree, piece, rank, parent, goes_up=True))
        else:
            waiting.add((tree, piece, rank))

    for tree in range(len(trees)):
        for piece in range(pieces):
            for rank, below in enumerate(children[tree]):
                if not below:
                    climb(tree, piece, rank)
    steps = []
    while ready:
        ready.sort(key=lambda message: (not message.goes_up, message.piece, message.tree, message.source))
        senders: set[int] = set()
        receivers: set[int] = set()
        going, left = [], []
        for message in ready:
            if message.source in senders or message.to in receivers:
                left.append(message)
            else:
                senders.add(message.source)
                receivers.add(message.to)
                going.append(message)
        ready = left
        for tree, piece, _, to, goes_up in going:
            if not goes_up:
                ready.extend(_Message(tree, piece, to, child, goes_up=False) for child in heirs[tree][to])
                continue
            below = children[tree][to]
            done = n_added[tree, piece, to] = n_added.get((tree, piece, to), 0) + 1
            if done == len(below):
                climb(tree, piece, to)
            elif (tree, piece, below[done]) in waiting:
                ready.append(_Message(tree, piece, below[done], to, goes_up=True))
        steps.append(tuple(going))
    return tuple(steps)
