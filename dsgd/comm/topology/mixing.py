"""Mixing matrices: the weights with which ranks average with their neighbours.

Problem: repeated averaging with neighbours must preserve the mean over all ranks, on any graph.

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
from typing import Literal

import numpy as np

from dsgd.comm.topology.graphs import AbstractTopology
from dsgd.errors import InvalidParameterError
from dsgd.types import FloatMatrix

Weighting = Literal["metropolis", "uniform"]


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


def mixing_matrix(
    topology: AbstractTopology, size: int, round_number: int = 0, weighting: Weighting | None = None
) -> FloatMatrix:
    """Return W, with ``x <- W x`` one round of mixing.

    - returned: row i holds the weights of rank i's new value; columns add up to one, and under Metropolis weights
      rows do too.
    """
    if weighting == "metropolis" and not topology.symmetric:
        raise InvalidParameterError(
            f"mixing_matrix(weighting='metropolis') needs edges that go both ways; those of {topology} do not. "
            "Take weighting='uniform'."
        )
    matrix = np.zeros((size, size))
    for rank in range(size):
        if weighting == "uniform":
            share = shares(topology, rank, size, round_number)
            matrix[[rank, *topology.out_peers(rank, size, round_number)], rank] = share
        else:
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
