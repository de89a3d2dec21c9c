"""How the rounds of ranks hang together, by strategy: what a rank does in a round, and whom it waits for."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from dsgd.collectives.algorithms.schedule import steps_schedule
from dsgd.collectives.model import n_levels
from dsgd.comm.base import Schedule
from dsgd.comm.frames import HEADER_BYTES
from dsgd.comm.topology import AbstractTopology, Ring
from dsgd.comm.topology.mixing import exchange_steps
from dsgd.runtime.train.visits import MAX_GROWTH
from dsgd.sim.exchanges import MOST_PLAYED, Exchange, Exchanges
from dsgd.sim.plays import play_rounds
from dsgd.sim.served import Desk, served_s
from dsgd.sync import AbstractStrategy
from dsgd.sync.compression import meant_compressor
from dsgd.sync.server import AbstractServerStrategy, message_bytes
from dsgd.types import FloatMatrix

# Rounds of a topology that changes; and of a server, until they are alike.
_MOST_GRAPHS: Final = 32
# Of what a rank says when an epoch ends.
_CONTROL_BYTES: Final = 112
_MOST_SERVED: Final = 200_000


@dataclass(frozen=True)
class Visits:
    """What a rank visits in a round."""

    rows: int
    entries: int


@dataclass(frozen=True)
class AbstractCourse(ABC):
    """The course of rounds."""

    exchanges: Exchanges
    work_s: float
    exchange: Exchange
    at_epoch: Exchange = field(default_factory=Exchange, kw_only=True)
    at_end: Exchange = field(default_factory=Exchange, kw_only=True)

    @abstractmethod
    def seconds(self, work_s: FloatMatrix) -> float:
        """Return when the last rank has ended rounds with this work, shape (size, n_rounds)."""

    def hides_s(self, work_s: FloatMatrix, epochs: int) -> float:
        """Return how much less the ends of epochs take because of ranks that are late; nothing unless told else."""
        return 0.0


@dataclass(frozen=True)
class _Together(AbstractCourse):
    """All ranks wait for the last one; `schedule` has the messages of a round where they are to be played."""

    schedule: Schedule | None = None
    overlaps: bool = False

    def seconds(self, work_s: FloatMatrix) -> float:
        """Play the messages, or let a round end an exchange after its slowest rank."""
        if self.schedule is not None:
            parts = self.exchanges.network, [self.schedule], work_s, self.exchanges.compute.added_byte_s
            return float(play_rounds(*parts).max())
        slowest, exchange_s = work_s.max(axis=0), self.exchange.seconds
        return float((np.maximum(slowest, exchange_s) if self.overlaps else slowest + exchange_s).sum())


@dataclass(frozen=True)
class _Gossip(AbstractCourse):
    """Ranks wait for their neighbours; `share` is how many more messages they have than those that are played."""

    schedules: Sequence[Schedule]
    share: float

    def seconds(self, work_s: FloatMatrix) -> float:
        """Play the rounds of some ranks."""
        some = work_s[: len(self.schedules[0].first) - 1]
        parts = self.exchanges.network, self.schedules
        added_byte_s = self.exchanges.compute.added_byte_s
        played = float(play_rounds(*parts, some, added_byte_s).max())
        if self.share == 1.0:
            return played
        talking = float(play_rounds(*parts, np.zeros_like(some), added_byte_s).max())
        return max(played + (self.share - 1.0) * talking, self.share * talking)


@dataclass(frozen=True)
class _Delayed(AbstractCourse):
    """Ranks wait for what neighbours have sent some rounds before: `message_s` it takes, and `busy_s` to send it."""

    graphs: Sequence[Sequence[tuple[int, ...]]]
    delay: int
    message_s: float
    busy_s: float

    def seconds(self, work_s: FloatMatrix) -> float:
        """Follow the clocks of some ranks from round to round."""
        size = len(self.graphs[0])
        most = max(len(peers) for graph in self.graphs for peers in graph)
        sources = [np.array([(*peers, *peers[:1] * most)[:most] for peers in graph]) for graph in self.graphs]
        now, posted = np.zeros(size), list[np.ndarray[Any, Any]]()
        for k in range(work_s.shape[1]):
            posted.append(now + work_s[:size, k])
            now = posted[k]
            if k >= self.delay:
                earlier = k - self.delay
                arrived = posted[earlier][sources[earlier % len(sources)]].max(axis=1) + self.message_s
                now = np.maximum(np.maximum(now, arrived), posted[k - 1] + self.busy_s)
        return float(now.max())

    def hides_s(self, work_s: FloatMatrix, epochs: int) -> float:
        """Return what the slowest rank need not wait for, because the others have said it before."""
        spent = work_s.sum(axis=1)
        hidden_s = self.at_epoch.seconds + self.exchanges.message_s(_CONTROL_BYTES)
        return min(epochs * hidden_s, float(spent.max() - np.median(spent)))


@dataclass(frozen=True)
class _Served(AbstractCourse):
    """Ranks wait for a server."""

    desk: Desk

    def seconds(self, work_s: FloatMatrix) -> float:
        """Play the queue of the server for some rounds."""
        size, n_rounds = work_s.shape
        most = max(4, _MOST_SERVED // size)
        if n_rounds <= most:
            return served_s(self.desk, work_s)
        half, whole = (served_s(self.desk, work_s[:, :n]) for n in (most // 2, most))
        later = work_s[:, most:].sum(axis=1).max() / work_s[:, most // 2 : most].sum(axis=1).max()
        return whole + (whole - half) * float(later)


@dataclass(frozen=True)
class _Apart(AbstractCourse):
    """Ranks wait for nobody, but for a message that takes longer than some rounds of work, `wait_s` for each.

    Of what they say when an epoch ends the slowest rank need not hear `hidden_s` any more.
    """

    wait_s: float = 0.0
    hidden_s: float = 0.0

    def seconds(self, work_s: FloatMatrix) -> float:
        """Return when the rank with the most work ends."""
        return float(np.maximum(work_s, self.wait_s).sum(axis=1).max())

    def hides_s(self, work_s: FloatMatrix, epochs: int) -> float:
        """Return what of the meetings of others takes place while the rank with the most work still works."""
        spent = np.maximum(work_s, self.wait_s).sum(axis=1)
        return min(epochs * self.hidden_s, float(spent.max() - np.median(spent)))


def course_of(strategy: AbstractStrategy[Any] | None, exchanges: Exchanges, n: int, visits: Visits) -> AbstractCourse:
    """Return the course of the rounds of a strategy, or of rounds of sums if there is none."""
    work_s = _work_s(strategy, exchanges, n, visits)
    if strategy is None or exchanges.size == 1:
        return _Together(exchanges, work_s, exchanges.sum_of(n), exchanges.schedule_of_mean(n, None))
    if strategy.server is not None:
        return _served(strategy.server, exchanges, n, work_s)
    if strategy.shares_memory:
        # Before the first step ranks share the model, and count their columns.
        begin = 4 * n_levels(exchanges.size) * exchanges.message_s(0) + exchanges.sum_of(n, 8).seconds
        hidden_s = exchanges.message_s(_CONTROL_BYTES)
        return _Apart(exchanges, work_s, Exchange(), 0.0, hidden_s, at_end=Exchange(begin))
    if strategy.talks == "by mailbox":
        sends_ahead = strategy.taxonomy is not None and strategy.taxonomy.pattern == "gossip"
        return (_delayed if sends_ahead else _in_pairs)(strategy, exchanges, n, work_s)
    if strategy.talks == "in pairs":
        return _gossip(strategy, exchanges, n, work_s)
    return _together(strategy, exchanges, n, work_s, visits)


def _work_s(strategy: Any, exchanges: Exchanges, n: int, visits: Visits) -> float:
    """Return the seconds of a rank's steps, or of its gradient and the step that follows."""
    compute, rows = exchanges.compute, visits.rows
    work_s = compute.seconds(rows, visits.entries, n)
    term = None if strategy is None else strategy.local_term
    if term is not None and term.stretch is not None:
        # Each stretch is a call of the kernel.
        n_more = max(1, -(-rows // term.stretch)) - 1
        work_s += n_more * (compute.call_s + n * compute.param_s)
    if strategy is not None and strategy.exchanges == "gradient" and not strategy.n_servers:
        work_s += compute.seconds(0, 0, n)
    return work_s


def _together(strategy: Any, exchanges: Exchanges, n: int, work_s: float, visits: Visits) -> AbstractCourse:
    """Return the course of ranks that exchange in collectives."""
    at_end = Exchange() if strategy.ends_equal or not strategy.collects else exchanges.sum_of(n)
    if strategy.taxonomy is not None and strategy.taxonomy.pattern == "broadcast":
        share = 1.0 if min(strategy.n_groups, exchanges.size) == 1 else 1.0 / strategy.global_every
        down = exchanges.broadcast(n * exchanges.itemsize)
        found = exchanges.gather(8) + down.times(share) + (down if share < 1.0 else Exchange())
        return _Together(exchanges, work_s, found, at_end=at_end)
    if strategy.seconds is not None:
        if strategy.seconds < math.inf:
            # Walks begin with one row and grow.
            compute = exchanges.compute
            work_s += math.log(max(1, visits.rows), MAX_GROWTH) * (compute.call_s + compute.param_s * n)
        work_s = min(work_s, strategy.seconds)
        return _Together(exchanges, work_s, exchanges.sum_of(n) + exchanges.sum_of(1, 8), at_end=at_end)
    compressor, overlap = meant_compressor(strategy), strategy.hides_exchange
    n = strategy.sent_values(n)
    found = exchanges.mean_of(n, compressor)
    work_s += exchanges.compute.seconds(0, 0, 1) * found.params
    schedule = None if overlap else exchanges.schedule_of_mean(n, compressor)
    return _Together(exchanges, work_s, found, schedule, overlap, at_end=at_end)


def _gossip(strategy: Any, exchanges: Exchanges, n: int, work_s: float) -> AbstractCourse:
    """Return the course of ranks that exchange with the neighbours of a graph."""
    topology: AbstractTopology = getattr(strategy, "topology", Ring())
    compute = exchanges.compute
    n_end, size = strategy.sent_values(n), exchanges.size
    n_bytes = n_end * exchanges.itemsize
    if strategy.compressor is not None:
        known = strategy.compressor.payload_bytes(n, exchanges.itemsize)
        assert known is not None  # the strategy takes no other
        n_bytes = known
        touched = min(n, known // exchanges.itemsize) if strategy.compressor.sparse else n
        work_s += compute.param_s * (n + touched * _degree(topology, size))
    found = _rounds_of(topology, exchanges, n_bytes, adds=strategy.compressor is None)
    return replace(found, work_s=work_s, at_end=exchanges.sum_of(n_end))


def _rounds_of(topology: AbstractTopology, exchanges: Exchanges, n_bytes: int, *, adds: bool) -> _Gossip:
    """Return rounds of messages of so many bytes to the peers of a graph, without work."""
    size, played = exchanges.size, min(exchanges.size, MOST_PLAYED)
    n_graphs = min(topology.period(played), _MOST_GRAPHS)
    schedules = [
        steps_schedule([exchange_steps(topology, rank, played, k) for rank in range(played)], n_bytes, adds=adds)
        for k in range(n_graphs)
    ]
    share = _degree(topology, size) / max(_degree(topology, played), 1.0) if size > played else 1.0
    sent = sum(schedule.sent.sum(axis=0) for schedule in schedules) / n_graphs * (share * size / played)
    return _Gossip(exchanges, 0.0, Exchange(0.0, float(sent[0]), float(sent[1])), schedules, share)


def _degree(topology: AbstractTopology, size: int) -> float:
    """Return how many peers the first rank sends to in a round, in the mean over some rounds."""
    n_graphs = min(topology.period(size), _MOST_GRAPHS)
    return sum(len(topology.out_peers(0, size, k)) for k in range(n_graphs)) / n_graphs


def _delayed(strategy: Any, exchanges: Exchanges, n: int, work_s: float) -> AbstractCourse:
    """Return the course of ranks that take in what was sent some rounds ago."""
    n_bytes, topology = strategy.sent_values(n) * exchanges.itemsize, strategy.topology
    played = min(exchanges.size, MOST_PLAYED)
    graphs = [
        [topology.in_peers(rank, played, k) or (rank,) for rank in range(played)]
        for k in range(min(topology.period(played), _MOST_GRAPHS))
    ]
    degree = max(1.0, _degree(topology, exchanges.size))
    sent = Exchange(0.0, exchanges.size * degree * (HEADER_BYTES + n_bytes), exchanges.size * degree)
    busy_s = degree * exchanges.busy_s(n_bytes)
    message_s = exchanges.link.latency_s + busy_s
    # What was sent last occupies the port when ranks speak of the epoch.
    late, end = Exchange(busy_s), exchanges.sum_of(strategy.sent_values(n))
    return _Delayed(exchanges, work_s, sent, graphs, strategy.delay, message_s, busy_s, at_epoch=late, at_end=end)


def _served(strategy: AbstractServerStrategy[Any], exchanges: Exchanges, n: int, work_s: float) -> AbstractCourse:
    """Return the course of ranks that exchange with a server."""
    size, n_bytes = exchanges.size, message_bytes(n, exchanges.itemsize)
    busy_s = exchanges.busy_s(n_bytes - HEADER_BYTES)
    wanted, every = strategy.wanted(size), strategy.fetch_every
    desk = Desk(exchanges.link.latency_s, busy_s, exchanges.compute.seconds(0, 0, n), wanted, every)
    answers = 1.0 / every
    sent = Exchange(0.0, size * (1.0 + answers) * n_bytes, size * (1.0 + answers))
    # All workers say that they are there, and all get the model.
    meeting = Exchange(2 * desk.latency_s + 2 * size * busy_s, 2.0 * size * n_bytes, 2.0 * size)
    at_end = exchanges.sum_of(n) if strategy.collects else Exchange()
    return _Served(exchanges, work_s, sent, desk, at_epoch=Exchange() if strategy.collects else meeting, at_end=at_end)


def _in_pairs(strategy: Any, exchanges: Exchanges, n: int, work_s: float) -> AbstractCourse:
    """Return the course of ranks that look into their mailboxes, of which half ask and half answer."""
    n_bytes = (n + 1) * exchanges.itemsize
    both_ways_s = 2 * exchanges.message_s(n_bytes)
    patience = getattr(strategy, "patience", 1)
    asked = exchanges.size // 2 * min(1.0, work_s / both_ways_s if both_ways_s else 1.0)
    sent = Exchange(0.0, 2 * asked * (HEADER_BYTES + n_bytes), 2 * asked)
    # The last one that is asked answers at the end of its round. Then half of the ranks tell one that they are done,
    # and this one tells the other half.
    half = exchanges.size // 2
    told_s = half * exchanges.busy_s(n_bytes)
    meeting = Exchange((both_ways_s + work_s) / 2 + told_s + half * exchanges.busy_s(1))
    wait_s = both_ways_s / patience
    return _Apart(exchanges, work_s, sent, wait_s, told_s, at_epoch=meeting, at_end=exchanges.sum_of(n))
