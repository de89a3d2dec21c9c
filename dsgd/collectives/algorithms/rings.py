"""All-reduces and all-gathers of ranks that all do the same: round rings, and over doubling distances.

Each part of a sum is added up in one fixed order of ranks and then copied, or by two partners that both add the lower
rank's part first, so every bit agrees on all ranks. Costs: `dsgd.collectives.cost`.

Ring, for long vectors. The vector is cut into one chunk per rank. In step s of P - 1 rank r sends chunk (r - s) mod P
to rank r + 1 and adds the received one to chunk (r - s - 1) mod P. Then rank r owns the sum of chunk r + 1. In P - 1
more steps the sums travel round: rank r sends chunk (r + 1 - s) mod P and overwrites chunk (r - s) mod P. It takes
2 (P - 1) messages and 2 (P - 1) / P of the vector, which no algorithm undercuts.

Torus: the bandwidth of a ring in 2 (X + Y - 2) messages. Ranks form Y rows of X columns, as nearly square as P allows.
The ranks of a row cut the vector into X chunks and reduce-scatter them round the row; those of a column, which then
hold partial sums of the same chunk, all-reduce it round the column; the rows gather the chunks. With a prime number of
ranks it is a ring.

Recursive doubling, for short vectors: q messages of the whole vector. With 2**q the largest power of two up to P and
e = P - 2**q, of the first e pairs of ranks (0, 1), (2, 3), ... the odd one sends its vector to the even one and gets
the result at the end. The 2**q ranks that remain are renumbered in order; in step k number v exchanges its partial sum
with number v XOR 2**k and adds. Partial sums are of neighbours at every step: where ranks come in blocks of one size, a
power of two, summing each block up a binomial tree and doubling among the blocks gives the same bits.

Rabenseifner: recursive halving and doubling, 2 q messages and 2 (P - 1) / P of the vector for 2**q ranks. In step
d = P/2, P/4, ..., 1 rank r and rank r XOR d split the part of the vector that both work on: each keeps the half on its
side, sends the other one and adds the one it receives. Then rank r has the sum of chunk r, and in steps d = 1, 2, ...,
P/2 the same pairs exchange all their chunks, which doubles them. Other numbers of ranks are folded as in doubling.

Bruck's all-gather, for short vectors: ceil(log2 P) messages for any P, as many bytes as round a ring, and all bytes
copied once more. Rank r lists the vectors in the order r, r + 1, ..., r - 1 (mod P), of which it has the first. Before
step k it has the first 2**k of them. It sends these to rank r - 2**k, where they continue that rank's list, and
receives the next ones of its own list from rank r + 2**k. The last step sends only those that are missing.

Source: Patarasuk and Yuan 2009 (ring); Mikami et al. 2018 (torus); Thakur, Rabenseifner and Gropp 2005, section 4
(doubling); Rabenseifner 2004; Bruck et al. 1997 (concatenation, one port).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate

from dsgd.collectives.algorithms.plan import Move, Part, Plan, folded
from dsgd.collectives.cost import gather_steps, ring_bounds
from dsgd.comm.base import AbstractTransport
from dsgd.comm.frames import OP_ALLGATHER
from dsgd.types import AnyArray


@lru_cache(maxsize=64)
def ring_plan(rank: int, size: int, n: int) -> Plan:
    """Return what `rank` of `size` does to sum vectors of n elements."""
    ranks, chunks = list(range(size)), Part(0, n).cut(size)
    return Plan.of([*reduce_scatter(rank, ranks, chunks), *allgather(rank, ranks, chunks)])


def reduce_scatter(number: int, ranks: Sequence[int], chunks: Sequence[Part]) -> Iterator[Move]:
    """Yield the moves after which rank ``ranks[number]`` has the sum of the chunk behind its own number."""
    size = len(ranks)
    for step in range(size - 1):
        sent, received = chunks[(number - step) % size], chunks[(number - step - 1) % size]
        yield Move(ranks[(number + 1) % size], sent, ranks[number - 1], received, adds=True)


def allgather(number: int, ranks: Sequence[int], chunks: Sequence[Part]) -> Iterator[Move]:
    """Yield the moves by which the chunks go round from there."""
    size = len(ranks)
    for step in range(size - 1):
        sent, received = chunks[(number + 1 - step) % size], chunks[(number - step) % size]
        yield Move(ranks[(number + 1) % size], sent, ranks[number - 1], received, adds=False)


def ring_allgather(transport: AbstractTransport, gathered: Sequence[AnyArray]) -> None:
    """Fill the parts of `gathered` with the vectors of all ranks, whose lengths all of them know."""
    rank, size = transport.rank, transport.size
    after, before = (rank + 1) % size, (rank - 1) % size
    for step in range(size - 1):
        transport.exchange(
            after, gathered[(rank - step) % size], before, gathered[(rank - step - 1) % size], OP_ALLGATHER
        )


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


@lru_cache(maxsize=1024)
def doubling_plan(rank: int, size: int, n: int) -> Plan:
    """Return what `rank` of `size` does to sum vectors of n elements, or to combine them in another way."""
    whole = Part(0, n)

    def among(number: int, core: int, rank_of: Callable[[int], int]) -> Iterator[Move]:
        for step in range(core.bit_length() - 1):
            peer = rank_of(number ^ (1 << step))
            yield Move(peer, whole, peer, whole, adds=True)

    return Plan.of(folded(rank, size, whole, among))


@lru_cache(maxsize=1024)
def rabenseifner_plan(rank: int, size: int, n: int) -> Plan:
    """Return what `rank` of `size` does to sum vectors of n elements."""

    def among(number: int, core: int, rank_of: Callable[[int], int]) -> Iterator[Move]:
        bounds = ring_bounds(n, core)

        def block(of: int, length: int) -> Part:
            """Return the chunks of the `length` numbers, a power of two, that `of` is among."""
            first = of & -length
            return Part(bounds[first], bounds[first + length])

        distances = [1 << k for k in range(core.bit_length() - 1)]
        for distance in reversed(distances):
            other = number ^ distance
            yield Move(rank_of(other), block(other, distance), rank_of(other), block(number, distance), adds=True)
        for distance in distances:
            other = number ^ distance
            yield Move(rank_of(other), block(number, distance), rank_of(other), block(other, distance), adds=False)

    return Plan.of(folded(rank, size, Part(0, n), among))


def bruck_allgather(transport: AbstractTransport, whole: AnyArray, ends: Sequence[int], scratch: AnyArray) -> None:
    """Fill `whole` with the vectors of all ranks, rank r's from ``ends[r]`` to ``ends[r + 1]``."""
    rank, size, n = transport.rank, transport.size, whole.shape[0]
    own = slice(ends[rank], ends[rank + 1])
    turned = list(accumulate((ends[(rank + k) % size + 1] - ends[(rank + k) % size] for k in range(size)), initial=0))
    scratch[: turned[1]] = whole[own]
    for distance, count in gather_steps(size):
        sent, received = scratch[: turned[count]], scratch[turned[distance] : turned[distance + count]]
        transport.exchange((rank - distance) % size, sent, (rank + distance) % size, received, OP_ALLGATHER)
    whole[own.start :] = scratch[: n - own.start]
    whole[: own.start] = scratch[n - own.start : n]
    transport.worked(n_bytes=whole.nbytes)
