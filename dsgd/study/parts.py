"""Sums among parts of a box of accelerators: packed trees beside rings, on simulated links that carry at once.

A job gets some of the accelerators of a box, among which there may be no ring of direct links. All connected sets of 3
to 8 accelerators of a DGX-1P and a DGX-1V, those with the same links once, each sum 512 MiB over the trees of
`dsgd.collectives.algorithms.packing.pack_duplex`, and round as many rings of direct links as fit (`pack_rings`, of
which no choice has more), or a ring through PCIe where there is none; both in the best of some numbers of pieces.
Messages are played on the ports of `dsgd.sim.Network`, so no seconds of this machine are in it. Rates are nominal: 20
and 25 GB/s for a link and direction, 10 GB/s for PCIe, which nobody shares here.

Source: Wang et al. 2020 (Blink), who time it beside NCCL.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations, permutations
from typing import Final

import numpy as np
from scipy.sparse.csgraph import connected_components

from dsgd.collectives.algorithms.packing import (
    DGX_1P,
    DGX_1V,
    Packing,
    pack_duplex,
    pack_rings,
    packed_plan,
    ring_trees,
    subgraph,
)
from dsgd.collectives.algorithms.whole import plan_schedule
from dsgd.sim import NETWORKS, Network
from dsgd.sim.events import play_rounds
from dsgd.types import FloatMatrix

#: By name: the links of a box, and bytes per second of one of them.
BOXES: Final = {"DGX-1P": (DGX_1P, 20e9), "DGX-1V": (DGX_1V, 25e9)}
_N_BYTES: Final = 1 << 29
# Accelerators add up at the rate of their memory, three streams of 900 GB/s together.
_ADDED_BYTE_S: Final = 3.3e-12
_PIECES: Final = {"trees": (16, 64), "rings": (1, 4)}


@dataclass(frozen=True)
class PartOfBox:
    """Some accelerators of a box, and what a sum among them takes."""

    box: str
    # The accelerators, the first of all sets with these links, and how many such sets there are.
    members: tuple[int, ...]
    n_sets: int
    # How many rings are packed; 0 where the ring goes through PCIe.
    n_rings: int
    # Simulated seconds of a sum of 512 MiB.
    trees_s: float
    rings_s: float
    # How many times as fast trees would be by the capacities alone, without what messages cost.
    bound: float

    @property
    def n_bytes(self) -> int:
        """Bytes of the sum."""
        return _N_BYTES

    @property
    def ratio(self) -> float:
        """How many times as fast trees are."""
        return self.rings_s / self.trees_s


@lru_cache(maxsize=4)
def measure_parts(
    boxes: tuple[str, ...] = tuple(BOXES), sizes: tuple[int, ...] = (3, 4, 5, 6, 7, 8)
) -> list[PartOfBox]:
    """Return what sums take among all connected parts of some boxes, by box and number of accelerators."""
    return [
        _measured(box, members, n_sets)
        for box in boxes
        for size in sizes
        for members, n_sets in _unlike_parts(BOXES[box][0], size)
    ]


def best_part(parts: Iterable[PartOfBox]) -> PartOfBox:
    """Return the part in which trees gain most over rings."""
    return max(parts, key=lambda part: part.ratio)


def _measured(box: str, members: tuple[int, ...], n_sets: int) -> PartOfBox:
    links, rate = BOXES[box]
    part, size = subgraph(links, members), len(members)
    trees, rings = pack_duplex(part), pack_rings(part)
    direct, pcie = _network(part, rate), _network(np.zeros_like(part), rate)
    around = ring_trees(rings or [range(size)])
    ring_rate = around.rate * (rate if rings else 1.0 / pcie.inside.byte_s)
    return PartOfBox(
        box,
        members,
        n_sets,
        len(rings),
        min(_seconds(direct, size, trees, pieces) for pieces in _PIECES["trees"]),
        min(_seconds(direct if rings else pcie, size, around, pieces) for pieces in _PIECES["rings"]),
        trees.rate * rate / ring_rate,
    )


def _network(links: FloatMatrix, rate: float) -> Network:
    """Return the ports of a part of a box, whose links carry at once."""
    own = NETWORKS["NVLink"]
    assert own.lane is not None  # it has direct links
    lanes = tuple(tuple(int(number) for number in row) for row in links)
    there = replace(own, name="part", ranks_per_host=len(links), lanes=lanes, concurrent=True)
    return replace(there, lane=replace(own.lane, byte_s=1.0 / rate))


def _seconds(network: Network, size: int, packing: Packing, pieces: int) -> float:
    """Return how long a sum takes over trees in so many pieces."""
    schedule = plan_schedule(lambda rank: packed_plan(rank, size, _N_BYTES // 4, packing, pieces, True), size, 4)
    return float(play_rounds(network, [schedule], np.zeros((size, 1)), _ADDED_BYTE_S).max())


def _unlike_parts(links: FloatMatrix, size: int) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yield one of all connected sets with the same links up to numbering, and how many there are."""
    orders = np.array(list(permutations(range(size))))
    found: dict[bytes, list[tuple[int, ...]]] = {}
    for members in combinations(range(len(links)), size):
        part = subgraph(links, members).astype(np.int8)
        if connected_components(part, return_labels=False) > 1:
            continue
        # Parts are alike if the least of all their numberings is.
        numbered = part[orders[:, :, None], orders[:, None, :]].reshape(len(orders), -1)
        alike = found.setdefault(min(map(bytes, numbered)) if size < len(links) else b"", [])
        alike.append(members)
    return iter([(alike[0], len(alike)) for alike in found.values()])
