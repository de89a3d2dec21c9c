"""What is compared, on which rows, and where ranks run; learning curves.

A curve says what a method would return after so many rows, and what that took. Every point is a training of its own,
from the same start and with the same seed, because what ranks have in the middle of a run is not what training returns:
models are still apart, messages under way. Within the first epoch a point is the training on a part of the rows of each
rank, which are drawn once, so that a longer part holds the shorter.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
from sklearn.base import clone
from sklearn.model_selection import train_test_split
from sklearn.utils import check_array

from dsgd.datasets import check_split
from dsgd.errors import ClusterError, InvalidDataError, InvalidParameterError
from dsgd.estimators import SGDClassifier
from dsgd.estimators.start import Start, check_rows
from dsgd.estimators.tables import encoded
from dsgd.inputs.sources import is_distributed
from dsgd.inputs.table_files import with_files_opened
from dsgd.sim import SimulatedCluster
from dsgd.sim.network import network_for
from dsgd.study.frame.data import LOSSES, StudyData, cluster_of, objective, place, point, score, spent
from dsgd.study.frame.report import gang_text
from dsgd.study.frame.rows import Row, picked
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


def parameters_of(strategy: AbstractStrategy[Any]) -> set[str]:
    """Return the names of the parameters of a strategy."""
    return {field.name for field in fields(strategy) if field.init}  # type: ignore[arg-type]


def period_of(strategy: AbstractStrategy[Any]) -> tuple[str, int | None]:
    """Return the parameter that is the period of a strategy, and its value; ``("", None)`` where there is none."""
    names = parameters_of(strategy)
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


_PARTS: Final = (0.125, 0.25, 0.5)


class DivergedError(InvalidDataError):
    """The model of a run left the range of numbers."""

    def __init__(self, error: InvalidDataError, row: Row) -> None:
        super().__init__(str(error))
        self.row = row


@dataclass(eq=False)
class Held:
    """Rows as ranks hold them, all or a part; those of workers stay there as long as this is kept."""

    where: Client | SimulatedCluster | None
    data: StudyData
    ranks: int
    partition: str
    seed: int = 0
    blocks: dict[float, tuple[list[Any], int]] = field(default_factory=dict)

    def part(self, share: float) -> tuple[list[Any], int]:
        """Return the blocks of a share of the rows of each rank, above 0 and at most 1, and how many rows that is."""
        if share not in self.blocks:
            rows = self.data.X, self.data.y
            self.blocks[share] = place(self.where, rows, self.ranks, self.partition, seed=self.seed, share=share)
        return self.blocks[share]


def looks(epochs: int) -> list[int]:
    """Return after how many epochs the model of a run is looked at.

    - returned: powers of two and the numbers midway between them, and `epochs` itself.

    Examples
    --------
    >>> looks(10)
    [1, 2, 3, 4, 6, 8, 10]
    """
    powers = [2**level for level in range(epochs.bit_length())]
    found = {epochs, *powers, *(power + power // 2 for power in powers if power + power // 2 < epochs)}
    return sorted(found)


def train_curve(model: SGDClassifier, held: Held, at: Iterable[float]) -> Row:
    """Train a classifier for each point of its curve, and return what a row says of it.

    - returned: the last point, what it took by phase, and ``curve``: of each point ``epoch``, ``rows``,
      ``objective`` (of the training rows), ``test_accuracy``, ``seconds`` (from the first row to the end of the
      last epoch), ``bytes_sent`` and ``messages`` of all ranks for the algorithm, and those of control.
    """
    data, curve, kind = held.data, list[Row](), family(resolve(model.sync))
    model.set_params(client__client=held.where, n_jobs=held.ranks)
    alpha = 0.0 if model.penalty is None else model.alpha
    try:
        if not isinstance(held.where, SimulatedCluster):
            # Loading compiled code is in no timing.
            model.set_params(max_iter=1).fit(held.part(1.0)[0], None)
        for look in at:
            blocks, n_rows = held.part(min(1.0, float(look)))
            model.set_params(max_iter=max(1, math.ceil(look))).fit(blocks, None)
            worth = objective(model, data.X, data.y, loss=str(model.loss), alpha=alpha)
            test = score(model, data.X_test, data.y_test)
            seen = {"rows": n_rows * max(1, math.ceil(look)), "objective": worth, "test_accuracy": test["accuracy"]}
            curve.append(point(model, look) | seen)
    except InvalidDataError as error:
        raise DivergedError(error, {"family": kind, "curve": curve}) from error
    return {
        "family": kind, "test_accuracy": test["accuracy"], "balanced_accuracy": test["balanced_accuracy"],
        "objective": curve[-1]["objective"], "train_s": curve[-1]["seconds"], **spent(model), "curve": curve,
    }  # fmt: skip


#: Ranks up to which all methods are tried on a few rows before anything is measured.
_MOST_REHEARSED: Final = 64
_ROWS_REHEARSED: Final = 4

#: Schedules that a first step size decides.
_OF_ETA0: Final = ("constant", "invscaling", "adaptive")
_FIXED: Final = {
    "early_stopping": False, "restore_best": False, "scoring": None, "checkpoint": None, "resume_from": None,
    "class_weight": None,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Entry:
    """A method of a comparison, with its rate."""

    name: str
    strategy: AbstractStrategy[Any]
    ranks: int
    eta0: float


@dataclass(frozen=True, eq=False)
class Problem:
    """What is trained on, and where."""

    data: StudyData
    estimator: SGDClassifier
    place: Place
    partition: str
    looks: Sequence[float]

    @property
    def has_rate(self) -> bool:
        """Whether the schedule has a first step size, which can be tuned."""
        return self.estimator.learning_rate in _OF_ETA0

    def held(self, ranks: int, seed: int) -> Held:
        """Return the rows as so many ranks hold them."""
        return Held(self.place.for_run(ranks, seed), self.data, ranks, self.partition, seed)

    def settings(self, entry: Entry, stage: str) -> Row:
        """Return everything but data and seed that decides what is run, as plain values."""
        model = self.estimator
        return {
            "digest": self.data.checksum, "ranks": entry.ranks, "place": self.place.settings, "strategy": entry.name,
            "sync": repr(entry.strategy), "epochs": self.looks[-1], "looks": list(self.looks),
            **picked(model, "alpha", "loss"),
            "model": repr(clone(model).set_params(client=model._deployment.placeless(), sync=None, n_jobs=None)),
            "schedule": model.learning_rate, "eta0": entry.eta0, "partition": self.partition, "stage": stage,
        }  # fmt: skip

    def train(self, entry: Entry, held: Held) -> Row:
        """Train a method; return what its row says. One that diverges has a row that says so."""
        model = clone(self.estimator).set_params(
            sync=entry.strategy, eta0=entry.eta0, random_state=held.seed, tol=None, verbose=0
        )
        try:
            return {**self.data.describe(), "diverged": False, **train_curve(model, held, self.looks)}
        except DivergedError as error:
            return {**self.data.describe(), "diverged": True, **error.row}


def check_estimator(estimator: SGDClassifier | None) -> SGDClassifier:
    """Return the model that all methods train, by default one with its defaults."""
    model = SGDClassifier() if estimator is None else estimator
    if not isinstance(model, SGDClassifier):
        raise InvalidParameterError(f"compare(estimator=...) must be an SGDClassifier of dsgd. Got {model!r}.")
    if model.loss not in LOSSES or model.penalty not in ("l2", None):
        raise InvalidParameterError(
            f"compare(estimator=...) needs a loss out of {', '.join(LOSSES)} and penalty 'l2' or None, as objectives "
            f"are evaluated apart from training. Got loss={model.loss!r}, penalty={model.penalty!r}."
        )
    given = {**model._deployment.get_params(), **model.get_params(deep=False)}
    for name, value in _FIXED.items():
        if given[name] != value:
            raise InvalidParameterError(
                f"compare(estimator=...): {name}={given[name]!r} has no place in a comparison; leave it at {value!r}."
            )
    return model


def check_looks(epochs: int, at: Iterable[float] | None) -> list[float]:
    """Return after how many epochs the model is looked at."""
    check_number("compare(epochs=...)", epochs, low=1, integer=True)
    if at is None:
        return [*_PARTS, *looks(int(epochs))]
    found = sorted({*at, epochs})
    for look in found:
        check_number("compare(looks=...)", look, low=0, high=epochs, open_low=True)
        if look > 1 and look != int(look):
            raise InvalidParameterError(
                f"compare(looks=...) must be parts of the first epoch, above 0, or whole numbers of epochs. Got {look}."
            )
    return [int(look) if look >= 1 else float(look) for look in found]


def split_data(
    estimator: SGDClassifier, X: Any, y: Any, test: float | tuple[Any, Any], partition: str, ranks: int, *, name: str
) -> StudyData:
    """Return training and test rows, checked."""
    check_split(partition)
    X = with_files_opened(X)
    if is_distributed(X) or (is_distributed(y) and not isinstance(y, str)):
        raise InvalidDataError(
            f"compare(X=...) takes arrays and sparse matrices of this process, which it assigns to ranks itself. Got a "
            f"{type(X).__name__}: load it first."
        )
    probe: SGDClassifier = clone(estimator).set_params(client=None)
    X, y, _ = check_rows(probe, *encoded(probe, (X, y, None), goes_on=False), Start())
    if isinstance(test, tuple):
        X_test, y_test, _ = encoded(probe, (*test, None), goes_on=True)
        X_test = check_array(X_test, accept_sparse="csr", dtype=[np.float64, np.float32])
        y_test = np.asarray(y_test)
        if X_test.shape[1] != X.shape[1] or len(y_test) != X_test.shape[0]:
            raise InvalidDataError(
                f"compare(test=...) must be (X, y) with {X.shape[1]} columns. Got {X_test.shape}, {y_test.shape}."
            )
    else:
        check_number("compare(test=...)", test, low=0, high=1, open_low=True, open_high=True)
        # By the labels, where each has rows for both sides.
        by_label = y if np.unique(y, return_counts=True)[1].min() > 1 else None
        X, X_test, y, y_test = train_test_split(X, y, test_size=test, random_state=0, stratify=by_label)
    if len(np.unique(y)) < 2:
        raise InvalidDataError(f"compare(y=...) has one class only, {y[0]!r}: there is nothing to learn.")
    if len(y) < 2 * ranks:
        raise InvalidDataError(f"compare(X=...) has {len(y)} training rows, too few for {ranks} ranks.")
    return StudyData(name, "arrays", X, y, X_test, y_test)


def rehearse(problem: Problem, methods: dict[str, AbstractStrategy[Any]]) -> None:
    """Train each method for an epoch on a few rows: what cannot work is found before anything is measured.

    Up to 64 ranks; more of them take longer than the error is worth.
    """
    ranks = problem.place.ranks
    if ranks > _MOST_REHEARSED:
        return
    data = problem.data
    classes, n = np.unique(data.y), min(_ROWS_REHEARSED * ranks, len(data.y))
    X, y = data.X[:n], classes[np.arange(n) % len(classes)]
    few = StudyData(data.name, data.source, X, y, X, y)
    for name, strategy in methods.items():
        model = clone(problem.estimator).set_params(sync=strategy, random_state=0, tol=None, verbose=0)
        try:
            train_curve(model, Held(SimulatedCluster(ranks, "InfiniBand"), few, ranks, "contiguous"), [1])
        except DivergedError:
            continue  # the rows are made up
        except Exception as error:
            raise InvalidParameterError(
                f"compare(methods=...): {name!r} fails on {ranks} ranks, {type(error).__name__}: {error}"
            ) from error
