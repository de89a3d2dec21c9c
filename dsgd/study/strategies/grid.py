"""The runs of the study of strategies: strategies, ranks and seeds, on workers or simulated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from dsgd.datasets import check_split
from dsgd.errors import InvalidParameterError
from dsgd.kernels import SCHEDULES
from dsgd.sim.compute import stragglers_for
from dsgd.sim.network import network_for
from dsgd.study.comparison.methods import SEQUENTIAL, check_shared_memory
from dsgd.study.frame.data import DTYPES, DataSource
from dsgd.study.frame.grid import check_grid
from dsgd.study.frame.measure import LOSSES
from dsgd.study.frame.rows import AbstractRun, Row, picked
from dsgd.sync import (
    STRATEGIES,
    AbstractStrategy,
    BackupWorkers,
    Hogwild,
    MinibatchSGD,
    StalenessAware,
    resolve,
)

__all__ = ["StrategyRun", "StrategyStudy", "demo_strategy_study"]

# Steps of these are taken with the mean of many gradients, or at a share of the rate: they need a larger rate.
_MEANS: Final = (MinibatchSGD, StalenessAware, BackupWorkers)
_MOST: Final = 10.0
# Raised when equal settings come to mean another run; rows of before are made again. From 2 on simulated ranks hold the
# rows that the partition gives them.
_DEFINITION: Final = 2


@dataclass(frozen=True)
class StrategyStudy:
    """A grid of training runs that differ in how ranks synchronise.

    Every study includes the sequential run (one rank), the baseline of the others.

    Parameters
    ----------
    data : sequence of DataSource
        The datasets.
    strategies : mapping of str to strategy, optional
        The strategies by name, as estimators take them as ``sync``. By default all strategies with their defaults but
        Hogwild, whose ranks share memory.
    ranks : sequence of int
        Numbers of ranks, 2 or more.
    network : str, optional
        Network of simulated ranks (a name in `dsgd.sim.NETWORKS`). By default ranks are worker processes.
    stragglers : str, default "none"
        How uneven the work of simulated ranks is.
    seeds : sequence of int
        Seeds of the order of the rows.
    epochs : int
        Passes over the training rows of the longest run.
    alpha : float
        Strength of the L2 penalty.
    loss : {"hinge", "squared_hinge", "log_loss"}
        The loss.
    schedule : str, default "constant"
        Step sizes. Stale gradients need small steps from the start, so asynchronous strategies always take constant
        ones. Keep the default to compare all strategies at equal rates.
    eta0 : float
        The constant rate. Strategies that take steps by the mean of many gradients, or at a share of the rate, get
        ``ranks - 1`` times as much, at most ten times.
    partition : str
        How training rows are assigned to the ranks, see `dsgd.datasets.split_rows`: ``"contiguous"``, ``"shuffled"``,
        ``"label-skewed"``, ``"feature-skewed"``, ``"dirichlet:0.5"`` or ``"quantity:0.5"``.
    dtype : {"float32", "float64"}
        Precision of data and model.
    target_excess : float
        The target is the final training objective of the sequential run times (1 + `target_excess`).

    Raises
    ------
    InvalidParameterError
        A value is outside its domain, or a strategy cannot run there.
    """

    data: Sequence[DataSource] = (DataSource("ijcnn1"),)
    strategies: Mapping[str, AbstractStrategy[Any] | int | str] | None = None
    ranks: Sequence[int] = (2, 4)
    network: str | None = None
    stragglers: str = "none"
    seeds: Sequence[int] = (0, 1, 2)
    epochs: int = 6
    alpha: float = 1e-4
    loss: str = "hinge"
    schedule: str = "constant"
    eta0: float = 0.1
    partition: str = "shuffled"
    dtype: str = "float32"
    target_excess: float = field(default=0.02)

    def __post_init__(self) -> None:
        check_grid(
            self,
            given=("data", "ranks", "seeds"),
            least={"ranks": 2, "seeds": 0, "epochs": 1, "target_excess": 0},
            above={"alpha": 0, "eta0": 0},
            choices={"loss": LOSSES, "schedule": tuple(SCHEDULES), "dtype": DTYPES},
        )
        check_split(self.partition)
        if self.network is not None:
            network_for(self.network)
            stragglers_for(self.stragglers)
        elif self.stragglers != "none":
            raise InvalidParameterError(
                f"StrategyStudy(stragglers={self.stragglers!r}) applies to simulated ranks: give a network as well, "
                "or leave it at 'none'."
            )
        self._check_strategies()

    def _check_strategies(self) -> None:
        if self.strategies is None:
            return
        if not self.strategies or SEQUENTIAL in self.strategies:
            raise InvalidParameterError(
                f"StrategyStudy(strategies=...) must name at least one strategy, except {SEQUENTIAL!r}, which always "
                f"runs. Got {list(self.strategies)}."
            )
        for name, sync in self.strategies.items():
            check_shared_memory("StrategyStudy(strategies=...)", name, resolve(sync))

    def chosen(self) -> dict[str, AbstractStrategy[Any]]:
        """Return the strategies that are run, by name."""
        if self.strategies is not None:
            return {name: resolve(sync) for name, sync in self.strategies.items()}
        every = {name: resolve(name) for name in STRATEGIES}
        return {name: one for name, one in every.items() if not isinstance(one, Hogwild)}

    def all_ranks(self) -> list[int]:
        """Return the numbers of ranks in the order they are run: the sequential run first."""
        return sorted({1, *self.ranks})

    def count(self) -> int:
        """Return the number of runs."""
        n_strategies = len(self.chosen())
        return len(self.data) * len(self.seeds) * (1 + n_strategies * len(set(self.ranks)))

    def runs(self, dataset: str, rows: int, test_rows: int, ranks: int) -> list[StrategyRun]:
        """Return the runs of data of this name and numbers of rows on one number of ranks, seed by seed."""
        chosen = {SEQUENTIAL: resolve("epoch")} if ranks == 1 else self.chosen()
        return [
            StrategyRun(self, dataset, rows, test_rows, ranks, name, strategy, seed)
            for seed in self.seeds
            for name, strategy in chosen.items()
        ]


@dataclass(frozen=True)
class StrategyRun(AbstractRun):
    """One run of a study of strategies.

    Parameters
    ----------
    study, dataset, rows, test_rows, ranks, seed
        See `StrategyStudy.runs`.
    name : str
        Name of the strategy.
    strategy : AbstractStrategy
        The strategy.
    """

    study: StrategyStudy
    dataset: str
    rows: int
    test_rows: int
    ranks: int
    name: str
    strategy: AbstractStrategy[Any]
    seed: int

    @property
    def schedule(self) -> str:
        """The schedule of this run."""
        return "constant" if self.strategy.talks == "by mailbox" else self.study.schedule

    @property
    def eta0(self) -> float:
        """The rate of this run."""
        scaled = self.schedule == "constant" and isinstance(self.strategy, _MEANS)
        return self.study.eta0 * (min(_MOST, max(1.0, self.ranks - 1.0)) if scaled else 1.0)

    def settings(self) -> Row:
        """Return everything that decides what is run, as plain values."""
        return {
            **picked(self, "dataset", "rows", "test_rows", "ranks"),
            "strategy": self.name,
            "sync": repr(self.strategy),
            **picked(self.study, "network", "stragglers"),
            "seed": self.seed,
            **picked(self.study, "epochs", "alpha", "loss"),
            **picked(self, "schedule", "eta0"),
            **picked(self.study, "partition", "dtype"),
            "definition": _DEFINITION,
        }


def demo_strategy_study() -> StrategyStudy:
    """Return a study of all strategies on 16 simulated ranks, for one core and a minute."""
    return StrategyStudy(
        data=(DataSource("webspam-like", 4_000, 4_000),),
        ranks=(16,),
        network="10GbE",
        seeds=(0, 1, 2),
        eta0=0.5,
        target_excess=0.5,
    )
