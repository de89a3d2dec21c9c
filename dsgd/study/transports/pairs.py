"""Two ranks that send each other messages over what a gang has: sockets, rings of memory, slots."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np

from dsgd.comm.base import AbstractTransport
from dsgd.comm.sockets.listener import Listener
from dsgd.comm.wires import shm
from dsgd.runtime.rank import Rank
from dsgd.study.frame.rows import Row
from dsgd.study.transports.counting import COUNTS, counts_here
from dsgd.study.transports.parties import AbstractParty, Work, make_party
from dsgd.study.transports.slots import AbstractChannel, AgreedSlots, RegisteredSlots
from dsgd.types import AnyArray

_MOST_ROUNDS: Final = 2_000
_ADDRESS_BYTES: Final = 64
# Numbers from which one round is enough to touch all pages.
_LONG: Final = 1 << 20


@dataclass(frozen=True)
class Amount:
    """How many rounds are made."""

    seconds: float
    rounds: int = 0

    def after(self, warm_s: float) -> int:
        """Return how many rounds are made after some of which one took so long."""
        return self.rounds or max(3, min(_MOST_ROUNDS, int(self.seconds / max(warm_s, 1e-9))))


def warm_up(work: Work) -> int:
    """Return how many rounds are made before those that are timed or counted."""
    return 1 if work.n >= _LONG else 3


def digest(array: AnyArray) -> str:
    """Return what tells this array from other ones."""
    return hashlib.blake2b(array.tobytes(), digest_size=6).hexdigest()


def time_row(seconds: Sequence[float]) -> Row:
    """Return what a row says of rounds: the median seconds of one, the lowest, and how many there were."""
    return {"round_s": float(np.median(seconds)), "least_s": min(seconds), "rounds": len(seconds)}


def count_row(before: Sequence[int], after: Sequence[int], rounds: int) -> Row:
    """Return what a row says of a message: each of `COUNTS` of both processes, for one of the two of a round."""
    per_message = ((late - early) / (2 * rounds) for early, late in zip(before, after, strict=True))
    return {"rounds": rounds, **dict(zip(COUNTS, per_message, strict=True))}


class Pair:
    """One end of a way that two parties use."""

    def __init__(self, channel: AbstractChannel, party: AbstractParty, *, begins: bool) -> None:
        self._channel, self._party, self._begins = channel, party, begins
        self.held: AnyArray | None = None

    def play(self, n: int) -> list[float]:
        """Take `n` turns; return the seconds of each round, a message each way."""
        seconds = []
        for _ in range(n):
            begin = time.perf_counter()
            if not self._begins:
                self.held = self._channel.get()
            self._party.turn(self.held, self._channel.out())
            self._channel.release()
            self._channel.post()
            if self._begins:
                self.held = self._channel.get()
            seconds.append(time.perf_counter() - begin)
        return seconds


@final
class _Wire(AbstractChannel):
    """A transport: both ends own their arrays."""

    def __init__(self, transport: AbstractTransport, n: int) -> None:
        self._transport, self._peer = transport, 1 - transport.rank
        self._out, self._in = np.zeros(n, np.float32), np.zeros(n, np.float32)

    def out(self) -> AnyArray:
        """Return the array that is sent."""
        return self._out

    def post(self) -> None:
        """Send it."""
        self._transport.send(self._peer, self._out)

    def get(self) -> AnyArray:
        """Receive one."""
        self._transport.recv(self._peer, self._in)
        return self._in

    def release(self) -> None:
        """Do nothing: the array is this end's."""


def run_pair(rank: Rank, data: Any, way: str, works: Sequence[tuple[Work, Amount]], counts: bool) -> list[Row]:
    """Let two ranks work together; a rank program.

    - returned: for each work what `time_row` or `count_row` says, and ``digest``, that of the last message that
      came.
    """
    ring = _ring(rank) if way == "ring" else None
    transport = rank.group.transport if ring is None else ring
    makers: dict[str, Callable[[int], AbstractChannel]] = {
        "agreed": lambda n: AgreedSlots(rank, n), "registered": lambda n: RegisteredSlots(rank, n),
    }  # fmt: skip
    make: Callable[[int], AbstractChannel] = makers.get(way, lambda n: _Wire(transport, n))
    try:
        return [_run(rank, make(work.n), work, amount, counts) for work, amount in works]
    finally:
        if ring is not None:
            ring.close()


def _run(rank: Rank, channel: AbstractChannel, work: Work, amount: Amount, counts: bool) -> Row:
    rank.check()
    begins = rank.number == 0
    pair = Pair(channel, make_party(work, begins), begins=begins)
    warm = np.array([min(pair.play(warm_up(work))), 0.0])
    rank.group.allreduce(warm, "max")
    n = amount.after(float(warm[0]))
    if not counts:
        found = time_row(pair.play(n))
    else:
        before = _both(rank)
        pair.play(n)
        found = count_row(before, _both(rank), n)
    assert pair.held is not None  # there was a round
    return {**found, "digest": digest(pair.held)}


def _both(rank: Rank) -> list[int]:
    """Return what both processes have counted."""
    own = np.array(counts_here(), np.float64)
    rank.group.allreduce(own)
    return [int(count) for count in own]


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
