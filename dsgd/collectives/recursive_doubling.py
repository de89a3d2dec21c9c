"""All-reduce by recursive doubling, for short vectors.

Problem: the sum of short vectors costs latency, not bandwidth, so the number of steps must be small.

Update, with 2**q the largest power of two up to the world size: in step k rank r swaps its partial sum with rank
r XOR 2**k and adds. Ranks from 2**q on first send their vector to rank r - 2**q and receive the result at the end.

Cost per rank: q messages of the whole vector (one more for the partner of a folded rank); see `cost.allreduce_cost`.

Both partners add the lower rank's partial sum first, so every bit agrees on all ranks, NaN payloads included.

Source: Thakur, Rabenseifner and Gropp 2005, section 4.
"""

from __future__ import annotations

import numpy as np

from dsgd.comm.base import AbstractTransport
from dsgd.comm.wire import OP_ALLREDUCE
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
    exchange = transport.exchange
    if rank >= core:
        exchange(rank - core, vector, None, None, OP_ALLREDUCE)
        exchange(None, None, rank - core, vector, OP_ALLREDUCE)
        return
    folded = rank + core if rank + core < size else None
    if folded is not None:
        exchange(None, None, folded, scratch, OP_ALLREDUCE)
        combine(vector, scratch, out=vector)
    distance = 1
    while distance < core:
        peer = rank ^ distance
        exchange(peer, vector, peer, scratch, OP_ALLREDUCE)
        if peer > rank:
            combine(vector, scratch, out=vector)
        else:
            combine(scratch, vector, out=vector)
        distance *= 2
    if folded is not None:
        exchange(folded, vector, None, None, OP_ALLREDUCE)
