"""The compiled part of `dsgd.comm.memory.ring`: how bytes move through shared memory.

A frame is sent in one of two ways. Through the ring it is copied in and out, piece by piece. A posted frame stays where
it is: its address and length are published, and the other side reads it from there (`dsgd.kernels.processes`), which is
one copy. Either way it has arrived when the other side's counter says so.

A receiver may add the incoming frame to an array instead of overwriting it, from the ring itself or from scratch memory
that stays in the cache. The sum then needs no separate pass over memory.

Counters of a ring move in multiples of `UNIT_BYTES`, the last piece of a frame rounded up, so that no number is split
at its end.
"""

from __future__ import annotations

import socket
from typing import Any, Final

import numpy as np
from numba import carray, types

from dsgd.kernels.atomics import barrier, copy_bytes, load, pointer_like, ring_if_asleep, store, yield_core
from dsgd.kernels.jit import kernel, scalar
from dsgd.kernels.processes import N_WORDS, read_process
from dsgd.types import AnyArray

# What `pump_streams` returns.
DONE: Final = 0
IDLE: Final = 1  # both sides of every stream have nothing to do, and the peer knows that this one sleeps
ARRIVED: Final = 2  # the first bytes of the incoming frame are there
BAD_HEADER: Final = 3
BAD_OUT: Final = 4
BAD_IN: Final = 5
UNREADABLE: Final = 6  # the peer's memory cannot be read where it says that its frame is

# Private numbers of one side, by place in its state.
OUT_CONTROL: Final = 0  # addresses
OUT_DATA: Final = 1
IN_CONTROL: Final = 2
IN_DATA: Final = 3
HEADER_OUT: Final = 4
HEADER_IN: Final = 5
HEADER_WANTED: Final = 6
CAPACITY: Final = 7
BELL: Final = 8  # descriptor
_WRITTEN: Final = 9  # bytes ever, through the ring
_READ: Final = 10
OUT_AT: Final = 11  # bytes of the present frame, which is due as long as AT is before END
OUT_END: Final = 12
IN_AT: Final = 13
IN_END: Final = 14
HEADER_LENGTH: Final = 15  # zero where headers go over the socket
_POSTED: Final = 16  # bytes ever, past the ring
_PULLED: Final = 17
OUT_WAY: Final = 18
IN_WAY: Final = 19
PEER: Final = 20  # the process whose memory is read
SCRATCH: Final = 21  # address
TAKE: Final = 22  # what is done with the incoming frame: `COPY` or one of the following
_WORDS: Final = 24
N_STATE: Final = _WORDS + N_WORDS

# Ways of a frame.
RING: Final = 0
POST: Final = 1
_SHOWN: Final = 2

COPY: Final = 0
ADD_FLOAT32: Final = 4  # bytes of a number
ADD_FLOAT64: Final = 8

# Places in the control block of a stream; cache lines are fetched in pairs.
_WRITTEN_AT: Final = 0
_POSTED_AT: Final = 8
_ADDRESS_AT: Final = 16
_READ_AT: Final = 128
_PULLED_AT: Final = 136
_PRODUCER_SLEEPS_AT: Final = 256
_CONSUMER_SLEEPS_AT: Final = 384
CONTROL_BYTES: Final = 512

UNIT_BYTES: Final = 64
# Published at once: small enough that the other side starts early, large enough that counters cost nothing.
_PIECE_BYTES: Final = 64 * 1024
#: Pulled at once. A system call costs half a microsecond; what is added must stay in the cache of one core meanwhile.
SCRATCH_BYTES: Final = 256 * 1024
_POLLS_BEFORE_YIELD: Final = 64

_recv = types.ExternalFunction("recv", types.intp(types.int32, types.intp, types.uintp, types.int32))
_memcmp = types.ExternalFunction("memcmp", types.int32(types.intp, types.intp, types.uintp))
_LOOK: Final = int(socket.MSG_DONTWAIT) | int(socket.MSG_PEEK)
_FLOAT32 = np.zeros(1, dtype=np.float32)
_FLOAT64 = np.zeros(1, dtype=np.float64)


@scalar
def _add(target: int, source: int, n_bytes: int, take: int) -> None:
    """Add the numbers at one address to those at another, in the order of operands that the ring algorithm has."""
    n = np.uint64(n_bytes // take)
    if take == ADD_FLOAT64:
        mine64, theirs64 = carray(pointer_like(target, _FLOAT64), n), carray(pointer_like(source, _FLOAT64), n)
        for i in range(n):
            mine64[i] = theirs64[i] + mine64[i]
    else:
        mine32, theirs32 = carray(pointer_like(target, _FLOAT32), n), carray(pointer_like(source, _FLOAT32), n)
        for i in range(n):
            mine32[i] = theirs32[i] + mine32[i]


@scalar
def _put(state: AnyArray, payload: int) -> Any:
    """Write what fits of the present outgoing frame; returns the bytes written, −1 if the counters make no sense."""
    header = state[HEADER_LENGTH]
    if state[OUT_WAY] == POST:
        _post(state, payload)
    end = state[OUT_END] if state[OUT_WAY] == RING else header
    if state[OUT_AT] >= end:
        return _count_pulled(state)
    control, capacity = state[OUT_CONTROL], state[CAPACITY]
    used = state[_WRITTEN] - load(control + _READ_AT)
    if used < 0 or used > capacity:
        return -1
    left = min((capacity - used) // UNIT_BYTES * UNIT_BYTES, end - state[OUT_AT], _PIECE_BYTES)
    total = left
    while left > 0:
        at = state[OUT_AT]
        place = state[_WRITTEN] % capacity
        n = min(left, capacity - place)
        if at < header:
            n = min(n, header - at)
            source = state[HEADER_OUT] + at
        else:
            source = payload + at - header
        copy_bytes(state[OUT_DATA] + place, source, np.uint64(n))
        state[_WRITTEN] += n
        state[OUT_AT] += n
        left -= n
    if total > 0:
        state[_WRITTEN] = _round_up(state[_WRITTEN])
        # A release write: a peer that reads this counter also sees the bytes that it counts.
        store(control + _WRITTEN_AT, state[_WRITTEN])
        ring_if_asleep(control + _CONSUMER_SLEEPS_AT, state[BELL], state[HEADER_OUT])
    return total


@scalar
def _round_up(n: int) -> Any:
    return (n + UNIT_BYTES - 1) // UNIT_BYTES * UNIT_BYTES


@scalar
def _post(state: AnyArray, payload: int) -> None:
    """Show where the present outgoing frame is; its header, if any, follows through the ring."""
    control, header = state[OUT_CONTROL], state[HEADER_LENGTH]
    state[OUT_WAY] = _SHOWN
    state[_POSTED] += state[OUT_END] - header
    # In this order: the counter says that an address is there.
    store(control + _ADDRESS_AT, payload)
    store(control + _POSTED_AT, state[_POSTED])
    if header == 0:
        ring_if_asleep(control + _CONSUMER_SLEEPS_AT, state[BELL], state[HEADER_OUT])


@scalar
def _count_pulled(state: AnyArray) -> Any:
    """Return how much more of a frame that was posted has been pulled, −1 if the counters make no sense."""
    left = state[_POSTED] - load(state[OUT_CONTROL] + _PULLED_AT)
    moved = state[OUT_END] - left - state[OUT_AT]
    if left < 0 or moved < 0:
        return -1
    state[OUT_AT] += moved
    return moved


@scalar
def _take(state: AnyArray, payload: int) -> Any:
    """Read the part of the incoming frame that has arrived; returns the bytes read, or an error as a negative code."""
    header = state[HEADER_LENGTH]
    end = state[IN_END] if state[IN_WAY] == RING else header
    if state[IN_AT] >= end:
        return _pull(state, payload)
    control, capacity = state[IN_CONTROL], state[CAPACITY]
    ready = load(control + _WRITTEN_AT) - state[_READ]
    if ready < 0 or ready > capacity:
        return -BAD_IN
    left = min(ready // UNIT_BYTES * UNIT_BYTES, end - state[IN_AT], _PIECE_BYTES)
    total = left
    while left > 0:
        at = state[IN_AT]
        place = state[_READ] % capacity
        n = min(left, capacity - place)
        if at < header:
            n = min(n, header - at)
            copy_bytes(state[HEADER_IN] + at, state[IN_DATA] + place, np.uint64(n))
        elif state[TAKE] == COPY:
            copy_bytes(payload + at - header, state[IN_DATA] + place, np.uint64(n))
        else:
            _add(payload + at - header, state[IN_DATA] + place, n, state[TAKE])
        state[_READ] += n
        state[IN_AT] += n
        left -= n
        if at < header and at + n == header and _memcmp(state[HEADER_IN], state[HEADER_WANTED], np.uint64(n + at)):
            return -BAD_HEADER
    if total > 0:
        state[_READ] = _round_up(state[_READ])
        # Only now, when the bytes are copied: the producer writes over what is counted.
        store(control + _READ_AT, state[_READ])
        ring_if_asleep(control + _PRODUCER_SLEEPS_AT, state[BELL], state[HEADER_OUT])
    return total


@scalar
def _pull(state: AnyArray, payload: int) -> Any:
    """Read a piece of a frame that was posted; returns the bytes read, or an error as a negative code."""
    control, left = state[IN_CONTROL], state[IN_END] - state[IN_AT]
    posted = load(control + _POSTED_AT) - state[_PULLED]
    if posted == 0:
        return 0
    if posted != left:
        return -BAD_IN
    done = state[IN_AT] - state[HEADER_LENGTH]
    n = min(left, SCRATCH_BYTES)
    target = payload + done if state[TAKE] == COPY else state[SCRATCH]
    source = load(control + _ADDRESS_AT) + done
    if read_process(state[PEER], target, source, n, state.ctypes.data + 8 * _WORDS) != n:
        return -UNREADABLE
    # A process that has ended may have lent its number to another one: the bell tells them apart.
    if n == left and _recv(np.int32(state[BELL]), state.ctypes.data + 8 * _WORDS, np.uint64(1), np.int32(_LOOK)) == 0:
        return -UNREADABLE
    if state[TAKE] != COPY:
        _add(payload + done, target, n, state[TAKE])
    state[IN_AT] += n
    state[_PULLED] += n
    # Only now: once all is counted the peer may write to its array again.
    store(control + _PULLED_AT, state[_PULLED])
    if n == left:
        ring_if_asleep(control + _PRODUCER_SLEEPS_AT, state[BELL], state[HEADER_OUT])
    return n


@scalar
def _say_asleep(out: AnyArray, source: AnyArray, asleep: int) -> None:
    if out[OUT_AT] < out[OUT_END]:
        store(out[OUT_CONTROL] + _PRODUCER_SLEEPS_AT, asleep)
    if source[IN_AT] < source[IN_END]:
        store(source[IN_CONTROL] + _CONSUMER_SLEEPS_AT, asleep)


@kernel
def pump_streams(
    out: AnyArray, outgoing: int, source: AnyArray, incoming: int, n_polls: int, stop_when_arrived: bool
) -> int:
    """Move two frames; see `dsgd.comm.memory.ring.pump`.

    Of two states, each shape (`N_STATE`,) and int64, the outgoing and the incoming half are worked on.
    """
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
                return int(-n)
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
            # And one more look: a peer that moved before it could see this does not ring.
            barrier()
        elif polls > _POLLS_BEFORE_YIELD:
            yield_core()
