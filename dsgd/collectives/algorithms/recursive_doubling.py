"""All-reduce by recursive doubling, for short vectors.

Problem: the sum of short vectors costs latency, not bandwidth, so the number of steps must be small.

Update, with 2**q the largest power of two up to the world size P and e = P - 2**q: of the first e pairs of ranks
(0, 1), (2, 3), ... the odd one sends its vector to the even one and receives the result at the end. The 2**q ranks that
are left are numbered anew, in order; in step k number v swaps its partial sum with number v XOR 2**k and adds.

Cost per rank: q messages of the whole vector (one more for the partner of a folded rank); see `cost.allreduce_cost`.

Both partners add the lower rank's partial sum first, so every bit agrees on all ranks, NaN payloads included. Partial
sums are of neighbours at every step: where ranks come in blocks of one size, a power of two, the first steps sum the
blocks and the others are those of as many ranks as there are blocks. Summing each block up a binomial tree and doubling
among the blocks therefore gives the same bits.

Source: Thakur, Rabenseifner and Gropp 2005, section 4.
"""

from __future__ import annotations

import numpy as np

from dsgd.comm.base import AbstractTransport
from dsgd.comm.frames import OP_ALLREDUCE
from dsgd.types import AnyArray

__all__ = ["recursive_doubling"]


def recursive_doubling(
    transport: AbstractTransport, vector: AnyArray, scratch: AnyArray, combine: np.ufunc = np.add
) -> None:
    """Replace `vector` by its sum over ranks, or by what another `combine` makes of all of them.

    Parameters
    ----------
    transport : AbstractTransport
        Connects the ranks.
    vector : array, shape (n,)
        Summed in place.
    scratch : array, shape (n,), dtype of `vector`
        Overwritten.
    combine : numpy.ufunc, default numpy.add
        Commutative and associative: the sum, the minimum or the maximum.
    """
    rank, size = transport.rank, transport.size
    core = 1 << (size.bit_length() - 1)
    n_folded = size - core
    exchange = transport.exchange
    folds = rank < 2 * n_folded
    if folds and rank % 2:
        exchange(rank - 1, vector, None, None, OP_ALLREDUCE)
        exchange(None, None, rank - 1, vector, OP_ALLREDUCE)
        return
    number = rank - n_folded
    if folds:
        number = rank // 2
        exchange(None, None, rank + 1, scratch, OP_ALLREDUCE)
        combine(vector, scratch, out=vector)
        transport.worked(n_bytes=vector.nbytes)
    distance = 1
    while distance < core:
        other = number ^ distance
        peer = 2 * other if other < n_folded else other + n_folded
        exchange(peer, vector, peer, scratch, OP_ALLREDUCE)
        if peer > rank:
            combine(vector, scratch, out=vector)
        else:
            combine(scratch, vector, out=vector)
        transport.worked(n_bytes=vector.nbytes)
        distance *= 2
    if folds:
        exchange(rank + 1, vector, None, None, OP_ALLREDUCE)
