"""The runs of the study of gTop-k: courses of training, and timed passes of the published networks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from dsgd.compress import DGC, GTopK
from dsgd.errors import InvalidParameterError
from dsgd.study.frame.grid import check_grid
from dsgd.study.frame.rows import AbstractRun, Row, picked
from dsgd.study.gtopk.speeds import SPEEDS, WARM_UP
from dsgd.sync import MinibatchSGD

__all__ = ["DENSE", "TASKS", "WAYS", "ComputeRun", "CourseRun", "GTopKStudy", "Task", "demo_gtopk_study"]

#: The baseline of the other ways.
DENSE: Final = "dense"
#: Rows of the batches that are timed, by network: few where a row takes long.
_TIMED: Final[Mapping[str, tuple[int, int]]] = MappingProxyType(
    {
        "ResNet-20, CIFAR-10": (8, 32),
        "VGG-16, CIFAR-10": (4, 16),
        "ResNet-50, ImageNet": (1, 4),
        "AlexNet, ImageNet": (2, 12),
        "LSTM, PTB": (1, 6),
    }
)
# Nothing says what a batch of the language model was; this is that of its configuration beside the code.
_SENTENCES: Final = 20


@dataclass(frozen=True)
class Task:
    """A network with its data and its rate.

    Parameters
    ----------
    title : str
        What tables call it.
    batch : int
        Rows of a rank in a step.
    lr : float
        The rate of the first step; it falls linearly to zero.
    """

    title: str
    batch: int
    lr: float


#: What is trained.
TASKS: Final[Mapping[str, Task]] = MappingProxyType({"cnn": Task("CNN", 8, 0.05), "lstm": Task("LSTM", 32, 0.5)})
#: How gradients are summed, by name: a function of the density, the first densities and the steps of an epoch.
WAYS: Final[Mapping[str, Callable[[float, Sequence[float], int], Any]]] = MappingProxyType(
    {
        DENSE: lambda density, first, steps: None,
        # Without momentum of its own it sends the k largest entries and keeps the others.
        "top-k": lambda density, first, steps: DGC(density, 0.0, warm_up=tuple(first), warm_up_rounds=steps),
        "gtop-k": lambda density, first, steps: GTopK(density, "put-back", "tree", tuple(first), steps),
        "conserving": lambda density, first, steps: GTopK(density, "conserving", "tree", tuple(first), steps),
    }
)


@dataclass(frozen=True)
class GTopKStudy:
    """A grid of courses of training that differ in how gradients are summed, and the networks that are timed.

    Parameters
    ----------
    tasks : sequence of {"cnn", "lstm"}
        What is trained; may be empty.
    ways : sequence of str
        Names in `WAYS`; the dense one is always run.
    ranks : int
        Simulated ranks.
    rows, test_rows : int
        Most rows of each task.
    epochs : int
        Passes over the rows.
    momentum : float
        Momentum of the step, after the sum.
    density : float
        Share of the entries that is sent.
    warm_up : sequence of float
        Densities of the first epochs, one each.
    seeds : sequence of int
        Seeds of the initial weights and of the order of the rows.
    networks : sequence of str
        Names of the published networks that are timed; may be empty.
    repeats : int
        How often each is timed.

    Raises
    ------
    InvalidParameterError
        A value is outside its domain.
    """

    tasks: Sequence[str] = tuple(TASKS)
    ways: Sequence[str] = tuple(WAYS)
    ranks: int = 4
    rows: int = 8_000
    test_rows: int = 4_000
    epochs: int = 24
    momentum: float = 0.9
    density: float = 0.001
    warm_up: Sequence[float] = WARM_UP
    seeds: Sequence[int] = (0, 1, 2)
    networks: Sequence[str] = tuple(SPEEDS)
    repeats: int = 5

    def __post_init__(self) -> None:
        check_grid(
            self,
            given=("ways", "seeds"),
            least={"ranks": 2, "rows": 100, "test_rows": 100, "epochs": 1, "seeds": 0, "momentum": 0, "repeats": 1},
            above={"density": 0, "warm_up": 0},
            choices={"tasks": tuple(TASKS), "ways": tuple(WAYS), "networks": tuple(SPEEDS)},
        )
        if not self.momentum < 1:
            raise InvalidParameterError(f"GTopKStudy(momentum={self.momentum}) must lie in [0, 1).")
        if self.density > 1 or max(self.warm_up, default=0) > 1:
            raise InvalidParameterError(
                f"GTopKStudy(density={self.density}, warm_up={self.warm_up}) must be shares of at most 1."
            )

    def names(self) -> list[str]:
        """Return the ways, the dense one first."""
        return [DENSE, *(name for name in self.ways if name != DENSE)]

    def count(self) -> int:
        """Return the number of runs."""
        return len(self.networks) + len(self.tasks) * len(self.seeds) * len(self.names())

    def timed(self) -> list[ComputeRun]:
        """Return the networks that are timed."""
        return [ComputeRun(self, name) for name in self.networks]

    def courses(self, task: str, dataset: str, rows: int, test_rows: int) -> list[CourseRun]:
        """Return the courses of a task on data of this name and numbers of rows."""
        return [
            CourseRun(self, task, dataset, rows, test_rows, name, seed) for seed in self.seeds for name in self.names()
        ]


@dataclass(frozen=True)
class ComputeRun(AbstractRun):
    """The passes of one published network on one thread of this machine.

    Parameters
    ----------
    study : GTopKStudy
        Says how often.
    model : str
        The network.
    """

    study: GTopKStudy
    model: str

    @property
    def batches(self) -> tuple[int, int]:
        """Rows of the batches that are timed."""
        return _TIMED[self.model]

    @property
    def batch(self) -> int:
        """Rows of the batch whose time is wanted, that of the publication."""
        return SPEEDS[self.model].batch or _SENTENCES

    def settings(self) -> Row:
        """Return everything that decides what is timed, as plain values."""
        return {
            "model": self.model,
            "strategy": "compute",
            "ranks": None,
            "batch": self.batch,
            "batches": list(self.batches),
            "repeats": self.study.repeats,
        }


@dataclass(frozen=True)
class CourseRun(AbstractRun):
    """One course of training.

    Parameters
    ----------
    study : GTopKStudy
        The study.
    task, dataset : str
        What is trained, and on what.
    rows, test_rows : int
        How many rows.
    name : str
        The way of summing.
    seed : int
        The seed.
    """

    study: GTopKStudy
    task: str
    dataset: str
    rows: int
    test_rows: int
    name: str
    seed: int

    @property
    def steps(self) -> int:
        """Steps of an epoch; rows that are left over are not visited."""
        return max(1, self.rows // self.study.ranks // TASKS[self.task].batch)

    @property
    def sync(self) -> MinibatchSGD:
        """The strategy."""
        study = self.study
        return MinibatchSGD(
            study.ranks * TASKS[self.task].batch, compressor=WAYS[self.name](study.density, study.warm_up, self.steps)
        )

    def settings(self) -> Row:
        """Return everything that decides what is run, as plain values."""
        study, task = self.study, TASKS[self.task]
        return {
            **picked(self, "dataset", "rows", "test_rows"),
            "model": self.task,
            "ranks": study.ranks,
            "strategy": self.name,
            "sync": repr(self.sync),
            "seed": self.seed,
            **picked(study, "epochs", "momentum"),
            **picked(task, "batch", "lr"),
        }


def demo_gtopk_study() -> GTopKStudy:
    """Return a study of two seeds on few rows, for one core and two minutes."""
    return GTopKStudy(ways=("top-k", "gtop-k"), rows=6_000, test_rows=2_000, epochs=12, seeds=(0, 1), repeats=3)
