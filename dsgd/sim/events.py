"""The events of a simulated gang: ports that serve one message at a time, collectives that are played, turns of ranks.

`EventScheduler`: ranks are threads that run the usual training loop, but their actions must happen in the order of
their virtual clocks, whatever the machine does meanwhile, and the same every time. This is discrete-event simulation:
each thread has its own lock, on which it waits unless it is its turn. Before a rank touches shared state (a port, a
queue), all ranks with earlier clocks run first; of equal clocks, the lower rank. A rank that waits for a message has no
place in the queue until the message arrives. If a rank must wait and no other can run, all wait for each other, which
raises an error at once. A turn that changes costs one release and one acquisition of a lock: 5 us on Linux, most of it
the interpreter lock that changes hands.

`Player`: a collective of P ranks would take P log2 P turns at least. So a rank that begins one leaves its moves here
(`dsgd.comm.base`) and sleeps until they are over. Moves take their turns in the order of clocks like everything else
that ranks do, so all messages meet the same ports in the same state, whatever other ranks do meanwhile; but those
between two turns of threads are played in one call of a kernel (`dsgd.sim.kernels`), at some 0.2 us a message. The last
rank to begin makes the result of all: it depends on what ranks bring, and not on when.
"""

from __future__ import annotations

import heapq
import threading
from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Sequence
from math import inf
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from dsgd.comm.base import Call, Schedule
from dsgd.comm.frames import AbortFlag, Header, check_array, describe_mismatch
from dsgd.errors import ProtocolError
from dsgd.ledger import WAIT, WIRE, RankLedger
from dsgd.sim import kernels
from dsgd.sim.network import Network
from dsgd.types import FloatMatrix, FloatVector, IntMatrix, IntVector

# Of messages that are under way at the same time; there is room for more when there are more.
_CAPACITY: Final = 64


class Ports:
    """The ports of a network; messages must be reported in the order in which they are sent."""

    def __init__(self, network: Network, size: int) -> None:
        n_ports = network.n_ports(size)
        lane = network.lane or network.inside
        odd = [sorted((a, b)) for a, b, _ in network.odd]
        links = [network.between, network.inside, lane, *(link for _, _, link in network.odd)]
        spans, after = grown(np.zeros((0, 2)), np.zeros(0, np.int64), _CAPACITY)
        self.counts: IntVector = np.zeros(kernels.N_COUNTS, np.int64)
        self.counts[kernels.FREE_MESSAGE] = -1
        self.state = kernels.PortState(
            out_free=np.zeros(n_ports),
            first=np.full(n_ports, -1),
            spans=spans,
            after=after,
            links=np.array([(link.latency_s, link.overhead_s, link.byte_s) for link in links]),
            lanes=np.array(network.lanes, np.int64).reshape((len(network.lanes),) * 2),
            odd=np.array(odd, np.int64).reshape(len(odd), 2),
            shape=np.array([network.ranks_per_host, -(-size // network.ranks_per_host), size, network.concurrent]),
        )

    def transfer(self, source: int, to: int, n_bytes: int, at: float) -> tuple[float, float]:
        """Reserve the ports for a message; return when its sender goes on, and when it arrives."""
        self.make_room()
        found: tuple[float, float] = kernels.reserve(self.state, self.counts, source, to, n_bytes, at)
        return found

    def make_room(self) -> None:
        """Make room for the spans of more messages, where there is none."""
        if self.counts[kernels.FREE_SPAN] < 0:
            n = len(self.state.after)
            spans, after = grown(self.state.spans, self.state.after, 2 * n)
            self.state = self.state._replace(spans=spans, after=after)
            self.counts[kernels.FREE_SPAN] = n


def grown(rows: FloatMatrix, after: IntVector, capacity: int) -> tuple[FloatMatrix, IntVector]:
    """Return rows, and which follows each, with room for more; the new ones follow each other."""
    n = len(after)
    room = np.concatenate([rows, np.zeros((capacity - n, 2))])
    following = np.concatenate([after, np.arange(n + 1, capacity + 1)])
    following[-1] = -1
    return room, following


_N_REPEATED: Final = 4
_NEVER: Final = inf, 1 << 62


class PlayTable:
    """What `dsgd.sim.kernels.play` works on."""

    def __init__(self, ports: Ports, size: int, added_byte_s: float) -> None:
        self._ports, self._size, self._added_byte_s = ports, size, added_byte_s
        under_way, after = grown(np.zeros((0, 2)), np.zeros(0, np.int64), _CAPACITY)
        self.plays = kernels.Plays(
            seconds=np.zeros((size, kernels.N_SECONDS)),
            places=np.full((size, kernels.N_PLACES), -1),
            heap=np.zeros(size, np.int64),
            done=np.zeros(size, np.int64),
            under_way=under_way,
            senders=np.stack([np.full(_CAPACITY, -1), after], axis=1),
            counts=ports.counts,
            repeats=np.zeros((size, 0, _N_REPEATED)),
        )
        self.plays.counts[kernels.FREE_MESSAGE] = 0

    @property
    def next(self) -> tuple[float, int]:
        """The time of the next move, and whose it is; infinite for none."""
        if not self.plays.counts[kernels.N_HEAP]:
            return _NEVER
        rank = int(self.plays.heap[0])
        return float(self.plays.seconds[rank, kernels.NOW]), rank

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
        begun = np.array(arrivals, np.float64).reshape(-1, kernels.N_ARRIVAL)
        while True:
            self._make_room()
            self.plays.counts[kernels.N_DONE] = 0
            code = kernels.play(self._ports.state, self.plays, moves, self._added_byte_s, begun, *until, to_the_end)
            ended = self.plays.done[: self.plays.counts[kernels.N_DONE]].tolist()
            yield from ended
            if code != kernels.FULL:
                return
            if not to_the_end:
                until = min([until, *((float(self.plays.seconds[rank, kernels.RESUMES]), rank) for rank in ended)])
            begun = begun[:0]

    def _make_room(self) -> None:
        self._ports.make_room()
        if self.plays.counts[kernels.FREE_MESSAGE] < 0:
            n = len(self.plays.senders)
            senders, after = self.plays.senders.T
            under_way, after = grown(self.plays.under_way, after, 2 * n)
            senders = np.concatenate([senders, np.full(n, -1)])
            self.plays = self.plays._replace(under_way=under_way, senders=np.stack([senders, after], axis=1))
            self.plays.counts[kernels.FREE_MESSAGE] = n


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
        return table.plays.seconds[:, kernels.NOW]
    for k in range(n_rounds):
        schedule = schedules[k % len(schedules)]
        _play_all(table, schedule, now + work_s[:, k], 0)
        silent = np.diff(schedule.first) == 0
        now = np.where(silent, now + work_s[:, k], table.plays.seconds[:, kernels.NOW])
    return now


def _play_all(table: PlayTable, schedule: Schedule, now: FloatVector, n_times: int) -> None:
    """Play a schedule to its end, of ranks that all begin it, at these times; those without moves take no part."""
    spans = zip(schedule.first[:-1].tolist(), schedule.first[1:].tolist(), now.tolist(), strict=True)
    arrivals = [
        (rank, first, stop, 0, at, 0, 0, 0, 0, n_times) for rank, (first, stop, at) in enumerate(spans) if first < stop
    ]
    n_ended = sum(1 for _ in table.play(schedule.moves, arrivals))
    assert n_ended == len(arrivals)  # nobody waits for a message that is not sent


# Moves of schedules that are kept while no rank is in them: those of some rounds of a training are used again.
_MOST_MOVES: Final = 1 << 22


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

    def begin(
        self, rank: int, clock: VirtualClock, call: Call, ledger: RankLedger, work_s: Sequence[float] = ()
    ) -> None:
        """Take the moves of a rank; the last one to begin a collective makes the result."""
        dtype = check_array(call.array)
        number = self._n_begun[rank]
        self._n_begun[rank] = number + 1
        gathering = self._gatherings.get(number)
        if gathering is None:
            gathering = self._gatherings[number] = _Gathering(rank, call, self._size)
        elif gathering.call.kind != call.kind:
            first = gathering.call
            expected = Header(0, 0, 0, call.op, dtype, call.array.nbytes)
            got = Header(0, 0, 0, first.op, check_array(first.array), first.array.nbytes)
            what = describe_mismatch(expected, got) or f"expected {call.kind}, got {first.kind}"
            raise ProtocolError(f"rank {rank} and rank {gathering.rank} are not at the same point: {what}.")
        gathering.brought[rank] = call.own
        gathering.n_begun += 1
        if gathering.n_begun == self._size:
            del self._gatherings[number]
            call.finish(gathering.brought)
        known = self._schedules.enter(call)
        self._kinds[rank] = call.kind
        begin, stop = known.ends[rank], known.ends[rank + 1]
        charged = ledger.charged(WIRE), ledger.charged(WAIT)
        read = clock.now, clock.ideal, clock.owed_s
        self._arrivals.append((rank, begin, stop, ledger.is_control, *read, *charged, len(work_s)))
        if work_s:
            self._table.set_work(rank, work_s)
        else:
            ledger.count(*known.sent[rank])
        self.next = min(self.next, (clock.now, rank))

    def play(self, until: tuple[float, int]) -> Iterator[tuple[int, float, VirtualClock]]:
        """Play moves until the turn of a rank in no collective; yield each rank whose moves are over, and its clock."""
        arrivals, self._arrivals = self._arrivals, []
        for rank in self._table.play(self._schedules.moves, arrivals, until):
            self._schedules.leave(self._kinds[rank])
            seconds = self._table.plays.seconds[rank]
            read = seconds[[kernels.NOW, kernels.IDEAL, kernels.OWED]]
            yield rank, float(seconds[kernels.RESUMES]), VirtualClock(*read.tolist())
        self.next = self._table.next

    def charge(self, rank: int, call: Call, ledger: RankLedger) -> None:
        """Charge a rank whose moves are over with the seconds that they took; or write down those of each time."""
        if call.repeats is not None:
            call.repeats.seconds[:] = self._table.plays.repeats[rank, : len(call.repeats.seconds)]
            return
        seconds = self._table.plays.seconds[rank]
        ledger.recharge(WIRE, float(seconds[kernels.WIRE]))
        if not ledger.is_control:
            ledger.recharge(WAIT, float(seconds[kernels.WAIT]))

    def waits(self) -> dict[int, int]:
        """Return whom each rank waits for whose next message has not been sent."""
        sources = self._table.plays.places[:, kernels.SOURCE]
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


_DEAF_S: Final = 0.25


class VirtualClock:
    """The clock of one rank: seconds since the gang began. Called, it says what time it is.

    - `ideal`: what it would say if messages took no time. A rank waits for a late peer as long as this clock does for
      that of the peer; whatever else passes in an exchange is the network's.
    - `owed_s`: what it has waited like this without a second of an exchange that it could be charged with, yet.
    """

    __slots__ = ("ideal", "now", "owed_s")

    def __init__(self, now: float = 0.0, ideal: float = 0.0, owed_s: float = 0.0) -> None:
        self.now, self.ideal, self.owed_s = now, ideal, owed_s

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self.now

    def set(self, other: VirtualClock) -> None:
        """Say what another clock says."""
        self.now, self.ideal, self.owed_s = other.now, other.ideal, other.owed_s

    def charge_exchange(self, ledger: RankLedger, begin: float, ideal: float) -> None:
        """Charge the seconds since `begin`, if a message that takes no time would come at `ideal`.

        Who was held up by the network before may have no time left to wait: that part of the wire was a wait, too.
        """
        ideal, elapsed_s = max(ideal, self.ideal), self.now - begin
        owed_s = self.owed_s + ideal - self.ideal
        wait_s = min(owed_s, elapsed_s + ledger.charged(WIRE))
        self.ideal, self.owed_s = ideal, owed_s - wait_s
        ledger.charge(WIRE, elapsed_s - wait_s)
        ledger.charge(WAIT, wait_s)


#: What a rank waits for: a frame of a collective, a message in its mailbox, or room in that of somebody else.
Channel = Literal["exchange", "mail", "room"]


class _Wait(NamedTuple):
    channel: Channel
    sources: Collection[int]


class EventScheduler:
    """Lets the ranks of a gang run in the order of their clocks; the running rank calls all methods except `begin`."""

    def __init__(self, n: int, abort: AbortFlag, begin: float = 0.0, stop: float = inf) -> None:
        self.clocks = [VirtualClock(begin, begin) for _ in range(n)]
        self._abort, self._stop = abort, stop
        self.is_stopped = False  # whether the time came at which a machine stops, and all ranks with it
        # When each rank can run, and a heap of these times; an entry of the heap with another time is stale.
        self._due = [begin] * n
        self._ready = [(begin, rank) for rank in range(n)]
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

    def take(self, rank: int) -> None:
        """Return once no other rank that can run has an earlier clock."""
        self._abort.check()
        mine = self.clocks[rank].now, rank
        if self._earliest() < mine or mine[0] >= self._stop:
            self._enter(*mine)
            self.switch(rank)

    def wait(self, rank: int, channel: Channel, sources: Collection[int], until: float = inf) -> None:
        """Return at a time, or once somebody has called `wake` for this rank, at its turn."""
        self._abort.check()
        self._waits[rank] = _Wait(channel, sources)
        if until < inf:
            self._enter(until, rank)
        self.switch(rank)
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
            for rank, turn, clock in player.play(first):
                self.clocks[rank].set(clock)
                self._enter(turn, rank)

    def switch(self, rank: int) -> None:
        """Let the next rank run; return at the next turn of this one, which comes after its moves in the player."""
        self._next()
        self._sleep(rank)

    def _next(self) -> None:
        self._play()
        at, rank = self._earliest()
        if self._stop <= at < inf:
            self.is_stopped = True
            self._abort.set(f"a machine stopped at {self._stop:g} s")
            return
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
