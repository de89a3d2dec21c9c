"""Memory of each rank that all other ranks of its gang can read.

Problem: a round of a few microseconds has no time for a message. Ranks that share memory can instead read each other's
vectors where they are written; `dsgd.kernels.rounds` does, and this is where its boxes are and what happens when a
peer does not come.

A rank that waits keeps its core for as long as a wake-up takes, and then sleeps until a peer rings. So a wait costs at
most twice what the better of the two would, and where other programs want the cores a rank does not keep one from its
peers. A peer that went away, that lets its deadline pass, and a job that has stopped become the errors that they are on
any other wire. Of two ranks that wait for each other on one core, one moves to another core.

Source: the name is MPI's (MPI-3.1, chapter 11, shared-memory windows); to look for as long as a sleep costs is what
Karlin, Manasse, McGeoch and Owicki 1994 found for locks.
"""

from __future__ import annotations

import ctypes
import os
import select
import socket
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from dsgd.comm.abort import AbortFlag
from dsgd.comm.memory.cores import current_core, leave_core
from dsgd.errors import AbortedError, GangTimeoutError, ProtocolError
from dsgd.kernels.beds import make_bed
from dsgd.kernels.rounds import BROKEN, CORE_AT, GONE_AT, LATE_AT, PUBLISHED_AT, SLOT_BYTES, TURN, box_bytes
from dsgd.types import AnyArray, IntVector

#: How long a rank sleeps before it checks whether the job was stopped; peers ring long before.
NAP_S: Final = 0.05
_ALIGNMENT: Final = 128
# Two vectors have the same sum in any order, so those of two threads need not be short.
_SLOT_BYTES_OF_TWO: Final = 4 * 1024 * 1024


class Window:
    """The boxes of a gang as one of its ranks sees them."""

    def __init__(
        self,
        rank: int,
        outgoing: Sequence[int],
        incoming: Sequence[int],
        bells: Sequence[int],
        peers: Sequence[str],
        *,
        abort: AbortFlag,
        nap: Callable[[float], int | None],
        memory: Any,
        slot_bytes: int = SLOT_BYTES,
        bed: int = 0,
    ) -> None:
        self.rank = rank
        self.bed = bed
        self.slot_bytes = slot_bytes
        self.outgoing: IntVector = np.array(outgoing, dtype=np.int64)
        self.incoming: IntVector = np.array(incoming, dtype=np.int64)
        self.bells: IntVector = np.array(bells, dtype=np.int64)
        self.abort_word: IntVector = np.zeros(1, dtype=np.int64)
        self.published = 0
        self._peers = peers
        self._abort = abort
        self._nap = nap
        self._memory = memory
        # A flag outlives the gang, and must not keep its memory.
        abort.on_set(partial(self.abort_word.fill, 1))

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return len(self.incoming)

    def wait(self, peer: int, since: float, deadline_s: float) -> None:
        """Sleep until a peer rings, or leave the core to it, between two looks for one that does not come."""
        self._abort.check()
        if self._leaves_core_to(peer):
            return
        idle_s = time.monotonic() - since
        gone = self._nap(min(NAP_S, max(deadline_s - idle_s, 0.0)))
        self._abort.check()
        if self._word(peer, GONE_AT):
            gone = peer
        if gone is not None:
            raise AbortedError(f"{self._peers[gone]} went away while rank {self.rank} waited for it.")
        if idle_s >= deadline_s:
            raise GangTimeoutError(
                f"rank {self.rank} waited {deadline_s:g} s for {self._peers[peer]}. "
                "It hangs or is overloaded; raise the timeout if its work takes longer."
            )

    def refuse(self, code: int, peer: int) -> None:
        """Raise the error that a code of `run_rounds` stands for."""
        self._abort.check()
        if code == BROKEN:
            raise ProtocolError(
                f"{self._peers[peer]} says in shared memory that it has published {self._word(peer, PUBLISHED_AT)} "
                f"vectors where rank {self.rank} has published {self.published}."
            )

    def close(self) -> None:
        """Tell peers that wait for this rank that it has gone. The memory is freed with the last reference."""
        for box in self.outgoing.tolist():
            _words(box)[GONE_AT // 8] = 1

    def _leaves_core_to(self, peer: int) -> bool:
        """Say where this rank waits; move it if the peer has just waited on the same core. One of them has to stay."""
        core = current_core()
        for box in self.outgoing.tolist():
            _words(box)[CORE_AT // 8], _words(box)[LATE_AT // 8] = core, self.published
        late = self._word(peer, LATE_AT)
        if core < 0 or peer > self.rank or not late or self.published - late > TURN:
            return False
        return self._word(peer, CORE_AT) == core and leave_core(core)

    def _word(self, peer: int, place: int) -> int:
        return int(_words(int(self.incoming[peer]))[place // 8])


def _words(box: int) -> Any:
    return (ctypes.c_int64 * (_ALIGNMENT // 8)).from_address(box)


class _Bell:
    """What a rank that is a thread sleeps on: a pair of sockets."""

    def __init__(self) -> None:
        ends = [end.detach() for end in socket.socketpair()]
        self.inside, self.outside = ends
        os.set_blocking(self.inside, False)
        # Peers may ring until the last of them is gone.
        for end in ends:
            weakref.finalize(self, os.close, end)
        #: What compiled code sleeps on.
        self.bed = make_bed(self.inside)

    def nap(self, limit_s: float) -> None:
        """Sleep until somebody rings."""
        poller = select.poll()
        poller.register(self.inside, select.POLLIN)
        if poller.poll(limit_s * 1000):
            os.read(self.inside, 4096)


def inproc_windows(aborts: Sequence[AbortFlag]) -> list[Window]:
    """Return a window for each rank of a gang of threads, over memory of this process."""
    size = len(aborts)
    slot_bytes = _SLOT_BYTES_OF_TWO if size == 2 else SLOT_BYTES
    # Zeros of the system: no page takes memory before a vector is written to it.
    memory: AnyArray = np.zeros(size * box_bytes(slot_bytes) + _ALIGNMENT, dtype=np.uint8)
    first = -(-memory.ctypes.data // _ALIGNMENT) * _ALIGNMENT
    boxes = [first + rank * box_bytes(slot_bytes) for rank in range(size)]
    peers = [f"rank {rank} (a thread of this process)" for rank in range(size)]
    bells = [_Bell() for _ in range(size)]
    return [
        Window(
            rank,
            [boxes[rank]],
            boxes,
            [-1 if peer == rank else bell.outside for peer, bell in enumerate(bells)],
            peers,
            abort=abort,
            nap=bells[rank].nap,
            memory=(memory, bells),
            slot_bytes=slot_bytes,
            bed=bells[rank].bed.ctypes.data,
        )
        for rank, abort in enumerate(aborts)
    ]
