"""Departure and arrival times of messages at ports that serve one message at a time."""

from __future__ import annotations

from typing import Final

import numpy as np

from dsgd.sim.kernels import FREE_MESSAGE, FREE_SPAN, N_COUNTS, PortState, reserve
from dsgd.sim.network import Network
from dsgd.types import FloatMatrix, IntVector

# Of messages that are under way at the same time; there is room for more when there are more.
_CAPACITY: Final = 64


class Ports:
    """The ports of a network; messages must be reported in the order in which they are sent."""

    def __init__(self, network: Network, size: int) -> None:
        n_ports = network.n_ports(size)
        lane = network.lane or network.inside
        odd = [sorted((a, b)) for a, b, _ in network.odd]
        links = [network.between, network.inside, lane, *(link for _, _, link in network.odd)]
        spans, after = grown(np.zeros((0, 2)), np.zeros(0, np.int64), _CAPACITY)
        self.counts: IntVector = np.zeros(N_COUNTS, np.int64)
        self.counts[FREE_MESSAGE] = -1
        self.state = PortState(
            out_free=np.zeros(n_ports),
            first=np.full(n_ports, -1),
            spans=spans,
            after=after,
            links=np.array([(link.latency_s, link.overhead_s, link.byte_s) for link in links]),
            lanes=np.array(network.lanes, np.int64).reshape((len(network.lanes),) * 2),
            odd=np.array(odd, np.int64).reshape(len(odd), 2),
            shape=np.array([network.ranks_per_host, -(-size // network.ranks_per_host), size, network.concurrent]),
        )

    def transfer(self, source: int, to: int, n_bytes: int, at: float) -> tuple[float, float, float]:
        """Reserve the ports for a message; return when its sender goes on, its arrival, and how long its bytes move."""
        self.make_room()
        found: tuple[float, float, float] = reserve(self.state, self.counts, source, to, n_bytes, at)
        return found

    def make_room(self) -> None:
        """Make room for the spans of more messages, where there is none."""
        if self.counts[FREE_SPAN] < 0:
            n = len(self.state.after)
            spans, after = grown(self.state.spans, self.state.after, 2 * n)
            self.state = self.state._replace(spans=spans, after=after)
            self.counts[FREE_SPAN] = n


def grown(rows: FloatMatrix, after: IntVector, capacity: int) -> tuple[FloatMatrix, IntVector]:
    """Return rows, and which follows each, with room for more; the new ones follow each other."""
    n = len(after)
    room = np.concatenate([rows, np.zeros((capacity - n, 2))])
    following = np.concatenate([after, np.arange(n + 1, capacity + 1)])
    following[-1] = -1
    return room, following
