"""Topologies: which ranks exchange in a round, as pure functions of rank, number of ranks and round.

First the topologies, random ones among them, then the weights with which neighbours are averaged and the order in which
they exchange. No rank is needed to ask any of them. Called by strategies, collectives and the simulator.

Problem: methods that mix models between neighbours instead of over everybody need a graph. It must be the same on every
rank without a message, and known before there is a connection, so that it can be drawn, simulated and tested.

Update: a graph names the peers that a rank sends to and receives from in a round; `mixing_matrix` says with
which weights. Cost per round: a rank sends one message per peer it sends to, in the order found there.

Source: Assran, Loizou, Ballas and Rabbat 2019 (exponential graph); Lian, Zhang, Zhang and Liu 2018 (bipartite pairs).

**The order of exchanges.** If every rank takes its peers in its own order, a ring of ranks can wait for each other for
ever.

Update: the edges are cut into matchings, in each of which a rank sends to at most one and receives from at most one
other, and all ranks go through the matchings in the same order. A rank that has finished its part of a matching is in
the next one, and its peers there are in the same or an earlier one; so the ranks in the earliest can always proceed.

Cost: as many steps as the largest degree, which is the fewest possible. Source: König 1916 (a bipartite graph of
largest degree d is the union of d matchings; here senders and receivers).

**The weights.** Repeated averaging with neighbours must preserve the mean over all ranks, on any graph.

Update: with ``W[i, j]`` the weight with which rank i takes in what rank j has, one round of mixing is ``x <- W x``. Two
weightings make the mean survive it:

- Metropolis, for graphs in which every edge goes both ways: ``W[i, j] = 1 / (1 + max(d_i, d_j))`` between neighbours of
  degrees d, and the rest of each row on the diagonal. W is symmetric and doubly stochastic whatever the degrees are.
- uniform: rank j cuts its vector into ``1 + d_j`` equal parts, keeps one and sends the others. W is column stochastic,
  so the sum over ranks stays, and doubly stochastic if all ranks send and receive equally much.

How fast ranks agree is set by the spectral gap, 1 - abs(lambda_2): of order P^-2 on a ring of P ranks, P^-1 on a square
grid, independent of P on random regular graphs, and 1, agreement in one round, if all ranks are neighbours.

Source: Xiao and Boyd 2004 (Metropolis weights); Kempe, Dobra and Gehrke 2003 (sums that survive uniform ones).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Final, NamedTuple, final

import numpy as np

from dsgd.errors import InvalidParameterError
from dsgd.types import FloatMatrix
from dsgd.validation import Checked, number

__all__ = [
    "AbstractFixedGraph",
    "AbstractTopology",
    "Bipartite",
    "Complete",
    "Exponential",
    "Grid",
    "Groups",
    "RandomRegular",
    "Ring",
    "Star",
    "grid_shape",
]

_MOST_DRAWS: Final = 1000


@lru_cache(maxsize=64)
def random_regular_graph(degree: int, seed: int, size: int) -> tuple[tuple[int, ...], ...]:
    """Return the neighbours of every rank, ascending."""
    if degree >= size - 1:
        everybody = range(size)
        return tuple(tuple(peer for peer in everybody if peer != rank) for rank in everybody)
    rng = np.random.default_rng((seed, size, degree))
    for _ in range(_MOST_DRAWS):
        neighbours = _draw_pairing(rng, degree, size)
        if neighbours is not None and (degree < 2 or _is_connected(neighbours)):
            return tuple(tuple(sorted(found)) for found in neighbours)
    raise InvalidParameterError(
        f"RandomRegular(degree={degree}, seed={seed}): no connected graph on {size} ranks was found in {_MOST_DRAWS} "
        "draws. Take another seed or a degree of 3 or more."
    )


def _draw_pairing(rng: np.random.Generator, degree: int, size: int) -> list[set[int]] | None:
    """Return a random graph by joining open ends at random, in pairs that are not joined yet; None if it got stuck."""
    neighbours: list[set[int]] = [set() for _ in range(size)]
    ends = np.repeat(np.arange(size), degree)
    while ends.shape[0] > 1:
        ends = rng.permutation(ends)
        left = [] if ends.shape[0] % 2 == 0 else [int(ends[-1])]
        for one, other in zip(ends[0:-1:2].tolist(), ends[1::2].tolist(), strict=True):
            if one == other or other in neighbours[one]:
                left += [one, other]
            else:
                neighbours[one].add(other)
                neighbours[other].add(one)
        stuck = len(left) == ends.shape[0]
        if stuck and all(one == other or other in neighbours[one] for one in left for other in left):
            return None
        ends = np.array(left)
    # Of an odd number of ends one stays open.
    return neighbours


def _is_connected(neighbours: Sequence[set[int]]) -> bool:
    reached, front = {0}, [0]
    while front:
        new = neighbours[front.pop()] - reached
        reached |= new
        front += new
    return len(reached) == len(neighbours)


#: NVLinks between the eight P100 of a DGX-1P, each in either direction: the same mesh with one link where there is any,
#: four at each.
DGX_1P_LINKS: Final = (
    (0, 1, 1, 1, 1, 0, 0, 0),
    (1, 0, 1, 1, 0, 1, 0, 0),
    (1, 1, 0, 1, 0, 0, 1, 0),
    (1, 1, 1, 0, 0, 0, 0, 1),
    (1, 0, 0, 0, 0, 1, 1, 1),
    (0, 1, 0, 0, 1, 0, 1, 1),
    (0, 0, 1, 0, 1, 1, 0, 1),
    (0, 0, 0, 1, 1, 1, 1, 0),
)

#: NVLinks between the eight V100 of a DGX-1V (``nvidia-smi topo -m``), each in either direction: a hybrid cube mesh of
#: two rings of four that are cross-linked, six links at each.
DGX_1V_LINKS: Final = (
    (0, 1, 1, 2, 2, 0, 0, 0),
    (1, 0, 2, 1, 0, 2, 0, 0),
    (1, 2, 0, 2, 0, 0, 1, 0),
    (2, 1, 2, 0, 0, 0, 0, 1),
    (2, 0, 0, 0, 0, 1, 1, 2),
    (0, 2, 0, 0, 1, 0, 2, 1),
    (0, 0, 1, 0, 1, 2, 0, 2),
    (0, 0, 0, 1, 2, 1, 2, 0),
)


class AbstractTopology(Checked, ABC):
    """A graph over ranks that may change from round to round.

    Peers are listed without repetition and never include the rank itself; the numbers of ranks and rounds start at 0.

    Attributes
    ----------
    symmetric : bool
        Whether every edge goes both ways.
    """

    symmetric: ClassVar[bool] = True

    @abstractmethod
    def out_peers(self, rank: int, size: int, round_number: int = 0) -> tuple[int, ...]:
        """Return the ranks that `rank` of `size` sends to in a round."""

    @abstractmethod
    def in_peers(self, rank: int, size: int, round_number: int = 0) -> tuple[int, ...]:
        """Return the ranks that `rank` of `size` receives from in a round."""

    @abstractmethod
    def period(self, size: int) -> int:
        """Return the number of rounds after which the graph repeats, at least 1."""


class AbstractFixedGraph(AbstractTopology):
    """A graph that is the same in every round, and whose edges all go both ways."""

    @abstractmethod
    def neighbours(self, rank: int, size: int) -> tuple[int, ...]:
        """Return the neighbours of `rank` of `size`."""

    @final
    def out_peers(self, rank: int, size: int, round_number: int = 0) -> tuple[int, ...]:
        """See `AbstractTopology.out_peers`."""
        return self.neighbours(rank, size)

    @final
    def in_peers(self, rank: int, size: int, round_number: int = 0) -> tuple[int, ...]:
        """See `AbstractTopology.in_peers`."""
        return self.neighbours(rank, size)

    @final
    def period(self, size: int) -> int:
        """Return 1: the graph stays."""
        return 1


@final
@dataclass(frozen=True)
class Ring(AbstractFixedGraph):
    """Every rank exchanges with the one before it and the one after it."""

    def neighbours(self, rank: int, size: int) -> tuple[int, ...]:
        """See `AbstractFixedGraph.neighbours`."""
        return _others(rank, [(rank + 1) % size, (rank - 1) % size])


@final
@dataclass(frozen=True)
class Grid(AbstractFixedGraph):
    """Ranks in rows and columns as nearly equal in number as divisors of the world size allow; a prime is a line.

    Parameters
    ----------
    wraps : bool, default False
        Whether the ends of rows and columns are joined: a torus.
    """

    wraps: bool = False

    def neighbours(self, rank: int, size: int) -> tuple[int, ...]:
        """See `AbstractFixedGraph.neighbours`."""
        rows, columns = grid_shape(size)
        row, column = divmod(rank, columns)
        found = []
        for down, right in ((0, 1), (0, -1), (1, 0), (-1, 0)):
            y, x = row + down, column + right
            if self.wraps or (0 <= y < rows and 0 <= x < columns):
                found.append(y % rows * columns + x % columns)
        return _others(rank, found)


@final
@dataclass(frozen=True)
class Complete(AbstractTopology):
    """Every rank exchanges with every other one."""

    def out_peers(self, rank: int, size: int, round_number: int = 0) -> tuple[int, ...]:
        """See `AbstractTopology.out_peers`."""
        return tuple((rank + hop) % size for hop in range(1, size))

    def in_peers(self, rank: int, size: int, round_number: int = 0) -> tuple[int, ...]:
        """See `AbstractTopology.in_peers`."""
        return tuple((rank - hop) % size for hop in range(1, size))

    def period(self, size: int) -> int:
        """Return 1: the graph stays."""
        return 1


@final
@dataclass(frozen=True)
class Star(AbstractFixedGraph):
    """One rank, the hub, exchanges with all others, and they only with it.

    Parameters
    ----------
    hub : int, default 0
        That rank; counted modulo the world size.
    """

    hub: int = 0

    def neighbours(self, rank: int, size: int) -> tuple[int, ...]:
        """See `AbstractFixedGraph.neighbours`."""
        hub = self.hub % size
        return _others(rank, range(size)) if rank == hub else (hub,)


@final
@dataclass(frozen=True)
class Exponential(AbstractTopology):
    """Every rank sends ahead by powers of ``peers + 1``: every rank reaches every other one in the fewest rounds.

    In round k rank r sends to ``r + j (q + 1)^(k mod L)`` mod P for j = 1..q, with q peers, P ranks and
    ``L = ceil(log_{q+1} P)``. If P is a power of q + 1, L rounds of uniform mixing average exactly; otherwise they
    never do, they only converge.

    Parameters
    ----------
    peers : int, default 1
        Ranks that each rank sends to in a round.

    Raises
    ------
    InvalidParameterError
        `peers` is not a positive integer.
    """

    peers: int = number(1, low=1)
    symmetric: ClassVar[bool] = False

    def out_peers(self, rank: int, size: int, round_number: int = 0) -> tuple[int, ...]:
        """See `AbstractTopology.out_peers`."""
        return _others(rank, [(rank + hop) % size for hop in self._hops(size, round_number)])

    def in_peers(self, rank: int, size: int, round_number: int = 0) -> tuple[int, ...]:
        """See `AbstractTopology.in_peers`."""
        return _others(rank, [(rank - hop) % size for hop in self._hops(size, round_number)])

    def period(self, size: int) -> int:
        """Return ``ceil(log_{peers + 1}(size))``."""
        rounds, reached = 1, self.peers + 1
        while reached < size:
            rounds, reached = rounds + 1, reached * (self.peers + 1)
        return rounds

    def _hops(self, size: int, round_number: int) -> list[int]:
        stride = (self.peers + 1) ** (round_number % self.period(size))
        return [j * stride for j in range(1, self.peers + 1)]


@final
@dataclass(frozen=True)
class Bipartite(AbstractTopology):
    """Pairs of an even and an odd rank; every even rank meets every odd one in turn.

    In round k even rank 2 a exchanges with odd rank 2 b + 1, ``b = (a + k) mod ceil(P / 2)``; if P is odd, one even
    rank in turn has no partner.
    """

    def out_peers(self, rank: int, size: int, round_number: int = 0) -> tuple[int, ...]:
        """See `AbstractTopology.out_peers`."""
        n_even = (size + 1) // 2
        half, odd = divmod(rank, 2)
        if odd:
            return (2 * ((half - round_number) % n_even),)
        peer = 2 * ((half + round_number) % n_even) + 1
        return (peer,) if peer < size else ()

    def in_peers(self, rank: int, size: int, round_number: int = 0) -> tuple[int, ...]:
        """See `AbstractTopology.in_peers`."""
        return self.out_peers(rank, size, round_number)

    def period(self, size: int) -> int:
        """Return ``ceil(size / 2)``."""
        return (size + 1) // 2


@final
@dataclass(frozen=True)
class RandomRegular(AbstractFixedGraph):
    """A connected graph in which every rank has `degree` neighbours, drawn once per seed and world size.

    Problem: a graph of constant degree on which mixing does not slow down as ranks are added. Almost every random
    regular graph is one: its second eigenvalue tends to 2 sqrt(d - 1) / d (Friedman 2008).

    Update: every rank has d open ends, which are joined in random pairs; pairs that would join a rank with itself or
    with a neighbour go back, and a graph that gets stuck or is not connected is thrown away. Source: Steger and Wormald
    1999.

    If no such graph exists it is the nearest one: with an odd number of ranks of odd degree, one rank has a degree
    smaller by one; with `degree` or fewer ranks, all are neighbours. With degree 1 it is a set of pairs, not connected.

    Parameters
    ----------
    degree : int, default 3
        Neighbours of each rank.
    seed : int, default 0
        Which of the graphs.

    Raises
    ------
    InvalidParameterError
        `degree` is not a positive integer or `seed` is negative.
    """

    degree: int = number(3, low=1)
    seed: int = number(0, low=0)

    def neighbours(self, rank: int, size: int) -> tuple[int, ...]:
        """See `AbstractFixedGraph.neighbours`."""
        return random_regular_graph(self.degree, self.seed, size)[rank]


@final
@dataclass(frozen=True)
class Groups(AbstractFixedGraph):
    """Consecutive ranks in groups as nearly equal as possible; each rank exchanges with all of its group.

    Parameters
    ----------
    n_groups : int
        How many; with fewer ranks every rank is a group.

    Raises
    ------
    InvalidParameterError
        `n_groups` is not a positive integer.
    """

    n_groups: int = number(low=1)

    def members(self, rank: int, size: int) -> range:
        """Return the ranks of the group of `rank`, itself among them."""
        n = min(self.n_groups, size)
        # Group g holds the ranks from ceil(g size / n) to ceil((g + 1) size / n).
        group = rank * n // size
        return range(-(-group * size // n), -(-(group + 1) * size // n))

    def neighbours(self, rank: int, size: int) -> tuple[int, ...]:
        """See `AbstractFixedGraph.neighbours`."""
        return _others(rank, self.members(rank, size))


def grid_shape(size: int) -> tuple[int, int]:
    """Return the numbers of rows and columns of a grid of `size` ranks: the rows the largest divisor up to its root."""
    rows = next(d for d in range(math.isqrt(size), 0, -1) if size % d == 0)
    return rows, size // rows


def _others(rank: int, peers: Sequence[int]) -> tuple[int, ...]:
    # Without repetition: on few ranks several hops lead to the same one.
    return tuple(peer for peer in dict.fromkeys(peers) if peer != rank)


class Step(NamedTuple):
    """What a rank does in one step of an exchange with its peers."""

    to: int | None
    source: int | None


def exchange_steps(topology: AbstractTopology, rank: int, size: int, round_number: int = 0) -> tuple[Step, ...]:
    """Return what `rank` of `size` does in a round, step by step.

    - returned: at most one per matching; every out-peer and every in-peer is in one of them.
    """
    return _all_steps(topology, size, round_number % topology.period(size))[rank]


@lru_cache(maxsize=256)
def _all_steps(topology: AbstractTopology, size: int, round_number: int) -> tuple[tuple[Step, ...], ...]:
    edges = [(rank, to) for rank in range(size) for to in topology.out_peers(rank, size, round_number)]
    # By hops: where every rank has the same hops, each of them becomes a matching without anything being moved.
    edges.sort(key=lambda edge: ((edge[1] - edge[0]) % size, edge[0]))
    to_of, source_of = matchings(edges, size)
    steps = []
    for rank in range(size):
        times = sorted(to_of[rank].keys() | source_of[rank].keys())
        steps.append(tuple(Step(to_of[rank].get(time), source_of[rank].get(time)) for time in times))
    return tuple(steps)


def matchings(edges: Sequence[tuple[int, int]], size: int) -> tuple[list[dict[int, int]], list[dict[int, int]]]:
    """Return for every rank whom it sends to and whom it receives from, by matching.

    Edges are coloured one by one with the first colour free at both ends. If there is none, let a be free at the sender
    and b at the receiver: the path from the receiver whose colours are a, b, a, ... cannot reach the sender, so
    swapping its two colours frees a at both ends.
    """
    to_of: list[dict[int, int]] = [{} for _ in range(size)]
    source_of: list[dict[int, int]] = [{} for _ in range(size)]
    for sender, receiver in edges:
        a, b = _first_free(to_of[sender]), _first_free(source_of[receiver])
        both = _first_free(to_of[sender] | source_of[receiver])
        if both <= max(a, b):
            a = both
        else:
            path, rank, receives, colour = [], receiver, True, a
            while (peer := (source_of if receives else to_of)[rank].get(colour)) is not None:
                path.append((peer, rank, colour) if receives else (rank, peer, colour))
                rank, receives, colour = peer, not receives, a + b - colour
            for one, other, colour in path:
                del to_of[one][colour], source_of[other][colour]
            for one, other, colour in path:
                to_of[one][a + b - colour] = other
                source_of[other][a + b - colour] = one
        to_of[sender][a] = receiver
        source_of[receiver][a] = sender
    return to_of, source_of


def _first_free(taken: dict[int, int]) -> int:
    return next(colour for colour in range(len(taken) + 1) if colour not in taken)


def shares(topology: AbstractTopology, rank: int, size: int, round_number: int = 0) -> float:
    """Return the part that `rank` keeps, and sends to each of its out-peers, under uniform weights."""
    return 1.0 / (1 + len(topology.out_peers(rank, size, round_number)))


def weights(topology: AbstractTopology, rank: int, size: int, round_number: int = 0) -> tuple[float, dict[int, float]]:
    """Return the weights of one round of averaging with neighbours.

    Metropolis weights where every edge goes both ways, uniform ones of the senders otherwise.
    """
    sources = topology.in_peers(rank, size, round_number)
    if topology.symmetric:
        degree = len(sources)
        degrees = [len(topology.out_peers(source, size, round_number)) for source in sources]
        of = {source: 1.0 / (1 + max(degree, d)) for source, d in zip(sources, degrees, strict=True)}
        return 1.0 - math.fsum(of.values()), of
    return (
        shares(topology, rank, size, round_number),
        {source: shares(topology, source, size, round_number) for source in sources},
    )


def mixing_matrix(topology: AbstractTopology, size: int, round_number: int = 0) -> FloatMatrix:
    """Return W, with ``x <- W x`` one round of mixing.

    - returned: row i holds the weights of rank i's new value; columns add up to one, and under Metropolis weights
      rows do too.
    """
    matrix = np.zeros((size, size))
    for rank in range(size):
        own, of = weights(topology, rank, size, round_number)
        matrix[rank, rank] = own
        matrix[rank, list(of)] = list(of.values())
    return matrix


def spectral_gap(matrix: FloatMatrix) -> float:
    """Return 1 - abs(lambda_2), lambda_2 the second largest eigenvalue of a mixing matrix by modulus; 1 for one rank.

    - `matrix`, shape (size, size): column stochastic. Of a graph that changes, the product of the matrices of a
      period.
    """
    if matrix.shape[0] == 1:
        return 1.0
    symmetric = np.array_equal(matrix, matrix.T)
    values = np.abs(np.linalg.eigvalsh(matrix) if symmetric else np.linalg.eigvals(matrix))
    # Rounding may leave the modulus a little above one.
    return max(0.0, 1.0 - float(np.sort(values)[-2]))
