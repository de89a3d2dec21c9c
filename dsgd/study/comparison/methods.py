"""What is compared: strategies by name, with their compressors, topologies and periods, and where ranks run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from dsgd.errors import ClusterError, InvalidParameterError
from dsgd.sim import SimulatedCluster
from dsgd.sim.network import network_for
from dsgd.study.frame.report import gang_text
from dsgd.study.frame.workers import cluster_of
from dsgd.sync import (
    AbstractStrategy,
    AnytimeSGD,
    AutoSync,
    EpochAveraging,
    LocalSGD,
    OneShotAveraging,
    PostLocalSGD,
    resolve,
)
from dsgd.validation import check_number

if TYPE_CHECKING:
    from distributed import Client

#: What is compared: strategies as ``sync=`` of an estimator takes them, by what they are called, or texts alone.
Methods: TypeAlias = Mapping[str, AbstractStrategy[Any] | int | str] | Sequence[str]

#: What the run of one rank is called.
SEQUENTIAL: Final = "sequential"
#: Of strategies, as figures group them.
FAMILIES: Final = (
    "averages of models", "centres, momentum, corrections", "neighbours and pairs", "servers", "one model, every step",
)  # fmt: skip
_AVERAGES: Final = (LocalSGD, AutoSync, PostLocalSGD, EpochAveraging, OneShotAveraging, AnytimeSGD)
#: Parameters that say how many rows there are between two exchanges; a strategy has one of them at most.
_PERIODS: Final = ("every", "batch")
_WORKERS: Final = "workers"
_RANKS: Final = 4


@dataclass(frozen=True, eq=False)
class Place:
    """Where ranks run."""

    cluster: Client | SimulatedCluster | None
    ranks: int

    @property
    def kind(self) -> str:
        """The kind of ranks: ``"threads"``, ``"workers"`` or ``"simulated"``."""
        if self.cluster is None:
            return "threads"
        return "simulated" if isinstance(self.cluster, SimulatedCluster) else "workers"

    @property
    def text(self) -> str:
        """The ranks as tables say them."""
        if isinstance(self.cluster, SimulatedCluster):
            asked = self.cluster.stragglers
            late = "" if asked == "none" else f", stragglers {asked if isinstance(asked, str) else repr(asked)}"
            return gang_text(self.ranks, network_for(self.cluster.network).name) + late
        return f"{self.ranks} threads" if self.cluster is None else gang_text(self.ranks, None)

    @property
    def settings(self) -> str:
        """All that decides what runs here cost, as text; machines aside."""
        return repr(replace(self.cluster, ranks=1)) if isinstance(self.cluster, SimulatedCluster) else self.kind

    def for_run(self, ranks: int, seed: int) -> Client | SimulatedCluster | None:
        """Return the cluster of so many ranks; stragglers of each seed are others."""
        if isinstance(self.cluster, SimulatedCluster):
            return replace(self.cluster, ranks=ranks, seed=self.cluster.seed + seed)
        return self.cluster


@contextmanager
def opened(cluster: Client | SimulatedCluster | str | None, ranks: int | None) -> Iterator[Place]:
    """Give the place that `cluster` and `ranks` mean; what was started for it is closed again."""
    if ranks is not None:
        check_number("compare(ranks=...)", ranks, low=2, integer=True)
    if isinstance(cluster, SimulatedCluster):
        if ranks not in (None, cluster.ranks):
            raise InvalidParameterError(f"compare(ranks={ranks}) is not what {cluster!r} has: leave ranks out.")
        check_number("compare(cluster=SimulatedCluster(ranks=...))", cluster.ranks, low=2, integer=True)
        yield Place(cluster, cluster.ranks)
    elif cluster is None:
        yield Place(None, ranks or _RANKS)
    elif isinstance(cluster, str):
        if cluster != _WORKERS and "://" not in cluster:
            raise InvalidParameterError(
                f"compare(cluster={cluster!r}) must be 'workers', the address of a scheduler (tcp://HOST:PORT), a "
                "distributed.Client, a dsgd.sim.SimulatedCluster or None."
            )
        with cluster_of(ranks or _RANKS, None if cluster == _WORKERS else cluster) as client:
            yield Place(client, _checked(client, ranks))
    elif hasattr(cluster, "scatter"):
        yield Place(cluster, _checked(cluster, ranks))
    else:
        raise InvalidParameterError(
            f"compare(cluster=...) must be a distributed.Client, a dsgd.sim.SimulatedCluster, 'workers', the address "
            f"of a scheduler or None. Got {cluster!r}."
        )


def _checked(client: Client, ranks: int | None) -> int:
    """Return how many ranks there are on a cluster, one on each of its workers."""
    n_workers = len(client.nthreads())
    if n_workers < (ranks or 2):
        raise ClusterError(f"compare() wants {ranks or 2} ranks, and the cluster has {n_workers} workers: start more.")
    return ranks or n_workers


def read_methods(methods: Methods, every: int | None, kind: str) -> dict[str, AbstractStrategy[Any]]:
    """Return the strategies by name."""
    if isinstance(methods, str) or not isinstance(methods, (Mapping, Sequence)):
        raise InvalidParameterError(
            "compare(methods=...) must be a mapping of names to strategies, {'local': LocalSGD(64)}, or a list of "
            f"texts, ['local', 'easgd:every=64']. Got {methods!r}."
        )
    named = dict(methods) if isinstance(methods, Mapping) else {str(text): text for text in methods}
    if not named:
        raise InvalidParameterError("compare(methods=...) names no strategy; give at least one, as {'local': 64}.")
    if len(named) < len(methods):
        raise InvalidParameterError(f"compare(methods=...) names a strategy twice. Got {list(methods)}.")
    found = {}
    for name, sync in named.items():
        if not isinstance(name, str) or not name or name == SEQUENTIAL:
            raise InvalidParameterError(
                f"compare(methods=...): {name!r} cannot be what a strategy is called: give a text, and not "
                f"{SEQUENTIAL!r}, which is the run of one rank."
            )
        try:
            found[name] = resolve(sync)
        except InvalidParameterError as error:
            raise InvalidParameterError(f"compare(methods=...), {name!r}: {error}") from error
        if kind != "threads":
            check_shared_memory("compare(methods=...)", name, found[name])
    if every is None:
        return found
    check_number("compare(every=...)", every, low=1, integer=True)
    return {name: with_period(one, every) if period_of(one)[0] == "every" else one for name, one in found.items()}


def check_shared_memory(where: str, name: str, strategy: AbstractStrategy[Any]) -> None:
    """Raise `InvalidParameterError` for a strategy whose ranks share memory, where they have none in common."""
    if strategy.shares_memory:
        raise InvalidParameterError(
            f"{where}: {name!r} updates one model in the memory of all ranks and sends nothing, but the ranks of a "
            "network share no memory. Leave it out."
        )


def family(strategy: AbstractStrategy[Any]) -> str:
    """Return the family of a strategy, as figures group them: one of `FAMILIES`."""
    if strategy.shares_memory or (strategy.exchanges == "gradient" and not strategy.n_servers):
        return FAMILIES[4]
    if strategy.n_servers:
        return FAMILIES[3]
    if strategy.talks != "together":
        return FAMILIES[2]
    return FAMILIES[0] if type(strategy) in _AVERAGES else FAMILIES[1]


def period_of(strategy: AbstractStrategy[Any]) -> tuple[str, int | None]:
    """Return the parameter that is the period of a strategy, and its value; ``("", None)`` where there is none."""
    names = {field.name for field in fields(strategy) if field.init}  # type: ignore[arg-type]
    name = next((name for name in _PERIODS if name in names), "")
    value = getattr(strategy, name) if name else None
    if name and value is None:
        # That of dense rows: the strategy chooses a longer one on sparse rows.
        value = getattr(strategy.period, "n", None)
    return (name, value) if isinstance(value, int) else ("", None)


def with_period(strategy: AbstractStrategy[Any], n: int) -> AbstractStrategy[Any]:
    """Return a strategy with another period; one that has none as it is."""
    name, _ = period_of(strategy)
    changed: AbstractStrategy[Any] = replace(strategy, **{name: n}) if name else strategy  # type: ignore[type-var]
    return changed
