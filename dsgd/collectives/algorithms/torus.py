"""All-reduce on a torus of rows and columns: the bandwidth of a ring in far fewer messages.

Problem: a ring of P ranks takes 2 (P - 1) messages one after the other.

Update: ranks form Y rows of X columns, as nearly square as P allows. The ranks of a row cut the vector into X chunks
and reduce-scatter them round the row; those of a column, which then hold partial sums of the same chunk, all-reduce it
round the column; the rows gather the chunks. With a prime number of ranks it is a ring.

Cost per rank: 2 (X + Y - 2) messages, 2 (P - 1) / P of the vector; see `cost.allreduce_cost`.

Each part of a chunk is added up on one rank, along rows first and then along a column, and then copied.

Source: Mikami et al. 2018 (2D-torus all-reduce); Thakur, Rabenseifner and Gropp 2005 for the ring in it.
"""

from __future__ import annotations

from functools import lru_cache

from dsgd.collectives.algorithms.plan import Part, Plan
from dsgd.collectives.algorithms.ring import allgather, reduce_scatter


@lru_cache(maxsize=1024)
def torus_plan(rank: int, size: int, n: int) -> Plan:
    """Return what `rank` of `size` does to sum vectors of n elements."""
    from dsgd.comm.topology import grid_shape

    n_rows, n_columns = grid_shape(size)
    row, column = divmod(rank, n_columns)
    in_row = [row * n_columns + k for k in range(n_columns)]
    in_column = [k * n_columns + column for k in range(n_rows)]
    chunks = Part(0, n).cut(n_columns)
    # After its reduce-scatter a rank holds the sum of the chunk behind its own number.
    parts = chunks[(column + 1) % n_columns].cut(n_rows)
    moves = [
        *reduce_scatter(column, in_row, chunks),
        *reduce_scatter(row, in_column, parts),
        *allgather(row, in_column, parts),
        *allgather(column, in_row, chunks),
    ]
    return Plan.of(moves)
