"""Prediction of training time for many ranks, without rows, vectors or threads.

Problem: whether a strategy scales to thousands of ranks is a question of seconds, not of models, and threads that do
real work answer it slowly.

Method: a round is work and an all-reduce. An all-reduce is a list of moves for each rank
(`dsgd.collectives.algorithms.plan`); the moves of all ranks are played in the order of their clocks over the same ports
as those of a simulated cluster (`dsgd.sim.ports`), so seconds are the same as there. Where all rounds are alike one is
played. The ring of more than 256 ranks is not played, but taken from its closed form with the longest chunk, from when
the last rank is ready.

Cost: some microseconds for each message that is played.

Source: the moves are those of Thakur, Rabenseifner and Gropp 2005; see the files of the algorithms.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from dsgd.collectives.algorithms.plan import Move
from dsgd.collectives.cost import Algorithm
from dsgd.collectives.group import PLANS
from dsgd.collectives.model import choose_algorithm
from dsgd.comm.frames import HEADER_BYTES
from dsgd.errors import InvalidParameterError
from dsgd.sim.cluster import SimulatedCluster
from dsgd.sim.compute import Compute, NoStragglers, stragglers_for
from dsgd.sim.network import network_for
from dsgd.sim.ports import Ports
from dsgd.validation import check_number

__all__ = ["Prediction", "predict"]

# A ring of more ranks has too many messages to play one by one.
_MOST_OF_A_RING: Final = 256
# Clocks that differ by rounding are equal.
_SAME: Final = 1e-12


@dataclass(frozen=True)
class Prediction:
    """The predicted time of rounds of work and all-reduce.

    Parameters
    ----------
    seconds : float
        Until the last rank has ended.
    compute_s : float
        Seconds of work of the rank that worked longest.
    n_bytes, messages : int
        What all ranks sent together, headers included.
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
) -> Prediction:
    """Return the predicted time of rounds of training on a simulated cluster.

    Every rank visits `rows` rows with `entries` entries in each round, and all ranks sum a vector of `n_params`
    elements; what else is exchanged at the end of an epoch, a few numbers, is left out.

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
        How vectors are summed; see `dsgd.collectives.Group`. Not ``"hierarchical"``.

    Returns
    -------
    Prediction
        Seconds and bytes.

    Raises
    ------
    InvalidParameterError
        There is nothing to do, or the algorithm is none of those.
    """
    check_number("predict(n_params=...)", n_params, low=1)
    check_number("predict(rows=...)", rows, low=0)
    check_number("predict(entries=...)", entries, low=0)
    check_number("predict(rounds=...)", rounds, low=1)
    stragglers, compute = stragglers_for(cluster.stragglers), cluster.compute or Compute()
    work_s = compute.seconds(rows, entries, n_params)

    def work(rank: int, number: int) -> float:
        return work_s * stragglers.factor(cluster.seed, rank, number)

    if algorithm == "auto":
        algorithm = choose_algorithm(n_params * itemsize, cluster.ranks)
    compute_s = max(sum(work(rank, number) for number in range(rounds)) for rank in range(cluster.ranks))
    if cluster.ranks == 1:
        return Prediction(compute_s, compute_s, 0, 0)
    if algorithm == "ring" and cluster.ranks > _MOST_OF_A_RING:
        sum_s, n_bytes, messages = _long_ring(cluster, n_params, itemsize)
        slowest = (max(work(rank, number) for rank in range(cluster.ranks)) for number in range(rounds))
        return Prediction(sum(slowest) + rounds * sum_s, compute_s, rounds * n_bytes, rounds * messages)
    moves = [_moves(algorithm, rank, cluster.ranks, n_params, itemsize) for rank in range(cluster.ranks)]
    sent = [move.outgoing.length for each in moves for move in each if move.to is not None]
    n_bytes = sum(sent) * itemsize + len(sent) * HEADER_BYTES
    clocks = _Play(cluster, moves, itemsize, work).run(1)
    if isinstance(stragglers, NoStragglers) and max(clocks) - min(clocks) <= _SAME * max(clocks):
        # All ports are free and all clocks equal: every round is like the first.
        seconds = rounds * max(clocks)
    else:
        seconds = max(_Play(cluster, moves, itemsize, work).run(rounds))
    return Prediction(seconds, compute_s, rounds * n_bytes, rounds * len(sent))


def _long_ring(cluster: SimulatedCluster, n: int, itemsize: int) -> tuple[float, int, int]:
    """Return seconds, bytes and messages of an all-reduce round a ring, by its closed form."""
    size, longest = cluster.ranks, -(-n // cluster.ranks) * itemsize
    link = network_for(cluster.network).link(0, size - 1)
    added_s = longest * (cluster.compute or Compute()).added_byte_s
    messages = 2 * (size - 1) * size
    seconds = (size - 1) * (2 * link.seconds(HEADER_BYTES + longest) + added_s)
    return seconds, 2 * (size - 1) * n * itemsize + messages * HEADER_BYTES, messages


class _Play:
    """Plays rounds of work and moves, in the order of clocks.

    Parameters
    ----------
    cluster : SimulatedCluster
        The ranks and their network.
    moves : sequence of tuple of Move, one per rank
        What each does in an all-reduce.
    itemsize : int
        Bytes of an element.
    work : callable
        Takes a rank and a round; returns seconds.
    """

    def __init__(
        self,
        cluster: SimulatedCluster,
        moves: Sequence[tuple[Move, ...]],
        itemsize: int,
        work: Callable[[int, int], float],
    ) -> None:
        self._moves, self._itemsize, self._work = moves, itemsize, work
        self._added_byte_s = (cluster.compute or Compute()).added_byte_s
        self._ports = Ports(network_for(cluster.network), cluster.ranks)
        self._now = [0.0] * cluster.ranks
        self._at = [0] * cluster.ranks
        self._round = [0] * cluster.ranks
        self._ready: list[tuple[float, int]] = []
        self._waiting: dict[int, int] = {}
        self._under_way: dict[tuple[int, int], deque[float]] = {}

    def run(self, rounds: int) -> list[float]:
        """Return when each rank has ended so many rounds."""
        for rank in range(len(self._now)):
            self._go_on(rank, self._work(rank, 0))
        while self._ready:
            clock, rank = heapq.heappop(self._ready)
            move = self._moves[rank][self._at[rank]]
            if move.to is not None:
                n_bytes = HEADER_BYTES + move.outgoing.length * self._itemsize
                clock, arrives, _ = self._ports.transfer(rank, move.to, n_bytes, clock)
                self._under_way.setdefault((rank, move.to), deque()).append(arrives)
                if self._waiting.get(move.to) == rank:
                    del self._waiting[move.to]
                    self._finish(move.to, rounds)
            self._now[rank] = clock
            if move.source is None or self._under_way.get((move.source, rank)):
                self._finish(rank, rounds)
            else:
                self._waiting[rank] = move.source
        return self._now

    def _go_on(self, rank: int, at: float) -> None:
        self._now[rank] = at
        heapq.heappush(self._ready, (at, rank))

    def _finish(self, rank: int, rounds: int) -> None:
        """End a move whose incoming message was sent, and begin the next move, or the next round."""
        move, now = self._moves[rank][self._at[rank]], self._now[rank]
        if move.source is not None:
            now = max(now, self._under_way[move.source, rank].popleft())
            if move.adds:
                now += move.incoming.length * self._itemsize * self._added_byte_s
        self._now[rank] = now
        self._at[rank] += 1
        if self._at[rank] == len(self._moves[rank]):
            self._at[rank], self._round[rank] = 0, self._round[rank] + 1
            if self._round[rank] == rounds:
                return
            now += self._work(rank, self._round[rank])
        self._go_on(rank, now)


def _moves(algorithm: str, rank: int, size: int, n: int, itemsize: int) -> tuple[Move, ...]:
    """Return the moves of a rank in an all-reduce."""
    if algorithm not in PLANS:
        raise InvalidParameterError(f"predict(algorithm=...) does not support {algorithm!r}.")
    return PLANS[algorithm](rank, size, n, itemsize).moves
