"""An all-reduce as a list of messages, and its execution on any wire.

Problem: many algorithms differ only in who sends which part of the vector to whom in which order. Written as a list of
messages, that can be run, counted and checked without a word about wires.

A plan lists what one rank does, move by move. In each it sends a part of its vector to one rank while it receives a
part from one, which is added to its own or takes its place. Every part of the sum is added up on one rank and then
copied, or by two partners that both put the lower rank's part first, so every bit agrees on all ranks, those of a NaN
included.

A tree keeps most ranks idle while a vector moves up. If the vector is cut into pieces, they follow each other, and
several trees carry parts of it at the same time; the order of all messages is fixed in advance, or ranks would wait for
each other for ever. A rank sends a piece up when those of all its children have arrived, and down when it has the sum.

- `tree_plan` assigns the messages to steps, in each of which a rank sends to at most one and receives from at most one
  other: those up go first, then those of earlier pieces. A rank sends and receives in the order of steps, so the ranks
  in the earliest step can always proceed. For the number of steps, see `dsgd.collectives.cost`.
- `concurrent_plan` is for accelerators, each of whose links can be busy. The messages are played on links that carry
  one message each, the earliest pieces first and those on their way up before those down, so that sums begin to come
  down while later pieces still go up. A rank must be able to hand a message over and go on
  (`AbstractTransport.concurrent`). If its links carry `rate` bytes a second in all, a sum of n bytes takes ``n / rate``
  seconds, and the way of one piece up and down the highest tree.

A piece is added up in the order of a rank's children, whatever the order of messages: bits do not depend on pieces.

Source: Sanders, Speck and Träff 2009, who colour the edges of two trees, scheduled here for any trees; Wang et al. 2020
(Blink), whose code for accelerators puts each tree's copies into streams of their own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from heapq import heappop, heappush
from typing import Literal, NamedTuple

import numpy as np

from dsgd.collectives.cost import fold_of, ring_bounds
from dsgd.comm.base import AbstractTransport
from dsgd.comm.frames import OP_ALLREDUCE
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
    """Yield the moves of an algorithm for 2**q ranks on any number: odd ranks beyond are folded into the even ones."""
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


_NOTHING = Part(0, 0)
#: A tree over ranks: the parent of each; that of the root is -1.
Parents = tuple[int, ...]


class _Message(NamedTuple):
    """One piece on its way along one edge of a tree."""

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
    moves = []
    for sent, received in _schedule(tuple(trees), pieces, tuple(down))[rank]:
        outgoing = _NOTHING if sent is None else Part(*cuts[sent.tree][sent.piece : sent.piece + 2])
        incoming = _NOTHING if received is None else Part(*cuts[received.tree][received.piece : received.piece + 2])
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
    """Return the messages of each step."""
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


def concurrent_plan(
    rank: int, up: Sequence[Parents], down: Sequence[Parents], parts: Sequence[Part], pieces: Sequence[int]
) -> Plan:
    """Return what `rank` does to sum vectors up and down trees, on a wire where all links carry at once."""
    cuts = [part.cut(n) for part, n in zip(parts, pieces, strict=True)]
    moves = []
    for sends, (tree, piece, source, to, goes_up) in _orders(
        tuple(up), tuple(down), tuple(part.length for part in parts), tuple(pieces)
    )[rank]:
        part = cuts[tree][piece]
        moves.append(
            Move(to, part, None, _NOTHING, adds=False) if sends else Move(None, _NOTHING, source, part, adds=goes_up)
        )
    return Plan.of(moves)


@lru_cache(maxsize=64)
def _orders(
    up: tuple[Parents, ...], down: tuple[Parents, ...], lengths: tuple[int, ...], pieces: tuple[int, ...]
) -> tuple[tuple[tuple[bool, _Message], ...], ...]:
    """Return the messages of every rank in order, each with whether the rank sends it."""
    play = _Play(up, down, lengths, pieces)
    play.run()
    return tuple(map(tuple, play.orders))


class _Play:
    """Plays the messages on links, each as fast as is needed to carry all of its bytes in a second."""

    def __init__(
        self, up: Sequence[Parents], down: Sequence[Parents], lengths: Sequence[int], pieces: Sequence[int]
    ) -> None:
        self.orders: list[list[tuple[bool, _Message]]] = [[] for _ in up[0]]
        self._up, self._pieces = up, pieces
        self._above = [children_of(parents) for parents in up]
        self._below = [children_of(parents) for parents in down]
        self._share = [max(1, length) for length in lengths]
        self._traffic: dict[tuple[int, int], float] = defaultdict(float)
        for tree, share in enumerate(self._share):
            for rank in range(len(up[0])):
                if up[tree][rank] >= 0:
                    self._traffic[rank, up[tree][rank]] += share
                    self._traffic[down[tree][rank], rank] += share
        self._now, self._n_sent = 0.0, 0
        self._events: list[tuple[float, int, _Message]] = []
        self._ready: dict[tuple[int, int], list[tuple[float, bool, int, _Message]]] = defaultdict(list)
        self._busy: set[tuple[int, int]] = set()
        # By tree, piece and rank: how many of its children's pieces a rank has added, and which ones are waiting to be.
        self._n_added: dict[tuple[int, int, int], int] = defaultdict(int)
        self._waiting: set[tuple[int, int, int]] = set()

    def run(self) -> None:
        """Play all messages."""
        for tree, n in enumerate(self._pieces):
            for rank, above in enumerate(self._above[tree]):
                if not above:
                    for piece in range(n):
                        self._climb(tree, piece, rank)
        for link in sorted(self._ready):
            self._start(link)
        while self._events:
            self._now, _, message = heappop(self._events)
            self.orders[message.to].append((False, message))
            self._busy.remove((message.source, message.to))
            for link in [*self._arrive(message), (message.source, message.to)]:
                self._start(link)

    def _arrive(self, message: _Message) -> list[tuple[int, int]]:
        """Take a message in; return the links that may have something to carry now."""
        tree, piece, _, to, goes_up = message
        if not goes_up:
            return [self._offer(_Message(tree, piece, to, child, False)) for child in self._below[tree][to]]
        above = self._above[tree][to]
        done = self._n_added[tree, piece, to] = self._n_added[tree, piece, to] + 1
        if done == len(above):
            return self._climb(tree, piece, to)
        if (tree, piece, above[done]) in self._waiting:
            return [self._offer(_Message(tree, piece, above[done], to, True))]
        return []

    def _climb(self, tree: int, piece: int, rank: int) -> list[tuple[int, int]]:
        """Let a rank that has its sum pass it on: up, or from the root down."""
        parent = self._up[tree][rank]
        if parent < 0:
            return [self._offer(_Message(tree, piece, rank, child, False)) for child in self._below[tree][rank]]
        if self._above[tree][parent][self._n_added[tree, piece, parent]] == rank:
            return [self._offer(_Message(tree, piece, rank, parent, True))]
        self._waiting.add((tree, piece, rank))
        return []

    def _offer(self, message: _Message) -> tuple[int, int]:
        """Let a message wait for its link; return the link."""
        link = message.source, message.to
        first = message.piece / self._pieces[message.tree]
        heappush(self._ready[link], (first, not message.goes_up, message.tree, message))
        return link

    def _start(self, link: tuple[int, int]) -> None:
        """Let a link carry the next message, if it is idle and there is one."""
        if link in self._busy or not self._ready[link]:
            return
        message = heappop(self._ready[link])[-1]
        self._busy.add(link)
        self.orders[message.source].append((True, message))
        seconds = self._share[message.tree] / self._pieces[message.tree] / self._traffic[link]
        self._n_sent += 1
        heappush(self._events, (self._now + seconds, self._n_sent, message))
