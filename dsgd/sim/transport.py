"""The transport of a simulated cluster: copies arrays and advances the virtual clock.

Problem: the training loop, the strategies and the collectives must run unchanged, but seconds must be those of a
network that does not exist.

Method: a send takes the port of its host for ``overhead + beta n`` seconds from when it is free, the message comes a
latency later to the port of the receiver and takes that for as long, and the receiver's clock is at least the end of
it. A sender continues when its port is free again, or at once if its ports carry at the same time
(`Network.concurrent`): sends are eager and do not wait for the receiver. Ranks send in the order of their clocks
(`dsgd.sim.event_scheduler`), so a busy port serves the earliest message first.

Without contention an exchange takes ``alpha + beta n`` (`dsgd.sim.network`), as closed forms have it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, Final, NamedTuple

import numpy as np

from dsgd.comm.base import AbstractTransport, Call
from dsgd.comm.frames import HEADER_BYTES, AbortFlag, Header, check_array, check_limit, describe_mismatch
from dsgd.errors import AbortedError, InvalidParameterError, ProtocolError
from dsgd.ledger import WAIT, WIRE, RankLedger
from dsgd.sim.compute import AbstractStragglers, Compute
from dsgd.sim.event_scheduler import EventScheduler, VirtualClock
from dsgd.sim.network import Network
from dsgd.sim.player import Player
from dsgd.sim.ports import Ports
from dsgd.types import AnyArray, IntMatrix

#: Longer than any simulated training, because simulations study stragglers instead of giving up on them.
DEADLINE_S: Final = 1e6


class Message(NamedTuple):
    """What is under way to a rank."""

    arrives: float
    busy_s: float
    array: AnyArray
    dtype: int
    op: int

    def fill(self, out: AnyArray, op: int, rank: int, source: int) -> None:
        """Copy it into `out`, on `rank`; raise `ProtocolError` where that expects another one of `source`."""
        dtype = check_array(out)
        if self.op != op or self.dtype != dtype or self.array.nbytes != out.nbytes:
            expected = Header(0, 0, 0, op, dtype, out.nbytes)
            got = Header(0, 0, 0, self.op, self.dtype, self.array.nbytes)
            raise ProtocolError(
                f"rank {rank} and rank {source} are not at the same point: {describe_mismatch(expected, got)}."
            )
        # Shapes may differ where sizes agree, as on any wire.
        np.copyto(out, self.array.reshape(out.shape))


class Fabric:
    """What all ranks share: scheduler, ports and messages under way."""

    def __init__(self, network: Network, scheduler: EventScheduler) -> None:
        self.size, self.network, self.scheduler = len(scheduler.clocks), network, scheduler
        self.ports = Ports(network, self.size)
        self.hosts = tuple(network.host_of(rank) for rank in range(self.size))
        self.player: Player | None = None
        self._queues: dict[tuple[int, int], deque[Message]] = {}

    def queue(self, source: int, to: int) -> deque[Message]:
        """Return the messages from one rank to another, in the order in which they were sent."""
        return self._queues.setdefault((source, to), deque())

    def send(self, source: int, to: int, array: AnyArray, op: int, at: float) -> tuple[float, Message]:
        """Put a copy of an array on its way; return when its sender goes on, and the message."""
        dtype = check_array(array)
        sent, arrives, busy_s = self.ports.transfer(source, to, HEADER_BYTES + array.nbytes, at)
        return sent, Message(arrives, busy_s, array.copy(), dtype, op)


class SimTransport(AbstractTransport):
    """A rank of a simulated cluster; made by `SimulatedCluster.run`."""

    is_virtual = True

    def __init__(
        self,
        rank: int,
        size: int,
        fabric: Fabric,
        ledger: RankLedger,
        compute: Compute,
        stragglers: AbstractStragglers,
        seed: int,
        abort: AbortFlag,
    ) -> None:
        self.rank, self.size, self.ledger = rank, size, ledger
        self.clock = fabric.scheduler.clocks[rank]
        # The same object for all, where no server comes after them.
        self.hosts = fabric.hosts[:size]
        self.wire = f"simulated {fabric.network.name}"
        self.concurrent = fabric.network.concurrent
        self.deadline_s = DEADLINE_S
        self._fabric, self._scheduler, self._abort = fabric, fabric.scheduler, abort
        self._compute, self._stragglers, self._seed = compute, stragglers, seed
        self._drawn = (-1, 1.0)  # the round for which a factor was drawn last, and the factor
        self._closed = False
        if fabric.player is not None:
            self.offload = self._run_whole

    def exchange(
        self, to: int | None, outgoing: AnyArray | None, source: int | None, incoming: AnyArray | None, op: int = 0
    ) -> None:
        """Send to `to` while receiving from `source`, on the virtual clock; see `AbstractTransport.exchange`."""
        if self._closed:
            raise AbortedError(f"rank {self.rank} has closed its transport and can exchange nothing.")
        for peer in (to, source):
            if peer is not None and (peer == self.rank or not 0 <= peer < self.size):
                raise InvalidParameterError(f"rank {self.rank} of {self.size} has no peer {peer}.")
        self._scheduler.take(self.rank)
        begin = end = self.clock.now
        busy_s = 0.0
        if to is not None and outgoing is not None:
            end, busy_s = self._send(to, outgoing, op, begin)
        if source is not None and incoming is not None:
            message = self._take(source, incoming, op)
            end, busy_s = max(end, message.arrives), max(busy_s, message.busy_s)
        self.clock.now = end = max(self.clock.now, end)
        wire_s = min(busy_s, end - begin)
        self.ledger.charge(WIRE, wire_s)
        self.ledger.charge(WAIT, end - begin - wire_s)

    def worked(self, *, rows: int = 0, entries: int = 0, params: int = 0, n_bytes: int = 0, epochs: int = 0) -> None:
        """Charge this rank for work; see `AbstractTransport.worked`."""
        seconds = n_bytes * self._compute.added_byte_s + epochs * self._compute.end_s
        if rows or params:
            number = self.ledger.round_number
            if number != self._drawn[0]:
                self._drawn = number, self._stragglers.factor(self._seed, self.rank, number)
            seconds += self._compute.seconds(rows, entries, params) * self._drawn[1]
        self.clock.now += seconds

    def helper(self, name: str) -> Executor:
        """Return what runs an exchange beside the work of this rank; see `AbstractTransport.helper`."""
        del name
        return _Beside(self.clock)

    def set_deadline(self, deadline_s: float) -> None:
        """Do nothing: a wait that cannot end is found out at once, and any other one is worth waiting for."""
        check_limit("deadline_s", deadline_s)

    def close(self) -> None:
        """Leave; a peer that waits for this rank gets an error once no other rank can run."""
        self._closed = True

    def _run_whole(self, call: Call) -> None:
        """Run a collective; see `dsgd.comm.base.Offload`."""
        player = self._fabric.player
        assert player is not None  # only then is there an offload
        if self._closed:
            raise AbortedError(f"rank {self.rank} has closed its transport and can exchange nothing.")
        self._abort.check()
        work_s = [] if call.repeats is None else self._work_s(call.repeats.work)
        player.begin(self.rank, self.clock.now, call, self.ledger, work_s)
        self._scheduler.sleep_while_played(self.rank)
        player.charge(self.rank, call, self.ledger)

    def _work_s(self, work: IntMatrix) -> list[float]:
        """Return the seconds of the work of rounds that come one after another; see `worked`."""
        begin, (seconds, factor) = self.ledger.round_number, (self._compute.seconds, self._stragglers.factor)
        return [
            seconds(rows, entries, params) * factor(self._seed, self.rank, begin + k) if rows or params else 0.0
            for k, (rows, entries, params) in enumerate(work.tolist())
        ]

    def _send(self, to: int, outgoing: AnyArray, op: int, at: float) -> tuple[float, float]:
        """Put a message on its way; return when this rank goes on, and how long its bytes move."""
        sent, message = self._fabric.send(self.rank, to, outgoing, op, at)
        self._fabric.queue(self.rank, to).append(message)
        self.ledger.count(HEADER_BYTES + outgoing.nbytes)
        self._scheduler.wake(to, "exchange", self.rank, message.arrives)
        return sent, message.busy_s

    def _take(self, source: int, incoming: AnyArray, op: int) -> Message:
        queue = self._fabric.queue(source, self.rank)
        if not queue:
            self._scheduler.wait(self.rank, "exchange", (source,))
        message = queue.popleft()
        message.fill(incoming, op, self.rank, source)
        return message


class _Later(Future[Any]):
    """The future of a call of `_Beside`: its result exists from a time on, and an earlier request waits until then."""

    def __init__(self, clock: VirtualClock, at: float) -> None:
        super().__init__()
        self._clock, self._at = clock, at

    def result(self, timeout: float | None = None) -> Any:
        """Move the clock on to when the result is there, and return it or raise what was raised."""
        self._clock.now = max(self._clock.now, self._at)
        return super().result(timeout)


class _Beside(Executor):
    """Runs exchanges beside the work of a rank: at once, and then puts its clock back.

    What the rank does meanwhile concerns none of the others, since it does not use its transport before it asks for the
    result: to them it is the same whether it computes before or after.
    """

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call a function now; see `_Later`."""
        begin = self._clock.now
        try:
            value, error = fn(*args, **kwargs), None
        except Exception as raised:
            value, error = None, raised
        later = _Later(self._clock, self._clock.now)
        self._clock.now = begin
        if error is None:
            later.set_result(value)
        else:
            later.set_exception(error)
        return later
