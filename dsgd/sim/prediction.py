"""The seconds of ranks that exchange with a server, by the queue at its port.

Problem: what a server can serve does not follow from one message: P workers post at the same time, and wait.

Method: workers post a message after each of their rounds, which the port of the server takes in one after another; the
server passes over the model and answers, by its other port. A server that waits for a number of messages answers all
of them at once. Rounds soon become alike, so a few are played and the others taken to last as long.

Cost: some microseconds for each message that is played.

How the rounds of ranks hang together, by strategy: what a rank does in a round, and whom it waits for.

Prediction of training time for many ranks, without rows, vectors or threads.

Problem: whether a strategy scales to thousands of ranks is a question of seconds, not of models, and threads that do
real work answer it slowly.

Method: a round is work and an exchange. What the exchange costs follows from the strategy, its compressor and its
topology (`dsgd.sim.exchanges`); how the rounds of ranks hang together depends on who waits for whom:

- of all ranks (sums, gathers and broadcasts): a round ends an exchange after its slowest rank is ready. All-reduces of
  up to `MOST_PLAYED` ranks are played message by message, over the same ports as those of a simulated cluster;
- of neighbours: rounds of gossip are played, on as many ranks at most, since a rank meets as many peers on more;
- of a server: its queue is played (`dsgd.sim.prediction`);
- of nobody: ranks work, and a message that takes longer than the work is waited for.

Rounds beyond those that are drawn or played last as long as these.

Cost: some tenths of a second for ten thousand ranks.

Source: the moves are those of Thakur, Rabenseifner and Gropp 2005; see the files of the algorithms.
"""

from __future__ import annotations

import heapq
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import numpy as np

from dsgd.collectives.algorithms.whole import PLANS, steps_schedule
from dsgd.collectives.cost import Algorithm, n_levels
from dsgd.comm.frames import HEADER_BYTES
from dsgd.comm.offload import Schedule
from dsgd.comm.topology import AbstractTopology, Ring
from dsgd.comm.topology.matching import exchange_steps
from dsgd.errors import InvalidParameterError
from dsgd.runtime.train.anytime import MAX_GROWTH
from dsgd.sim.cluster import SimulatedCluster
from dsgd.sim.events import play_rounds
from dsgd.sim.exchanges import MOST_PLAYED, Exchange, Exchanges
from dsgd.sim.network import AbstractStragglers, Exponential, HeavyTail, NoStragglers, SlowRank, stragglers_for
from dsgd.sync import (
    AbstractStrategy,
    resolve,
)
from dsgd.sync.compression import meant_compressor
from dsgd.sync.server import AbstractServerStrategy, message_bytes
from dsgd.types import FloatMatrix
from dsgd.validation import check_number


class Desk(NamedTuple):
    """A server, as its workers meet it."""

    latency_s: float
    busy_s: float
    work_s: float
    wanted: int = 1
    answers_every: int = 1


def served_s(desk: Desk, work_s: FloatMatrix) -> float:
    """Return when the last worker has its last answer."""
    n_workers, n_rounds = work_s.shape
    work = work_s.tolist()
    ready = [(line[0], worker) for worker, line in enumerate(work)]
    heapq.heapify(ready)
    # Messages that a worker has sent; and for how many answers of a step it has waited.
    sent, begun = [0] * n_workers, [0] * n_workers
    in_free = served = out_free = last = 0.0
    steps, waiting, going = 0, list[int](), n_workers
    while ready:
        at, worker = heapq.heappop(ready)
        sent[worker] += 1
        is_last = sent[worker] == n_rounds
        going -= is_last
        in_free = max(at + desk.latency_s, in_free) + desk.busy_s
        served = max(served, in_free) + desk.work_s
        if sent[worker] % desk.answers_every and not is_last:
            heapq.heappush(ready, (at + work[worker][sent[worker]], worker))
            continue
        answered = [worker]
        if desk.wanted > 1 and begun[worker] == steps:
            waiting.append(worker)
            full = len(waiting) >= desk.wanted or not ready
            answered, waiting = (waiting, []) if full else ([], waiting)
            steps += full
        for other in answered:
            out_free = max(served, out_free) + desk.busy_s
            back = out_free + desk.latency_s
            begun[other] = steps
            last = max(last, back)
            if sent[other] < n_rounds:
                heapq.heappush(ready, (back + work[other][sent[other]], other))
    return last


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


# Factors that are drawn: of one kind at once, of any other kind one by one.
_MOST_DRAWN: Final = 2_000_000
_MOST_CALLS: Final = 100_000

# Rounds of ranks that always take as long.
_MOST_ALIKE: Final = 64

# Numbers in the control message of an epoch: sums of a model with one output, and what a rank says of itself.
_N_SUMS: Final = 7
_N_OWN: Final = 7


@dataclass(frozen=True)
class Prediction:
    """The predicted time of rounds of training.

    Parameters
    ----------
    seconds : float
        Until the last rank has ended.
    compute_s : float
        Seconds of work of the rank that worked longest.
    n_bytes, messages : int
        What all ranks sent together for the algorithm, headers included.
    """

    seconds: float
    compute_s: float
    n_bytes: int
    messages: int


def predict(
    cluster: SimulatedCluster,
    *,
    n_params: int,
    rows: int,
    entries: int,
    rounds: int,
    itemsize: int = 8,
    algorithm: Algorithm = "auto",
    sync: Any = None,
    epochs: int = 0,
) -> Prediction:
    """Return the predicted time of rounds of training on a simulated cluster.

    Every rank visits `rows` rows with `entries` entries in each round, and then the ranks exchange.

    Parameters
    ----------
    cluster : SimulatedCluster
        Ranks, network, work and stragglers.
    n_params : int
        Length of the model or gradient.
    rows, entries : int
        Of each rank in a round.
    rounds : int
        How many rounds.
    itemsize : int, default 8
        Bytes of an element.
    algorithm : str, default "auto"
        How vectors are summed; see `dsgd.collectives.Group`. Not ``"hierarchical"``, except as what ``"auto"`` means
        with a strategy.
    sync : object, default None
        The strategy and its compressor, as estimators take it; its period is replaced by `rows`. None stands for a sum
        of `n_params` elements in each round.
    epochs : int, default 0
        Epochs that end in these rounds. Then what ranks say before the first of them, at the end of each and after the
        last is part of the seconds; else it is left out.

    Returns
    -------
    Prediction
        Seconds and bytes.

    Raises
    ------
    InvalidParameterError
        There is nothing to do, there is no such strategy, or the algorithm is none of those.

    Notes
    -----
    Seconds are within a quarter of those of the simulated cluster, for the strategies and compressors of this package
    (`tests/sim/test_predict_strategies.py`). Where ranks of a host share its network card, that holds for sums only.
    Strategies of other packages are taken by what they declare: `exchanges`, `talks`, `compressor` and `topology`.
    """
    check_number("predict(n_params=...)", n_params, low=1)
    check_number("predict(rows=...)", rows, low=0)
    check_number("predict(entries=...)", entries, low=0)
    check_number("predict(rounds=...)", rounds, low=1)
    check_number("predict(epochs=...)", epochs, low=0, integer=True)
    if algorithm != "auto" and algorithm not in PLANS:
        raise InvalidParameterError(f"predict(algorithm=...) does not support {algorithm!r}.")
    exchanges = Exchanges(cluster, itemsize, algorithm)
    course = course_of(None if sync is None else resolve(sync), exchanges, n_params, Visits(rows, entries))
    factors = _factors(stragglers_for(cluster.stragglers), cluster.seed, cluster.ranks, rounds)
    work_s, share = factors * course.work_s, rounds / factors.shape[1]
    compute_s = share * float(work_s.sum(axis=1).max())
    # A rank alone exchanges nothing.
    seconds = share * course.seconds(work_s) if cluster.ranks > 1 else compute_s
    sent = course.exchange.times(rounds) + course.at_epoch.times(epochs)
    if epochs:
        end_s = exchanges.tally(_N_SUMS, _N_OWN, _N_SUMS) + exchanges.compute.end_s + course.at_epoch.seconds
        seconds += exchanges.tally(0, 1, cluster.ranks) + epochs * end_s + course.at_end.seconds
        seconds -= course.hides_s(share * work_s, epochs)
        sent += course.at_end
    return Prediction(seconds, compute_s, round(sent.n_bytes), round(sent.messages))


def _factors(stragglers: AbstractStragglers, seed: int, size: int, n_rounds: int) -> FloatMatrix:
    """Return the factors of the work of each rank in some rounds, shape (size, n_drawn)."""
    if isinstance(stragglers, NoStragglers):
        return np.ones((size, min(n_rounds, _MOST_ALIKE)))
    if isinstance(stragglers, SlowRank):
        factors = np.ones((size, min(n_rounds, _MOST_ALIKE)))
        factors[stragglers.rank : stragglers.rank + 1] = stragglers.slowdown
        return factors
    if isinstance(stragglers, (Exponential, HeavyTail)):
        n_drawn = max(1, min(n_rounds, _MOST_DRAWN // size))
        return stragglers.factors(seed, size, n_drawn)
    n_drawn = max(1, min(n_rounds, _MOST_CALLS // size))
    return np.array([[stragglers.factor(seed, rank, k) for k in range(n_drawn)] for rank in range(size)])
