"""Machines: what a message between two ranks costs and which ports it occupies, what work costs, and how both vary.

Problem: the cost of a strategy depends on the network, and few people have several.

Model: a message of n bytes (header included) costs ``alpha + beta n``. Alpha is the sum of a latency, during which no
port is busy, and an overhead, during which the ports of both ends are busy, as they are for ``beta n`` (LogGP's L and
o). Ports are full duplex. A rank has one port for its host's network card, which the ranks of a host share, and one for
messages inside the host; ranks joined by direct links (NVLink) have a port for each neighbour. Received bytes that are
added up cost gamma each, see `dsgd.sim.Compute`.

A rank waits until its message has left, and so uses one of its ports at a time, as a program does that sends from its
own memory. With ``concurrent=True`` it hands a message to the port and goes on at once, as accelerators do, whose copy
engines serve each link by itself: all ports of a rank then carry at the same time, each its messages one by one.

On a virtual clock a kernel takes no time, so its time is computed from its work: a call over rows costs ``call_s + rows
row_s + entries entry_s + params param_s`` seconds, times the factor that a straggler distribution draws for the rank
and its round. Bytes that arrive and are added up cost ``added_byte_s`` each (gamma), the end of an epoch ``end_s``.

Source: Hockney 1994 (alpha and beta); Alexandrov, Ionescu, Schauser and Scheiman 1995 (LogGP); Dutta et al. 2018
(exponential and Pareto delays).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

import numpy as np

from dsgd.collectives.cost import Link
from dsgd.comm.topology import DGX_1V_LINKS
from dsgd.errors import InvalidParameterError
from dsgd.kernels.order import draw_each, draw_one
from dsgd.types import FloatMatrix
from dsgd.validation import Checked, check_number, number


@dataclass(frozen=True)
class Network:
    """Hosts, the ranks on them, and the links between.

    Parameters
    ----------
    name : str
        What reports call it.
    between : Link
        Between two hosts.
    inside : Link
        Between two ranks of a host that have no link of their own.
    ranks_per_host : int, default 1
        Ranks 0 .. ranks_per_host - 1 are on host 0, and so on; they share its network card.
    lanes : tuple of tuple of int, shape (ranks_per_host, ranks_per_host), or empty
        How many direct links two ranks of a host have; 0 for none. Each pair of ranks then has ports of its own, and
        its bytes are spread over its links.
    lane : Link or None, default None
        One such link.
    odd : tuple of (int, int, Link), default empty
        Pairs of hosts, both directions, with another link between them; see `with_link`.
    source : str, default ""
        Where the numbers are from.
    concurrent : bool, default False
        Whether all ports of a rank carry at the same time; see the module.

    Raises
    ------
    InvalidParameterError
        There is no rank on a host, or `lanes` is not symmetric or not of that shape.
    """

    name: str
    between: Link
    inside: Link
    ranks_per_host: int = 1
    lanes: tuple[tuple[int, ...], ...] = ()
    lane: Link | None = None
    odd: tuple[tuple[int, int, Link], ...] = ()
    source: str = ""
    concurrent: bool = False

    def __post_init__(self) -> None:
        """Refuse hosts without ranks and lanes that do not fit them."""
        n = self.ranks_per_host
        check_number("Network(ranks_per_host=...)", n, low=1, integer=True)
        if (self.lanes == ()) != (self.lane is None):
            raise InvalidParameterError("Network(lanes=..., lane=...) go together: give both or none.")
        shape_is_right = [len(row) for row in self.lanes] == [n] * n
        if self.lanes and not (shape_is_right and self.lanes == tuple(zip(*self.lanes, strict=True))):
            raise InvalidParameterError(
                f"Network(lanes=...) must be symmetric with one row per rank of a host ({n}). Got {self.lanes}."
            )

    def host_of(self, rank: int) -> int:
        """Return the host of a rank."""
        return rank // self.ranks_per_host

    def link(self, a: int, b: int) -> Link:
        """Return the way from rank a to rank b."""
        hosts = self.host_of(a), self.host_of(b)
        if hosts[0] != hosts[1]:
            return next((link for *pair, link in self.odd if sorted(hosts) == sorted(pair)), self.between)
        n_lanes = self._n_lanes(a, b)
        if self.lane is None or not n_lanes:
            return self.inside
        return Link(byte_s=self.lane.byte_s / n_lanes, overhead_s=self.lane.overhead_s, latency_s=self.lane.latency_s)

    def n_ports(self, size: int) -> int:
        """Return how many ports there are in each direction, for this many ranks."""
        return -(-size // self.ranks_per_host) + size + (size * self.ranks_per_host if self.lanes else 0)

    def with_link(self, a: int, b: int, link: Link) -> Network:
        """Return this network with another link between the hosts a and b, in both directions."""
        kept = tuple(entry for entry in self.odd if sorted(entry[:2]) != sorted((a, b)))
        return replace(self, odd=(*kept, (a, b, link)))

    def _n_lanes(self, a: int, b: int) -> int:
        n = self.ranks_per_host
        return self.lanes[a % n][b % n] if self.lanes else 0


# What the ranks of one host have between them: processes that share memory.
_MEMORY: Final = Link(byte_s=1.0e-10, overhead_s=5e-6)
_TYPICAL: Final = "nominal rate, typical latency of MPI over it; not measured here"

#: The networks that have a name. Only the first one is a measurement, published with its method; rates of the others
#: are nominal and their latencies typical, good for comparing strategies and not for promising seconds.
NETWORKS: Final = MappingProxyType(
    {
        network.name: network
        for network in (
            Network(
                "1GbE",
                between=Link(byte_s=9.0e-9, overhead_s=0.436e-3),
                inside=_MEMORY,
                source="Shi et al. 2019 (gTop-k), calibration in their released scripts: alpha 0.436 ms, beta 9e-6 ms",
            ),
            Network(
                "10GbE",
                between=Link(byte_s=8.0e-10, overhead_s=2.0e-5, latency_s=1.0e-5),
                inside=_MEMORY,
                source=_TYPICAL,
            ),
            Network(
                "100GbE",
                between=Link(byte_s=8.0e-11, overhead_s=2.0e-6, latency_s=3.0e-6),
                inside=_MEMORY,
                source=_TYPICAL,
            ),
            Network(
                "InfiniBand",
                between=Link(byte_s=8.0e-11, overhead_s=5.0e-7, latency_s=1.0e-6),
                inside=_MEMORY,
                source=f"EDR, 100 Gbit/s: {_TYPICAL}",
            ),
            Network(
                "NVLink",
                between=Link(byte_s=8.0e-11, overhead_s=5.0e-7, latency_s=1.0e-6),
                inside=Link(byte_s=1.0e-10, overhead_s=5.0e-6, latency_s=5.0e-6),
                ranks_per_host=8,
                lanes=DGX_1V_LINKS,
                lane=Link(byte_s=4.0e-11, overhead_s=3.0e-6, latency_s=2.0e-6),
                source=f"DGX-1V link graph, 25 GB/s per NVLink and direction, PCIe where there is none: {_TYPICAL}",
            ),
            Network(
                "WAN",
                between=Link(byte_s=8.0e-8, overhead_s=5.0e-5, latency_s=2.5e-2),
                inside=_MEMORY,
                source=f"100 Mbit/s, 50 ms there and back: {_TYPICAL}",
            ),
        )
    }
)


def network_for(given: Network | str) -> Network:
    """Return the network that a parameter names."""
    if isinstance(given, Network):
        return given
    if given not in NETWORKS:
        known = ", ".join(repr(name) for name in NETWORKS)
        raise InvalidParameterError(f"network=... must be a dsgd.sim.Network or one of {known}. Got {given!r}.")
    return NETWORKS[given]


@dataclass(frozen=True)
class Compute(Checked):
    """The virtual time of computation.

    Parameters
    ----------
    entry_s : float, default 1.2e-9
        Per entry of a row that a kernel visits, once for each output.
    row_s : float, default 2.5e-8
        Per row.
    param_s : float, default 1.0e-9
        Per parameter that a call passes over, and per element that a compressor encodes or decodes.
    call_s : float, default 1.0e-5
        Per call of a kernel over rows, including the work of the rank loop.
    added_byte_s : float, default 1.5e-10
        Per byte that arrives and is added up.
    source : str
        Where the numbers are from. The defaults are rough estimates for dense float64 rows on a core of a server, not
        measurements: `dsgd.sim.calibrate` measures yours.
    end_s : float, default 0
        Per epoch: the work of the rank loop at its end, besides its message.

    Raises
    ------
    InvalidParameterError
        A number is negative.
    """

    entry_s: float = number(1.2e-9, low=0)
    row_s: float = number(2.5e-8, low=0)
    param_s: float = number(1.0e-9, low=0)
    call_s: float = number(1.0e-5, low=0)
    added_byte_s: float = number(1.5e-10, low=0)
    source: str = "estimates for a core of a server"
    end_s: float = number(0.0, low=0)

    def seconds(self, rows: float, entries: float, params: int) -> float:
        """Return the seconds of one call of a kernel; one that visits no rows only passes over parameters."""
        return (self.call_s if rows else 0.0) + rows * self.row_s + entries * self.entry_s + params * self.param_s


class AbstractStragglers(Checked, ABC):
    """A distribution of stragglers: how much longer than usual a rank works in a round."""

    @abstractmethod
    def factor(self, seed: int, rank: int, number: int) -> float:
        """Return the factor of the work of a rank in its round `number`; equal arguments give equal factors."""


@dataclass(frozen=True)
class NoStragglers(AbstractStragglers):
    """All ranks are equally fast, always."""

    def factor(self, seed: int, rank: int, number: int) -> float:
        """Return 1."""
        del seed, rank, number
        return 1.0


@dataclass(frozen=True)
class Exponential(AbstractStragglers):
    """Every round of every rank takes ``1 + mean E`` times as long, E exponential with mean one.

    Parameters
    ----------
    mean : float, default 0.5
        Mean of the added time.

    Raises
    ------
    InvalidParameterError
        `mean` is negative.
    """

    mean: float = number(0.5, low=0)

    def factor(self, seed: int, rank: int, number: int) -> float:
        """Return ``1 - mean log(u)``, u uniform on (0, 1]."""
        return 1.0 - self.mean * math.log(draw_uniform(seed, rank, number))

    def factors(self, seed: int, size: int, n_rounds: int) -> FloatMatrix:
        """Return the factors of many ranks and rounds, shape (size, n_rounds), to rounding."""
        return 1.0 - self.mean * np.log(_uniforms(seed, size, n_rounds))


@dataclass(frozen=True)
class SlowRank(AbstractStragglers):
    """One rank is slower than all others, always.

    Parameters
    ----------
    rank : int, default 0
        Which.
    slowdown : float, default 5
        How many times as long its work takes.

    Raises
    ------
    InvalidParameterError
        `slowdown` is not positive.
    """

    rank: int = 0
    slowdown: float = number(5.0, low=0, open_low=True)

    def factor(self, seed: int, rank: int, number: int) -> float:
        """Return the slowdown for the slow rank, 1 for the others."""
        del seed, number
        return self.slowdown if rank == self.rank else 1.0


@dataclass(frozen=True)
class HeavyTail(AbstractStragglers):
    """Rounds take at least as long as usual, and now and then much longer: factors follow Pareto's law.

    Parameters
    ----------
    shape : float, default 2
        A factor exceeds f with probability ``f ** -shape``; the mean is infinite from 1 downwards.

    Raises
    ------
    InvalidParameterError
        `shape` is not positive.
    """

    shape: float = number(2.0, low=0, open_low=True)

    def factor(self, seed: int, rank: int, number: int) -> float:
        """Return ``u ** (-1 / shape)``, u uniform on (0, 1]."""
        return float(draw_uniform(seed, rank, number) ** (-1.0 / self.shape))

    def factors(self, seed: int, size: int, n_rounds: int) -> FloatMatrix:
        """Return the factors of many ranks and rounds, shape (size, n_rounds), to rounding."""
        drawn: FloatMatrix = _uniforms(seed, size, n_rounds) ** (-1.0 / self.shape)
        return drawn


_NAMED: Final = {
    "none": NoStragglers(),
    "exponential": Exponential(),
    "slow-rank": SlowRank(),
    "heavy-tail": HeavyTail(),
}


def stragglers_for(given: AbstractStragglers | str | None) -> AbstractStragglers:
    """Return the distribution that a parameter names; None is ``"none"``."""
    if given is None:
        return NoStragglers()
    if isinstance(given, AbstractStragglers):
        return given
    if given not in _NAMED:
        known = ", ".join(repr(name) for name in _NAMED)
        raise InvalidParameterError(f"stragglers=... must be one of {known} or of dsgd.sim. Got {given!r}.")
    return _NAMED[given]


def draw_uniform(seed: int, rank: int, number: int) -> float:
    """Return the number of a round of a rank in (0, 1]; it depends on nothing drawn before."""
    key = draw_one(np.uint64(seed % 2**64), np.uint64(rank))
    return (float(draw_one(np.uint64(key), np.uint64(number)) >> np.uint64(11)) + 1.0) * 2.0**-53


def _uniforms(seed: int, size: int, n_rounds: int) -> FloatMatrix:
    """Return `draw_uniform` of the first ranks and rounds, shape (size, n_rounds)."""
    keys = draw_each(np.array([seed % 2**64], np.uint64), np.arange(size, dtype=np.uint64))
    drawn = draw_each(keys[:, None], np.arange(n_rounds, dtype=np.uint64)[None])
    uniforms: FloatMatrix = ((drawn >> np.uint64(11)).astype(np.float64) + 1.0) * 2.0**-53
    return uniforms
