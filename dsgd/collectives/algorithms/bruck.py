"""All-gather over doubling distances, for short vectors.

Problem: round a ring the last vector arrives after P - 1 messages. Short vectors, such as the entries that a compressor
leaves, cost latency and not bandwidth.

Update: rank r lists the vectors in the order r, r + 1, ..., r - 1 (mod P), of which it has the first. Before step k it
has the first 2**k of them. It sends these to rank r - 2**k, where they continue that rank's list, and receives the next
ones of its own list from rank r + 2**k. The last step sends only those that are missing. Then the list is turned into
the order of ranks.

Cost per rank: ceil(log2 P) messages for any P, and as many bytes as round a ring; see `cost.allgatherv_cost`. All bytes
are copied once more.

Source: Bruck et al. 1997 (concatenation, one port).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from dsgd.collectives.cost import gather_steps
from dsgd.comm.base import AbstractTransport
from dsgd.comm.frames import OP_ALLGATHER
from dsgd.types import AnyArray


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
