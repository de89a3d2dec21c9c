"""Packing spanning trees into a graph of links, so that a sum uses all links.

Problem: in a box of accelerators, or between unlike machines, links differ and some are missing. A ring needs a cycle
through all ranks, of which there may be none among the ranks a job was given, and leaves all other links idle.

Model: ``capacities[u, v]`` is what the link from u to v carries per second, zero where there is none. A sum goes up a
tree to its root and down it again, over the same edges the other way. So of the two links between a pair of ranks the
narrower one counts, ``c_uv = c_vu = min(capacities[u, v], capacities[v, u])``: trees T_i that lead from a root to all
ranks carry shares w_i of a message at the same time, if ``sum_{i: e in T_i} w_i <= c_e`` on every edge. The most that
can go at once is the least of the maximal flows from the root to another rank.

Method: multiplicative weights. Edges have lengths, at first delta / c_e. Again and again the shortest tree is given the
capacity f of its narrowest edge, and its edges become longer by the factor 1 + eps f / c_e, until the lengths times
capacities add up to one; then all weights are divided by the largest overload. That takes hundreds of trees, of which
an integer programme picks few: whole weights first, then halves, quarters and so on, until the rate is within a
twentieth of the best.

The shortest directed tree, in O(n m) for n ranks and m edges: every rank but the root takes the shortest edge into it.
If these edges hold no cycle they are the answer. A cycle is contracted into one rank, the edges into it made shorter by
what they would replace, and the smaller problem solved; the edge that then enters the cycle opens it.

Source: Wang et al. 2020 (Blink); Edmonds 1973 (as many trees as the least cut); Garg and Könemann 2007 (the weights);
Chu and Liu 1965, Edmonds 1967 (the shortest tree).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from dsgd.collectives.algorithms.plan import Parents
from dsgd.comm.topology.graphs import DGX_1P_LINKS, DGX_1V_LINKS
from dsgd.errors import InvalidParameterError
from dsgd.types import FloatMatrix

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


#: Links of a DGX-1P, shape (8, 8), in units of one NVLink.
DGX_1P: Final = np.array(DGX_1P_LINKS, dtype=np.float64)
DGX_1P.flags.writeable = False

#: Links of a DGX-1V, shape (8, 8), in units of one NVLink.
DGX_1V: Final = np.array(DGX_1V_LINKS, dtype=np.float64)
DGX_1V.flags.writeable = False
_CLOSE: Final = 0.95
_FINEST: Final = 8

# Nodes of the search for few trees: a limit by the clock would make the packing depend on what else the machine does.
_MOST_NODES: Final = 1000
_FLOW_UNITS: Final = 2**20


@dataclass(frozen=True)
class Packing:
    """Trees and the share of the message that each of them carries."""

    trees: tuple[Parents, ...]
    weights: tuple[float, ...]
    down: tuple[Parents, ...] = ()

    @property
    def ways_down(self) -> tuple[Parents, ...]:
        """The tree that the sum of each part comes down."""
        return self.down or self.trees

    @property
    def rate(self) -> float:
        """What all trees carry together."""
        return sum(self.weights)

    def loads(self) -> FloatMatrix:
        """Return what every edge carries on the way down; on the way up it is the transpose."""
        size = len(self.trees[0])
        loads = np.zeros((size, size))
        for parents, weight in zip(self.trees, self.weights, strict=True):
            for rank, parent in enumerate(parents):
                if parent >= 0:
                    loads[parent, rank] += weight
        return loads

    def traffic(self) -> FloatMatrix:
        """Return what every link carries of sums, both ways together: up the trees, and down."""
        down = Packing(self.ways_down, self.weights).loads()
        return self.loads().T + down


def pack_trees(capacities: FloatMatrix, root: int = 0) -> Packing:
    """Return few trees that together carry nearly as much as any number of them could, up and down."""
    capacities = _check(capacities, root)
    trees = candidate_trees(capacities, root)
    if capacities.shape[0] == 1:
        return trees
    best = best_rate(capacities, root)
    unit = float(capacities[capacities > 0].min())
    packing = trees
    for parts in (2**k for k in range(_FINEST.bit_length())):
        packing = _select(trees.trees, capacities, unit / parts)
        if packing.rate >= _CLOSE * best:
            return packing
    return max(packing, trees, key=lambda found: found.rate)


def candidate_trees(capacities: FloatMatrix, root: int = 0, *, eps: float = 0.1) -> Packing:
    """Return many trees by multiplicative weights, whose rate is at least (1 - 2 eps) times the best."""
    if not 0.0 < eps < 0.5:
        raise InvalidParameterError(f"candidate_trees(eps=...) must be between 0 and 1/2. Got {eps!r}.")
    capacities = _check(capacities, root)
    size = capacities.shape[0]
    if size == 1:
        return Packing(((-1,),), (1.0,))
    edges = [(int(u), int(v)) for u, v in np.argwhere(capacities > 0) if v != root]
    capacity = {edge: float(capacities[edge]) for edge in edges}
    delta = (1.0 + eps) * ((1.0 + eps) * max(1, len(edges))) ** (-1.0 / eps)
    if delta < np.finfo(np.float64).tiny:
        raise InvalidParameterError(f"candidate_trees(eps=...) is too small for {len(edges)} links. Got {eps!r}.")
    lengths = {edge: delta / capacity[edge] for edge in edges}
    weights: dict[Parents, float] = defaultdict(float)
    total = delta * len(edges)
    while total < 1.0:
        parents = shortest_arborescence(size, root, lengths)
        used = [(parent, rank) for rank, parent in enumerate(parents) if parent >= 0]
        narrowest = min(capacity[edge] for edge in used)
        weights[parents] += narrowest
        for edge in used:
            grown = lengths[edge] * eps * narrowest / capacity[edge]
            lengths[edge] += grown
            total += grown * capacity[edge]
    found = Packing(tuple(weights), tuple(weights.values()))
    overload = float((found.loads()[capacities > 0] / capacities[capacities > 0]).max())
    return Packing(found.trees, tuple(weight / overload for weight in found.weights))


def best_rate(capacities: FloatMatrix, root: int = 0) -> float:
    """Return the most that trees from the root can carry, up and down: the least cut between it and another rank.

    Capacities that are not whole numbers, or too large for 32 bits in all, are rounded to a millionth of the largest.
    """
    capacities = _check(capacities, root)
    fits_directly = np.array_equal(capacities, np.rint(capacities)) and capacities.sum() <= np.iinfo(np.int32).max
    scale = 1.0 if fits_directly else _FLOW_UNITS / float(capacities.max(initial=1e-300))
    graph = csr_array(np.rint(capacities * scale).astype(np.int32))
    ranks = range(capacities.shape[0])
    flows = [int(maximum_flow(graph, root, rank).flow_value) for rank in ranks if rank != root]
    return min(flows, default=0) / scale


def ring_rate(capacities: FloatMatrix, unit: float = 1.0) -> float:
    """Return what directed rings carry that are laid one after the other into what the ones before have left."""
    left = np.array(capacities, dtype=np.float64)
    rings = 0
    while (ring := _find_ring(left, unit)) is not None:
        for rank, after in zip(ring, [*ring[1:], ring[0]], strict=True):
            left[rank, after] -= unit
        rings += 1
    return rings * unit


def subgraph(capacities: FloatMatrix, members: Sequence[int]) -> FloatMatrix:
    """Return the links among some of the ranks, renumbered in this order."""
    return capacities[np.ix_(members, members)]


def _select(trees: Sequence[Parents], capacities: FloatMatrix, unit: float) -> Packing:
    """Return the fastest packing of some trees with weights that are multiples of a unit, and of those a small one.

    Variables are a count per tree and whether it is used at all; a tree that is used costs less than a unit is worth.
    """
    size, n = capacities.shape[0], len(trees)
    edges = [(int(u), int(v)) for u, v in np.argwhere(capacities > 0)]
    number = {edge: k for k, edge in enumerate(edges)}
    on_edge = np.zeros((len(edges), n))
    for k, parents in enumerate(trees):
        on_edge[[number[parents[rank], rank] for rank in range(size) if parents[rank] >= 0], k] = 1.0
    room = np.array([np.floor(capacities[edge] / unit + 1e-9) for edge in edges])
    # A tree takes no more than its narrowest edge has.
    most = np.array([room[on_edge[:, k] > 0].min() for k in range(n)])
    within = LinearConstraint(np.hstack([on_edge, np.zeros_like(on_edge)]), ub=room)
    used = LinearConstraint(np.hstack([np.eye(n), -np.diag(most)]), ub=np.zeros(n))
    price = 1.0 / (1.0 + room.sum())
    found = milp(
        np.concatenate([-np.ones(n), np.full(n, price)]),
        integrality=np.ones(2 * n),
        bounds=Bounds(0.0, np.concatenate([most, np.ones(n)])),
        constraints=[within, used],
        options={"node_limit": _MOST_NODES},
    )
    if found.x is None:
        return Packing(tuple(trees), (0.0,) * n)
    counts = np.rint(found.x[:n])
    kept = [int(k) for k in np.flatnonzero(counts)]
    return Packing(tuple(trees[k] for k in kept), tuple(float(counts[k]) * unit for k in kept))


def _find_ring(left: FloatMatrix, unit: float) -> list[int] | None:
    """Return a cycle through all ranks along links that can carry a unit, or None."""
    size = left.shape[0]
    after = [[int(k) for k in np.flatnonzero(left[rank] >= unit)] for rank in range(size)]
    path = [0]
    choices = [iter(after[0])]
    while choices:
        rank = next(choices[-1], None)
        if rank is None:
            path.pop()
            choices.pop()
        elif rank not in path:
            path.append(rank)
            if len(path) == size and 0 in after[rank]:
                return path
            choices.append(iter(after[rank]))
    return None


def check_capacities(capacities: FloatMatrix, root: int) -> FloatMatrix:
    """Return capacities as a new array, without links from a rank to itself."""
    capacities = np.array(capacities, dtype=np.float64)
    if capacities.ndim != 2 or capacities.shape[0] != capacities.shape[1] or not 0 <= root < capacities.shape[0]:
        raise InvalidParameterError(
            f"capacities must be a square matrix, one row per rank, and root={root} one of them. Got shape "
            f"{capacities.shape}."
        )
    if not (capacities >= 0).all() or not np.isfinite(capacities).all():
        raise InvalidParameterError("capacities must be finite numbers of 0 or more.")
    np.fill_diagonal(capacities, 0.0)
    return capacities


def _check(capacities: FloatMatrix, root: int) -> FloatMatrix:
    """Return the capacity of the narrower one of the links between two ranks."""
    capacities = check_capacities(capacities, root)
    narrower: FloatMatrix = np.minimum(capacities, capacities.T)
    return narrower
