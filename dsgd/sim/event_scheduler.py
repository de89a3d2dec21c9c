"""The scheduler of simulated ranks: the rank whose clock is earliest runs next.

Problem: ranks are threads that run the usual training loop, but their actions must happen in the order of their virtual
clocks, whatever the machine does meanwhile, and the same every time.

Method: discrete-event simulation. Each thread has its own lock, on which it waits unless it is its turn. Before a rank
touches shared state (a port, a queue), all ranks with earlier clocks run first; of equal clocks, the lower rank. A rank
that waits for a message has no place in the queue until the message arrives. If a rank must wait and no other can run,
all wait for each other, which raises an error at once.

Cost: one release and one acquisition of a lock when the turn changes, nothing when it does not; 5 us on Linux, most of
it the interpreter lock that changes hands.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Collection
from math import inf
from typing import Final, Literal, NamedTuple

from dsgd.comm.frames import AbortFlag
from dsgd.errors import ProtocolError
from dsgd.sim.player import Player

_DEAF_S: Final = 0.25
_NEVER: Final = inf, 1 << 62


class VirtualClock:
    """The clock of one rank: seconds since the gang began. Called, it says what time it is."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self.now


#: What a rank waits for: a frame of a collective, a message in its mailbox, or room in that of somebody else.
Channel = Literal["exchange", "mail", "room"]


class _Wait(NamedTuple):
    channel: Channel
    sources: Collection[int]


class EventScheduler:
    """Lets the ranks of a gang run in the order of their clocks; the running rank calls all methods except `begin`."""

    def __init__(self, n: int, abort: AbortFlag) -> None:
        self.clocks = [VirtualClock() for _ in range(n)]
        self._abort = abort
        # When each rank can run, and a heap of these times; an entry of the heap with another time is stale.
        self._due = [0.0] * n
        self._ready = [(0.0, rank) for rank in range(n)]
        self._locks = [threading.Lock() for _ in range(n)]
        self._waits: dict[int, _Wait] = {}
        self._ended: set[int] = set()
        self._deadlock = ""
        self._player: Player | None = None
        for lock in self._locks:
            lock.acquire()
        self._next()
        abort.on_set(self._release_all)

    def begin(self, rank: int) -> None:
        """Wait for the first turn of a rank."""
        self._sleep(rank)

    def attach(self, player: Player) -> None:
        """Let a player take its turns among those of ranks; called before any of them begins."""
        self._player = player

    def sleep_while_played(self, rank: int) -> None:
        """Return at the turn that comes after the moves of a rank which the player has been given."""
        self._switch(rank)

    def take(self, rank: int) -> None:
        """Return once no other rank that can run has an earlier clock."""
        self._abort.check()
        mine = self.clocks[rank].now, rank
        if self._earliest() < mine:
            self._enter(*mine)
            self._switch(rank)

    def wait(self, rank: int, channel: Channel, sources: Collection[int], until: float = inf) -> None:
        """Return at a time, or once somebody has called `wake` for this rank, at its turn."""
        self._abort.check()
        self._waits[rank] = _Wait(channel, sources)
        if until < inf:
            self._enter(until, rank)
        self._switch(rank)
        self._waits.pop(rank, None)

    def wake(self, rank: int, channel: Channel, source: int, at: float) -> None:
        """Let a rank run at a time, or earlier if that is set already, if this is what it waits for."""
        wait = self._waits.get(rank)
        if wait is not None and wait.channel == channel and source in wait.sources:
            at = max(at, self.clocks[rank].now)
            if at < self._due[rank]:
                self._enter(at, rank)

    def end(self, rank: int) -> None:
        """Leave for good; somebody else's turn comes."""
        if rank not in self._ended and not self._abort.is_set:
            self._ended.add(rank)
            self._next()

    def _enter(self, at: float, rank: int) -> None:
        self._due[rank] = at
        heapq.heappush(self._ready, (at, rank))

    def _earliest(self) -> tuple[float, int]:
        """Return the earliest time at which a rank can run or is played, and that rank."""
        while self._ready and self._ready[0][0] != self._due[self._ready[0][1]]:
            heapq.heappop(self._ready)
        first = self._ready[0] if self._ready else _NEVER
        return first if self._player is None else min(first, self._player.next)

    def _play(self) -> None:
        """Play what comes before the turn of a rank."""
        player = self._player
        while player is not None and player.next[0] < inf and player.next == self._earliest():
            first = self._ready[0] if self._ready else _NEVER
            for ended in player.play(first):
                self.clocks[ended.rank].now = ended.now
                self._enter(ended.turn, ended.rank)

    def _switch(self, rank: int) -> None:
        self._next()
        self._sleep(rank)

    def _next(self) -> None:
        self._play()
        at, rank = self._earliest()
        if at < inf:
            heapq.heappop(self._ready)
            self._due[rank] = inf
            clock = self.clocks[rank]
            clock.now = max(clock.now, at)
            _release(self._locks[rank])
            return
        inside = {} if self._player is None else self._player.waits()
        self._waits |= {rank: _Wait("exchange", (source,)) for rank, source in inside.items()}
        if self._waits:
            ended = f" Ranks that have ended: {sorted(self._ended)}." if self._ended else ""
            waits = "; ".join(_describe(rank, wait) for rank, wait in sorted(self._waits.items()))
            self._deadlock = f"deadlock, all remaining ranks wait: {waits}.{ended}"
            self._release_all()

    def _sleep(self, rank: int) -> None:
        # An interrupt that came to another thread is raised in the main one when it looks up. The others are woken:
        # thousands of threads that look up now and then would take the time of those that work.
        limit = _DEAF_S if threading.current_thread() is threading.main_thread() else -1
        while not self._locks[rank].acquire(timeout=limit):
            continue
        if self._deadlock:
            raise ProtocolError(self._deadlock)
        self._abort.check()

    def _release_all(self) -> None:
        for lock in self._locks:
            _release(lock)


def _describe(rank: int, wait: _Wait) -> str:
    what = {"exchange": "", "mail": "mail of ", "room": "room in the mailbox of "}[wait.channel]
    peers = ", ".join(map(str, sorted(wait.sources)))
    return f"rank {rank} waits for {what}rank{'s' * (len(wait.sources) > 1)} {peers}"


def _release(lock: threading.Lock) -> None:
    """Release a lock, unless an abort has done so already."""
    try:
        lock.release()
    except RuntimeError:
        return
