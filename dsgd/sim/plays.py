"""The tables of ranks that are inside schedules, which grow with what is under way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from typing import Final

import numpy as np

from dsgd.comm.base import Schedule
from dsgd.sim.kernels import (
    FREE_MESSAGE,
    FULL,
    N_ARRIVAL,
    N_DONE,
    N_HEAP,
    N_PLACES,
    N_SECONDS,
    NOW,
    RESUMES,
    Plays,
    play,
)
from dsgd.sim.network import Network
from dsgd.sim.ports import Ports, grown
from dsgd.types import FloatMatrix, FloatVector, IntMatrix

_CAPACITY: Final = 64
_N_REPEATED: Final = 4
_NEVER: Final = inf, 1 << 62


class PlayTable:
    """What `dsgd.sim.kernels.play` works on."""

    def __init__(self, ports: Ports, size: int, added_byte_s: float) -> None:
        self._ports, self._size, self._added_byte_s = ports, size, added_byte_s
        under_way, after = grown(np.zeros((0, 2)), np.zeros(0, np.int64), _CAPACITY)
        self.plays = Plays(
            seconds=np.zeros((size, N_SECONDS)),
            places=np.full((size, N_PLACES), -1),
            heap=np.zeros(size, np.int64),
            done=np.zeros(size, np.int64),
            under_way=under_way,
            senders=np.stack([np.full(_CAPACITY, -1), after], axis=1),
            counts=ports.counts,
            repeats=np.zeros((size, 0, _N_REPEATED)),
        )
        self.plays.counts[FREE_MESSAGE] = 0

    @property
    def next(self) -> tuple[float, int]:
        """The time of the next move, and whose it is; infinite for none."""
        if not self.plays.counts[N_HEAP]:
            return _NEVER
        rank = int(self.plays.heap[0])
        return float(self.plays.seconds[rank, NOW]), rank

    def set_work(self, rank: int | slice, work_s: FloatMatrix | Sequence[float]) -> None:
        """Say how many seconds a rank works, or ranks do, before each time of a schedule that is repeated."""
        n = np.shape(work_s)[-1]
        repeats = self.plays.repeats
        if repeats.shape[1] < n:
            room = np.zeros((self._size, n - repeats.shape[1], _N_REPEATED))
            self.plays = self.plays._replace(repeats=np.concatenate([repeats, room], axis=1))
        self.plays.repeats[rank, :n, 0] = work_s

    def play(
        self, moves: IntMatrix, arrivals: Sequence[Sequence[float]], until: tuple[float, int] | None = None
    ) -> Iterator[int]:
        """Play moves until a time, or the time at which a rank goes on whose schedule is over; or to their end."""
        to_the_end = until is None
        until = _NEVER if until is None else until
        begun = np.array(arrivals, np.float64).reshape(-1, N_ARRIVAL)
        while True:
            self._make_room()
            self.plays.counts[N_DONE] = 0
            code = play(self._ports.state, self.plays, moves, self._added_byte_s, begun, *until, to_the_end)
            ended = self.plays.done[: self.plays.counts[N_DONE]].tolist()
            yield from ended
            if code != FULL:
                return
            if not to_the_end:
                until = min([until, *((float(self.plays.seconds[rank, RESUMES]), rank) for rank in ended)])
            begun = begun[:0]

    def _make_room(self) -> None:
        self._ports.make_room()
        if self.plays.counts[FREE_MESSAGE] < 0:
            n = len(self.plays.senders)
            senders, after = self.plays.senders.T
            under_way, after = grown(self.plays.under_way, after, 2 * n)
            senders = np.concatenate([senders, np.full(n, -1)])
            self.plays = self.plays._replace(under_way=under_way, senders=np.stack([senders, after], axis=1))
            self.plays.counts[FREE_MESSAGE] = n


def play_rounds(
    network: Network, schedules: Sequence[Schedule], work_s: FloatMatrix, added_byte_s: float
) -> FloatVector:
    """Return when each rank has ended its rounds of work and messages."""
    size, n_rounds = work_s.shape
    table = PlayTable(Ports(network, size), size, added_byte_s)
    now = np.zeros(size)
    if len(schedules) == 1:
        table.set_work(slice(None), work_s)
        _play_all(table, schedules[0], now, n_rounds)
        return table.plays.seconds[:, NOW]
    for k in range(n_rounds):
        schedule = schedules[k % len(schedules)]
        _play_all(table, schedule, now + work_s[:, k], 0)
        silent = np.diff(schedule.first) == 0
        now = np.where(silent, now + work_s[:, k], table.plays.seconds[:, NOW])
    return now


def _play_all(table: PlayTable, schedule: Schedule, now: FloatVector, n_times: int) -> None:
    """Play a schedule to its end, of ranks that all begin it, at these times; those without moves take no part."""
    spans = zip(schedule.first[:-1].tolist(), schedule.first[1:].tolist(), now.tolist(), strict=True)
    arrivals = [
        (rank, first, stop, 0, at, 0, 0, n_times) for rank, (first, stop, at) in enumerate(spans) if first < stop
    ]
    n_ended = sum(1 for _ in table.play(schedule.moves, arrivals))
    assert n_ended == len(arrivals)  # nobody waits for a message that is not sent
