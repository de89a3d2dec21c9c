"""All-reduce on a torus of rows and columns: the bandwidth of a ring in far fewer messages.

Problem: a ring of P ranks takes 2 (P - 1) messages one after the other.

Update: ranks lie in Y rows of X columns, as nearly square as P allows. The ranks of a row cut the vector into X chunks
and reduce-scatter them round the row; those of a column, which then hold partial sums of the same chunk, all-reduce it
round the column; the rows gather the chunks. Of a prime number of ranks it is a ring.

Cost per rank: 2 (X + Y - 2) messages, 2 (P - 1) / P of the vector; see `cost.allreduce_cost`.

Each part of a chunk is added up on one rank, along rows first and then along a column, and then copied.

Source: Mikami et al. 2018 (2D-torus all-reduce); Thakur, Rabenseifner and Gropp 2005 for the ring in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from dsgd.collectives.algorithms.plan import Move, Part, Plan
from dsgd.collectives.cost import ring_bounds
from dsgd.comm.topology import grid_shape

__all__ = ["torus_plan"]


@lru_cache(maxsize=1024)
def torus_plan(rank: int, size: int, n: int) -> Plan:
    """Return what `rank` of `size` does to sum vectors of n elements."""
    n_rows, n_columns = grid_shape(size)
    row, column = divmod(rank, n_columns)
    in_row = [row * n_columns + k for k in range(n_columns)]
    in_column = [k * n_columns + column for k in range(n_rows)]
    chunks = _cut(Part(0, n), n_columns)
    # After its reduce-scatter a rank holds the sum of the chunk behind its own number.
    parts = _cut(chunks[(column + 1) % n_columns], n_rows)
    moves = [
        *_reduce_scatter(column, in_row, chunks),
        *_reduce_scatter(row, in_column, parts),
        *_allgather(row, in_column, parts),
        *_allgather(column, in_row, chunks),
    ]
    return Plan.of(moves)


def _cut(part: Part, n_chunks: int) -> list[Part]:
    bounds = ring_bounds(part.length, n_chunks)
    return [Part(part.start + bounds[k], part.start + bounds[k + 1]) for k in range(n_chunks)]


def _reduce_scatter(number: int, ranks: list[int], chunks: list[Part]) -> Iterator[Move]:
    size = len(ranks)
    for step in range(size - 1):
        sent, received = chunks[(number - step) % size], chunks[(number - step - 1) % size]
        yield Move(ranks[(number + 1) % size], sent, ranks[number - 1], received, adds=True)


def _allgather(number: int, ranks: list[int], chunks: list[Part]) -> Iterator[Move]:
    size = len(ranks)
    for step in range(size - 1):
        sent, received = chunks[(number + 1 - step) % size], chunks[(number - step) % size]
        yield Move(ranks[(number + 1) % size], sent, ranks[number - 1], received, adds=False)
