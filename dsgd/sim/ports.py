"""Departure and arrival times of messages at ports that serve one message at a time."""

from __future__ import annotations

from typing import NamedTuple

from dsgd.sim.network import Network

__all__ = ["Ports"]


class _Way(NamedTuple):
    """What a pair of ranks has between it."""

    latency_s: float
    overhead_s: float
    byte_s: float
    port_out: int
    port_in: int


class Ports:
    """The ports of a network; messages must be reported in the order in which they are sent.

    Parameters
    ----------
    network : Network
        The links between ranks.
    size : int
        How many ranks.
    """

    def __init__(self, network: Network, size: int) -> None:
        self._network, self._size = network, size
        n_ports = network.n_ports(size)
        self._out_free = [0.0] * n_ports
        self._arriving: list[list[tuple[float, float]]] = [[] for _ in range(n_ports)]
        self._ways: dict[tuple[int, int], _Way] = {}

    def transfer(self, source: int, to: int, n_bytes: int, at: float) -> tuple[float, float, float]:
        """Reserve the ports for a message; return when it has left, when it arrives, and how long its bytes move."""
        way = self._ways.get((source, to))
        if way is None:
            link, ports = self._network.link(source, to), self._network.ports(source, to, self._size)
            way = self._ways[source, to] = _Way(link.latency_s, link.overhead_s, link.byte_s, *ports)
        busy_s = way.overhead_s + way.byte_s * n_bytes
        begin = max(at, self._out_free[way.port_out])
        sent = self._out_free[way.port_out] = begin + busy_s
        return sent, _reserve(self._arriving[way.port_in], begin + way.latency_s, busy_s, at), busy_s


def _reserve(spans: list[tuple[float, float]], begin: float, busy_s: float, now: float) -> float:
    """Take a port for a while, from `begin` or the first time later at which it is free; return the end.

    `spans` are the times at which it is busy, in order; those before `now` are dropped, since no rank sends earlier.
    Messages may use the port in another order than they were sent, because some have a longer latency.
    """
    while spans and spans[0][1] <= now:
        del spans[0]
    place = 0
    for first, last in spans:
        if begin + busy_s <= first:
            break
        begin = max(begin, last)
        place += 1
    spans.insert(place, (begin, begin + busy_s))
    return begin + busy_s
