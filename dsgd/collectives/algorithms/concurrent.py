"""The order of the messages of trees whose links all carry at the same time.

Problem: `dsgd.collectives.algorithms.pipeline` gives a rank one message at a time in either direction. An accelerator
has as many links as neighbours, and each of them can be busy.

Update: the messages of all trees and pieces are played on links that carry one message each. A message can go when its
sender has what it sends: up when the pieces of all children have come, down when the sum is there. Of those that can, a
link takes the earliest pieces first, those on their way up before those down, so that sums begin to come down while
later pieces still go up. A rank sends and receives in the order of this play; it must be able to hand a message over
and go on (`AbstractTransport.concurrent`), or ranks would wait for each other for ever.

A piece is added up in the order of a rank's children, whatever the order of messages: the bits do not depend on the
pieces, and are those of the schedule for one message at a time.

Cost: the messages of the trees. With links that carry `rate` bytes a second in all
(`dsgd.collectives.algorithms.duplex`) a sum of n bytes takes ``n / rate`` seconds, and the way of one piece up and down
the highest tree.

Source: Wang et al. 2020 (Blink), whose code for accelerators puts each tree's copies into streams of their own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from heapq import heappop, heappush
from typing import NamedTuple

from dsgd.collectives.algorithms.pipeline import Parents, children_of
from dsgd.collectives.algorithms.plan import Move, Part, Plan

_NOTHING = Part(0, 0)


class _Message(NamedTuple):
    """One piece on its way along one link."""

    tree: int
    piece: int
    source: int
    to: int
    goes_up: bool


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
