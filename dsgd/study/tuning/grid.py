"""The runs of the study of automatic periods: fixed periods, rules, data sets and seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from dsgd.sim.network import network_for
from dsgd.study.frame.data import DTYPES, DataSource
from dsgd.study.frame.grid import check_grid
from dsgd.study.frame.measure import LOSSES
from dsgd.study.frame.rows import AbstractRun, Row, picked
from dsgd.sync import AbstractStrategy, AutoSync, EpochAveraging, LocalSGD
from dsgd.sync.adaptive import (
    QSR,
    AbstractRule,
    AdaComm,
    BudgetedPeriod,
    CommFloor,
    DynamicAveraging,
    FixedPeriod,
    PostLocal,
    VarianceBand,
)

__all__ = ["AUTO", "RULES", "SEQUENTIAL", "TuningRun", "TuningStudy", "demo_tuning_study"]

#: The name of the default of ``sync="auto"``.
AUTO: Final = "auto"
#: The name of the run of one rank.
SEQUENTIAL: Final = "sequential"
#: Every rule by its name in a study.
RULES: Final[MappingProxyType[str, AbstractRule]] = MappingProxyType(
    {
        AUTO: CommFloor(),
        "fixed": FixedPeriod(),
        "adacomm": AdaComm(),
        "qsr": QSR(),
        "variance-band": VarianceBand(),
        "dynamic": DynamicAveraging(),
        "budget": BudgetedPeriod(),
        "post-local": PostLocal(),
    }
)
# Raised when the same settings come to mean a different run. Since 2, simulated ranks hold the rows that workers hold.
_DEFINITION: Final = 2
_PERIODS: Final = tuple(2**power for power in range(13))


@dataclass(frozen=True)
class TuningStudy:
    """A grid of training runs that differ in how often ranks synchronise.

    Parameters
    ----------
    data : sequence of DataSource
        The datasets.
    every : sequence of int
        The fixed periods.
    rules : sequence of str
        Names in `RULES`.
    ranks : int
        Worker processes, or simulated ranks.
    network : str or None
        Network of simulated ranks, a name in `dsgd.sim.NETWORKS`; None runs worker processes.
    seeds : sequence of int
        Seeds of the order of the rows.
    epochs : int
        Passes over the rows of the longest run. The target of a seed is the training objective of one rank after
        half as many.
    repeats : int
        Repetitions of the longest run, which gives the seconds of all epochs as medians.
    target : float
        ``AutoSync(target=...)``.
    loss : {"hinge", "squared_hinge", "log_loss"}
        The loss.
    alpha : float
        Strength of the L2 penalty.
    dtype : {"float32", "float64"}
        Precision of data and model.

    Raises
    ------
    InvalidParameterError
        A value is outside its domain.
    """

    data: Sequence[DataSource] = (
        DataSource("ijcnn1", 28_000, 30_000),
        DataSource("a9a"),
        DataSource("covtype-subset", 28_000),
        DataSource("epsilon-like", 16_000, 8_000),
        DataSource("webspam-like", 24_000, 24_000),
    )
    every: Sequence[int] = _PERIODS
    rules: Sequence[str] = tuple(RULES)
    ranks: int = 2
    network: str | None = None
    seeds: Sequence[int] = (0, 1, 2, 3, 4)
    epochs: int = 16
    repeats: int = 7
    target: float = 0.1
    loss: str = "log_loss"
    alpha: float = 1e-4
    dtype: str = "float32"

    def __post_init__(self) -> None:
        least = {"every": 1, "seeds": 0, "ranks": 2, "epochs": 2, "repeats": 1}
        choices = {"rules": tuple(RULES), "loss": LOSSES, "dtype": DTYPES}
        check_grid(self, given=("data", "every", "seeds"), least=least, choices=choices)
        AutoSync(self.target)
        if self.network is not None:
            network_for(self.network)

    @property
    def target_epochs(self) -> int:
        """Epochs after which the objective of one rank is the target."""
        return self.epochs // 2

    def looks(self) -> list[int]:
        """Return the numbers of epochs after which a run is evaluated: mostly where it may reach the target."""
        target = self.target_epochs
        return sorted({1, *range(max(1, target // 2), self.epochs, max(1, target // 4)), self.epochs})

    def count(self) -> int:
        """Return the number of runs."""
        return len(self.data) * len(self.seeds) * (1 + len(set(self.every)) + len(set(self.rules)))

    def runs(self, dataset: str, rows: int, test_rows: int) -> list[TuningRun]:
        """Return the runs of data of this name and numbers of rows, seed by seed: one rank, falling periods, rules."""
        policies: list[tuple[str, int | None, AbstractStrategy[Any]]] = [(SEQUENTIAL, None, EpochAveraging())]
        policies += [(str(every), every, LocalSGD(every)) for every in sorted(set(self.every), reverse=True)]
        policies += [(name, None, AutoSync(self.target, RULES[name])) for name in dict.fromkeys(self.rules)]
        return [TuningRun(self, dataset, rows, test_rows, *policy, seed) for seed in self.seeds for policy in policies]


@dataclass(frozen=True)
class TuningRun(AbstractRun):
    """One run of a study of the period.

    Parameters
    ----------
    study, dataset, rows, test_rows, seed
        See `TuningStudy.runs`.
    policy : str
        The period, or the name of the rule, or `SEQUENTIAL`.
    every : int or None
        The period, where it is fixed by the study.
    strategy : AbstractStrategy
        The strategy.
    """

    study: TuningStudy
    dataset: str
    rows: int
    test_rows: int
    policy: str
    every: int | None
    strategy: AbstractStrategy[Any]
    seed: int

    @property
    def ranks(self) -> int:
        """How many worker processes."""
        return 1 if self.policy == SEQUENTIAL else self.study.ranks

    def settings(self) -> Row:
        """Return everything that decides what is run, as plain values."""
        return {
            **picked(self, "dataset", "rows", "test_rows", "ranks", "policy", "every"),
            "sync": repr(self.strategy),
            "network": self.study.network,
            "seed": self.seed,
            **picked(self.study, "epochs", "target_epochs", "repeats", "loss", "alpha", "dtype"),
            "definition": _DEFINITION,
        }


def demo_tuning_study() -> TuningStudy:
    """Return a study of two sets for two cores and under a minute."""
    return TuningStudy(
        data=(DataSource("ijcnn1", 14_000, 10_000), DataSource("webspam-like", 8_000, 4_000)),
        every=(16, 64, 256, 1024, 4096),
        epochs=6,
        repeats=3,
        seeds=(0, 1, 2),
        rules=(AUTO, "adacomm", "qsr", "post-local"),
    )
