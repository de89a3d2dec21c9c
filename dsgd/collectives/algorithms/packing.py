"""All-reduce over packed trees that share links of any capacity each way, and packing them into a graph of links.

Problem: in a box of accelerators, or between unlike machines, links differ and some are missing. A ring needs a cycle
through all ranks, of which there may be none among the ranks a job was given, and leaves all other links idle.

Model: the link from u to v carries ``c_uv`` per second, the one from v to u ``c_vu``, zero where there is none. Part i
of a vector is summed up one tree A_i, whose edges lead to a root, and comes down another one, B_i, from there. Together
they carry ``sum_i w_i`` if on every link ``sum_{i: e in A_i} w_i + sum_{i: e in B_i} w_i <= c_e``. A sum of n bytes
then takes ``n / sum_i w_i`` seconds. If pieces follow each other, later ones go up while earlier ones come down.

Method for pairs of trees: a linear programme over trees, of which those are made that its prices ask for, to the exact
optimum. Then a mixed integer programme takes the fewest that carry 95 % of it (docs/collectives.rst has the bounds).

Method for one tree both ways, where the narrower link of a pair counts: multiplicative weights. Again and again the
shortest tree is given the capacity f of its narrowest edge, whose edges become longer by the factor 1 + eps f / c_e,
until lengths times capacities add up to one. An integer programme picks few of these trees: whole weights first, then
halves, and so on, until the rate is within a twentieth of the best.

The shortest directed tree takes O(n m) for n ranks and m edges: the shortest edges into each rank, whose cycles are
contracted.

Update of the sum: tree i carries ``w_i / sum(w)`` of the vector, in pieces. Every rank adds what its children send and
sends it on to its parent; the root sends the sum down again. A rank sends and receives one message at a time, as our
wires do, unless its wire lets all of its links carry at once (`AbstractTransport.concurrent`), as a simulated one may.
Cost per rank: in each tree one message up, but for the root, and one to each child, per piece: `packed_cost`.

Source: Wang et al. 2020 (Blink): trees, few of them; Edmonds 1973 (directed trees: as many as the least cut); Tutte
1961 and Nash-Williams 1961 (the cut); Garg and Könemann 2007 (the weights); Chu and Liu 1965, Edmonds 1967 (the
shortest tree); Ford and Fulkerson 1958 (columns by prices).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, linprog, milp
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from dsgd.collectives.algorithms.plan import Parents, Part, Plan, children_of, concurrent_plan, run_plan, tree_plan
from dsgd.collectives.cost import Cost
from dsgd.comm.base import AbstractTransport
from dsgd.comm.frames import HEADER_BYTES, check_array
from dsgd.comm.topology import DGX_1P_LINKS, DGX_1V_LINKS
from dsgd.errors import InvalidParameterError
from dsgd.types import AnyArray, FloatMatrix, FloatVector

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
    """Return the fastest packing of some trees with weights that are multiples of a unit, and of those a small one."""
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


_SMALL: Final = 1e-9

# Nodes of the search for few trees: a limit by the clock would make the packing depend on what else the machine does.
_MOST_RING_NODES: Final = 2000
_MOST_RINGS: Final = 10_000


class _Pair(NamedTuple):
    """The trees of a part of the vector: on its way up, and down."""

    up: Parents
    down: Parents


def pack_duplex(capacities: FloatMatrix, root: int = 0) -> Packing:
    """Return the fewest trees found that carry 95 % of what any trees could, up and down at the same time."""
    capacities = check_capacities(capacities, root)
    if len(capacities) == 1:
        return Packing(((-1,),), (1.0,))
    pairs, weights = _fewest(*_optimum(capacities, root), capacities)
    if np.array_equal(capacities, capacities.T):
        return Packing(tuple(_lowest(pair.up) for pair in pairs), weights)
    return Packing(tuple(pair.up for pair in pairs), weights, tuple(pair.down for pair in pairs))


def pack_rings(capacities: FloatMatrix, unit: float = 1.0) -> list[tuple[int, ...]]:
    """Return as many directed rings of unit capacity through all ranks as fit; for at most eight ranks or so."""
    room = np.floor(np.asarray(capacities, dtype=np.float64) / unit + _SMALL)
    rings = []
    for ring in _rings(room):
        rings.append(ring)
        if len(rings) > _MOST_RINGS:
            raise InvalidParameterError(f"pack_rings(capacities=...) has more than {_MOST_RINGS} rings to choose from.")
    if not rings:
        return []
    loads = np.zeros((len(rings), *room.shape))
    for k, ring in enumerate(rings):
        loads[k, ring, [*ring[1:], ring[0]]] = 1.0
    used = room.ravel() > 0
    within = LinearConstraint(loads.reshape(len(rings), -1).T[used], ub=room.ravel()[used])
    found = milp(
        -np.ones(len(rings)),
        integrality=np.ones(len(rings)),
        constraints=within,
        options={"node_limit": _MOST_RING_NODES},
    )
    counts = np.zeros(len(rings)) if found.x is None else np.rint(found.x)
    return [ring for ring, count in zip(rings, counts, strict=True) for _ in range(int(count))]


def ring_trees(rings: Sequence[Sequence[int]], unit: float = 1.0) -> Packing:
    """Return rings as a packing: each part is summed along a path round its ring and comes down the path from there."""
    up, down = [], []
    for ring in rings:
        size = len(ring)
        for first in range(size):
            path = [ring[(first + k) % size] for k in range(size)]
            around = [path[-1], *path[:-1]]
            up.append(_path(path[::-1]))
            down.append(_path(around))
    each = unit / (2.0 * (len(rings[0]) - 1))
    return Packing(tuple(up), (each,) * len(up), tuple(down))


def _optimum(capacities: FloatMatrix, root: int) -> tuple[list[_Pair], FloatVector]:
    """Return trees, and weights of the largest sum with which they fit."""
    links = np.argwhere(capacities > 0)
    room = capacities[links[:, 0], links[:, 1]]
    same = np.array_equal(capacities, capacities.T)
    pairs = [_shortest(links, 1.0 / room, len(capacities), root, same)]
    while True:
        loads = np.array([_load(pair)[links[:, 0], links[:, 1]] for pair in pairs]).T
        found = linprog(-np.ones(len(pairs)), A_ub=loads, b_ub=room, method="highs")
        prices = np.maximum(-found.ineqlin.marginals, 0.0)
        pair = _shortest(links, prices, len(capacities), root, same)
        if pair in pairs or float((_load(pair)[links[:, 0], links[:, 1]] * prices).sum()) >= 1.0 - _SMALL:
            return pairs, found.x
        pairs.append(pair)


def _shortest(links: np.ndarray, prices: FloatVector, size: int, root: int, same: bool) -> _Pair:
    """Return the trees whose links have the lowest sum of prices, both ways together."""
    way = {(int(u), int(v)): float(price) for (u, v), price in zip(links, prices, strict=True)}
    back = {(v, u): price for (u, v), price in way.items()}
    if same:
        both = {edge: price + back[edge] for edge, price in way.items() if edge[1] != root}
        tree = shortest_arborescence(size, root, both)
        return _Pair(tree, tree)
    up, down = (
        shortest_arborescence(size, root, {e: price for e, price in one.items() if e[1] != root}) for one in (back, way)
    )
    return _Pair(up, down)


def _load(pair: _Pair) -> FloatMatrix:
    """Return how often a part crosses each link."""
    return Packing((pair.up,), (1.0,), (pair.down,)).traffic()


def _fewest(
    pairs: Sequence[_Pair], weights: FloatVector, capacities: FloatMatrix
) -> tuple[list[_Pair], tuple[float, ...]]:
    """Return the fewest of some trees that carry nearly as much as all, with weights: a variable and a use for each."""
    links = capacities > 0
    loads = np.array([_load(pair)[links] for pair in pairs]).T
    room, n, best = capacities[links], len(pairs), float(weights.sum())
    most = np.array([(room[line > 0] / line[line > 0]).min() for line in loads.T])
    found = milp(
        # Of packings with equally many trees the one that carries more.
        np.concatenate([np.full(n, -0.5 / best), np.ones(n)]),
        integrality=np.concatenate([np.zeros(n), np.ones(n)]),
        bounds=Bounds(0.0, np.concatenate([most, np.ones(n)])),
        constraints=[
            LinearConstraint(np.hstack([loads, np.zeros_like(loads)]), ub=room),
            LinearConstraint(np.hstack([np.eye(n), -np.diag(most)]), ub=np.zeros(n)),
            LinearConstraint(np.concatenate([np.ones(n), np.zeros(n)])[None], lb=_CLOSE * best),
        ],
        options={"node_limit": _MOST_RING_NODES, "presolve": False},
    )
    shares = weights if found.x is None else found.x[:n]
    kept = [k for k in range(n) if shares[k] > _SMALL * best]
    # The programme's tolerance may overload a link by a millionth.
    over = max(1.0, float((loads[:, kept] @ shares[kept] / room).max()))
    return [pairs[k] for k in kept], tuple(float(shares[k]) / over for k in kept)


def _lowest(parents: Parents) -> Parents:
    """Return a tree with the root from which its farthest rank is nearest."""
    size = len(parents)
    near: list[list[int]] = children_of(parents)
    near = [[*children, *([parents[rank]] if parents[rank] >= 0 else [])] for rank, children in enumerate(near)]

    def rooted(root: int) -> tuple[int, Parents]:
        above, level, height = [-1] * size, [root], -1
        while level:
            height += 1
            below = [(rank, other) for rank in level for other in near[rank] if other != above[rank]]
            for rank, other in below:
                above[other] = rank
            level = [other for _, other in below]
        return height, tuple(above)

    return min(rooted(root) for root in range(size))[1]


def _path(ranks: Sequence[int]) -> Parents:
    """Return the tree in which each rank follows the one before it."""
    parents = [-1] * len(ranks)
    for before, rank in pairwise(ranks):
        parents[rank] = before
    return tuple(parents)


def _rings(room: FloatMatrix) -> Iterator[tuple[int, ...]]:
    """Yield all cycles through all ranks along links that can carry a unit, each once."""
    size = len(room)
    after = [[int(k) for k in np.flatnonzero(room[rank] >= 1.0)] for rank in range(size)]
    paths: list[tuple[int, ...]] = [(0,)]
    while paths:
        path = paths.pop()
        if len(path) == size and 0 in after[path[-1]]:
            yield path
        paths.extend((*path, rank) for rank in after[path[-1]] if rank not in path)


@np.errstate(over="ignore", invalid="ignore")
def tree_allreduce(transport: AbstractTransport, vector: AnyArray, packing: Packing, pieces: int = 4) -> None:
    """Replace `vector` by its sum over ranks."""
    check_array(vector)
    plan = packed_plan(transport.rank, transport.size, vector.size, packing, pieces, transport.concurrent)
    run_plan(transport, vector.reshape(-1), np.empty(plan.n_scratch, dtype=vector.dtype), plan)


def packed_plan(rank: int, size: int, n: int, packing: Packing, pieces: int = 4, concurrent: bool = False) -> Plan:
    """Return what `rank` of `size` does to sum vectors of n elements over packed trees; see `tree_allreduce`."""
    if any(len(tree) != size for tree in packing.trees) or pieces < 1:
        raise InvalidParameterError(
            f"tree_allreduce(packing=..., pieces={pieces}) needs trees over {size} ranks and at least one piece. Got "
            f"trees over {sorted({len(tree) for tree in packing.trees})}."
        )
    parts = parts_of(n, packing)
    if concurrent:
        return concurrent_plan(rank, packing.trees, packing.ways_down, parts, pieces_of(packing, pieces))
    return tree_plan(rank, packing.trees, parts, pieces, packing.down)


def packed_cost(rank: int, n: int, itemsize: int, packing: Packing, pieces: int = 4, concurrent: bool = False) -> Cost:
    """Return what `rank` sends to sum vectors of n elements over packed trees; see `tree_allreduce`."""
    ways = zip(packing.trees, packing.ways_down, strict=True)
    edges = [(up[rank] >= 0) + len(children_of(down)[rank]) for up, down in ways]
    sent = sum(number * part.length for number, part in zip(edges, parts_of(n, packing), strict=True))
    often = pieces_of(packing, pieces) if concurrent else [pieces] * len(edges)
    messages = sum(number * n_pieces for number, n_pieces in zip(edges, often, strict=True))
    return Cost(sent * itemsize + messages * HEADER_BYTES, messages)


def pieces_of(packing: Packing, pieces: int) -> list[int]:
    """Return into how many pieces each tree's part is cut so that all pieces are about as long."""
    heaviest = max(packing.weights)
    return [max(1, round(pieces * weight / heaviest)) for weight in packing.weights]


def parts_of(n: int, packing: Packing) -> list[Part]:
    """Return the part of n elements that each tree carries, in proportion to its weight."""
    ends = [round(n * weight / packing.rate) for weight in accumulate(packing.weights, initial=0.0)]
    return [Part(start, stop) for start, stop in zip(ends[:-1], [*ends[1:-1], n], strict=True)]
