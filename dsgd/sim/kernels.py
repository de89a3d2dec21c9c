"""The compiled loops of the simulator: ports that serve one message at a time, and schedules that are played on them.

Problem: a round of a thousand ranks is ten thousand messages, each of which takes Python some ten microseconds.

Method: the events of ranks that are inside a collective (`dsgd.comm.base`) are kept in a heap of their own, by clock
and of equal clocks by rank, and are played one after another: a message reserves the port that it leaves by and the one
that it comes in by, and the receiver goes on when it has arrived. Every sum and every comparison is that of
`dsgd.sim.cluster.SimTransport.exchange`, in the same order, so seconds are the same to the bit.

Cost: some 0.2 us a message.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from dsgd.kernels.jit import kernel, scalar
from dsgd.types import AnyArray, FloatMatrix, FloatVector, IntMatrix, IntVector

# What `play` returns.
PLAYED: Final = 0
FULL: Final = 1  # no room for another message: make some and call again

# Columns of the seconds of a rank: its clock, since the present move began; when that message had left; the two others
# of `dsgd.sim.events.VirtualClock`; and what was charged so far. The last two are when a rank whose schedule is over
# goes on, and when the present time of a schedule that is repeated began.
NOW, END, IDEAL, OWED, WIRE, WAIT, RESUMES, BEGAN, N_SECONDS = range(9)
# Columns of the places of a rank: its present move and the one after its last; whom it waits for, or -1; whether wait
# is charged to the column of wire; the first and last of the messages that have come to it; and of a schedule that is
# repeated its first move, the present time, and how often (0 for one that is not).
AT, STOP, SOURCE, MERGED, MESSAGES, LAST, FIRST, TIME, TIMES, N_PLACES = range(10)
# What is counted: ranks in the heap, the first unused message and span, and ranks whose schedules are over.
N_HEAP, FREE_MESSAGE, FREE_SPAN, N_DONE, N_COUNTS = range(5)
# Columns of an arrival: rank, first move, end of moves, merged; clock, ideal, owed, wire and wait so far; how often it
# is repeated.
N_ARRIVAL: Final = 10


class PortState(NamedTuple):
    """Ports and links, as kernels see them.

    - `after`, shape (capacity,): the span that follows, of the same port or of those that are free; -1 after the
      last.
    - `links`, shape (3 + n_odd, 3): latency, overhead and seconds per byte: between hosts, inside, of a lane, and
      of odd pairs.
    - `shape`, shape (4,): ranks of a host, hosts and ranks; and whether a rank's ports carry at the same time.
    """

    out_free: FloatVector
    first: IntVector
    spans: FloatMatrix
    after: IntVector
    links: FloatMatrix
    lanes: IntMatrix
    odd: IntMatrix
    shape: IntVector


class Plays(NamedTuple):
    """The ranks that are inside a schedule, as kernels see them.

    - `heap`, shape (size,): ranks that can go on, those with the earliest clocks first, as a binary heap.
    - `senders`, shape (capacity, 2): its sender, and the message that follows, to the same rank or of those that
      are unused.
    - `repeats`, shape (size, capacity, 4): of each time of a schedule that is repeated: the work before it, then
      `dsgd.comm.base.Repeats.seconds`.
    """

    seconds: FloatMatrix
    places: IntMatrix
    heap: IntVector
    done: IntVector
    under_way: FloatMatrix
    senders: IntMatrix
    counts: IntVector
    repeats: AnyArray


@scalar
def _take_in(ports: PortState, counts: IntVector, port: int, begin: float, busy_s: float, now: float) -> Any:
    """Take a port for a while, from `begin` or the first time later at which it is free; return the end."""
    spans, after = ports.spans, ports.after
    place = ports.first[port]
    while place >= 0 and spans[place, 1] <= now:
        dropped, place = place, after[place]
        after[dropped] = counts[FREE_SPAN]
        counts[FREE_SPAN] = dropped
    ports.first[port] = place
    before = np.int64(-1)
    while place >= 0 and begin + busy_s > spans[place, 0]:
        begin = max(begin, spans[place, 1])
        before, place = place, after[place]
    made = counts[FREE_SPAN]
    counts[FREE_SPAN] = after[made]
    spans[made, 0] = begin
    spans[made, 1] = begin + busy_s
    after[made] = place
    if before < 0:
        ports.first[port] = made
    else:
        after[before] = made
    return begin + busy_s


@scalar
def _transfer(ports: PortState, counts: IntVector, source: int, to: int, n_bytes: int, at: float) -> Any:
    """Reserve the ports for a message; return when its sender goes on, and when it arrives."""
    links, n, n_hosts = ports.links, ports.shape[0], ports.shape[1]
    port_out, port_in, row = source // n, to // n, 0
    byte_s = links[0, 2]
    if port_out != port_in:
        low, high = min(port_out, port_in), max(port_out, port_in)
        for k in range(ports.odd.shape[0]):
            if ports.odd[k, 0] == low and ports.odd[k, 1] == high:
                row = 3 + k
                break
        byte_s = links[row, 2]
    else:
        n_lanes = np.int64(0)
        if ports.lanes.shape[0] > 0:
            n_lanes = ports.lanes[source % n, to % n]
        if n_lanes == 0:
            row, port_out, port_in = 1, n_hosts + source, n_hosts + to
            byte_s = links[1, 2]
        else:
            # One port per direct neighbour, a seat on its host.
            first = n_hosts + ports.shape[2]
            row, port_out, port_in = 2, first + source * n + to % n, first + to * n + source % n
            byte_s = links[2, 2] / n_lanes
    busy_s = links[row, 1] + byte_s * n_bytes
    begin = max(at, ports.out_free[port_out])
    sent = begin + busy_s
    ports.out_free[port_out] = sent
    arrives = _take_in(ports, counts, port_in, begin + links[row, 0], busy_s, at)
    # With ports that carry at the same time a rank hands its message over and goes on, and the message waits.
    return (at if ports.shape[3] else sent), arrives


@kernel
def reserve(ports: PortState, counts: IntVector, source: int, to: int, n_bytes: int, at: float) -> Any:
    """Reserve the ports for a message, given a free span; return when the sender goes on, and when it arrives."""
    return _transfer(ports, counts, source, to, n_bytes, at)


@scalar
def _push(plays: Plays, rank: int) -> None:
    """Put a rank into the heap."""
    heap, seconds = plays.heap, plays.seconds
    place = plays.counts[N_HEAP]
    plays.counts[N_HEAP] = place + 1
    now = seconds[rank, NOW]
    while place > 0:
        above = (place - 1) // 2
        other = heap[above]
        if seconds[other, NOW] < now or (seconds[other, NOW] == now and other < rank):
            break
        heap[place] = other
        place = above
    heap[place] = rank


@scalar
def _pop(plays: Plays) -> Any:
    """Take the rank with the earliest clock from the heap."""
    heap, seconds = plays.heap, plays.seconds
    n = plays.counts[N_HEAP] - 1
    plays.counts[N_HEAP] = n
    top, rank = heap[0], heap[n]
    now = seconds[rank, NOW]
    place = np.int64(0)
    while True:
        below = 2 * place + 1
        if below >= n:
            break
        a = heap[below]
        if below + 1 < n:
            b = heap[below + 1]
            if seconds[b, NOW] < seconds[a, NOW] or (seconds[b, NOW] == seconds[a, NOW] and b < a):
                below, a = below + 1, b
        if now < seconds[a, NOW] or (now == seconds[a, NOW] and rank < a):
            break
        heap[place] = a
        place = below
    heap[place] = rank
    return top


@scalar
def _begin_again(plays: Plays, rank: int) -> None:
    """Let a rank do its work and then begin its schedule, once more."""
    seconds, places = plays.seconds, plays.places
    line = plays.repeats[rank, places[rank, TIME]]
    now = seconds[rank, NOW]
    seconds[rank, BEGAN] = now
    seconds[rank, NOW] = now + line[0]
    seconds[rank, IDEAL] += line[0]
    line[0] = seconds[rank, NOW] - now
    seconds[rank, WIRE] = seconds[rank, WAIT] = 0.0
    places[rank, AT] = places[rank, FIRST]
    _push(plays, rank)


@scalar
def _go_on(plays: Plays, rank: int, end: float, ideal: float, resumes: float, added_s: float) -> Any:
    """End the present move of a rank, which could have ended at `ideal`; return whether it was its last."""
    seconds, places = plays.seconds, plays.places
    begin = seconds[rank, NOW]
    end = max(begin, end)
    ideal = max(ideal, seconds[rank, IDEAL])
    owed_s = seconds[rank, OWED] + ideal - seconds[rank, IDEAL]
    wait_s = min(owed_s, end - begin + seconds[rank, WIRE])
    seconds[rank, IDEAL], seconds[rank, OWED] = ideal, owed_s - wait_s
    seconds[rank, WIRE] += end - begin - wait_s
    seconds[rank, WIRE if places[rank, MERGED] else WAIT] += wait_s
    seconds[rank, NOW] = end + added_s
    places[rank, SOURCE] = -1
    places[rank, AT] += 1
    if places[rank, AT] < places[rank, STOP]:
        _push(plays, rank)
        return False
    if places[rank, TIMES]:
        line = plays.repeats[rank, places[rank, TIME]]
        line[1] = seconds[rank, WIRE]
        line[2] = seconds[rank, WAIT]
        line[3] = seconds[rank, NOW] - seconds[rank, BEGAN]
        places[rank, TIME] += 1
        if places[rank, TIME] < places[rank, TIMES]:
            _begin_again(plays, rank)
            return False
    seconds[rank, RESUMES] = resumes
    plays.done[plays.counts[N_DONE]] = rank
    plays.counts[N_DONE] += 1
    return True


@scalar
def _keep(plays: Plays, source: int, to: int, arrives: float) -> None:
    """Keep a message until its receiver asks for it."""
    places, senders, counts = plays.places, plays.senders, plays.counts
    made = counts[FREE_MESSAGE]
    counts[FREE_MESSAGE] = senders[made, 1]
    plays.under_way[made, 0] = arrives
    plays.under_way[made, 1] = plays.seconds[source, IDEAL]
    senders[made, 0] = source
    senders[made, 1] = -1
    if places[to, MESSAGES] < 0:
        places[to, MESSAGES] = made
    else:
        senders[places[to, LAST], 1] = made
    places[to, LAST] = made


@scalar
def _find(plays: Plays, source: int, to: int) -> Any:
    """Take the oldest message of a rank to another out of those that are kept; return its number, -1 for none."""
    places, senders, counts = plays.places, plays.senders, plays.counts
    before, found = np.int64(-1), places[to, MESSAGES]
    while found >= 0 and senders[found, 0] != source:
        before, found = found, senders[found, 1]
    if found >= 0:
        if before < 0:
            places[to, MESSAGES] = senders[found, 1]
        else:
            senders[before, 1] = senders[found, 1]
        if places[to, LAST] == found:
            places[to, LAST] = before
        # Its arrival may be read until the next message is kept.
        senders[found, 1] = counts[FREE_MESSAGE]
        counts[FREE_MESSAGE] = found
    return found


@kernel
def play(
    ports: PortState,
    plays: Plays,
    moves: IntMatrix,
    added_byte_s: float,
    arrivals: FloatMatrix,
    until_s: float,
    until_rank: int,
    to_the_end: bool,
) -> int:
    """Play the moves of ranks, first of those that arrive, until it is the turn of a rank that is in no schedule."""
    counts, seconds, places = plays.counts, plays.seconds, plays.places
    for k in range(arrivals.shape[0]):
        rank = int(arrivals[k, 0])
        places[rank, AT] = places[rank, FIRST] = int(arrivals[k, 1])
        places[rank, STOP] = int(arrivals[k, 2])
        places[rank, SOURCE] = -1
        places[rank, MERGED] = int(arrivals[k, 3])
        seconds[rank, NOW] = arrivals[k, 4]
        seconds[rank, IDEAL] = arrivals[k, 5]
        seconds[rank, OWED] = arrivals[k, 6]
        seconds[rank, WIRE] = arrivals[k, 7]
        seconds[rank, WAIT] = arrivals[k, 8]
        places[rank, TIME] = 0
        places[rank, TIMES] = int(arrivals[k, 9])
        if places[rank, TIMES]:
            _begin_again(plays, rank)
        else:
            _push(plays, rank)
    while counts[N_HEAP] > 0:
        rank = plays.heap[0]
        at = seconds[rank, NOW]
        if at > until_s or (at == until_s and rank >= until_rank):
            break
        if counts[FREE_SPAN] < 0 or counts[FREE_MESSAGE] < 0:
            return FULL
        _pop(plays)
        move = moves[places[rank, AT]]
        end, ideal = at, seconds[rank, IDEAL]
        if move[0] >= 0:
            to = move[0]
            end, arrives = _transfer(ports, counts, rank, to, move[1], at)
            if places[to, SOURCE] == rank:
                resumes = max(arrives, seconds[to, NOW])
                added_s = moves[places[to, AT], 3] * added_byte_s
                if (
                    _go_on(plays, to, max(seconds[to, END], arrives), ideal, resumes, added_s)
                    and not to_the_end
                    and (resumes < until_s or (resumes == until_s and to < until_rank))
                ):
                    until_s, until_rank = resumes, to
            else:
                _keep(plays, rank, to, arrives)
        if move[2] >= 0:
            found = _find(plays, move[2], rank)
            if found < 0:
                places[rank, SOURCE] = move[2]
                seconds[rank, END] = end
                continue
            end = max(end, plays.under_way[found, 0])
            ideal = plays.under_way[found, 1]
        # It goes on within its turn: nobody else has one before.
        if (
            _go_on(plays, rank, end, ideal, at, move[3] * added_byte_s)
            and not to_the_end
            and (at < until_s or (at == until_s and rank < until_rank))
        ):
            until_s, until_rank = at, rank
    return PLAYED
