"""A pair of byte streams through shared memory, one for each direction.

Problem: a long frame should cost as few copies as can be and no system call per piece, both ways at once; a rank that
has to wait must sleep, and be woken without polling; and nothing that the peer writes into the memory may lead this
process out of its bounds.

Each stream has a ring of `capacity` bytes with two counters: bytes ever written (by the producer) and bytes ever read
(by the consumer), each in a cache line of its own. A side keeps its own counter in private memory and only reads the
other's; a difference that no honest peer can cause is an error. The ring is small enough to stay in the cache between
the two copies. Where the consumer may read the producer's own memory (`dsgd.comm.memory.pulling`) a long frame does not
enter the ring: the producer posts its address, and the consumer copies it once, or adds it up, from where it is.

A side that finds nothing to do for `n_polls` looks writes into the memory that it sleeps, looks once more, and waits
for a byte on a local socket, the bell. A side that moved its counter and then reads that the other sleeps rings. Both
put a full memory barrier between their write and their read, so one of them sees the other (Dekker).

Cost per frame of n bytes: through the ring two copies and n / `capacity` wake-ups at most, none where both sides move
at the same pace; posted, one copy and a system call for every 256 KB.

Source: Lamport 1983 (a ring with one producer and one consumer needs no lock); the barrier is Dekker's, after
Dijkstra 1965; MPICH and Open MPI have single copies by the same system call.
"""

from __future__ import annotations

import socket
from typing import Final

import numpy as np

from dsgd.comm.frames import HEADER_BYTES
from dsgd.comm.memory import streams
from dsgd.comm.memory.pulling import NEITHER, Pulling
from dsgd.comm.memory.segment import Segment
from dsgd.comm.memory.streams import (
    COPY,
    IN_AT,
    IN_END,
    IN_WAY,
    OUT_AT,
    OUT_END,
    OUT_WAY,
    POST,
    RING,
    SCRATCH_BYTES,
    TAKE,
)
from dsgd.comm.sockets.link import Link
from dsgd.kernels.rounds import SLOT_BYTES, box_bytes
from dsgd.types import AnyArray

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
    """One end of the two streams that two ranks share."""

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
    """Move the frame that is due to one neighbour and that from another, until both are through or nothing moves.

    - returned: A code of `dsgd.comm.memory.streams`: `DONE`, `IDLE`, `ARRIVED`, or what is wrong.
    """
    out_state, outgoing = (_NOTHING, 0) if out is None else (out.state, out.address_out)
    in_state, incoming = (_NOTHING, 0) if source is None else (source.state, source.address_in)
    code: int = streams.pump_streams(out_state, outgoing, in_state, incoming, n_polls, until_arrived)
    return code
