"""All-reduce over packed spanning trees, each with the share of the vector that its links can carry.

Problem: if links differ, a fast sum must send most over the fastest ones (`dsgd.collectives.algorithms.packing`).

Update: tree i carries ``w_i / sum(w)`` of the vector, in pieces. Every rank adds what its children send and sends it on
to its parent; the root sends the sum down again.

Cost per rank: in each tree one message up, but for the root, and one to each child, per piece: `packed_cost`. Where
links work side by side and carry bytes per second, the way up and the way down take ``n / rate`` seconds each, of which
those parts overlap that use different links (`dsgd.collectives.algorithms.duplex` packs trees for both ways at once). A
rank sends and receives one message at a time, as our wires do, unless its wire lets all of its links carry at once
(`AbstractTransport.concurrent`), as a simulated one may.

Every part is added up on the way to the root of its tree, and the root's bits are copied.

Source: Wang et al. 2020 (Blink).
"""

from __future__ import annotations

from itertools import accumulate

import numpy as np

from dsgd.collectives.algorithms.concurrent import concurrent_plan
from dsgd.collectives.algorithms.packing import Packing
from dsgd.collectives.algorithms.pipeline import children_of, tree_plan
from dsgd.collectives.algorithms.plan import Part, Plan, run_plan
from dsgd.collectives.cost import Cost
from dsgd.comm.base import AbstractTransport
from dsgd.comm.frames import HEADER_BYTES, check_array
from dsgd.errors import InvalidParameterError
from dsgd.types import AnyArray


@np.errstate(over="ignore", invalid="ignore")
def tree_allreduce(transport: AbstractTransport, vector: AnyArray, packing: Packing, pieces: int = 4) -> None:
    """Replace `vector` by its sum over ranks."""
    check_array(vector)
    plan = packed_plan(transport.rank, transport.size, vector.size, packing, pieces, transport.concurrent)
    run_plan(transport, vector.reshape(-1), np.empty(plan.n_scratch, dtype=vector.dtype), plan)


def packed_plan(rank: int, size: int, n: int, packing: Packing, pieces: int = 4, concurrent: bool = False) -> Plan:
    """Return what `rank` of `size` does to sum vectors of n elements over packed trees; see `tree_allreduce`."""
    if any(len(tree) != size for tree in packing.trees) or pieces < 1:
        raise InvalidParameterError(
            f"tree_allreduce(packing=..., pieces={pieces}) needs trees over {size} ranks and at least one piece. Got "
            f"trees over {sorted({len(tree) for tree in packing.trees})}."
        )
    parts = parts_of(n, packing)
    if concurrent:
        return concurrent_plan(rank, packing.trees, packing.ways_down, parts, pieces_of(packing, pieces))
    return tree_plan(rank, packing.trees, parts, pieces, packing.down)


def packed_cost(rank: int, n: int, itemsize: int, packing: Packing, pieces: int = 4, concurrent: bool = False) -> Cost:
    """Return what `rank` sends to sum vectors of n elements over packed trees; see `tree_allreduce`."""
    ways = zip(packing.trees, packing.ways_down, strict=True)
    edges = [(up[rank] >= 0) + len(children_of(down)[rank]) for up, down in ways]
    sent = sum(number * part.length for number, part in zip(edges, parts_of(n, packing), strict=True))
    often = pieces_of(packing, pieces) if concurrent else [pieces] * len(edges)
    messages = sum(number * n_pieces for number, n_pieces in zip(edges, often, strict=True))
    return Cost(sent * itemsize + messages * HEADER_BYTES, messages)


def pieces_of(packing: Packing, pieces: int) -> list[int]:
    """Return into how many pieces each tree's part is cut so that all pieces are about as long."""
    heaviest = max(packing.weights)
    return [max(1, round(pieces * weight / heaviest)) for weight in packing.weights]


def parts_of(n: int, packing: Packing) -> list[Part]:
    """Return the part of n elements that each tree carries, in proportion to its weight."""
    ends = [round(n * weight / packing.rate) for weight in accumulate(packing.weights, initial=0.0)]
    return [Part(start, stop) for start, stop in zip(ends[:-1], [*ends[1:-1], n], strict=True)]
