"""The requirements of an estimator: for its row blocks, for the gang that trains on them, and its number of ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dsgd.comm.base import TransportName
from dsgd.comm.memory.cores import count_cores
from dsgd.inputs.blocks import Block
from dsgd.runtime.gang.recovery import FailurePolicy
from dsgd.runtime.memory import MemoryDemand
from dsgd.runtime.rank import Mail, RankProgram
from dsgd.runtime.sharing import Workers
from dsgd.runtime.timeouts import Timeouts
from dsgd.validation import warn_user

#: Threads beyond both of these mostly wait.
_CROWD: Final = 32
_CROWD_PER_CORE: Final = 4


@dataclass(frozen=True)
class Expected:
    """Requirements for rows and targets; the keywords of `summarise`."""

    classification: bool = False
    supervised: bool = True
    any_shape: bool = False
    rows_are_checked: bool = False


@dataclass(frozen=True)
class Spread:
    """The number of ranks, and how rows are distributed to them."""

    n_ranks: int | None = None
    ranks_per_worker: int | None = None
    pieces: int = 1
    on_disk: bool = False
    seed: int | None = None


@dataclass(frozen=True)
class Work:
    """The work of the ranks on the blocks; see `dsgd.runtime.run_on_cluster`."""

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
    """Settings of a gang, from the parameters of the estimator; see `dsgd.runtime.run_on_cluster`."""

    transport: TransportName = "auto"
    on_failure: FailurePolicy = "raise"
    elastic: bool = False
    timeouts: Timeouts | None = None
    workers: Workers = None
    on_event: Callable[[Mapping[str, Any]], None] | None = None
    title: str | None = None


def count_threads(n_jobs: int | None, n_rows: int | None = None, least_rows: int = 1) -> int:
    """Return the threads that ``n_jobs`` asks for: None is 1, −1 one per core."""
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
