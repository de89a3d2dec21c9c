"""The simulated cluster: ranks are threads of this process on a virtual clock.

Problem: the benefits and costs of a strategy show on networks and numbers of machines that few people have, and
asynchronous methods never run twice in the same way.

Method: every rank is a thread that runs the usual training loop, one thread at a time (`dsgd.sim.events`), over a wire
that copies arrays and charges seconds. Kernels do their real work, so models, losses and bytes are real, and
synchronous strategies give bit for bit what they give on real gangs; only the seconds are those of `Network` and
`Compute`. The same seed gives the same seconds, whatever else the machine does.

A send takes the port of its host for ``overhead + beta n`` seconds from when it is free, the message comes a latency
later to the port of the receiver and takes that for as long, and the receiver's clock is at least the end of it. A
sender continues when its port is free again, or at once if its ports carry at the same time (`Network.concurrent`):
sends are eager and do not wait for the receiver. Ranks send in the order of their clocks, so a busy port serves the
earliest message first. Without contention an exchange takes ``alpha + beta n``, as closed forms have it.

A rank that posts to a mailbox continues at once, while its port is busy as long as the frame takes. Before a rank polls
its own, all ranks with earlier clocks run, so the result does not depend on the machine. A poll that finds nothing
costs `LOOK_S`; otherwise a rank that keeps polling would stay at the same time for ever.

Cost: the work of all ranks on one core, and some ten microseconds a message.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Final, Literal, NamedTuple, final

import numpy as np

from dsgd.collectives import Algorithm, Group
from dsgd.comm.base import MAX_OUTSTANDING, AbstractMailbox, AbstractTransport, Call, next_after
from dsgd.comm.frames import HEADER_BYTES, OP_SEND, AbortFlag, check_array, check_limit, not_at_one_point
from dsgd.comm.memory.cores import current_core, staying
from dsgd.comm.memory.segment import SharedArray
from dsgd.errors import AbortedError, InvalidParameterError, PausedError, WorkerLostError
from dsgd.ledger import WAIT, Ledger, RankLedger
from dsgd.runtime.pools import limit_pools
from dsgd.runtime.rank import GangResult, Mail, RankProgram, Server
from dsgd.runtime.threads import ThreadGang, peak_rss_bytes, run_threads
from dsgd.sim.events import EventScheduler, Player, Ports, VirtualClock
from dsgd.sim.failures import MOST_IN_VAIN, Failures, History
from dsgd.sim.network import AbstractStragglers, Compute, Network, network_for, stragglers_for
from dsgd.stages import stage
from dsgd.types import AnyArray, IntMatrix
from dsgd.validation import Checked, number

#: Longer than any simulated training, because simulations study stragglers instead of giving up on them.
DEADLINE_S: Final = 1e6


class Message(NamedTuple):
    """What is under way to a rank."""

    arrives: float
    ideal: float  # the ideal clock of its sender
    array: AnyArray
    dtype: int
    op: int

    def fill(self, out: AnyArray, op: int, rank: int, source: int) -> None:
        """Copy it into `out`, on `rank`; raise `ProtocolError` where that expects another one of `source`."""
        dtype = check_array(out)
        if self.op != op or self.dtype != dtype or self.array.nbytes != out.nbytes:
            raise not_at_one_point(rank, source, op, out, self.op, self.array)
        # Shapes may differ where sizes agree, as on any wire.
        np.copyto(out, self.array.reshape(out.shape))


class Fabric:
    """What all ranks share: scheduler, ports and messages under way, and what work costs them."""

    def __init__(
        self,
        network: Network,
        scheduler: EventScheduler,
        compute: Compute | None = None,
        stragglers: AbstractStragglers | str = "none",
        seed: int = 0,
        machines: Sequence[int] = (),
    ) -> None:
        # Ranks are numbered anew when a machine is gone, and a slow one stays slow.
        self.machines = machines or range(len(scheduler.clocks))
        self.size, self.network, self.scheduler = len(scheduler.clocks), network, scheduler
        self.compute, self.stragglers, self.seed = compute or Compute(), stragglers_for(stragglers), seed
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
        sent, arrives = self.ports.transfer(source, to, HEADER_BYTES + array.nbytes, at)
        return sent, Message(arrives, self.scheduler.clocks[source].ideal, array.copy(), dtype, op)


class SimTransport(AbstractTransport):
    """A rank of a simulated cluster; made by `SimulatedCluster.run`."""

    is_virtual = True

    def __init__(self, rank: int, size: int, fabric: Fabric, ledger: RankLedger, abort: AbortFlag) -> None:
        self.rank, self.size, self.ledger = rank, size, ledger
        self.clock = fabric.scheduler.clocks[rank]
        # The same object for all, where no server comes after them.
        self.hosts = fabric.hosts[:size]
        self.wire = f"simulated {fabric.network.name}"
        self.concurrent = fabric.network.concurrent
        self.deadline_s = DEADLINE_S
        self._fabric, self._scheduler, self._abort = fabric, fabric.scheduler, abort
        self._compute, self._stragglers, self._seed = fabric.compute, fabric.stragglers, fabric.seed
        self._machine = fabric.machines[rank]
        self._drawn = (-1, 1.0)  # the round for which a factor was drawn last, and the factor
        self._closed = False
        if fabric.player is not None:
            self.offload = self._run_whole

    def exchange(
        self, to: int | None, outgoing: AnyArray | None, source: int | None, incoming: AnyArray | None, op: int = 0
    ) -> None:
        """Send to `to` while receiving from `source`, on the virtual clock; see `AbstractTransport.exchange`."""
        self._check_open(self._closed, to, source)
        self._scheduler.take(self.rank)
        begin = end = self.clock.now
        ideal = 0.0
        if to is not None and outgoing is not None:
            end, message = self._fabric.send(self.rank, to, outgoing, op, begin)
            self._fabric.queue(self.rank, to).append(message)
            self.ledger.count(HEADER_BYTES + outgoing.nbytes)
            self._scheduler.wake(to, "exchange", self.rank, message.arrives)
        if source is not None and incoming is not None:
            queue = self._fabric.queue(source, self.rank)
            if not queue:
                self._scheduler.wait(self.rank, "exchange", (source,))
            message = queue.popleft()
            message.fill(incoming, op, self.rank, source)
            end, ideal = max(end, message.arrives), message.ideal
        self.clock.now = max(self.clock.now, end)
        self.clock.charge_exchange(self.ledger, begin, ideal)

    def worked(self, *, rows: int = 0, entries: int = 0, params: int = 0, n_bytes: int = 0, epochs: int = 0) -> None:
        """Charge this rank for work; see `AbstractTransport.worked`."""
        seconds = epochs * self._compute.end_s
        if rows or params:
            number = self.ledger.round_number
            if number != self._drawn[0]:
                self._drawn = number, self._stragglers.factor(self._seed, self._machine, number)
            seconds += self._compute.seconds(rows, entries, params) * self._drawn[1]
        # To add up what arrives is part of the exchange: without messages, there would be none of it.
        self.clock.now += seconds + n_bytes * self._compute.added_byte_s
        self.clock.ideal += seconds

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
        self._check_open(self._closed)
        self._abort.check()
        work_s = [] if call.repeats is None else self._work_s(call.repeats.work)
        player.begin(self.rank, self.clock, call, self.ledger, work_s)
        self._scheduler.switch(self.rank)
        player.charge(self.rank, call, self.ledger)

    def _work_s(self, work: IntMatrix) -> list[float]:
        """Return the seconds of the work of rounds that come one after another; see `worked`."""
        begin, (seconds, factor) = self.ledger.round_number, (self._compute.seconds, self._stragglers.factor)
        return [
            seconds(rows, entries, params) * factor(self._seed, self._machine, begin + k) if rows or params else 0.0
            for k, (rows, entries, params) in enumerate(work.tolist())
        ]


class _Later(Future[Any]):
    """The future of a call of `_Beside`: its result exists from a time on, and an earlier request waits until then."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self._clock, self._at, self._ideal = clock, clock.now, clock.ideal

    def result(self, timeout: float | None = None) -> Any:
        """Move the clock on to when the result is there, and return it or raise what was raised."""
        self._clock.now = max(self._clock.now, self._at)
        self._clock.ideal = max(self._clock.ideal, self._ideal)
        return super().result(timeout)


class _Beside(Executor):
    """Runs exchanges beside the work of a rank: at once, and then puts its clock back; the others cannot tell."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call a function now; see `_Later`."""
        begin, ideal = self._clock.now, self._clock.ideal
        try:
            value, error = fn(*args, **kwargs), None
        except Exception as raised:
            value, error = None, raised
        later = _Later(self._clock)
        self._clock.now, self._clock.ideal = begin, ideal
        if error is None:
            later.set_result(value)
        else:
            later.set_exception(error)
        return later


#: Virtual seconds of a look into a mailbox that finds nothing.
LOOK_S: Final = 1e-6


@final
class SimMailbox(AbstractMailbox):
    """The mailbox of a simulated rank, made by `connect`; ``boxes[r][s]`` holds what rank s has posted to rank r."""

    def __init__(
        self,
        rank: int,
        fabric: Fabric,
        boxes: list[list[deque[Message]]],
        gone: set[int],
        ledger: RankLedger,
        abort: AbortFlag,
    ) -> None:
        self.rank, self.size, self.ledger, self.deadline_s = rank, len(boxes), ledger, DEADLINE_S
        self._fabric, self._scheduler, self._clock = fabric, fabric.scheduler, fabric.scheduler.clocks[rank]
        self._boxes, self._box, self._gone, self._abort = boxes, boxes[rank], gone, abort
        self._last = -1

    def post(self, to: int, array: AnyArray, op: int = OP_SEND) -> None:
        """Put a copy on its way; see `AbstractMailbox.post`."""
        self._check_peer(to)
        if self.rank in self._gone:
            raise AbortedError(f"rank {self.rank} has closed its mailbox and can post nothing.")
        self._scheduler.take(self.rank)
        box, begin = self._boxes[to][self.rank], self._clock.now
        while len(box) >= MAX_OUTSTANDING and to not in self._gone:
            self._scheduler.wait(self.rank, "room", (to,))
        if to in self._gone:
            raise AbortedError(f"rank {to} (simulated) went away while rank {self.rank} wrote to it.")
        self.ledger.charge(WAIT, self._clock.now - begin)
        _, message = self._fabric.send(self.rank, to, array, op, self._clock.now)
        box.append(message)
        self.ledger.count(HEADER_BYTES + array.nbytes)
        self._scheduler.wake(to, "mail", self.rank, message.arrives)

    def ready(self, sources: Sequence[int], limit_s: float) -> int | None:
        """Look, or wait; see `AbstractMailbox.ready`."""
        self._scheduler.take(self.rank)
        end = self._clock.now + limit_s if limit_s < DEADLINE_S else inf
        while (found := self._find(sources)) is None and self._clock.now < end:
            # Frames that are under way come at their time, and others may overtake them.
            arrivals = [self._box[source][0].arrives for source in sources if self._box[source]]
            self._scheduler.wait(self.rank, "mail", sources, min([end, *arrivals]))
        if found is None:
            self._clock.now += LOOK_S
        else:
            self._last = found
        return found

    def take(self, source: int, out: AnyArray, op: int = OP_SEND) -> None:
        """Take the oldest frame of a rank; see `AbstractMailbox.take`."""
        self._check_peer(source)
        self._scheduler.take(self.rank)
        begin, box = self._since(), self._box[source]
        while not box:
            if source in self._gone:
                raise AbortedError(f"rank {source} (simulated) went away while rank {self.rank} waited.")
            self._scheduler.wait(self.rank, "mail", (source,))
        message = box.popleft()
        self._clock.now = max(self._clock.now, message.arrives)
        if len(box) == MAX_OUTSTANDING - 1:
            self._scheduler.wake(source, "room", self.rank, self._clock.now)
        message.fill(out, op, self.rank, source)
        self._clock.charge_exchange(self.ledger, begin, message.ideal)
        if message.arrives > begin:
            # It goes on because this one came. What came before does not hold it up: a server that has heard a slow
            # worker does not let a quick one wait for it.
            self._clock.ideal = message.ideal

    def close(self) -> None:
        """Leave; a peer that waits for this rank, now or later, gets an error, after the frames posted to it."""
        if self.rank in self._gone:
            return
        self._gone.add(self.rank)
        for peer in range(self.size):
            self._scheduler.wake(peer, "mail", self.rank, self._clock.now)
            self._scheduler.wake(peer, "room", self.rank, self._clock.now)

    def _find(self, sources: Sequence[int]) -> int | None:
        now = self._clock.now
        here = [s for s in sources if (self._box[s][0].arrives <= now if self._box[s] else s in self._gone)]
        return next_after(self._last, here, self.size)


def connect(fabric: Fabric, ledgers: Sequence[RankLedger], abort: AbortFlag) -> list[AbstractMailbox]:
    """Return the mailboxes of all ranks of a simulated gang."""
    n = fabric.size
    boxes: list[list[deque[Message]]] = [[deque() for _ in range(n)] for _ in range(n)]
    gone: set[int] = set()
    return [SimMailbox(rank, fabric, boxes, gone, ledgers[rank], abort) for rank in range(n)]


# Of so many threads, which take turns, the time goes to waking the next one.
_MANY: Final = 32
_POLICIES: Final = ("raise", "restart", "shrink", "elastic")


@dataclass(frozen=True)
class SimulatedCluster(Checked):
    """Ranks on a virtual clock; pass it to an estimator as ``client=``.

    Parameters
    ----------
    ranks : int
        How many.
    network : Network or str, default "1GbE"
        The network: one of `NETWORKS`, a `Network` of your own, or the result of `calibrate`.
    compute : Compute, optional
        Costs of work; estimates by default, see `Compute`.
    stragglers : AbstractStragglers or str, default "none"
        How these costs vary: ``"none"``, ``"exponential"``, ``"slow-rank"``, ``"heavy-tail"``, or one of them with
        parameters: `Exponential`, `SlowRank`, `HeavyTail`.
    seed : int, default 0
        Seed of the stragglers and failures. Equal seeds give equal runs.
    failures : Failures, optional
        When machines stop; none does by default.
    on_failure : {"raise", "restart", "shrink", "elastic"}, default "raise"
        What happens then: the fit ends with `WorkerLostError`; another machine takes the place and has the same rows;
        the ranks that are left go on without these, numbered anew; or they do until the machine is back with its rows,
        and joins at the end of an epoch. All go on from the newest copy of the state (:doc:`/failures`).

    Raises
    ------
    InvalidParameterError
        There is no rank, or no network, distribution or policy of that name.

    Examples
    --------
    >>> from dsgd import SGDClassifier
    >>> from dsgd.sim import SimulatedCluster
    >>> clf = SGDClassifier(max_iter=3, tol=None, sync=4, client=SimulatedCluster(ranks=4, network="1GbE"))
    >>> clf.fit([[0.0], [1.0], [2.0], [3.0]] * 5, [0, 0, 1, 1] * 5).fit_report_["transport"]
    'simulated 1GbE'
    """

    ranks: int = number(low=1)
    network: Network | str = "1GbE"
    compute: Compute | None = None
    stragglers: AbstractStragglers | str = "none"
    seed: int = 0
    failures: Failures | None = None
    on_failure: Literal["raise", "restart", "shrink", "elastic"] = "raise"

    def __post_init__(self) -> None:
        """Refuse what cannot be simulated."""
        super().__post_init__()
        network_for(self.network)
        stragglers_for(self.stragglers)
        for name, kind in (("compute", Compute), ("failures", Failures)):
            given = getattr(self, name)
            if given is not None and not isinstance(given, kind):
                raise InvalidParameterError(
                    f"SimulatedCluster({name}=...) must be a dsgd.sim.{kind.__name__} or None. Got {given!r}."
                )
        if self.on_failure not in _POLICIES:
            raise InvalidParameterError(
                f"SimulatedCluster(on_failure=...) must be one of {', '.join(_POLICIES)}. Got {self.on_failure!r}."
            )

    def run(
        self,
        program: RankProgram,
        data: Sequence[Any],
        args: tuple[Any, ...] = (),
        *,
        algorithm: Algorithm = "auto",
        on_event: Callable[[Mapping[str, Any]], None] | None = None,
        mail: Mail | None = None,
        given: Any = None,
    ) -> GangResult:
        """Run a rank program; as `dsgd.runtime.run_on_threads`, but for the clock.

        Parameters
        ----------
        program : RankProgram
            Called as ``program(rank, data[r], *args)``.
        data : sequence, length `ranks`
            What each rank works on.
        args : tuple
            Further arguments, the same objects for every rank.
        algorithm : str, default "auto"
            How vectors are summed.
        on_event : callable, optional
            Receives what rank 0 publishes, in the thread of rank 0. With `StopTraining` it asks the program to end
            early.
        mail : Mail, optional
            Whether ranks get mailboxes, and which servers come after them, each a machine of its own.
        given : object, optional
            What rank 0 alone is given; see `dsgd.runtime.rank.Rank`.

        Returns
        -------
        GangResult
            With what rank 0 returned, and a ledger in virtual seconds, since the last failure if there was one. Each
            entry of ``stats`` has ``virtual_s``, when the rank had ended.

        Raises
        ------
        InvalidParameterError
            `data` has not one entry per rank.
        WorkerLostError
            A machine stopped, and ranks are not to go on or do not get on; or it was the last one.
        Exception
            Whatever the first rank that failed has raised; `ProtocolError` where all ranks wait for each other.
        """
        if len(data) != self.ranks:
            raise InvalidParameterError(f"run(data=...) must have one entry per rank ({self.ranks}). Got {len(data)}.")
        options = {"algorithm": algorithm, "on_event": on_event, "mail": mail, "given": given}
        if self.failures is None:
            found = self._run_gang(program, data, args, **options)
            assert found is not None  # nothing stops it
            return found
        history = History(self.failures, self.seed, list(range(self.ranks)))
        rows = [getattr(part, "n_rows", None) for part in data]
        while True:
            found = None
            if history.stops[0] > history.began:
                left = [data[machine] for machine in history.machines]
                try:
                    found = self._run_gang(program, left, args, history, **options)
                except PausedError:
                    history.rejoin(rows)
                    continue
            if found is not None:
                return replace(found, recoveries=history.events, goodput=history.goodput(found.ledger.elapsed_s))
            lost = history.heed(self.on_failure, rows)
            if self.on_failure == "raise" or not history.machines or history.n_in_vain > MOST_IN_VAIN:
                how = f"stopped after {history.events[-1]['at_s']:.6g} virtual seconds (failure {len(history.events)})"
                raise WorkerLostError(lost, f"simulated rank {lost}", str(history.events[-1]["host"]), how)

    def _run_gang(
        self,
        program: RankProgram,
        data: Sequence[Any],
        args: tuple[Any, ...],
        history: History | None = None,
        *,
        algorithm: Algorithm,
        on_event: Callable[[Mapping[str, Any]], None] | None,
        mail: Mail | None,
        given: Any,
    ) -> GangResult | None:
        """Run a gang until it has ended; return None if a machine stops before."""
        gang = ThreadGang(len(data), mail, on_event, given)
        span = {} if history is None else {"begin": history.began, "stop": history.stops[0]}
        scheduler = EventScheduler(gang.n_ends, gang.abort, **span)
        network, n_ranks = network_for(self.network), len(data)
        machines = range(gang.n_ends) if history is None else [*history.machines, *range(n_ranks, gang.n_ends)]
        fabric = Fabric(network, scheduler, self.compute, self.stragglers, self.seed, machines)
        fabric.player = Player(fabric.ports, n_ranks, fabric.compute.added_byte_s)
        scheduler.attach(fabric.player)
        # To look at a virtual clock costs nothing, so every round is timed.
        ledgers = [RankLedger(rank, clock, timing_cost_s=0.0) for rank, clock in enumerate(scheduler.clocks)]
        # That of a server only charges it for work: it takes part in no collective.
        transports = [SimTransport(keeper.rank, n_ranks, fabric, keeper, gang.abort) for keeper in ledgers]
        shared_array = SharedArray()
        for transport in transports:
            transport.shared_array = shared_array
        if not gang.mail.in_pairs:
            for transport, mailbox in zip(transports, connect(fabric, ledgers, gang.abort), strict=True):
                transport.mailbox = mailbox
        values: list[Any] = [None] * gang.size

        def work(number: int) -> None:
            transport = transports[number]
            try:
                with gang.watching(number, transport, transport.mailbox):
                    scheduler.begin(number)
                    if number < n_ranks:
                        rank = gang.rank(Group(transport, algorithm))
                        if history is not None and self.on_failure != "raise":
                            keeper = history.join(number, transport.clock)
                            rank = replace(rank, keeper=keeper, formed=len(history.events))
                        values[number] = program(rank, data[number], *args)
                        return
                    assert transport.mailbox is not None  # servers use mailboxes
                    gang.serve(Server(transport.mailbox, n_ranks, gang.abort, transport.worked), args)
            finally:
                # Only now: to close its ends wakes peers, which only the rank whose turn it is may do.
                scheduler.end(number)

        began = time.perf_counter()
        # A simulated rank has one core of its own, however many this machine has.
        with limit_pools(1), stage("train"), staying(current_core() if gang.n_ends >= _MANY else -1):
            run_threads(work, range(gang.n_ends), gang.abort)
        if scheduler.is_stopped:
            return None
        gang.raise_first()
        peak_bytes = peak_rss_bytes()
        stats = [
            {
                "rank": r,
                "worker": f"simulated rank {r}",
                "host": f"simulated host {network.host_of(r)}",
                "rows": getattr(data[r], "n_rows", None),
                "peak_rss_bytes": peak_bytes,
                "transport": transports[r].wire,
                "virtual_s": transports[r].clock.now,
                "real_s": time.perf_counter() - began,
            }
            for r in range(n_ranks)
        ]
        last_s = max(transport.clock.now for transport in transports)
        return GangResult(values[0], stats, Ledger([keeper.records() for keeper in ledgers], elapsed_s=last_s))
