"""The arguments of a rank program, and the result of a gang."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from dsgd.ledger import Ledger, RankLedger
from dsgd.stages import Stage

if TYPE_CHECKING:
    from dsgd.collectives.group import Group
    from dsgd.comm.base import AbstractMailbox
    from dsgd.comm.frames import AbortFlag
    from dsgd.runtime.checkpoints.checkpoint import SnapshotKeeper


def _say_nothing(event: Mapping[str, Any]) -> None:
    """Drop a progress event."""


def _did_nothing(**work: int) -> None:
    """Drop an account of work: a real clock has moved by itself."""


@dataclass(frozen=True)
class Rank:
    """One rank of a gang, as its program sees it.

    Parameters
    ----------
    group : Group
        The collectives that join it with the other ranks.
    abort : AbortFlag
        Set when the job stops; programs call `check` between slices of work of at most about a second.
    publish : callable
        Takes a small mapping of plain numbers and strings and sends it to all that watch the job; rank 0 only.
    keeper : SnapshotKeeper or None, default None
        Keeps copies of the rank's state, which outlive it; None if the gang is not formed again after a failure.
    n_threads : int
        How many threads the rank may use, itself among them, so that all ranks together use the threads that the
        workers have.
    job_id : str, default ""
        Of the job on the cluster: the same each time its gang is formed.
    formed : int, default 0
        How many times the gang has been formed before.
    enough : threading.Event
        Set on some or all ranks to ask the job to end early with its present result. Ranks of a program that supports
        it agree on where they stop.
    given : object, default None
        An object of the caller for rank 0, which sends others what they need of it; None on the other ranks.
    """

    group: Group
    abort: AbortFlag
    publish: Callable[[Mapping[str, Any]], None] = field(default=_say_nothing)
    keeper: SnapshotKeeper | None = None
    n_threads: int = 1
    job_id: str = ""
    formed: int = 0
    enough: threading.Event = field(default_factory=threading.Event)
    given: Any = None

    @property
    def number(self) -> int:
        """Number of the rank, from 0."""
        return self.group.rank

    @property
    def size(self) -> int:
        """How many ranks the gang has."""
        return self.group.size

    @property
    def ledger(self) -> RankLedger:
        """The ledger of this rank."""
        return self.group.ledger

    @property
    def is_heard(self) -> bool:
        """Whether anybody listens to what is published."""
        return self.publish is not _say_nothing

    @property
    def is_virtual(self) -> bool:
        """Whether its clock only moves by calls of `worked` and by exchanges."""
        return self.group.transport.is_virtual

    def worked(self, *, rows: int = 0, entries: int = 0, params: int = 0, epochs: int = 0) -> None:
        """Say that work has been done, for the clock of a simulated rank; see `AbstractTransport.worked`."""
        self.group.transport.worked(rows=rows, entries=entries, params=params, epochs=epochs)

    def check(self) -> None:
        """Raise `AbortedError` if the job has stopped."""
        self.abort.check()


class RankProgram(Protocol):
    """A function that every rank of a gang runs on its own data."""

    def __call__(self, rank: Rank, data: Any, *args: Any) -> Any:
        """Run on `rank` with its `data`; what rank 0 returns is the result of the job."""
        ...


@dataclass(frozen=True)
class Server:
    """A rank without rows that serves the others, as its program sees it.

    Parameters
    ----------
    mailbox : AbstractMailbox
        Joins it with the workers, which come first, and the other servers.
    n_workers : int
        How many ranks it serves.
    abort : AbortFlag
        Set when the job stops.
    worked : callable
        Says that work has been done, for the clock of a simulated server; see `AbstractTransport.worked`.
    """

    mailbox: AbstractMailbox
    n_workers: int
    abort: AbortFlag
    worked: Callable[..., None] = field(default=_did_nothing)

    @property
    def number(self) -> int:
        """Number of the rank; the first server has that after the last worker."""
        return self.mailbox.rank

    @property
    def ledger(self) -> RankLedger:
        """The ledger of this rank."""
        return self.mailbox.ledger


class ServerProgram(Protocol):
    """A function that every server of a gang runs until its workers are done."""

    def __call__(self, server: Server, *args: Any) -> None:
        """Run on `server` with the arguments of the rank program."""
        ...


@dataclass(frozen=True)
class Mail:
    """Mailboxes and servers of a gang.

    Parameters
    ----------
    in_pairs : bool, default False
        Whether mailboxes are only wanted where ranks cannot reach each other without them: where they are threads of
        several processes.
    n_servers : int, default 0
        How many ranks without rows come after the others.
    serve : callable, optional
        What they run.
    """

    in_pairs: bool = False
    n_servers: int = 0
    serve: ServerProgram | None = None


@dataclass(frozen=True)
class GangResult:
    """The result of a job.

    Parameters
    ----------
    value : object
        The result of the program on rank 0.
    stats : sequence of dict
        One entry per rank: ``rank``, ``worker``, ``host``, ``rows``, ``peak_rss_bytes`` (of the process, which ranks
        may share) and the like.
    ledger : Ledger
        Seconds and bytes of every rank, since the gang was last formed.
    recoveries : sequence of dict
        One entry for each time the gang was formed again: ``kind`` (``"lost"``, ``"hung"``, ``"aborted"``,
        ``"unheard"`` or ``"joined"``), ``rank``, ``worker`` and ``host`` of the cause, ``ranks`` afterwards,
        ``blocks_lost`` and ``rows_lost`` (None if rows were not known), and ``seconds`` from the notice until the ranks
        started again.
    stages : sequence of Stage
        Seconds of the workers since the gang was last formed; empty if ranks are threads of this process.
    goodput : float or None, default None
        Of simulated machines that fail, the share of the seconds of all that went into training that counts.
    """

    value: Any
    stats: Sequence[dict[str, Any]]
    ledger: Ledger
    recoveries: Sequence[dict[str, Any]] = ()
    stages: Sequence[Stage] = ()
    goodput: float | None = None

    @property
    def report(self) -> dict[str, Any]:
        """What every ``fit_report_`` says of its gang.

        The number of ranks and workers, the transports, the number of refused connections, the memory of the largest
        process, and `stats` and `recoveries` as plain lists.
        """
        refused = sum((Counter(stat.get("refused")) for stat in self.stats), Counter[str]())
        ways = sorted({str(stat["transport"]) for stat in self.stats})
        per_worker = Counter(stat["worker"] for stat in self.stats)
        return {
            "ranks": len(self.stats),
            "workers": len(per_worker),
            "ranks_per_worker": list(per_worker.values()),
            "transport": ", ".join(ways),
            "refused": dict(refused),
            "peak_rss_bytes": max((stat["peak_rss_bytes"] for stat in self.stats), default=0),
            "stats": [dict(stat) for stat in self.stats],
            "recoveries": [dict(event) for event in self.recoveries],
            **({} if self.goodput is None else {"goodput": self.goodput}),
        }
