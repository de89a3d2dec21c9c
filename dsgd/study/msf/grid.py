"""The runs of the study of the period: data sets, ranks, periods and seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from dsgd.datasets import check_split
from dsgd.sim.network import network_for
from dsgd.study.frame.data import DTYPES, DataSource
from dsgd.study.frame.grid import check_grid
from dsgd.study.frame.measure import LOSSES
from dsgd.study.frame.rows import AbstractRun, Row, picked

__all__ = ["SCHEDULES", "RunSpec", "Study", "demo_study"]

# "per_epoch" is the step of the published study, 1 / (alpha epoch), constant inside an epoch.
SCHEDULES: Final = ("optimal", "pegasos", "per_epoch")


@dataclass(frozen=True)
class Study:
    """A grid of training runs.

    Every study includes the sequential run (one rank, nothing to synchronise), the baseline of the others, whether or
    not `ranks` names 1.

    Parameters
    ----------
    data : sequence of DataSource
        The datasets.
    ranks : sequence of int
        Numbers of worker processes.
    every : sequence of int
        Synchronisation periods, in samples per rank between two averages of the model.
    seeds : sequence of int
        Seeds of the order of the rows; every cell of the grid is run once per seed.
    epochs : int
        Passes over the training rows.
    alpha : float
        Strength of the L2 penalty, as in scikit-learn.
    schedule : {"optimal", "pegasos", "per_epoch"}
        Step sizes; ``"per_epoch"`` is the published study's 1 / (alpha epoch).
    loss : {"hinge", "squared_hinge", "log_loss"}
        The loss.
    partition : str
        How training rows are assigned to the ranks, see `dsgd.datasets.split_rows`: ``"contiguous"``, ``"shuffled"``,
        ``"label-skewed"``, ``"dirichlet:0.5"`` or ``"quantity:0.5"``.
    fit_intercept : bool
        Whether an intercept is learnt (the published study has none).
    dtype : {"float32", "float64"}
        Precision of data and model.
    target_excess : float
        Time to target: the target is the final training loss of the sequential run times (1 + `target_excess`).
    network : str, optional
        Network of simulated ranks (a name in `dsgd.sim.NETWORKS`). By default ranks are worker processes.

    Raises
    ------
    InvalidParameterError
        If a value is outside its domain.
    """

    data: Sequence[DataSource] = (DataSource("ijcnn1"),)
    ranks: Sequence[int] = (1, 2)
    every: Sequence[int] = (1, 4, 16, 64, 256, 512, 1024, 4096)
    seeds: Sequence[int] = (0, 1, 2)
    epochs: int = 5
    alpha: float = 1e-4
    schedule: str = "optimal"
    loss: str = "hinge"
    partition: str = "contiguous"
    fit_intercept: bool = True
    dtype: str = "float32"
    target_excess: float = field(default=0.02)
    network: str | None = None

    def __post_init__(self) -> None:
        check_grid(
            self,
            given=("data", "ranks", "every", "seeds"),
            least={"ranks": 1, "every": 1, "seeds": 0, "epochs": 1, "target_excess": 0},
            above={"alpha": 0},  # every schedule divides by it
            choices={"schedule": SCHEDULES, "loss": LOSSES, "dtype": DTYPES},
        )
        check_split(self.partition)
        if self.network is not None:
            network_for(self.network)

    def all_ranks(self) -> list[int]:
        """Return the numbers of ranks in the order they are run: the sequential run first."""
        return sorted({1, *self.ranks})

    def count(self) -> int:
        """Return the number of runs."""
        periods = sum(1 if ranks == 1 else len(set(self.every)) for ranks in self.all_ranks())
        return len(self.data) * len(self.seeds) * periods

    def runs(self, dataset: str, rows: int, test_rows: int, ranks: int) -> list[RunSpec]:
        """Return the runs of one dataset on one number of ranks.

        Seeds come before periods, so that an interrupted study holds whole curves of its first seeds.
        """
        periods: list[int | None] = [None] if ranks == 1 else [*sorted(set(self.every))]
        return [RunSpec(self, dataset, rows, test_rows, ranks, every, seed) for seed in self.seeds for every in periods]


@dataclass(frozen=True)
class RunSpec(AbstractRun):
    """One run of a study.

    Parameters
    ----------
    study, dataset, rows, test_rows, ranks, seed
        See `Study.runs`.
    every : int or None
        Synchronisation period; None for the sequential run.
    """

    study: Study
    dataset: str
    rows: int
    test_rows: int
    ranks: int
    every: int | None
    seed: int

    def settings(self) -> Row:
        """Return everything that decides what is run, as plain values."""
        shared = ("epochs", "alpha", "schedule", "loss", "partition", "fit_intercept", "dtype")
        own = picked(self, "dataset", "rows", "test_rows", "ranks", "every", "seed")
        simulated = {} if self.study.network is None else picked(self.study, "network")
        return own | picked(self.study, *shared) | simulated


def demo_study() -> Study:
    """Return the study of ``make demo``: the three sets of the paper, sized for two cores and a minute or two.

    At ``every=1`` a synchronisation between two processes costs 30 to 200 us per sample, by machine, so the rows and
    seeds at that period decide how long the demo takes: some 225,000 such samples in all.
    """
    return Study(
        data=(
            DataSource("ijcnn1", 12_000, 90_000),
            DataSource("webspam-like", 10_000, 24_000),
            DataSource("epsilon-like", 8_000, 16_000),
        ),
        ranks=(1, 2),
        every=(1, 4, 16, 64, 256, 512, 1024, 4096),
        seeds=(0, 1, 2),
        epochs=5,
    )
