"""All-gather in few messages, for short vectors and many ranks.

Problem: round a ring, P - 1 messages pass before all ranks have the vectors of all, however short these are.

Update: let rank r hold the vectors of ranks r to r + d - 1, all numbers modulo P and d = 1 at first. It sends the first
min(d, P - d) of them to rank r - d, and receives as many from rank r + d: those that come after its own. Then d is
twice as large, or P.

Cost per rank: ceil(log2 P) messages, and every vector but its own once, as round a ring; see `cost.allgatherv_cost`.
The vectors of a message lie one after another, but where their numbers pass P; such a message is copied once more.

Nothing is added, so the result is that of a ring to the last bit.

Source: Bruck, Ho, Kipnis, Upfal and Weathersby 1997.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from dsgd.comm.base import AbstractTransport
from dsgd.comm.frames import OP_ALLGATHER
from dsgd.types import AnyArray

__all__ = ["Hop", "bruck_allgather", "hops"]


class Hop(NamedTuple):
    """What a rank does at a time.

    Parameters
    ----------
    to, source : int
        The rank that it sends to, and the one that it receives from.
    first_sent, first_received : int
        The rank whose vector is the first that is sent, and that is received.
    n_vectors : int
        How many in either direction, of ranks one after another, modulo the size.
    """

    to: int
    source: int
    first_sent: int
    first_received: int
    n_vectors: int


def hops(rank: int, size: int) -> Iterator[Hop]:
    """Yield what `rank` of `size` does, in order."""
    distance = 1
    while distance < size:
        ahead = (rank + distance) % size
        yield Hop((rank - distance) % size, ahead, rank, ahead, min(distance, size - distance))
        distance *= 2


def bruck_allgather(transport: AbstractTransport, whole: AnyArray, ends: Sequence[int]) -> None:
    """Fill `whole`, shape (n,), with the vectors of all ranks: rank r's is ``whole[ends[r] : ends[r + 1]]``.

    Parameters
    ----------
    transport : AbstractTransport
        Connects the ranks.
    whole : array, shape (n,)
        This rank's vector is there already.
    ends : sequence of int
        Size + 1 numbers from 0 to n, known to all ranks.
    """
    size = transport.size
    for to, source, first_sent, first_received, n_vectors in hops(transport.rank, size):
        sent = [whole[a:b] for a, b in _pieces(first_sent, n_vectors, ends)]
        pieces = [whole[a:b] for a, b in _pieces(first_received, n_vectors, ends)]
        outgoing = sent[0] if len(sent) == 1 else np.concatenate(sent)
        if len(pieces) == 1:
            transport.exchange(to, outgoing, source, pieces[0], OP_ALLGATHER)
            continue
        incoming = np.empty(sum(piece.shape[0] for piece in pieces), dtype=whole.dtype)
        transport.exchange(to, outgoing, source, incoming, OP_ALLGATHER)
        pieces[0][:], pieces[1][:] = incoming[: pieces[0].shape[0]], incoming[pieces[0].shape[0] :]


def _pieces(first: int, n_vectors: int, ends: Sequence[int]) -> list[tuple[int, int]]:
    """Return where the vectors of some ranks begin and end: one piece, or two if their numbers pass the last rank."""
    size = len(ends) - 1
    stop = first + n_vectors
    if stop <= size:
        return [(ends[first], ends[stop])]
    return [(ends[first], ends[size]), (ends[0], ends[stop - size])]
