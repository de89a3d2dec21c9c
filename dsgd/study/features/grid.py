"""The runs of the study of features: agents on graphs, values of the kernel, and machines on data sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType
from typing import Final

from dsgd.comm.topology import AbstractTopology, Complete, Grid, RandomRegular, Ring
from dsgd.study.frame.data import DataSource
from dsgd.study.frame.grid import check_grid
from dsgd.study.frame.rows import AbstractRun, Row, picked

__all__ = [
    "ALONE",
    "EXACT",
    "GRAPHS",
    "ONE_MACHINE",
    "AgentRun",
    "FeatureStudy",
    "MachineRun",
    "ValueRun",
    "demo_feature_study",
]

#: Graphs of agents by name, from few links to all.
GRAPHS: Final[MappingProxyType[str, AbstractTopology]] = MappingProxyType(
    {"cycle": Ring(), "grid": Grid(), "expander": RandomRegular(4), "complete": Complete()}
)
#: Agents that never talk.
ALONE: Final = "alone"
#: One machine that has all rows.
ONE_MACHINE: Final = "one machine"
#: The kernel machine without features.
EXACT: Final = "SVC"

_DATASET: Final = "sum of laplacians"


@dataclass(frozen=True)
class FeatureStudy:
    """A grid of agents on graphs by rows, by features and by steps; and of machines by features.

    Parameters
    ----------
    data : sequence of DataSource
        Sets for machines; one that is not on this machine has generated clusters of its shape in its place.
    agents : int
        Agents.
    rows_per_agent : sequence of int
        How many rows each has, with `usual_features` of each row.
    features : sequence of int
        Features of a row, where agents have `usual_rows` each.
    usual_rows, usual_features : int
        See the two above.
    steps : int
        Steps of gradient descent.
    components : sequence of int
        Features of machines, and of kernel values.
    epochs : sequence of int
        Epochs of machines that learn features.
    seeds : sequence of int
        Every run is repeated with each.

    Raises
    ------
    InvalidParameterError
        If a value is outside its domain.
    """

    data: Sequence[DataSource] = (
        DataSource("covtype-subset", 5_000, 2_000),
        DataSource("mnist", 5_000, 2_000),
        DataSource("ijcnn1", 5_000, 2_000),
    )
    agents: int = 25
    rows_per_agent: Sequence[int] = (10, 25, 100, 400, 1_600, 6_400)
    features: Sequence[int] = (25, 50, 100, 200, 400, 800)
    usual_rows: int = 100
    usual_features: int = 300
    steps: int = 3_000
    components: Sequence[int] = (100, 300, 1_000, 3_000, 10_000)
    epochs: Sequence[int] = (10, 40)
    seeds: Sequence[int] = (0, 1, 2)

    def __post_init__(self) -> None:
        check_grid(
            self, given=("seeds", "epochs"), choices={}, least={
                "agents": 3, "rows_per_agent": 1, "features": 1, "usual_rows": 1, "usual_features": 1, "steps": 10,
                "components": 1, "epochs": 1, "seeds": 0,
            },
        )  # fmt: skip

    def count(self) -> int:
        """Return the number of runs."""
        machines = len(self.data) * (1 + len(self.components) * len(self.epochs))
        return len(self.seeds) * (len(self.sizes()) * (len(GRAPHS) + 2) + len(self.components) + machines)

    def sizes(self) -> list[tuple[int, int]]:
        """Return rows per agent and features of what is run, without repetition."""
        by_rows = [(rows, self.usual_features) for rows in self.rows_per_agent]
        return list(dict.fromkeys([*by_rows, *((self.usual_rows, features) for features in self.features)]))

    def of_agents(self, rows: int, features: int, seed: int) -> list[AgentRun]:
        """Return the runs of agents of one size, which are made together."""
        names = [*GRAPHS, ALONE, ONE_MACHINE]
        return [AgentRun(self.agents, rows, features, self.steps, name, seed) for name in names]

    def values(self) -> list[ValueRun]:
        """Return the runs of values of the kernel."""
        return [ValueRun(features, seed) for features in self.components for seed in self.seeds]

    def machines(self, dataset: str, rows: int, test_rows: int) -> list[MachineRun]:
        """Return the machines of one set. They take turns, so that each meets the same moments of the computer."""
        return [
            MachineRun(dataset, rows, test_rows, features, epochs, seed)
            for seed in self.seeds
            for features, epochs in [(0, 0), *product(self.components, self.epochs)]
        ]


def demo_feature_study() -> FeatureStudy:
    """Return a study of a minute: fewer rows per agent and steps, and machines of up to 1,000 features."""
    return FeatureStudy(
        tuple(DataSource(name, 1_000, 1_000) for name in ("covtype-subset", "mnist", "ijcnn1")),
        rows_per_agent=(10, 100, 1_600),
        features=(25, 100),
        steps=1_500,
        components=(100, 300, 1_000),
        epochs=(5, 20),
    )


@dataclass(frozen=True)
class AgentRun(AbstractRun):
    """Gradient descent of agents on one graph.

    Parameters
    ----------
    agents, rows, features, steps : int
        Agents, rows of each, features of a row, and steps.
    graph : str
        A name in `GRAPHS`, `ALONE`, or `ONE_MACHINE` that has the rows of all.
    seed : int
        Of rows and features.
    """

    agents: int
    rows: int
    features: int
    steps: int
    graph: str
    seed: int

    def settings(self) -> Row:
        """Return everything that decides what is run, as plain values."""
        own = picked(self, "agents", "rows", "features", "steps", "graph", "seed")
        return {"part": "agents", "dataset": _DATASET, "made": repr(GRAPHS.get(self.graph)), **own}


@dataclass(frozen=True)
class ValueRun(AbstractRun):
    """Inner products of random features beside values of the kernel.

    Parameters
    ----------
    features : int
        Features of a row.
    seed : int
        Of the features.
    """

    features: int
    seed: int

    def settings(self) -> Row:
        """Return everything that decides what is run, as plain values."""
        return {"part": "values", "dataset": "normal numbers", **picked(self, "features", "seed")}


@dataclass(frozen=True)
class MachineRun(AbstractRun):
    """A kernel machine, or a linear model of so many features.

    Parameters
    ----------
    dataset, rows, test_rows
        See `FeatureStudy.machines`.
    features : int
        Features of a row; 0 is the exact machine.
    epochs : int
        Epochs; 0 for the exact machine.
    seed : int
        Of features and order; the exact machine only repeats.
    """

    dataset: str
    rows: int
    test_rows: int
    features: int
    epochs: int
    seed: int

    def settings(self) -> Row:
        """Return everything that decides what is run, as plain values."""
        own = picked(self, "dataset", "rows", "test_rows", "features", "epochs", "seed")
        return {"part": "machines", **own, "way": "features" if self.features else EXACT}
