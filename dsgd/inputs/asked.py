"""The requirements of an estimator: for its row blocks, for the gang that trains on them, and its number of ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dsgd.comm.base import TransportName
from dsgd.inputs.blocks import Block
from dsgd.runtime.gang.policy import FailurePolicy
from dsgd.runtime.memory import MemoryDemand
from dsgd.runtime.pools import count_cores
from dsgd.runtime.rank import Mail, RankProgram
from dsgd.runtime.sharing import Workers
from dsgd.runtime.timeouts import Timeouts
from dsgd.validation import warn_user

__all__ = ["Expected", "Spread", "Terms", "Work", "count_threads", "ranks_asked"]

#: Threads beyond both of these mostly wait.
_CROWD: Final = 32
_CROWD_PER_CORE: Final = 4


@dataclass(frozen=True)
class Expected:
    """Requirements for rows and targets; the keywords of `summarise`.

    Parameters
    ----------
    classification : bool, default False
        Whether targets are classes.
    supervised : bool, default True
        Whether there must be targets.
    any_shape : bool, default False
        Whether rows may have any shape.
    rows_are_checked : bool, default False
        Whether rows are known to be finite numbers of the right shape.
    """

    classification: bool = False
    supervised: bool = True
    any_shape: bool = False
    rows_are_checked: bool = False


@dataclass(frozen=True)
class Spread:
    """The number of ranks, and how rows are distributed to them.

    Parameters
    ----------
    n_ranks, ranks_per_worker : int or None, default None
        Ranks in all, and on a worker; None takes one for every thread. Arrays of this process are cut into `pieces`
        blocks per rank.
    pieces : int, default 1
        Number of blocks per rank into which arrays of this process are cut. A block is the unit that can move later.
    on_disk : bool, default False
        Whether blocks are stored on the disks of the workers instead of in memory.
    seed : int or None, default None
        Assigns the rows of arrays of this process to ranks at random, see `dsgd.inputs.partition`; None assigns
        consecutive rows, as in blocks that were made on the cluster.
    """

    n_ranks: int | None = None
    ranks_per_worker: int | None = None
    pieces: int = 1
    on_disk: bool = False
    seed: int | None = None


@dataclass(frozen=True)
class Work:
    """The work of the ranks on the blocks; see `dsgd.runtime.run_on_cluster`.

    Parameters
    ----------
    program : RankProgram
        The program of each rank.
    pack : callable
        Makes the data of a rank from its blocks (X, y, sample_weight).
    args : tuple
        Further arguments of the program.
    cut : callable or None, default None
        Divides packed data between the ranks of a worker.
    numbered : bool, default False
        Whether `pack` gets blocks (X, y, sample_weight, first) instead, `first` being the number of the first row in
        the whole.
    beside : sequence or None, default None
        An object for each block, in their order: `pack` then gets blocks (X, y, sample_weight, object). Not with
        `numbered`.
    demand : MemoryDemand or None, default None
        Memory that ranks need on their workers.
    mail : Mail or None, default None
        Whether ranks get mailboxes, and which servers follow them.
    given : object, default None
        An object for rank 0 only.
    """

    program: RankProgram
    pack: Callable[[Sequence[Block], int], Any]
    args: tuple[Any, ...]
    cut: Callable[[Any, int], Sequence[Any]] | None = None
    numbered: bool = False
    beside: Sequence[Any] | None = None
    demand: MemoryDemand | None = None
    mail: Mail | None = None
    given: Any = None


#: Parameters of estimators that affect worker processes only, with their defaults.
OF_CLUSTERS: Final[Mapping[str, Any]] = {
    "transport": "auto",
    "on_failure": "raise",
    "elastic": False,
    "timeouts": None,
    "workers": None,
}


@dataclass(frozen=True)
class Terms:
    """Settings of a gang, from the parameters of the estimator; see `dsgd.runtime.run_on_cluster`.

    Parameters
    ----------
    transport : str, default "auto"
        The transport that moves bytes between ranks.
    on_failure : str or policy, default "raise"
        What happens when a machine fails.
    elastic : bool, default False
        Whether workers that join the cluster also join the gang.
    timeouts : Timeouts or None, default None
        How long it waits for each event.
    workers : sequence of str, mapping of str to float, or None, default None
        The workers that it may use.
    on_event : callable or None, default None
        Receives what rank 0 publishes.
    title : str or None, default None
        Title of the job on the dashboard.
    """

    transport: TransportName = "auto"
    on_failure: FailurePolicy = "raise"
    elastic: bool = False
    timeouts: Timeouts | None = None
    workers: Workers = None
    on_event: Callable[[Mapping[str, Any]], None] | None = None
    title: str | None = None


def count_threads(n_jobs: int | None, n_rows: int | None = None, least_rows: int = 1) -> int:
    """Return the threads that ``n_jobs`` asks for: None is 1, −1 one per core.

    Parameters
    ----------
    n_jobs : int or None
        The parameter, not zero.
    n_rows : int or None, default None
        Rows to assign to the threads; a thread without rows would only delay the others. A warning says if more threads
        than rows were asked for by number, or if many more are returned than there are cores.
    least_rows : int, default 1
        Least number of rows of each thread, if there are several.
    """
    cores = count_cores()
    n = 1 if n_jobs is None else n_jobs if n_jobs > 0 else max(1, cores + 1 + n_jobs)
    if n_rows is None:
        return n
    useful = max(1, min(n, n_rows // least_rows))
    if n_jobs is not None and n_jobs > max(1, n_rows):
        warn_user(
            f"n_jobs={n_jobs} is more than the {n_rows} rows: trained on {useful} rank(s).",
            UserWarning,
        )
    if useful > max(_CROWD, _CROWD_PER_CORE * cores):
        warn_user(
            f"n_jobs={n_jobs} makes {useful} ranks share {cores} cores, and at every synchronisation each waits for "
            "all others: n_jobs=-1 is faster. To see what so many ranks would do, pass client=SimulatedCluster(...).",
            UserWarning,
        )
    return useful


def ranks_asked(n_jobs: int | None) -> int | None:
    """Return the ranks on a cluster that ``n_jobs`` asks for: its number, or None for as many as possible."""
    return n_jobs if n_jobs is not None and n_jobs > 0 else None
