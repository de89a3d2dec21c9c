"""Whose turn it is: of the ranks that could go on, the one whose clock shows the earliest time.

Problem: ranks are threads that run the loop of every other gang, but what they do must happen in the order of their
virtual clocks, whatever the machine does meanwhile, and the same every time.

Method: each thread has a lock of its own, which it waits on unless it is its turn. Before a rank touches what others
see (a port, a queue) it lets all go first whose clocks are earlier; of equal clocks the lower rank goes first. A rank
that waits for a message has no place in the queue until the message comes. When a rank must wait and nobody is left who
could go on, all wait for each other, which is an error that can be told at once.

Cost: one release and one acquisition of a lock when the turn changes, nothing when it does not; 5 us on Linux, most of
it the interpreter lock that changes hands.
"""

from __future__ import annotations

import heapq
import threading
from typing import Final

from dsgd.comm.base import AbortFlag
from dsgd.errors import ProtocolError

__all__ = ["Turns", "VirtualClock"]

_DEAF_S: Final = 0.25


class VirtualClock:
    """The clock of one rank: seconds since the gang began. Called, it says what time it is.

    Attributes
    ----------
    now : float
        The time; whoever does something that takes a while moves it on.
    """

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self.now


class Turns:
    """The turns of the ranks of one gang; every method but `begin` is called by the rank whose turn it is.

    Parameters
    ----------
    n : int
        How many ranks.
    abort : AbortFlag
        When it is set all ranks go on at once, to find that the job has stopped.

    Attributes
    ----------
    clocks : list of VirtualClock, length n
        The clock of each rank.
    n_switches : int
        How often the turn went from one rank to another.
    """

    def __init__(self, n: int, abort: AbortFlag) -> None:
        self.clocks = [VirtualClock() for _ in range(n)]
        self.n_switches = 0
        self._abort = abort
        self._ready = [(0.0, rank) for rank in range(n)]  # a heap
        self._locks = [threading.Lock() for _ in range(n)]
        self._waits: dict[int, int | None] = {}  # whom each rank that cannot go on waits for; None for anybody
        self._ended: set[int] = set()
        self._deadlock = ""
        for lock in self._locks:
            lock.acquire()
        self._next()
        abort.on_set(self._release_all)

    def begin(self, rank: int) -> None:
        """Wait for the first turn of a rank."""
        self._sleep(rank)

    def take(self, rank: int) -> None:
        """Return once no other rank that could go on has an earlier clock."""
        self._abort.check()
        if self._ready and self._ready[0] < (now := (self.clocks[rank].now, rank)):
            heapq.heappush(self._ready, now)
            self._switch(rank)

    def wait(self, rank: int, source: int | None) -> None:
        """Return once somebody has called `wake` for this rank, at its turn.

        Parameters
        ----------
        rank : int
            This rank.
        source : int or None
            Whom it waits for; None for anybody.

        Raises
        ------
        AbortedError
            The job has stopped.
        ProtocolError
            All ranks wait for each other; says who waits for whom.
        """
        self._abort.check()
        self._waits[rank] = source
        self._switch(rank)

    def wake(self, rank: int, at: float) -> None:
        """Let a rank that waits go on, when it is that late."""
        del self._waits[rank]
        clock = self.clocks[rank]
        clock.now = max(clock.now, at)
        heapq.heappush(self._ready, (clock.now, rank))

    def waits_for(self, rank: int, source: int) -> bool:
        """Return whether a rank waits to be woken by another one."""
        return self._waits.get(rank, rank) in (source, None)

    def end(self, rank: int) -> None:
        """Leave for good; somebody else's turn comes."""
        if rank not in self._ended and not self._abort.is_set:
            self._ended.add(rank)
            self._next()

    def _switch(self, rank: int) -> None:
        self._next()
        self._sleep(rank)

    def _next(self) -> None:
        if self._ready:
            self.n_switches += 1
            _release(self._locks[heapq.heappop(self._ready)[1]])
        elif self._waits:
            ended = f" Ranks that have ended: {sorted(self._ended)}." if self._ended else ""
            waits = "; ".join(
                f"rank {rank} waits for {'anybody' if source is None else f'rank {source}'}"
                for rank, source in sorted(self._waits.items())
            )
            self._deadlock = f"no rank can go on, all that are left wait: {waits}.{ended}"
            self._release_all()

    def _sleep(self, rank: int) -> None:
        while not self._locks[rank].acquire(timeout=_DEAF_S):
            # An interrupt that came to another thread is raised in the main one when it looks up.
            continue
        if self._deadlock:
            raise ProtocolError(self._deadlock)
        self._abort.check()

    def _release_all(self) -> None:
        for lock in self._locks:
            _release(lock)


def _release(lock: threading.Lock) -> None:
    """Release a lock, unless an abort has done so already."""
    try:
        lock.release()
    except RuntimeError:
        return
