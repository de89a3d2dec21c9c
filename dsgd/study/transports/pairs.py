"""Two ranks that send each other messages: over sockets, rings of memory, and slots that both share.

A channel that owns its buffers copies every message into them and out of them again. The two placements of the source:

- **Static.** The size is known, so a slot for it is made once. The sender computes its message into the slot and then
  sets the flag behind it; the receiver uses the message where it is, and clears the flag. Nothing is copied or
  allocated.
- **Dynamic.** The size is known with the message. The sender writes address and size into a small slot; the receiver
  allocates memory for them, reads the message from the memory of the sender (``process_vm_readv`` in the place of a
  one-sided RDMA read), and clears the flag. One copy and one allocation.

Who waits looks at the flag all the time, as the source does; now and then it asks whether the job has stopped. Both
processes keep a core busy. These slots belong to the study: transports of `dsgd.comm` copy, because their callers own
their arrays.

Source: Xue et al. 2019, section 3; the reading side is `dsgd.kernels.atomics`.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, final

import numpy as np

from dsgd.comm.base import AbstractTransport
from dsgd.comm.memory.segment import NAME_BYTES, Segment
from dsgd.comm.sockets.listener import Listener
from dsgd.comm.wires import shm
from dsgd.errors import ClusterError
from dsgd.kernels.atomics import N_WORDS, load, read_into, store, yield_core
from dsgd.kernels.jit import kernel
from dsgd.runtime.rank import Rank
from dsgd.study.frame.rows import Row
from dsgd.study.transports.parties import AbstractParty, Amount, Work, counts_here, digest, make_party, take_rounds
from dsgd.types import AnyArray

# Of each direction: words of the flag, in cache lines of their own, before the payload.
_FLAG_BYTES: Final = 4096
_ADDRESS_AT, _SIZE_AT, _PROCESS_AT = 64, 72, 80
_LOOKS: Final = 1_000_000
_LOOKS_BEFORE_YIELD: Final = 1_000


@kernel
def _await(address: int, value: int, n_looks: int) -> bool:
    """Look at a word until it has a value; returns False if it has another one after so many looks."""
    for look in range(n_looks):
        if load(address) == value:
            return True
        if look > _LOOKS_BEFORE_YIELD:
            yield_core()
    return False


@kernel
def _put(address: int, value: int) -> None:
    store(address, value)


@kernel
def _get(address: int) -> int:
    found: int = load(address)
    return found


class AbstractChannel(ABC):
    """One end of a way between two ranks of a gang, for one message at a time each way."""

    @abstractmethod
    def out(self) -> AnyArray:
        """Return where the next message is to be written, once it may be."""

    @abstractmethod
    def post(self) -> None:
        """Send what was written there."""

    @abstractmethod
    def get(self) -> AnyArray:
        """Wait for a message; valid until `release`."""

    @abstractmethod
    def release(self) -> None:
        """Say that the last message is used up."""


def share_segment(rank: Rank, n_bytes: int) -> Segment:
    """Return memory that both ranks of a gang see; both call it at once."""
    transport, peer = rank.group.transport, 1 - rank.number
    name = np.zeros(NAME_BYTES, np.uint8)
    if rank.number == 0:
        segment = Segment.create(n_bytes)
        transport.send(peer, np.frombuffer(segment.name.encode(), np.uint8))
    else:
        transport.recv(peer, name)
        segment = Segment.open(name.tobytes().decode(), n_bytes)
    rank.group.barrier()
    segment.unlink()
    return segment


class _Flags:
    """The flags of two slots, one for each direction."""

    def __init__(self, rank: Rank, segment: Segment, n_payload: int) -> None:
        base, stride = segment.array.ctypes.data, _FLAG_BYTES + n_payload
        self._check: Callable[[], None] = rank.check
        self._segment = segment  # keeps the memory where it is
        self.here, self.there = base + rank.number * stride, base + (1 - rank.number) * stride

    def wait(self, flag: int, value: int) -> None:
        """Return when a flag has a value."""
        while not _await(flag, value, _LOOKS):
            self._check()


@final
class RegisteredSlots(AbstractChannel):
    """Static placement; see the module."""

    def __init__(self, rank: Rank, n: int) -> None:
        payload = -(-4 * n // 64) * 64
        stride = _FLAG_BYTES + payload
        segment = share_segment(rank, 2 * stride)
        self._flags = _Flags(rank, segment, payload)
        first = [k * stride + _FLAG_BYTES for k in (rank.number, 1 - rank.number)]
        self._out, self._in = (segment.array[at : at + 4 * n].view(np.float32) for at in first)

    def out(self) -> AnyArray:
        """Wait until the peer has used what was there; return the slot."""
        self._flags.wait(self._flags.here, 0)
        return self._out

    def post(self) -> None:
        """Set the flag."""
        _put(self._flags.here, 1)

    def get(self) -> AnyArray:
        """Wait for the flag of the peer; return its slot."""
        self._flags.wait(self._flags.there, 1)
        return self._in

    def release(self) -> None:
        """Clear the flag of the peer."""
        _put(self._flags.there, 0)


@final
class AgreedSlots(AbstractChannel):
    """Dynamic placement; see the module."""

    def __init__(self, rank: Rank, n: int) -> None:
        segment = share_segment(rank, 2 * _FLAG_BYTES)
        self._flags = _Flags(rank, segment, 0)
        self._out = np.zeros(n, np.float32)
        self._words = np.zeros(N_WORDS, np.int64)

    def out(self) -> AnyArray:
        """Wait until the peer has read what was there; return it."""
        self._flags.wait(self._flags.here, 0)
        return self._out

    def post(self) -> None:
        """Write where the message is, how long, and whose; then set the flag."""
        here = self._flags.here
        _put(here + _ADDRESS_AT, self._out.ctypes.data)
        _put(here + _SIZE_AT, self._out.nbytes)
        _put(here + _PROCESS_AT, os.getpid())
        _put(here, 1)

    def get(self) -> AnyArray:
        """Wait for the flag of the peer; allocate, read, and clear the flag."""
        there = self._flags.there
        self._flags.wait(there, 1)
        found = np.empty(_get(there + _SIZE_AT) // 4, np.float32)
        if not _read_all(_get(there + _PROCESS_AT), _get(there + _ADDRESS_AT), found, self._words):
            raise ClusterError("this system does not let a process read the memory of another one.")
        _put(there, 0)
        return found

    def release(self) -> None:
        """Do nothing: the message was read into memory of this process."""


def _read_all(process: int, address: int, found: AnyArray, words: AnyArray) -> bool:
    """Fill an array from another process; returns whether all came."""
    raw, at = found.view(np.uint8), 0
    while at < len(raw):
        n = read_into(process, address + at, raw[at:], words)
        if n <= 0:
            return False
        at += n
    return True


_ADDRESS_BYTES: Final = 64


class Pair:
    """One end of a way that two parties use."""

    def __init__(self, channel: AbstractChannel, party: AbstractParty, *, begins: bool) -> None:
        self._channel, self._party, self._begins = channel, party, begins

    def step(self, held: AnyArray | None) -> AnyArray:
        """Make a round, a message each way, with what came in the one before; return what came."""
        if not self._begins:
            held = self._channel.get()
        self._party.turn(held, self._channel.out())
        self._channel.release()
        self._channel.post()
        if self._begins:
            held = self._channel.get()
        assert held is not None  # it came here or before
        return held


@final
class Wire(AbstractChannel):
    """A way both of whose ends own their arrays: what sends one, and what receives one."""

    def __init__(self, send: Callable[[AnyArray], object], receive: Callable[[AnyArray], object], n: int) -> None:
        self._send, self._receive = send, receive
        self._out, self._in = np.zeros(n, np.float32), np.zeros(n, np.float32)

    def out(self) -> AnyArray:
        """Return the array that is sent."""
        return self._out

    def post(self) -> None:
        """Send it."""
        self._send(self._out)

    def get(self) -> AnyArray:
        """Receive one."""
        self._receive(self._in)
        return self._in

    def release(self) -> None:
        """Do nothing: the array is this end's."""


def run_pair(rank: Rank, data: Any, way: str, works: Sequence[tuple[Work, Amount]], counts: bool) -> list[Row]:
    """Let two ranks work together; a rank program.

    - returned: for each work what `take_rounds` says, and ``digest``, that of the last message that came.
    """
    ring = _ring(rank) if way == "ring" else None
    transport, peer = rank.group.transport if ring is None else ring, 1 - rank.number
    makers: dict[str, Callable[[int], AbstractChannel]] = {
        "agreed": lambda n: AgreedSlots(rank, n), "registered": lambda n: RegisteredSlots(rank, n),
    }  # fmt: skip
    make: Callable[[int], AbstractChannel] = makers.get(
        way, lambda n: Wire(partial(transport.send, peer), partial(transport.recv, peer), n)
    )
    try:
        return [_run(rank, make(work.n), work, amount, counts) for work, amount in works]
    finally:
        if ring is not None:
            ring.close()


def _run(rank: Rank, channel: AbstractChannel, work: Work, amount: Amount, counts: bool) -> Row:
    rank.check()
    begins = rank.number == 0

    def agree(seconds: float) -> float:
        slowest = np.array([seconds, 0.0])
        rank.group.allreduce(slowest, "max")
        return float(slowest[0])

    def both() -> list[int]:
        own = np.array(counts_here(), np.float64)
        rank.group.allreduce(own)
        return [int(count) for count in own]

    pair = Pair(channel, make_party(work, begins), begins=begins)
    row, held = take_rounds(work, amount, pair.step, both if counts else None, agree)
    return {**row, "digest": digest(held)}


def _ring(rank: Rank) -> AbstractTransport:
    """Return a transport through rings of memory alone: nobody reads the memory of the other."""
    transport, peer = rank.group.transport, 1 - rank.number
    with Listener() as listener:
        told = np.zeros((2, _ADDRESS_BYTES), np.uint8)
        address = listener.address.encode()
        told[rank.number, : len(address)] = np.frombuffer(address, np.uint8)
        transport.exchange(peer, told[rank.number], peer, told[peer])
        addresses = [bytes(one).rstrip(b"\0").decode() for one in told]
        options: dict[str, Any] = {"job_id": rank.job_id, "epoch": 0, "token": bytes(32)}
        return shm.connect(listener, rank.number, addresses, pulls=False, **options)
