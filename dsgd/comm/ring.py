"""Two streams of bytes through memory that two ranks share, one each way.

Problem: a long frame should cost one copy in, one copy out and no system call, both ways at once; a rank that has to
wait must sleep, and be woken without polling; and nothing that the peer writes into the memory may lead this process
out of its bounds.

Each stream is a ring of `capacity` bytes with two counters: bytes ever written (by the producer) and bytes ever read
(by the consumer), each in a cache line of its own. A side keeps its own counter in private memory and only reads the
other's; a difference that no honest peer can cause is an error. The ring is small enough to stay in the cache between
the two copies.

A side that finds nothing to do for `n_polls` looks writes into the memory that it sleeps, looks once more, and waits
for a byte on a local socket, the bell. A side that moved its counter and then reads that the other sleeps rings. Both
put a full memory barrier between their write and their read, so one of them sees the other (Dekker).

Cost per frame of n bytes: n / `capacity` wake-ups at most, none where both sides move at the same pace.

Source: Lamport 1983 (a ring with one producer and one consumer needs no lock); the barrier is Dekker's, after
Dijkstra 1965.
"""

from __future__ import annotations

import socket
from typing import Any, Final

import numpy as np
from numba import types

from dsgd.comm.link import Link
from dsgd.comm.segment import Segment
from dsgd.comm.wire import HEADER_BYTES
from dsgd.kernels.atomics import barrier, copy_bytes, load, store, yield_core
from dsgd.kernels.jit import kernel, scalar
from dsgd.kernels.rounds import BOX_BYTES
from dsgd.types import AnyArray

__all__ = [
    "ARRIVED",
    "BAD_HEADER",
    "BAD_IN",
    "BAD_OUT",
    "DONE",
    "IDLE",
    "Ring",
    "pump",
    "segment_bytes",
]

# What `pump` returns.
DONE: Final = 0
IDLE: Final = 1  # both sides of every stream have nothing to do, and the peer knows that this one sleeps
ARRIVED: Final = 2  # the first bytes of the incoming frame are there
BAD_HEADER: Final = 3
BAD_OUT: Final = 4
BAD_IN: Final = 5

# Private numbers of one side, by place in its state.
_OUT_CONTROL: Final = 0  # addresses
_OUT_DATA: Final = 1
_IN_CONTROL: Final = 2
_IN_DATA: Final = 3
_HEADER_OUT: Final = 4
_HEADER_IN: Final = 5
_HEADER_WANTED: Final = 6
_CAPACITY: Final = 7
_BELL: Final = 8  # descriptor
_WRITTEN: Final = 9  # bytes ever
_READ: Final = 10
OUT_AT: Final = 11  # bytes of the present frame, which is due as long as AT is before END
OUT_END: Final = 12
IN_AT: Final = 13
IN_END: Final = 14
HEADER_LENGTH: Final = 15  # zero where headers go over the socket
_N_STATE: Final = 16

# Places in the control block of a stream; cache lines are fetched in pairs.
_WRITTEN_AT: Final = 0
_READ_AT: Final = 128
_PRODUCER_SLEEPS_AT: Final = 256
_CONSUMER_SLEEPS_AT: Final = 384
_CONTROL_BYTES: Final = 512
_FIRST_CONTROL: Final = 1024  # before it: what two ranks show each other when they meet
_FIRST_DATA: Final = 4096

# Published at once: small enough that the other side starts early, large enough that counters cost nothing.
_PIECE_BYTES: Final = 64 * 1024
_POLLS_BEFORE_YIELD: Final = 64

_send = types.ExternalFunction("send", types.intp(types.int32, types.intp, types.uintp, types.int32))
_memcmp = types.ExternalFunction("memcmp", types.int32(types.intp, types.intp, types.uintp))
_DONT_WAIT: Final = int(socket.MSG_DONTWAIT) | int(getattr(socket, "MSG_NOSIGNAL", 0))


def segment_bytes(capacity: int, *, has_boxes: bool = False) -> int:
    """Return how large a segment with two rings of `capacity` bytes is, with or without two boxes of a window."""
    return _FIRST_DATA + 2 * capacity + 2 * BOX_BYTES * has_boxes


@scalar
def _ring_if_asleep(flag: int, bell: int, message: int) -> None:
    barrier()
    if load(flag) != 0:
        store(flag, 0)
        _send(np.int32(bell), message, np.uint64(1), np.int32(_DONT_WAIT))


@scalar
def _put(state: AnyArray, payload: int) -> Any:
    """Write what fits of the present outgoing frame; returns the bytes written, −1 if the counters make no sense."""
    control, capacity = state[_OUT_CONTROL], state[_CAPACITY]
    used = state[_WRITTEN] - load(control + _READ_AT)
    if used < 0 or used > capacity:
        return -1
    left = min(capacity - used, state[OUT_END] - state[OUT_AT], _PIECE_BYTES)
    total = left
    while left > 0:
        at, header = state[OUT_AT], state[HEADER_LENGTH]
        place = state[_WRITTEN] % capacity
        n = min(left, capacity - place)
        if at < header:
            n = min(n, header - at)
            source = state[_HEADER_OUT] + at
        else:
            source = payload + at - header
        copy_bytes(state[_OUT_DATA] + place, source, np.uint64(n))
        state[_WRITTEN] += n
        state[OUT_AT] += n
        left -= n
    if total > 0:
        store(control + _WRITTEN_AT, state[_WRITTEN])
        _ring_if_asleep(control + _CONSUMER_SLEEPS_AT, state[_BELL], state[_HEADER_OUT])
    return total


@scalar
def _take(state: AnyArray, payload: int) -> Any:
    """Read what is there of the present incoming frame; returns the bytes read, −1 if the counters make no sense."""
    control, capacity = state[_IN_CONTROL], state[_CAPACITY]
    ready = load(control + _WRITTEN_AT) - state[_READ]
    if ready < 0 or ready > capacity:
        return -1
    left = min(ready, state[IN_END] - state[IN_AT], _PIECE_BYTES)
    total = left
    while left > 0:
        at, header = state[IN_AT], state[HEADER_LENGTH]
        place = state[_READ] % capacity
        n = min(left, capacity - place)
        if at < header:
            n = min(n, header - at)
            target = state[_HEADER_IN] + at
        else:
            target = payload + at - header
        copy_bytes(target, state[_IN_DATA] + place, np.uint64(n))
        state[_READ] += n
        state[IN_AT] += n
        left -= n
        if at < header and at + n == header and _memcmp(state[_HEADER_IN], state[_HEADER_WANTED], np.uint64(n + at)):
            return -2
    if total > 0:
        store(control + _READ_AT, state[_READ])
        _ring_if_asleep(control + _PRODUCER_SLEEPS_AT, state[_BELL], state[_HEADER_OUT])
    return total


@scalar
def _say_asleep(out: AnyArray, source: AnyArray, asleep: int) -> None:
    if out[OUT_AT] < out[OUT_END]:
        store(out[_OUT_CONTROL] + _PRODUCER_SLEEPS_AT, asleep)
    if source[IN_AT] < source[IN_END]:
        store(source[_IN_CONTROL] + _CONSUMER_SLEEPS_AT, asleep)


@kernel
def _pump(out: AnyArray, outgoing: int, source: AnyArray, incoming: int, n_polls: int, stop_when_arrived: bool) -> int:
    """See `pump`; of two states, each shape (16,) and int64, the outgoing and the incoming half are worked on."""
    polls, asleep = 0, False
    while True:
        moved = np.int64(0)
        if out[OUT_AT] < out[OUT_END]:
            moved = _put(out, outgoing)
            if moved < 0:
                return BAD_OUT
        if source[IN_AT] < source[IN_END]:
            n = _take(source, incoming)
            if n < 0:
                return BAD_IN if n == -1 else BAD_HEADER
            moved += n
            if stop_when_arrived and source[IN_AT] > 0:
                if asleep:
                    _say_asleep(out, source, 0)
                return ARRIVED
        if out[OUT_AT] == out[OUT_END] and source[IN_AT] == source[IN_END]:
            return DONE
        if moved > 0:
            polls = 0
            if asleep:
                asleep = False
                _say_asleep(out, source, 0)
            continue
        if asleep:
            return IDLE
        polls += 1
        if polls > n_polls:
            asleep = True
            _say_asleep(out, source, 1)
            barrier()
        elif polls > _POLLS_BEFORE_YIELD:
            yield_core()


class Ring:
    """One end of the two streams that two ranks share.

    Parameters
    ----------
    segment : Segment
        The memory, of `segment_bytes(capacity)` bytes.
    capacity : int
        Bytes of each ring.
    link : Link
        The local socket of the same two ranks; its headers are used.
    bell : socket
        A second local socket, for the bytes that wake.
    first : bool
        Whether this side made the segment.
    carries_headers : bool
        Whether whole frames go through memory; else headers go over the link. Such a segment has boxes too.

    Attributes
    ----------
    box_out, box_in : int
        Addresses of the two boxes of a window (`dsgd.comm.window`), where the segment has them.
    state : array, shape (16,), int64
        What `pump` works on.
    address_out, address_in : int
        Where the present frames lie.
    """

    __slots__ = (
        "_headers",
        "_segment",
        "_words",
        "address_in",
        "address_out",
        "bell",
        "box_in",
        "box_out",
        "carries_headers",
        "header_length",
        "link",
        "state",
    )

    def __init__(
        self, segment: Segment, capacity: int, link: Link, bell: socket.socket, *, first: bool, carries_headers: bool
    ) -> None:
        self.link = link
        self.bell = bell
        self.carries_headers = carries_headers
        self._segment = segment
        # Views keep the memory behind the addresses where it is.
        self._headers = [np.frombuffer(h, np.uint8) for h in (link.header_out, link.header_in, link.header_wanted)]
        base = segment.array.ctypes.data
        ours, theirs = (0, 1) if first else (1, 0)
        self.state = np.zeros(_N_STATE, dtype=np.int64)
        self._words = self.state.data  # quicker than an array where one word is written
        self.state[_OUT_CONTROL] = base + _FIRST_CONTROL + ours * _CONTROL_BYTES
        self.state[_IN_CONTROL] = base + _FIRST_CONTROL + theirs * _CONTROL_BYTES
        self.state[_OUT_DATA] = base + _FIRST_DATA + ours * capacity
        self.state[_IN_DATA] = base + _FIRST_DATA + theirs * capacity
        self.state[_HEADER_OUT : _HEADER_WANTED + 1] = [view.ctypes.data for view in self._headers]
        boxes = base + _FIRST_DATA + 2 * capacity
        self.box_out, self.box_in = boxes + ours * BOX_BYTES, boxes + theirs * BOX_BYTES
        self.state[_CAPACITY] = capacity
        self.state[_BELL] = bell.fileno()
        self.header_length = self.state[HEADER_LENGTH] = HEADER_BYTES if carries_headers else 0
        self.address_out = self.address_in = 0

    def start_out(self, outgoing: AnyArray) -> None:
        """Let `outgoing` be the next frame to write; the caller holds it until it is through."""
        self.address_out = outgoing.__array_interface__["data"][0]
        self._words[OUT_AT] = 0
        self._words[OUT_END] = self.header_length + outgoing.nbytes

    def start_in(self, incoming: AnyArray) -> None:
        """Let `incoming` be filled by the next frame to read; the caller holds it until it is through."""
        self.address_in = incoming.__array_interface__["data"][0]
        self._words[IN_AT] = 0
        self._words[IN_END] = self.header_length + incoming.nbytes

    def close(self) -> None:
        """Close the bell. The memory goes with the last reference: an exchange of another thread may be in it."""
        self.state[_BELL] = -1
        self.bell.close()


_NOTHING: Final = np.zeros(_N_STATE, dtype=np.int64)


def pump(out: Ring | None, source: Ring | None, n_polls: int = 0, *, until_arrived: bool = False) -> int:
    """Move the frame that is due to one neighbour and that from another, until both are through or nothing moves.

    Parameters
    ----------
    out, source : Ring or None
        Where frames go to and come from; may be the same. None stands for nothing due.
    n_polls : int, default 0
        How often to look in vain before saying that this side sleeps.
    until_arrived : bool, default False
        Whether to return when the first bytes of the incoming frame are there.

    Returns
    -------
    int
        `DONE`, `IDLE`, `ARRIVED`, or what is wrong: `BAD_HEADER`, `BAD_OUT`, `BAD_IN`.
    """
    out_state, outgoing = (_NOTHING, 0) if out is None else (out.state, out.address_out)
    in_state, incoming = (_NOTHING, 0) if source is None else (source.state, source.address_in)
    code: int = _pump(out_state, outgoing, in_state, incoming, n_polls, until_arrived)
    return code
