"""How long a rank waits for its peers: deadlines that follow the rounds measured.

One fixed limit either kills a job with long rounds, or lets a program that hangs in rounds of milliseconds go unnoticed
for minutes. After 20 measured rounds, and whenever as many more have been measured, the deadline of a wait becomes
``max(floor, 10 * median round, 3 * longest round)``, never more than the limit that the job was given. The floor is a
tenth of that limit, and at least a second: rounds of microseconds say nothing about how long a machine may swap. At the
end of an epoch ranks score rows, rank 0 may write a file, and the slowest rank is waited for where there was no round
at all: such a wait is measured by its own kind, and has the full limit until that is known. So has everything before
the first round: kernels that compile, rows that load. Cost: two clock reads in a round that the ledger times anyway; a
sort of 64 numbers every 20 rounds. Source: a multiple of what was measured, bounded on both sides, as TCP's
retransmission timer (RFC 6298).
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from statistics import median
from typing import Final, Literal

from dsgd.comm.base import AbstractTransport
from dsgd.errors import GangTimeoutError

#: Kinds of waits: for a round after another one, or for anything between two epochs.
Kind = Literal["round", "edge"]

# How many must be measured before they say anything.
_N_ROUNDS: Final = 20
_N_EDGES: Final = 3
_N_KEPT: Final = 64
_MEDIANS: Final = 10.0
_LONGEST: Final = 3.0
_FLOOR: Final = 0.1
_LEAST_S: Final = 1.0

# A smaller change is not worth a few system calls for each peer.
_WORTH: Final = 0.2


class RoundTimes:
    """What waits of one kind have taken."""

    def __init__(self, n_first: int) -> None:
        self._n_first = n_first
        self._n = 0
        self._kept: deque[float] = deque(maxlen=_N_KEPT)
        self._longest_s = 0.0
        self.median_s = 0.0

    def add(self, seconds: float, n: int) -> bool:
        """Take in n in one; return whether `median_s` has changed."""
        self._kept.append(seconds)
        self._longest_s = max(self._longest_s, seconds)
        before, self._n = self._n, self._n + n
        if before // self._n_first == self._n // self._n_first:
            return False
        self.median_s = median(self._kept)
        return True

    @property
    def is_known(self) -> bool:
        """Whether enough have been measured."""
        return self._n >= self._n_first

    @property
    def wanted_s(self) -> float:
        """How long to wait by these measurements alone; infinite while they are too few."""
        return max(_MEDIANS * self.median_s, _LONGEST * self._longest_s) if self.is_known else float("inf")


class Deadlines:
    """Sets the deadline of a transport before each kind of wait; used by the thread of its rank."""

    def __init__(self, transport: AbstractTransport, *, measures_edges: bool = True) -> None:
        self._transport = transport
        self._limit_s = transport.deadline_s
        self._floor_s = min(max(_FLOOR * self._limit_s, _LEAST_S), self._limit_s)
        self._kind: Kind = "edge"
        self._times: dict[Kind, RoundTimes] = {"round": RoundTimes(_N_ROUNDS), "edge": RoundTimes(_N_EDGES)}
        self._measures_edges = measures_edges
        self._edge_began = 0.0

    def expect(self, kind: Kind) -> None:
        """Say what kind of wait comes next."""
        if kind != self._kind:
            self._kind = kind
            self._apply()

    def add(self, seconds: float, n: int = 1) -> None:
        """Take in how long it was from the exchange before to the one that has just ended, work and waits together."""
        if self._times[self._kind].add(seconds, n):
            self._apply()

    def begin_edge(self, now: float) -> None:
        """Say that the last exchange before the edge of an epoch ended `now`, by the clock of the rank."""
        self._edge_began = now

    def end_edge(self, now: float) -> None:
        """Take in how long it was from there to the exchange that has ended `now`; the next edge may begin here."""
        self.add(now - self._edge_began)
        self._edge_began = now

    @property
    def deadline_s(self) -> float:
        """The deadline of the kind of wait that comes next, in seconds."""
        wanted_s = self._times[self._kind].wanted_s
        if self._kind == "edge":
            if not self._measures_edges:
                return self._limit_s
            # There may be a round in it.
            rounds = self._times["round"]
            wanted_s = max(wanted_s, rounds.wanted_s) if rounds.is_known else wanted_s
        return min(self._limit_s, max(self._floor_s, wanted_s))

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Add to a missed deadline a note that says how it came about."""
        try:
            yield
        except GangTimeoutError as error:
            if text := self.explain():
                error.add_note(text)
            raise

    def explain(self) -> str:
        """Explain the present deadline for the error of a rank that missed it; empty if it is the limit given."""
        if self._transport.deadline_s >= self._limit_s:
            return ""
        what = "round" if self._kind == "round" else "end of an epoch"
        return (
            f"The deadline was {self._transport.deadline_s:.3g} s: a {what} took "
            f"{self._times[self._kind].median_s:.3g} s in the median, and a rank waits {_MEDIANS:g} times as long, but "
            f"no less than {self._floor_s:g} s and no more than {self._limit_s:g} s (timeout_s)."
        )

    def _apply(self) -> None:
        wanted_s, now_s = self.deadline_s, self._transport.deadline_s
        # Longer at once, since somebody may be waited for; shorter only where it makes a difference.
        if wanted_s > now_s or wanted_s < (1.0 - _WORTH) * now_s:
            self._transport.set_deadline(wanted_s)
