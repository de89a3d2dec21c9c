"""Prediction of training time for many ranks, without rows, vectors or threads.

Problem: whether a strategy scales to thousands of ranks is a question of seconds, not of models, and threads that do
real work answer it slowly.

Method: a round is work and an exchange. What the exchange costs follows from the strategy, its compressor and its
topology (`dsgd.sim.exchanges`); how the rounds of ranks depend on each other follows from what the strategy declares:

- on all ranks (sums, gathers and broadcasts): a round ends an exchange after its slowest rank is ready. All-reduces of
  up to `MOST_PLAYED` ranks are played message by message, over the same ports as those of a simulated cluster;
- on neighbours: rounds of gossip are played, on as many ranks at most, since a rank meets as many peers on more;
- on a server: workers post a message after each of their rounds, which the port of the server takes one after another;
  the server passes over the model and answers, by its other port. One that waits for a number of messages answers all
  of them at once. This queue is played for some rounds, which soon become alike;
- on nobody: ranks work, and a message that takes longer than the work is waited for.

Rounds beyond those that are drawn or played last as long as these.

Cost: some tenths of a second for ten thousand ranks.

Source: the moves are those of Thakur, Rabenseifner and Gropp 2005; see the files of the algorithms.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

from dsgd.collectives.algorithms.whole import PLANS, steps_schedule
from dsgd.collectives.cost import Algorithm, n_levels
from dsgd.comm.base import Schedule
from dsgd.comm.frames import HEADER_BYTES
from dsgd.comm.topology import AbstractTopology, Ring, exchange_steps
from dsgd.errors import InvalidParameterError
from dsgd.runtime.train.visits import MAX_GROWTH
from dsgd.sim.cluster import SimulatedCluster
from dsgd.sim.events import play_rounds
from dsgd.sim.exchanges import MOST_PLAYED, Exchange, Exchanges
from dsgd.sim.network import AbstractStragglers, Exponential, HeavyTail, NoStragglers, SlowRank, stragglers_for
from dsgd.sync import AbstractStrategy, resolve
from dsgd.sync.compression import meant_compressor
from dsgd.sync.server import AbstractServerStrategy, message_bytes
from dsgd.types import FloatMatrix
from dsgd.validation import check_number

# Factors that are drawn: of one kind at once, of any other kind one by one.
_MOST_DRAWN: Final = 2_000_000
_MOST_CALLS: Final = 100_000
# Rounds of ranks that always take as long; of a topology that changes; and of a server, until they are alike.
_MOST_ALIKE: Final = 64
_MOST_GRAPHS: Final = 32
_MOST_SERVED: Final = 200_000
# Numbers in the control message of an epoch: sums of a model with one output, and what a rank says of itself.
_N_SUMS: Final = 7
_N_OWN: Final = 7
_CONTROL_BYTES: Final = 8 * (_N_SUMS + _N_OWN)


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
        There is nothing to do, there is no such strategy, the algorithm is none of those, or machines fail.

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
    if cluster.failures is not None:
        raise InvalidParameterError("predict(cluster) knows of no failures: fit on the cluster, or leave them out.")
    exchanges = Exchanges(cluster, itemsize, algorithm)
    course = course_of(None if sync is None else resolve(sync), exchanges, n_params, rows, entries)
    factors = work_factors(stragglers_for(cluster.stragglers), cluster.seed, cluster.ranks, rounds)
    return play(course, exchanges, factors, rounds, epochs)


def play(course: Course, exchanges: Exchanges, factors: FloatMatrix, rounds: int, epochs: int) -> Prediction:
    """Return what rounds take whose work is that of the course times `factors`, which stand for all."""
    work_s, share = factors * course.work_s, rounds / factors.shape[1]
    compute_s = share * float(work_s.sum(axis=1).max())
    # A rank alone exchanges nothing.
    seconds = share * course.seconds(work_s) if exchanges.size > 1 else compute_s
    sent = course.exchange.times(rounds) + course.at_epoch.times(epochs)
    if epochs:
        end_s = exchanges.tally(_N_SUMS, _N_OWN, _N_SUMS) + exchanges.compute.end_s + course.at_epoch.seconds
        seconds += exchanges.tally(0, 1, exchanges.size) + epochs * end_s + course.at_end.seconds
        spent = np.maximum(share * work_s, course.wait_s).sum(axis=1)
        seconds -= min(epochs * course.hidden_s, float(spent.max() - np.median(spent)))
        sent += course.at_end
    return Prediction(seconds, compute_s, round(sent.n_bytes), round(sent.messages))


class Course(NamedTuple):
    """How the rounds of ranks go: the work and the exchange of each, and the exchanges at the end of epochs and of all.

    `seconds` says when the last rank has ended rounds with given work, shape (size, n_rounds). Ranks that wait for
    nobody may wait `wait_s` in each round for a message that takes longer than the work. Where they are late, the
    slowest need not wait `hidden_s` at the end of an epoch: the others have said it before.
    """

    work_s: float
    exchange: Exchange
    seconds: Callable[[FloatMatrix], float]
    at_epoch: Exchange = Exchange()
    at_end: Exchange = Exchange()
    wait_s: float = 0.0
    hidden_s: float = 0.0


def course_of(
    strategy: AbstractStrategy[Any] | None, exchanges: Exchanges, n: int, rows: float, entries: float
) -> Course:
    """Return the course of the rounds of a strategy, or of rounds of sums if there is none."""
    work_s = _work_s(strategy, exchanges, n, rows, entries)
    if strategy is None or exchanges.size == 1:
        found = exchanges.sum_of(n)
        return Course(work_s, found, partial(_together_s, exchanges, found, exchanges.schedule_of_mean(n, None)))
    if strategy.server is not None:
        return _served(strategy.server, exchanges, n, work_s)
    if strategy.shares_memory:
        # Before the first step ranks share the model, and count their columns.
        begin = 4 * n_levels(exchanges.size) * exchanges.message_s(0) + exchanges.sum_of(n, 8).seconds
        hidden_s = exchanges.message_s(_CONTROL_BYTES)
        return Course(work_s, Exchange(), partial(_apart_s, 0.0), at_end=Exchange(begin), hidden_s=hidden_s)
    if strategy.talks == "by mailbox":
        sends_ahead = strategy.taxonomy is not None and strategy.taxonomy.pattern == "gossip"
        return (_delayed if sends_ahead else _in_pairs)(strategy, exchanges, n, work_s)
    if strategy.talks == "in pairs":
        return _gossip(strategy, exchanges, n, work_s)
    return _together(strategy, exchanges, n, work_s, rows)


def _work_s(strategy: Any, exchanges: Exchanges, n: int, rows: float, entries: float) -> float:
    """Return the seconds of a rank's steps, or of its gradient and the step that follows."""
    compute = exchanges.compute
    work_s = compute.seconds(rows, entries, n)
    if strategy is None:
        return work_s
    term = strategy.local_term
    if term is not None and term.stretch is not None:
        # Each stretch is a call of the kernel.
        n_more = max(1.0, math.ceil(rows / term.stretch)) - 1
        work_s += n_more * (compute.call_s + n * compute.param_s)
    if strategy.exchanges == "gradient" and not strategy.n_servers:
        work_s += compute.seconds(0, 0, n)
    return work_s


def _together(strategy: Any, exchanges: Exchanges, n: int, work_s: float, rows: float) -> Course:
    """Return the course of ranks that exchange in collectives."""
    compute, schedule, overlaps = exchanges.compute, None, False
    at_end = Exchange() if strategy.ends_equal or not strategy.collects else exchanges.sum_of(n)
    if strategy.taxonomy is not None and strategy.taxonomy.pattern == "broadcast":
        share = 1.0 if min(strategy.n_groups, exchanges.size) == 1 else 1.0 / strategy.global_every
        down = exchanges.broadcast(n * exchanges.itemsize)
        found = exchanges.gather(8) + down.times(share) + (down if share < 1.0 else Exchange())
    elif strategy.seconds is not None:
        if strategy.seconds < math.inf:
            # Walks begin with one row and grow.
            work_s += math.log(max(1.0, rows), MAX_GROWTH) * (compute.call_s + compute.param_s * n)
        work_s = min(work_s, strategy.seconds)
        found = exchanges.sum_of(n) + exchanges.sum_of(1, 8)
    else:
        compressor, overlaps = meant_compressor(strategy), strategy.hides_exchange
        n = strategy.sent_values(n)
        found = exchanges.mean_of(n, compressor)
        work_s += compute.seconds(0, 0, 1) * found.params
        schedule = None if overlaps else exchanges.schedule_of_mean(n, compressor)
    return Course(work_s, found, partial(_together_s, exchanges, found, schedule, overlaps=overlaps), at_end=at_end)


def _together_s(
    exchanges: Exchanges, exchange: Exchange, schedule: Schedule | None, work_s: FloatMatrix, *, overlaps: bool = False
) -> float:
    """Play the messages of rounds, or let a round end an exchange after its slowest rank."""
    if schedule is not None:
        return float(play_rounds(exchanges.network, [schedule], work_s, exchanges.compute.added_byte_s).max())
    slowest = work_s.max(axis=0)
    return float((np.maximum(slowest, exchange.seconds) if overlaps else slowest + exchange.seconds).sum())


def _gossip(strategy: Any, exchanges: Exchanges, n: int, work_s: float) -> Course:
    """Return the course of ranks that exchange with the neighbours of a graph, and wait for them."""
    topology: AbstractTopology = getattr(strategy, "topology", Ring())
    compute, size, adds = exchanges.compute, exchanges.size, strategy.compressor is None
    n_end = strategy.sent_values(n)
    n_bytes = n_end * exchanges.itemsize
    if not adds:
        n_bytes = strategy.compressor.payload_bytes(n, exchanges.itemsize)  # known: the strategy takes no other
        touched = min(n, n_bytes // exchanges.itemsize) if strategy.compressor.sparse else n
        work_s += compute.param_s * (n + touched * _degree(topology, size))
    played = min(size, MOST_PLAYED)
    n_graphs = min(topology.period(played), _MOST_GRAPHS)
    schedules = [
        steps_schedule([exchange_steps(topology, rank, played, k) for rank in range(played)], n_bytes, adds=adds)
        for k in range(n_graphs)
    ]
    # How many more messages ranks have than those that are played.
    share = _degree(topology, size) / max(_degree(topology, played), 1.0) if size > played else 1.0
    sent = sum(schedule.sent.sum(axis=0) for schedule in schedules) / n_graphs * (share * size / played)

    def seconds(work_s: FloatMatrix) -> float:
        some = work_s[:played]
        ends = float(play_rounds(exchanges.network, schedules, some, compute.added_byte_s).max())
        if share == 1.0:
            return ends
        talking = float(play_rounds(exchanges.network, schedules, np.zeros_like(some), compute.added_byte_s).max())
        return max(ends + (share - 1.0) * talking, share * talking)

    found = Exchange(0.0, float(sent[0]), float(sent[1]))
    return Course(work_s, found, seconds, at_end=exchanges.sum_of(n_end))


def _degree(topology: AbstractTopology, size: int) -> float:
    """Return how many peers the first rank sends to in a round, in the mean over some rounds."""
    n_graphs = min(topology.period(size), _MOST_GRAPHS)
    return sum(len(topology.out_peers(0, size, k)) for k in range(n_graphs)) / n_graphs


def _delayed(strategy: Any, exchanges: Exchanges, n: int, work_s: float) -> Course:
    """Return the course of ranks that wait for what neighbours have sent some rounds before."""
    n_bytes, topology, delay = strategy.sent_values(n) * exchanges.itemsize, strategy.topology, strategy.delay
    played = min(exchanges.size, MOST_PLAYED)
    graphs = [
        [topology.in_peers(rank, played, k) or (rank,) for rank in range(played)]
        for k in range(min(topology.period(played), _MOST_GRAPHS))
    ]
    most = max(len(peers) for graph in graphs for peers in graph)
    sources = [np.array([(*peers, *peers[:1] * most)[:most] for peers in graph]) for graph in graphs]
    degree = max(1.0, _degree(topology, exchanges.size))
    busy_s = degree * exchanges.busy_s(n_bytes)
    message_s = exchanges.link.latency_s + busy_s

    def seconds(work_s: FloatMatrix) -> float:
        """Follow the clocks of some ranks from round to round."""
        now, posted = np.zeros(played), list[np.ndarray[Any, Any]]()
        for k in range(work_s.shape[1]):
            posted.append(now + work_s[:played, k])
            now = posted[k]
            if k >= delay:
                earlier = k - delay
                arrived = posted[earlier][sources[earlier % len(sources)]].max(axis=1) + message_s
                now = np.maximum(np.maximum(now, arrived), posted[k - 1] + busy_s)
        return float(now.max())

    sent = Exchange(0.0, exchanges.size * degree * (HEADER_BYTES + n_bytes), exchanges.size * degree)
    # What was sent last occupies the port when ranks speak of the epoch.
    hidden_s = busy_s + exchanges.message_s(_CONTROL_BYTES)
    end = exchanges.sum_of(strategy.sent_values(n))
    return Course(work_s, sent, seconds, at_epoch=Exchange(busy_s), at_end=end, hidden_s=hidden_s)


def _served(strategy: AbstractServerStrategy[Any], exchanges: Exchanges, n: int, work_s: float) -> Course:
    """Return the course of ranks that exchange with a server."""
    size, n_bytes, every = exchanges.size, message_bytes(n, exchanges.itemsize), strategy.fetch_every
    busy_s, latency_s = exchanges.busy_s(n_bytes - HEADER_BYTES), exchanges.link.latency_s
    queue_s = partial(
        _queue_s,
        latency_s=latency_s,
        busy_s=busy_s,
        step_s=exchanges.compute.seconds(0, 0, n),
        wanted=strategy.wanted(size),
        answers_every=every,
    )

    def seconds(work_s: FloatMatrix) -> float:
        """Play the queue of the server for some rounds."""
        most = max(4, _MOST_SERVED // size)
        if work_s.shape[1] <= most:
            return queue_s(work_s.tolist())
        half, whole = (queue_s(work_s[:, :n].tolist()) for n in (most // 2, most))
        later = work_s[:, most:].sum(axis=1).max() / work_s[:, most // 2 : most].sum(axis=1).max()
        return whole + (whole - half) * float(later)

    answers = 1.0 / every
    sent = Exchange(0.0, size * (1.0 + answers) * n_bytes, size * (1.0 + answers))
    if strategy.collects:
        return Course(work_s, sent, seconds, at_end=exchanges.sum_of(n))
    # All workers say that they are there, and all get the model.
    meeting = Exchange(2 * latency_s + 2 * size * busy_s, 2.0 * size * n_bytes, 2.0 * size)
    return Course(work_s, sent, seconds, at_epoch=meeting)


def _queue_s(
    work_s: Sequence[Sequence[float]],
    *,
    latency_s: float,
    busy_s: float,
    step_s: float,
    wanted: int,
    answers_every: int,
) -> float:
    """Return when the last worker has its last answer: a server takes `step_s` for each message, a port `busy_s`."""
    ready = [(line[0], worker) for worker, line in enumerate(work_s)]
    heapq.heapify(ready)
    # Messages that a worker has sent; and for how many answers of a step it has waited.
    sent, begun = [0] * len(work_s), [0] * len(work_s)
    in_free = served = out_free = last = 0.0
    steps, waiting = 0, list[int]()
    while ready:
        now, worker = heapq.heappop(ready)
        sent[worker] += 1
        in_free = max(now + latency_s, in_free) + busy_s
        served = max(served, in_free) + step_s
        if sent[worker] % answers_every and sent[worker] < len(work_s[worker]):
            heapq.heappush(ready, (now + work_s[worker][sent[worker]], worker))
            continue
        answered = [worker]
        if wanted > 1 and begun[worker] == steps:
            waiting.append(worker)
            full = len(waiting) >= wanted or not ready
            answered, waiting = (waiting, []) if full else ([], waiting)
            steps += full
        for other in answered:
            out_free = max(served, out_free) + busy_s
            back = out_free + latency_s
            begun[other] = steps
            last = max(last, back)
            if sent[other] < len(work_s[other]):
                heapq.heappush(ready, (back + work_s[other][sent[other]], other))
    return last


def _in_pairs(strategy: Any, exchanges: Exchanges, n: int, work_s: float) -> Course:
    """Return the course of ranks that look into their mailboxes, of which half ask and half answer."""
    n_bytes = (n + 1) * exchanges.itemsize
    both_ways_s = 2 * exchanges.message_s(n_bytes)
    asked = exchanges.size // 2 * min(1.0, work_s / both_ways_s if both_ways_s else 1.0)
    sent = Exchange(0.0, 2 * asked * (HEADER_BYTES + n_bytes), 2 * asked)
    # The last one that is asked answers at the end of its round. Then half of the ranks tell one that they are done,
    # and this one tells the other half.
    half = exchanges.size // 2
    told_s = half * exchanges.busy_s(n_bytes)
    meeting = Exchange((both_ways_s + work_s) / 2 + told_s + half * exchanges.busy_s(1))
    wait_s, end = both_ways_s / getattr(strategy, "patience", 1), exchanges.sum_of(n)
    return Course(work_s, sent, partial(_apart_s, wait_s), meeting, end, wait_s, hidden_s=told_s)


def _apart_s(wait_s: float, work_s: FloatMatrix) -> float:
    """Return when the rank with the most work ends, of ranks that wait for nobody."""
    return float(np.maximum(work_s, wait_s).sum(axis=1).max())


def work_factors(stragglers: AbstractStragglers, seed: int, size: int, n_rounds: int) -> FloatMatrix:
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
