"""What an exchange of all ranks costs once they are ready: seconds, bytes and messages, from shapes alone.

Sums are all-reduces, played on as many ranks as `MOST_PLAYED` and taken from their closed forms on more
(`dsgd.collectives.cost`); a ring of P ranks takes P - 1 messages of the longest vector, a broadcast the levels of its
tree. What a compressor makes of vectors is known from its shapes; where it is not, a drawn vector is encoded. Cost: at
most one played all-reduce for each length.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from dsgd import compress
from dsgd.collectives import allreduce_cost, compressed_cost
from dsgd.collectives.algorithms.trees import blocks_of
from dsgd.collectives.algorithms.whole import PLANS, plan_schedule, tally_schedule
from dsgd.collectives.cost import (
    Algorithm,
    FlatAlgorithm,
    Link,
    allreduce_seconds,
    choose_algorithm,
    choose_gather,
    hierarchical_seconds,
    is_hierarchical,
    n_levels,
)
from dsgd.collectives.means import outweighs, whole_bytes
from dsgd.comm.base import Schedule
from dsgd.comm.frames import HEADER_BYTES
from dsgd.compress import AbstractCompressor
from dsgd.compress.sparse import n_entries
from dsgd.sim.cluster import SimulatedCluster
from dsgd.sim.events import play_rounds
from dsgd.sim.network import Compute, network_for
from dsgd.types import FloatVector

#: All-reduces of more ranks are taken from their closed forms.
MOST_PLAYED: Final = 256
_IN_PARTS: Final = (compress.Half, compress.MajorityVote, compress.TernGrad)
# Frames that are merged go where sums do: up and down a tree, or by recursive doubling.
_ROUTES: Final[dict[str, FlatAlgorithm]] = {"tree": "binomial", "butterfly": "recursive_doubling"}
# How often an element is passed over beside its coding: bounds, digits and codes; both factors of a matrix.
_PASSES: Final[dict[type, float]] = {
    compress.TernGrad: 5.0,
    compress.PowerSGD: 6.0,
    compress.Half: 3.0,
    compress.MajorityVote: 3.0,
}


@dataclass(frozen=True)
class Exchange:
    """The cost of an exchange."""

    seconds: float = 0.0
    n_bytes: float = 0.0
    messages: float = 0.0
    params: float = 0.0

    def __add__(self, other: Exchange) -> Exchange:
        return Exchange(*(a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True)))

    def times(self, factor: float) -> Exchange:
        """Return the cost of it so many times."""
        return Exchange(*(factor * value for value in vars(self).values()))


class Exchanges:
    """The exchanges of the ranks of a cluster."""

    def __init__(self, cluster: SimulatedCluster, itemsize: int, algorithm: Algorithm) -> None:
        self.network, self.compute = network_for(cluster.network), cluster.compute or Compute()
        self.size, self.itemsize, self._algorithm = cluster.ranks, itemsize, algorithm
        self._hosts = [self.network.host_of(rank) for rank in range(self.size)]
        self._sums: dict[tuple[int, int], Exchange] = {}

    @property
    def link(self) -> Link:
        """The way between the first rank and the last."""
        return self.network.link(0, self.size - 1)

    @property
    def in_levels(self) -> bool:
        """Whether sums are first made inside each host."""
        asked = self._algorithm in ("auto", "hierarchical")
        return asked and (self._algorithm == "hierarchical" or is_hierarchical(self._hosts))

    def message_s(self, n_bytes: float) -> float:
        """Return the seconds of a message with so many bytes, between idle ports."""
        return self.link.seconds(HEADER_BYTES + n_bytes)

    def busy_s(self, n_bytes: float) -> float:
        """Return how long a port is busy with a message."""
        return self.link.busy_s(HEADER_BYTES + n_bytes)

    def algorithm_for(self, n: int, itemsize: int) -> FlatAlgorithm:
        """Return how vectors of n elements are summed."""
        if self._algorithm not in PLANS:
            return choose_algorithm(n * itemsize, self.size)
        return self._algorithm  # type: ignore[return-value]

    def sum_of(self, n: int, itemsize: int | None = None) -> Exchange:
        """Return the cost of an all-reduce of n elements."""
        itemsize = self.itemsize if itemsize is None else itemsize
        if self.size == 1:
            return Exchange()
        if (n, itemsize) not in self._sums:
            algorithm = self.algorithm_for(n, itemsize)
            found = self._sum_in_levels(n, itemsize) if self.in_levels else self._priced(algorithm, n, itemsize)
            self._sums[n, itemsize] = found
        return self._sums[n, itemsize]

    def gather(self, n_bytes: float) -> Exchange:
        """Return the cost of an all-gather of vectors of so many bytes from each rank."""
        others, whole = self.size - 1, self.size * n_bytes
        doubles = not is_hierarchical(self._hosts) and choose_gather(whole, self.size) == "bruck"
        steps = n_levels(self.size) if doubles else others
        copied_s = whole * self.compute.added_byte_s if doubles else 0.0
        seconds = steps * self.message_s(0) + others * n_bytes * self.link.byte_s + copied_s
        return Exchange(seconds, self.size * (steps * HEADER_BYTES + others * n_bytes), self.size * steps)

    def broadcast(self, n_bytes: float) -> Exchange:
        """Return the cost of a broadcast."""
        others = self.size - 1
        seconds = n_levels(self.size) * self.message_s(n_bytes) if others else 0.0
        return Exchange(seconds, others * (HEADER_BYTES + n_bytes), others)

    def tally(self, n_sums: int, n_own: int, n_down: int) -> float:
        """Return the seconds of a tally: numbers that are summed, of each rank's own, and that are sent down."""
        if self.size == 1:
            return 0.0
        if self.size <= MOST_PLAYED:
            return self._play(tally_schedule(blocks_of(self.size), 8 * n_sums, 8 * n_own, 8 * n_down, 8 * n_sums))
        width = math.isqrt(self.size - 1) + 1
        up = (width - 1) * self.message_s(8 * (n_sums + n_own))
        up += (-(-self.size // width) - 1) * self.message_s(8 * (n_sums + n_own * width))
        return up + self.broadcast(8 * n_down).seconds

    def mean_of(self, n: int, compressor: AbstractCompressor[Any] | None) -> Exchange:
        """Return the cost of a weighted mean of vectors of n elements that a compressor encodes."""
        if compressor is None or isinstance(compressor, compress.Identity):
            return self.sum_of(n)
        if isinstance(compressor, compress.Layerwise):
            parts = ((part.place.stop - part.place.start, part.compressor) for part in compressor.parts(n))
            return sum((self.mean_of(length, inner) for length, inner in parts), Exchange())
        feeds_back = isinstance(compressor, compress.ErrorFeedback)
        inner = compressor.compressor if isinstance(compressor, compress.ErrorFeedback) else compressor
        passes = Exchange(params=n * (_PASSES.get(type(inner), 2.0) + feeds_back))
        if self.size == 1:
            return passes
        if isinstance(inner, compress.NonZero):
            # Of a dense vector all entries are sent, and one number with them.
            return passes + self.gather(8) + self.sum_of(n + 1)
        if isinstance(inner, compress.RandomK):
            return passes + self.sum_of(n_entries(n, inner.density))
        if isinstance(inner, compress.PowerSGD):
            left, right = (self.sum_of(int(inner.rank) * side) for side in inner.shape(n))
            return passes + left + right
        if isinstance(inner, compress.GTopK):
            frame = inner.frame_bytes(n, self.itemsize)
            merged = Exchange(params=4.0 * frame / self.itemsize * n_levels(self.size))
            return passes + self._priced(_ROUTES[inner.route], frame, 1, adds=False) + merged
        if outweighs(self.size, n, self.itemsize, inner):
            return passes + self.sum_of(n)
        if isinstance(inner, _IN_PARTS):
            # Every rank makes a part of the sum, and all gather it.
            found = compressed_cost(0, self.size, n, self.itemsize, inner)
            assert found is not None  # it depends on no vector
            seconds = found.messages * self.message_s(found.n_bytes / found.messages - HEADER_BYTES)
            return passes + Exchange(seconds, self.size * found.n_bytes, self.size * found.messages)
        return passes + self._gathered(n, inner)

    def schedule_of_mean(self, n: int, compressor: AbstractCompressor[Any] | None) -> Schedule | None:
        """Return the messages of `mean_of`; None unless they are those of one sum, few enough to be played."""
        inner = compressor.compressor if isinstance(compressor, compress.ErrorFeedback) else compressor
        if not 1 < self.size <= MOST_PLAYED or self.in_levels:
            return None
        if isinstance(inner, compress.GTopK):
            return self._schedule(_ROUTES[inner.route], inner.frame_bytes(n, self.itemsize), 1, adds=False)
        if isinstance(inner, compress.RandomK):
            n = n_entries(n, inner.density)
        elif not (inner is None or isinstance(inner, compress.Identity)) and not outweighs(
            self.size, n, self.itemsize, inner
        ):
            return None
        return self._schedule(self.algorithm_for(n, self.itemsize), n, self.itemsize)

    def _schedule(self, algorithm: FlatAlgorithm, n: int, itemsize: int, *, adds: bool = True) -> Schedule:
        """Return the messages of an all-reduce of n elements; frames that are merged are coded, and not added up."""
        schedule = plan_schedule(lambda rank: PLANS[algorithm](rank, self.size, n, itemsize), self.size, itemsize)
        if not adds:
            schedule.moves[:, 3] = 0
        return schedule

    def _priced(self, algorithm: FlatAlgorithm, n: int, itemsize: int, *, adds: bool = True) -> Exchange:
        """Return the cost of an all-reduce of n elements: played by few ranks, of many in closed form."""
        costs = [allreduce_cost(rank, self.size, n, itemsize, algorithm) for rank in range(self.size)]
        if self.size <= MOST_PLAYED:
            seconds = self._play(self._schedule(algorithm, n, itemsize, adds=adds))
        else:
            link = self._without_headers(self.link)
            link = link if adds else replace(link, added_byte_s=0.0)
            seconds = allreduce_seconds(algorithm, n * itemsize, self.size, link)
        return Exchange(seconds, sum(cost.n_bytes for cost in costs), sum(cost.messages for cost in costs))

    def _sum_in_levels(self, n: int, itemsize: int) -> Exchange:
        n_bytes, counts = n * itemsize, Counter(self._hosts)
        inside, between = self._without_headers(self.network.link(0, 1)), self._without_headers(self.link)
        if len(counts) > 1:
            seconds = hierarchical_seconds(n_bytes, self._hosts, inside, between)
        else:
            seconds = 2 * n_levels(self.size) * inside.seconds(n_bytes)
        across = [allreduce_cost(host, len(counts), n, itemsize) for host in range(len(counts))]
        messages = 2 * (self.size - len(counts))
        sent = messages * (HEADER_BYTES + n_bytes) + sum(cost.n_bytes for cost in across)
        return Exchange(seconds, sent, messages + sum(cost.messages for cost in across))

    def _without_headers(self, link: Link) -> Link:
        """Return a link as closed forms take it, which know no headers."""
        return Link(latency_s=link.seconds(HEADER_BYTES), byte_s=link.byte_s, added_byte_s=self.compute.added_byte_s)

    def _play(self, schedule: Schedule) -> float:
        """Return when the last rank has ended its moves, of ranks that begin together."""
        ends = play_rounds(self.network, [schedule], np.zeros((self.size, 1)), self.compute.added_byte_s)
        return float(ends.max())

    def _gathered(self, n: int, compressor: AbstractCompressor[Any]) -> Exchange:
        """Return the cost of payloads that all ranks gather and decode."""
        payload, lengths = compressor.payload_bytes(n, self.itemsize), Exchange()
        if payload is None:
            # That of a vector of normal numbers.
            dtype = np.float32 if self.itemsize == 4 else np.float64
            vector: FloatVector = np.random.default_rng(0).standard_normal(n).astype(dtype)
            payload, lengths = int(compressor.encode(vector, compressor.init(n, dtype, 0)).nbytes), self.gather(8)
            if self.gather(payload).n_bytes > whole_bytes(self.size, n, self.itemsize):
                return lengths + self.sum_of(n)
        touched = min(n, payload // self.itemsize) if compressor.sparse else n
        return lengths + self.gather(payload) + Exchange(params=touched * (self.size - 1.0))
