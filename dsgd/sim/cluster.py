"""The simulated cluster: ranks are threads of this process on a virtual clock.

Problem: the benefits and costs of a strategy show on networks and numbers of machines that few people have, and
asynchronous methods never run twice in the same way.

Method: every rank is a thread that runs the usual training loop, one thread at a time (`dsgd.sim.event_scheduler`),
over a wire that charges seconds (`dsgd.sim.transport`). Kernels do their real work, so models, losses and bytes are
real, and synchronous strategies give bit for bit what they give on real gangs; only the seconds are those of `Network`
and `Compute`. The same seed gives the same seconds, whatever else the machine does.

Cost: the work of all ranks on one core, and some ten microseconds a message.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dsgd.collectives import Algorithm, Group
from dsgd.comm.memory.cores import current_core, staying
from dsgd.comm.memory.segment import SharedArray
from dsgd.errors import InvalidParameterError
from dsgd.ledger import Ledger, RankLedger
from dsgd.runtime.pools import limit_pools
from dsgd.runtime.rank import GangResult, Mail, RankProgram, Server
from dsgd.runtime.threads import ThreadGang, peak_rss_bytes, run_threads
from dsgd.sim.compute import AbstractStragglers, Compute, stragglers_for
from dsgd.sim.event_scheduler import EventScheduler
from dsgd.sim.mailbox import connect
from dsgd.sim.network import Network, network_for
from dsgd.sim.player import Player
from dsgd.sim.transport import Fabric, SimTransport
from dsgd.stages import stage
from dsgd.validation import check_number

# Of so many threads, which take turns, the time goes to waking the next one.
_MANY: Final = 32


@dataclass(frozen=True)
class SimulatedCluster:
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
        Seed of the stragglers. Equal seeds give equal runs.

    Raises
    ------
    InvalidParameterError
        There is no rank, or no network or distribution of that name.

    Examples
    --------
    >>> from dsgd import SGDClassifier
    >>> from dsgd.sim import SimulatedCluster
    >>> clf = SGDClassifier(max_iter=3, tol=None, sync=4, client=SimulatedCluster(ranks=4, network="1GbE"))
    >>> clf.fit([[0.0], [1.0], [2.0], [3.0]] * 5, [0, 0, 1, 1] * 5).fit_report_["transport"]
    'simulated 1GbE'
    """

    ranks: int
    network: Network | str = "1GbE"
    compute: Compute | None = None
    stragglers: AbstractStragglers | str = "none"
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be simulated."""
        check_number("SimulatedCluster(ranks=...)", self.ranks, low=1, integer=True)
        network_for(self.network)
        stragglers_for(self.stragglers)
        if self.compute is not None and not isinstance(self.compute, Compute):
            raise InvalidParameterError(
                f"SimulatedCluster(compute=...) must be a dsgd.sim.Compute or None. Got {self.compute!r}."
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
            With what rank 0 returned, and a ledger in virtual seconds. Each entry of ``stats`` has ``virtual_s``, when
            the rank had ended.

        Raises
        ------
        InvalidParameterError
            `data` has not one entry per rank.
        Exception
            Whatever the first rank that failed has raised; `ProtocolError` where all ranks wait for each other.
        """
        if len(data) != self.ranks:
            raise InvalidParameterError(f"run(data=...) must have one entry per rank ({self.ranks}). Got {len(data)}.")
        gang = ThreadGang(len(data), mail, on_event, given)
        scheduler = EventScheduler(gang.n_ends, gang.abort)
        network = network_for(self.network)
        fabric = Fabric(network, scheduler)
        # To look at a virtual clock costs nothing, so every round is timed.
        ledgers = [RankLedger(rank, clock, timing_cost_s=0.0) for rank, clock in enumerate(scheduler.clocks)]
        transports = self._transports(fabric, ledgers, gang)
        values: list[Any] = [None] * gang.size

        def work(number: int) -> None:
            transport = transports[number]
            try:
                with gang.watching(number, transport, transport.mailbox):
                    scheduler.begin(number)
                    if number < self.ranks:
                        values[number] = program(gang.rank(Group(transport, algorithm)), data[number], *args)
                        return
                    assert transport.mailbox is not None  # servers use mailboxes
                    gang.serve(Server(transport.mailbox, self.ranks, gang.abort, transport.worked), args)
            finally:
                # Only now: to close its ends wakes peers, which only the rank whose turn it is may do.
                scheduler.end(number)

        began = time.perf_counter()
        # A simulated rank has one core of its own, however many this machine has.
        with limit_pools(1), stage("train"), staying(current_core() if gang.n_ends >= _MANY else -1):
            run_threads(work, range(gang.n_ends), gang.abort)
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
            for r in range(self.ranks)
        ]
        last_s = max(transport.clock.now for transport in transports)
        return GangResult(values[0], stats, Ledger([keeper.records() for keeper in ledgers], elapsed_s=last_s))

    def _transports(self, fabric: Fabric, ledgers: Sequence[RankLedger], gang: ThreadGang) -> list[SimTransport]:
        """Return the transports of all ranks and servers, with their mailboxes and shared arrays."""
        compute = self.compute or Compute()
        fabric.player = Player(fabric.ports, self.ranks, compute.added_byte_s)
        fabric.scheduler.attach(fabric.player)
        parts = compute, stragglers_for(self.stragglers), self.seed, gang.abort
        # That of a server only charges it for work: it takes part in no collective.
        transports = [SimTransport(ledger.rank, self.ranks, fabric, ledger, *parts) for ledger in ledgers]
        mailboxes = [] if gang.mail.in_pairs else connect(fabric, ledgers, gang.abort)
        shared_array = SharedArray()
        for transport in transports:
            transport.shared_array = shared_array
        for transport, mailbox in zip(transports, mailboxes, strict=False):
            transport.mailbox = mailbox
        return transports
