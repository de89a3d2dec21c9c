"""The directed spanning tree of least weight.

Problem: of all trees that lead from one rank to all others along directed edges, find one whose edges are shortest in
total.

Method: every rank but the root takes the shortest edge into it. If these edges hold no cycle they are the answer.
A cycle is contracted into one rank, the edges into it made shorter by what they would replace, and the smaller problem
solved; the edge that then enters the cycle opens it.

Cost: O(n m) for n ranks and m edges.

Source: Chu and Liu 1965; Edmonds 1967.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from dsgd.errors import InvalidParameterError

Edge = tuple[int, int]


class _Edge(NamedTuple):
    """An edge of a contracted graph, and the edge of the graph before that it stands for."""

    tail: int
    head: int
    length: float
    before: int


def shortest_arborescence(size: int, root: int, lengths: Mapping[Edge, float]) -> tuple[int, ...]:
    """Return the parent of every rank in a shortest tree away from the root, whose own is -1."""
    if lost := set(range(size)) - _reached(root, lengths):
        raise InvalidParameterError(f"no tree: nothing leads from rank {root} to rank {min(lost)}.")
    pairs = list(lengths)
    edges = [_Edge(tail, head, lengths[tail, head], k) for k, (tail, head) in enumerate(pairs)]
    parents = [-1] * size
    for chosen in _solve(root, edges, size):
        tail, head = pairs[chosen.before]
        parents[head] = tail
    return tuple(parents)


def _reached(root: int, edges: Iterable[Edge]) -> set[int]:
    after: dict[int, list[int]] = {}
    for tail, head in edges:
        after.setdefault(tail, []).append(head)
    reached, front = {root}, [root]
    while front:
        new = set(after.get(front.pop(), ())) - reached
        reached |= new
        front += new
    return reached


def _solve(root: int, edges: list[_Edge], new: int) -> list[_Edge]:
    """Return the edges of a shortest tree; `new` is a number that no rank has."""
    shortest: dict[int, _Edge] = {}
    for edge in edges:
        known = shortest.get(edge.head)
        if edge.head != root and (known is None or edge.length < known.length):
            shortest[edge.head] = edge
    cycle = _find_cycle(shortest, root)
    if not cycle:
        return list(shortest.values())
    contracted = []
    for number, (tail, head, length, _) in enumerate(edges):
        if tail in cycle and head in cycle:
            continue
        saved = shortest[head].length if head in cycle else 0.0
        contracted.append(_Edge(new if tail in cycle else tail, new if head in cycle else head, length - saved, number))
    tree = [edges[edge.before] for edge in _solve(root, contracted, new + 1)]
    entered = next(edge.head for edge in tree if edge.head in cycle)
    return tree + [shortest[rank] for rank in cycle if rank != entered]


def _find_cycle(shortest: Mapping[int, _Edge], root: int) -> set[int]:
    """Return the ranks of a cycle among these edges; empty if there is none."""
    seen = {root}
    for start in shortest:
        path: list[int] = []
        rank = start
        while rank not in seen:
            seen.add(rank)
            path.append(rank)
            rank = shortest[rank].tail
        if rank in path:
            return set(path[path.index(rank) :])
    return set()
