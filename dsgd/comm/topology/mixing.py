"""Mixing matrices of graphs, and matchings.

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
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from dsgd.comm.topology.graphs import AbstractTopology
from dsgd.types import FloatMatrix


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
