"""Streams of frames through rings in shared memory, and arrays that one rank pulls from another.

A frame is sent in one of two ways. Through the ring it is copied in and out, piece by piece. A posted frame stays where
it is: its address and length are published, and the other side reads it from there (`dsgd.kernels.atomics`), which is
one copy. Either way it has arrived when the other side's counter says so.

A receiver may add the incoming frame to an array instead of overwriting it, from the ring itself or from scratch memory
that stays in the cache. The sum then needs no separate pass over memory. Counters of a ring move in multiples of
`UNIT_BYTES`, the last piece of a frame rounded up, so that no number is split at its end.
"""

from __future__ import annotations

import secrets
import socket
import struct
from typing import Any, Final, NamedTuple

import numpy as np
from numba import carray, types

from dsgd.comm.frames import HEADER_BYTES
from dsgd.comm.memory import streams
from dsgd.comm.memory.segment import Segment
from dsgd.comm.sockets.handshake import receive_exactly
from dsgd.comm.sockets.link import Link
from dsgd.kernels import atomics
from dsgd.kernels.jit import kernel, scalar
from dsgd.kernels.rounds import SLOT_BYTES, box_bytes
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
N_STATE: Final = _WORDS + atomics.N_WORDS

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
        mine64 = carray(atomics.pointer_like(target, _FLOAT64), n)
        theirs64 = carray(atomics.pointer_like(source, _FLOAT64), n)
        for i in range(n):
            mine64[i] = theirs64[i] + mine64[i]
    else:
        mine32 = carray(atomics.pointer_like(target, _FLOAT32), n)
        theirs32 = carray(atomics.pointer_like(source, _FLOAT32), n)
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
    used = state[_WRITTEN] - atomics.load(control + _READ_AT)
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
        atomics.copy_bytes(state[OUT_DATA] + place, source, np.uint64(n))
        state[_WRITTEN] += n
        state[OUT_AT] += n
        left -= n
    if total > 0:
        state[_WRITTEN] = _round_up(state[_WRITTEN])
        # A release write: a peer that reads this counter also sees the bytes that it counts.
        atomics.store(control + _WRITTEN_AT, state[_WRITTEN])
        atomics.ring_if_asleep(control + _CONSUMER_SLEEPS_AT, state[BELL], state[HEADER_OUT])
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
    atomics.store(control + _ADDRESS_AT, payload)
    atomics.store(control + _POSTED_AT, state[_POSTED])
    if header == 0:
        atomics.ring_if_asleep(control + _CONSUMER_SLEEPS_AT, state[BELL], state[HEADER_OUT])


@scalar
def _count_pulled(state: AnyArray) -> Any:
    """Return how much more of a frame that was posted has been pulled, −1 if the counters make no sense."""
    left = state[_POSTED] - atomics.load(state[OUT_CONTROL] + _PULLED_AT)
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
    ready = atomics.load(control + _WRITTEN_AT) - state[_READ]
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
            atomics.copy_bytes(state[HEADER_IN] + at, state[IN_DATA] + place, np.uint64(n))
        elif state[TAKE] == COPY:
            atomics.copy_bytes(payload + at - header, state[IN_DATA] + place, np.uint64(n))
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
        atomics.store(control + _READ_AT, state[_READ])
        atomics.ring_if_asleep(control + _PRODUCER_SLEEPS_AT, state[BELL], state[HEADER_OUT])
    return total


@scalar
def _pull(state: AnyArray, payload: int) -> Any:
    """Read a piece of a frame that was posted; returns the bytes read, or an error as a negative code."""
    control, left = state[IN_CONTROL], state[IN_END] - state[IN_AT]
    posted = atomics.load(control + _POSTED_AT) - state[_PULLED]
    if posted == 0:
        return 0
    if posted != left:
        return -BAD_IN
    done = state[IN_AT] - state[HEADER_LENGTH]
    n = min(left, SCRATCH_BYTES)
    target = payload + done if state[TAKE] == COPY else state[SCRATCH]
    source = atomics.load(control + _ADDRESS_AT) + done
    if atomics.read_process(state[PEER], target, source, n, state.ctypes.data + 8 * _WORDS) != n:
        return -UNREADABLE
    # A process that has ended may have lent its number to another one: the bell tells them apart.
    if n == left and _recv(np.int32(state[BELL]), state.ctypes.data + 8 * _WORDS, np.uint64(1), np.int32(_LOOK)) == 0:
        return -UNREADABLE
    if state[TAKE] != COPY:
        _add(payload + done, target, n, state[TAKE])
    state[IN_AT] += n
    state[_PULLED] += n
    # Only now: once all is counted the peer may write to its array again.
    atomics.store(control + _PULLED_AT, state[_PULLED])
    if n == left:
        atomics.ring_if_asleep(control + _PRODUCER_SLEEPS_AT, state[BELL], state[HEADER_OUT])
    return n


@scalar
def _say_asleep(out: AnyArray, source: AnyArray, asleep: int) -> None:
    if out[OUT_AT] < out[OUT_END]:
        atomics.store(out[OUT_CONTROL] + _PRODUCER_SLEEPS_AT, asleep)
    if source[IN_AT] < source[IN_END]:
        atomics.store(source[IN_CONTROL] + _CONSUMER_SLEEPS_AT, asleep)


@kernel
def pump_streams(
    out: AnyArray, outgoing: int, source: AnyArray, incoming: int, n_polls: int, stop_when_arrived: bool
) -> int:
    """Move two frames, of the outgoing and the incoming half of two states; see `dsgd.comm.memory.streams.pump`."""
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
            atomics.barrier()
        elif polls > _POLLS_BEFORE_YIELD:
            atomics.yield_core()


_LAYOUT: Final = struct.Struct("<Q32s")
_PROOF_BYTES: Final = 32
_CREDENTIALS: Final = struct.Struct("3i")


class Pulling(NamedTuple):
    """Who may read whose memory, found out by trying.

    Systems forbid it for many reasons (`dsgd.kernels.atomics`). Over the local socket between them each says where it
    keeps a random number, tries to read that of the other, and says whether it found it; the system itself names the
    process at the other end, so none can be made up.
    """

    peer: int = 0
    is_read: bool = False


NEITHER: Final = Pulling()


def agree_on_pulling(sock: socket.socket, *, wanted: bool = True) -> Pulling:
    """Find out together with the process at the other end of a local socket; both call it at once."""
    proof = np.frombuffer(secrets.token_bytes(_PROOF_BYTES), dtype=np.uint8)
    sock.sendall(_LAYOUT.pack(proof.ctypes.data, proof.tobytes()))
    address, due = _LAYOUT.unpack(_receive(sock, _LAYOUT.size))
    peer = _process_of(sock) if wanted else 0
    found = np.zeros(_PROOF_BYTES, dtype=np.uint8)
    if peer and address < 2**63:
        atomics.read_into(peer, address, found, np.zeros(atomics.N_WORDS, dtype=np.int64))
    can_read = found.tobytes() == due
    sock.sendall(bytes([can_read]))
    is_read = _receive(sock, 1) == b"\1"
    return Pulling(peer if can_read else 0, is_read)


def _receive(sock: socket.socket, n_bytes: int) -> bytes:
    data = receive_exactly(sock, n_bytes)
    if len(data) < n_bytes:
        raise ConnectionResetError("it closed the connection")
    return data


def _process_of(sock: socket.socket) -> int:
    """Return the number of the process at the other end; zero where the system cannot say or read it."""
    if not atomics.CAN_READ or not hasattr(socket, "SO_PEERCRED"):
        return 0
    number: int = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))[0]
    return number


# Two ranks with a core each summed 10 MB in 0.84 ms where they pulled and in 1.46 ms through the ring, 1 MB in 147 and
# 104 us: the system has to find every page. Where other programs wanted the cores too, pulling took half as long again
# at 4 MB and as long at 10 MB. Frames are half of that.
PULL_FROM_BYTES: Final = 2 * 1024 * 1024
_FIRST_CONTROL: Final = 1024  # before it: what two ranks show each other when they meet
_FIRST_DATA: Final = 4096
_BOX_BYTES: Final = box_bytes(SLOT_BYTES)
_ADDS: Final = {np.dtype(np.float32): streams.ADD_FLOAT32, np.dtype(np.float64): streams.ADD_FLOAT64}


def segment_bytes(capacity: int, *, has_boxes: bool = False) -> int:
    """Return how large a segment with two rings of `capacity` bytes is, with or without two boxes of a window."""
    return _FIRST_DATA + 2 * capacity + 2 * _BOX_BYTES * has_boxes


class Ring:
    """One end of the two streams that two ranks share.

    Each stream has a ring of `capacity` bytes with two counters: bytes ever written (by the producer) and bytes ever
    read (by the consumer), each in a cache line of its own. A side keeps its own counter in private memory and only
    reads the other's; a difference that no honest peer can cause is an error. Where the consumer may read the
    producer's own memory a long frame does not enter the ring: the producer posts its address, and the consumer copies
    it once, or adds it up, from where it is.

    A side that finds nothing to do for `n_polls` polls writes into the memory that it sleeps, polls once more, and
    waits for a byte on a local socket, the bell. A side that moved its counter and then reads that the other sleeps
    rings. Both put a full memory barrier between their write and their read, so one of them sees the other (Dekker).

    Cost per frame of n bytes: through the ring two copies and n / `capacity` wake-ups at most; posted, one copy and a
    system call for every 256 KB. Source: Lamport 1983 (a ring with one producer and one consumer needs no lock);
    Dekker's barrier after Dijkstra 1965; MPICH and Open MPI have single copies by the same system call.
    """

    def __init__(
        self,
        segment: Segment,
        capacity: int,
        link: Link,
        bell: socket.socket,
        *,
        first: bool,
        carries_headers: bool,
        pulling: Pulling = NEITHER,
    ) -> None:
        self.link = link
        self.bell = bell
        self.carries_headers = carries_headers
        self._pulling = pulling
        self._scratch: AnyArray | None = None
        self._segment = segment
        # Views keep the memory behind the addresses where it is.
        self._headers = [np.frombuffer(h, np.uint8) for h in (link.header_out, link.header_in, link.header_wanted)]
        base = segment.array.ctypes.data
        ours, theirs = (0, 1) if first else (1, 0)
        self.state = np.zeros(streams.N_STATE, dtype=np.int64)
        self._words = self.state.data  # quicker than an array where one word is written
        self.state[streams.OUT_CONTROL] = base + _FIRST_CONTROL + ours * streams.CONTROL_BYTES
        self.state[streams.IN_CONTROL] = base + _FIRST_CONTROL + theirs * streams.CONTROL_BYTES
        self.state[streams.OUT_DATA] = base + _FIRST_DATA + ours * capacity
        self.state[streams.IN_DATA] = base + _FIRST_DATA + theirs * capacity
        self.state[streams.HEADER_OUT : streams.HEADER_WANTED + 1] = [view.ctypes.data for view in self._headers]
        boxes = base + _FIRST_DATA + 2 * capacity
        self.box_out, self.box_in = boxes + ours * _BOX_BYTES, boxes + theirs * _BOX_BYTES
        self.state[streams.CAPACITY] = capacity
        self.state[streams.BELL] = bell.fileno()
        self.state[streams.PEER] = pulling.peer
        self.header_length = self.state[streams.HEADER_LENGTH] = HEADER_BYTES if carries_headers else 0
        self.address_out = self.address_in = 0

    def start_out(self, outgoing: AnyArray) -> None:
        """Let `outgoing` be the next frame to write; the caller holds it until it is through."""
        words, n_bytes = self._words, outgoing.nbytes
        self.address_out = outgoing.__array_interface__["data"][0]
        words[OUT_AT] = 0
        words[OUT_END] = self.header_length + n_bytes
        words[OUT_WAY] = POST if n_bytes >= PULL_FROM_BYTES and self._pulling.is_read else RING

    def start_in(self, incoming: AnyArray, take: int = COPY) -> None:
        """Let `incoming` be filled by the next frame to read; the caller holds it until it is through.

        With ``take=self.adding(incoming)`` the frame is added to it instead.
        """
        words, n_bytes = self._words, incoming.nbytes
        self.address_in = incoming.__array_interface__["data"][0]
        words[IN_AT] = 0
        words[IN_END] = self.header_length + n_bytes
        words[IN_WAY] = POST if n_bytes >= PULL_FROM_BYTES and self._pulling.peer else RING
        words[TAKE] = take
        if take and self._scratch is None:
            self._scratch = np.empty(SCRATCH_BYTES, dtype=np.uint8)
            words[streams.SCRATCH] = self._scratch.ctypes.data

    @staticmethod
    def adding(incoming: AnyArray) -> int:
        """Return the code for adding a frame to `incoming`, zero where that is not known."""
        return _ADDS.get(incoming.dtype, COPY)

    def close(self) -> None:
        """Close the bell. The memory goes with the last reference: an exchange of another thread may be in it."""
        self.state[streams.BELL] = -1
        self.bell.close()


_NOTHING: Final = np.zeros(streams.N_STATE, dtype=np.int64)


def pump(out: Ring | None, source: Ring | None, n_polls: int = 0, *, until_arrived: bool = False) -> int:
    """Move the frames due to one neighbour and from another; return `DONE`, `IDLE`, `ARRIVED`, or what is wrong."""
    out_state, outgoing = (_NOTHING, 0) if out is None else (out.state, out.address_out)
    in_state, incoming = (_NOTHING, 0) if source is None else (source.state, source.address_in)
    code: int = streams.pump_streams(out_state, outgoing, in_state, incoming, n_polls, until_arrived)
    return code
