"""Collectives of simulated ranks, played as a table of messages instead of one call after another.

Problem: a thread that has its turn takes some ten microseconds, and a collective of P ranks P log2 P turns at least.

Method: a rank that begins a collective leaves its moves here (`dsgd.comm.base`) and sleeps until they are over.
Moves take their turns in the order of clocks like everything else that ranks do (`dsgd.sim.event_scheduler`), so all
messages meet the same ports in the same state, whatever other ranks do meanwhile; but those between two turns of
threads are played in one call of a kernel (`dsgd.sim.kernels`). The last rank to begin makes the result of all: it
depends on what ranks bring, and not on when.

Cost: a turn for each rank and collective, and some 0.2 us a message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from math import inf
from typing import Any, Final, NamedTuple

import numpy as np

from dsgd.comm.base import Call
from dsgd.comm.frames import Header, check_array, describe_mismatch
from dsgd.errors import ProtocolError
from dsgd.ledger import WAIT as WAITED
from dsgd.ledger import WIRE as WIRED
from dsgd.ledger import RankLedger
from dsgd.sim.kernels import NOW, RESUMES, SOURCE, WAIT, WIRE
from dsgd.sim.plays import PlayTable
from dsgd.sim.ports import Ports
from dsgd.types import IntMatrix

# Moves of schedules that are kept while no rank is in them: those of some rounds of a training are used again.
_MOST_MOVES: Final = 1 << 22


class Ended(NamedTuple):
    """A rank whose moves are over."""

    rank: int
    turn: float
    now: float


class _Gathering:
    """A collective that some ranks have begun."""

    def __init__(self, rank: int, call: Call, size: int) -> None:
        self.rank, self.call = rank, call
        self.brought: list[Any] = [None] * size
        self.n_begun = 0


class Player:
    """The ranks that are inside a collective."""

    def __init__(self, ports: Ports, size: int, added_byte_s: float) -> None:
        self._size = size
        self._table = PlayTable(ports, size, added_byte_s)
        self._arrivals: list[tuple[float, ...]] = []
        self._schedules = _Schedules()
        self._gatherings: dict[int, _Gathering] = {}
        self._n_begun = [0] * size
        self._kinds: list[Hashable] = [None] * size
        self.next: tuple[float, int] = (inf, size)

    def begin(self, rank: int, now: float, call: Call, ledger: RankLedger, work_s: Sequence[float] = ()) -> None:
        """Take the moves of a rank; the last one to begin a collective makes the result."""
        dtype = check_array(call.array)
        number = self._n_begun[rank]
        self._n_begun[rank] = number + 1
        gathering = self._gatherings.get(number)
        if gathering is None:
            gathering = self._gatherings[number] = _Gathering(rank, call, self._size)
        elif gathering.call.kind != call.kind:
            raise ProtocolError(_describe(gathering, rank, call, dtype))
        gathering.brought[rank] = call.own
        gathering.n_begun += 1
        if gathering.n_begun == self._size:
            del self._gatherings[number]
            call.finish(gathering.brought)
        known = self._schedules.enter(call)
        self._kinds[rank] = call.kind
        first, stop = known.ends[rank], known.ends[rank + 1]
        self._arrivals.append(
            (rank, first, stop, ledger.is_control, now, ledger.charged(WIRED), ledger.charged(WAITED), len(work_s))
        )
        if work_s:
            self._table.set_work(rank, work_s)
        else:
            ledger.count(*known.sent[rank])
        self.next = min(self.next, (now, rank))

    def play(self, until: tuple[float, int]) -> Iterator[Ended]:
        """Play moves until the turn of a rank that is in no collective, or becomes so."""
        arrivals, self._arrivals = self._arrivals, []
        for rank in self._table.play(self._schedules.moves, arrivals, until):
            self._schedules.leave(self._kinds[rank])
            seconds = self._table.plays.seconds[rank]
            yield Ended(rank, float(seconds[RESUMES]), float(seconds[NOW]))
        self.next = self._table.next

    def charge(self, rank: int, call: Call, ledger: RankLedger) -> None:
        """Charge a rank whose moves are over with the seconds that they took; or write down those of each time."""
        if call.repeats is not None:
            call.repeats.seconds[:] = self._table.plays.repeats[rank, : len(call.repeats.seconds)]
            return
        seconds = self._table.plays.seconds[rank]
        ledger.recharge(WIRED, float(seconds[WIRE]))
        if not ledger.is_control:
            ledger.recharge(WAITED, float(seconds[WAIT]))

    def waits(self) -> dict[int, int]:
        """Return whom each rank waits for whose next message has not been sent."""
        sources = self._table.plays.places[:, SOURCE]
        return {rank: int(sources[rank]) for rank in np.flatnonzero(sources >= 0).tolist()}


class _Known(NamedTuple):
    """Where the moves of a schedule are in the table: of each rank they end where those of the next begin."""

    ends: list[int]
    sent: list[list[int]]


class _Schedules:
    """The schedules of the collectives that ranks are in, one after another in one table of moves."""

    def __init__(self) -> None:
        self.moves: IntMatrix = np.zeros((0, 4), np.int64)
        self._known: dict[Hashable, _Known] = {}
        self._n_inside: Counter[Hashable] = Counter()
        self._unused: list[tuple[int, int]] = []

    def enter(self, call: Call) -> _Known:
        """Return the schedule of a collective that a rank begins."""
        self._n_inside[call.kind] += 1
        found = self._known.get(call.kind)
        if found is None:
            schedule = call.schedule()
            start = self._place(len(schedule.moves))
            self.moves[start : start + len(schedule.moves)] = schedule.moves
            found = self._known[call.kind] = _Known((schedule.first + start).tolist(), schedule.sent.tolist())
        return found

    def leave(self, kind: Hashable) -> None:
        """Take note that a rank has ended one."""
        self._n_inside[kind] -= 1

    def _place(self, n: int) -> int:
        """Return where n moves can be written; schedules in which no rank is are forgotten for it if there are many."""
        if len(self.moves) + n > _MOST_MOVES:
            for kind in [kind for kind in self._known if not self._n_inside[kind]]:
                ends = self._known.pop(kind).ends
                del self._n_inside[kind]
                self._unused.append((ends[0], ends[-1]))
            self._unused = [(first, last) for first, last in self._unused if first < last]
        for k, (first, last) in enumerate(self._unused):
            if last - first >= n:
                self._unused[k] = first + n, last
                return first
        first = len(self.moves)
        self.moves = np.concatenate([self.moves, np.zeros((n, 4), np.int64)])
        return first


def _describe(gathering: _Gathering, rank: int, call: Call, dtype: int) -> str:
    """Return how the collective that a rank begins differs from the one that another has begun."""
    first = gathering.call
    expected = Header(0, 0, 0, call.op, dtype, call.array.nbytes)
    got = Header(0, 0, 0, first.op, check_array(first.array), first.array.nbytes)
    what = describe_mismatch(expected, got) or f"expected {call.kind}, got {first.kind}"
    return f"rank {rank} and rank {gathering.rank} are not at the same point: {what}."
