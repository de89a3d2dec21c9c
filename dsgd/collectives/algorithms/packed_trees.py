"""All-reduce over packed trees that share links of any capacity each way, and packing them for that.

Problem: if links differ, a fast sum must send most over the fastest ones. `dsgd.collectives.algorithms.packing` fills
links for one way, and a sum has two. If pieces follow each other, later ones go up while earlier ones come down, and
both ways share the links.

Model: the link from u to v carries ``c_uv`` per second, the one from v to u ``c_vu``. Part i of a vector is summed up
one tree A_i, whose edges lead to a root, and comes down another one, B_i, from there. Together they carry
``sum_i w_i`` if on every link ``sum_{i: e in A_i} w_i + sum_{i: e in B_i} w_i <= c_e``. A sum of n bytes then takes
``n / sum_i w_i`` seconds.

Where both ways of every link are equal one tree serves for both, each of its edges one way up and the other way down:
spanning trees are packed into an undirected graph, and the most they carry is the least, over all ways to cut the ranks
into k parts, of the capacity between parts over k - 1. A ring is a packing, too: of as many pairs of paths as there are
ranks (`ring_trees`).

Method: a linear programme over trees, of which those are made that its prices ask for: the shortest ones by them. It
ends at the exact optimum, after some tens of trees. Of all trees that were made a mixed integer programme then takes
the fewest that carry 95 % of it.

Update of the sum: tree i carries ``w_i / sum(w)`` of the vector, in pieces. Every rank adds what its children send and
sends it on to its parent; the root sends the sum down again. A rank sends and receives one message at a time, as our
wires do, unless its wire lets all of its links carry at once (`AbstractTransport.concurrent`), as a simulated one may.

Cost per rank: in each tree one message up, but for the root, and one to each child, per piece: `packed_cost`.

Source: Wang et al. 2020 (Blink): trees, few of them; Tutte 1961
and Nash-Williams 1961 (the cut); Edmonds 1973 (directed trees); Ford and Fulkerson 1958 (columns by prices).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, linprog, milp

from dsgd.collectives.algorithms.packing import Packing, check_capacities, shortest_arborescence
from dsgd.collectives.algorithms.plan import Parents, Part, Plan, children_of, concurrent_plan, run_plan, tree_plan
from dsgd.collectives.cost import Cost
from dsgd.comm.base import AbstractTransport
from dsgd.comm.frames import HEADER_BYTES, check_array
from dsgd.errors import InvalidParameterError
from dsgd.types import AnyArray, FloatMatrix, FloatVector

_CLOSE: Final = 0.95
_SMALL: Final = 1e-9

# Nodes of the search for few trees: a limit by the clock would make the packing depend on what else the machine does.
_MOST_NODES: Final = 2000
_MOST_RINGS: Final = 10_000


class _Pair(NamedTuple):
    """The trees of a part of the vector: on its way up, and down."""

    up: Parents
    down: Parents


def pack_duplex(capacities: FloatMatrix, root: int = 0) -> Packing:
    """Return the fewest trees found that carry 95 % of what any trees could, up and down at the same time.

    - `capacities`, shape (size, size): of the links, per second and one way each; they may differ by direction.
    """
    capacities = check_capacities(capacities, root)
    if len(capacities) == 1:
        return Packing(((-1,),), (1.0,))
    pairs, weights = _fewest(*_optimum(capacities, root), capacities)
    if np.array_equal(capacities, capacities.T):
        return Packing(tuple(_lowest(pair.up) for pair in pairs), weights)
    return Packing(tuple(pair.up for pair in pairs), weights, tuple(pair.down for pair in pairs))


def pack_rings(capacities: FloatMatrix, unit: float = 1.0) -> list[tuple[int, ...]]:
    """Return as many rings through all ranks as fit: directed ones, that carry a unit each.

    An integer programme over all such rings, so no other choice of rings has more; for at most eight ranks or so.
    """
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
        -np.ones(len(rings)), integrality=np.ones(len(rings)), constraints=within, options={"node_limit": _MOST_NODES}
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
        options={"node_limit": _MOST_NODES, "presolve": False},
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
