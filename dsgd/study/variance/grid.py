"""The runs of the study of variance: courses of training by problem, method and seed, and timed draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from dsgd.local import SAGA, SVRG, AbstractReduction, Importance
from dsgd.study.frame.data import DataSource
from dsgd.study.frame.grid import check_grid
from dsgd.study.frame.rows import AbstractRun, Row, picked

__all__ = ["METHODS", "CourseRun", "DrawRun", "VarianceStudy", "demo_variance_study"]

#: Methods by name: how rows are drawn, or what is remembered of them. None visits each row once an epoch.
METHODS: Final[MappingProxyType[str, Importance | AbstractReduction | None]] = MappingProxyType(
    {
        "SGD, drawn": Importance(1.0),
        "SGD, each once": None,
        "SRG": Importance(0.5),
        "SAGA": SAGA(),
        "SVRG": SVRG(),
    }
)


@dataclass(frozen=True)
class VarianceStudy:
    """A grid of courses at constant rates, and of timed draws.

    Two problems with outliers are included always.

    Parameters
    ----------
    data : sequence of DataSource
        Sets for regularised logistic regression.
    rows : int
        Rows of the larger problem with outliers.
    epochs : int
        Epochs of a course.
    seeds : sequence of int
        Every course is repeated with each.
    sizes : sequence of int
        Numbers of rows for which steps are timed; a million take 90 MB.
    repeats : int
        Repetitions of what is timed.

    Raises
    ------
    InvalidParameterError
        If a value is outside its domain.
    """

    data: Sequence[DataSource] = (DataSource("ijcnn1-like", 4_000, 100), DataSource("a9a-like", 4_000, 100))
    rows: int = 4_000
    epochs: int = 60
    seeds: Sequence[int] = (0, 1, 2, 3, 4)
    sizes: Sequence[int] = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
    repeats: int = 5

    def __post_init__(self) -> None:
        check_grid(
            self, given=("seeds", "sizes"), choices={}, least={
                "rows": 100, "epochs": 2, "seeds": 0, "sizes": 2, "repeats": 1,
            },
        )  # fmt: skip

    def count(self) -> int:
        """Return the number of runs."""
        courses = (len(self.data) + 2) * len(METHODS) * len(self.seeds)
        return courses + len(set(self.sizes)) * self.repeats

    def courses(self, dataset: str, rows: int, test_rows: int = 0) -> list[CourseRun]:
        """Return the courses on one problem. Methods take turns, so that each meets the same moments of the machine."""
        return [CourseRun(self, dataset, rows, test_rows, method, seed) for seed in self.seeds for method in METHODS]

    def draws(self, rows: int) -> list[DrawRun]:
        """Return the repetitions of timed steps for a number of rows."""
        return [DrawRun(rows, repeat) for repeat in range(self.repeats)]


@dataclass(frozen=True)
class CourseRun(AbstractRun):
    """A course of one method on one problem.

    Parameters
    ----------
    study, dataset, rows, test_rows, method, seed
        See `VarianceStudy.courses`.
    """

    study: VarianceStudy
    dataset: str
    rows: int
    test_rows: int
    method: str
    seed: int

    def settings(self) -> Row:
        """Return everything that decides what is run, as plain values."""
        own = picked(self, "dataset", "rows", "test_rows", "method", "seed")
        return {"part": "course", **own, "made": repr(METHODS[self.method]), "epochs": self.study.epochs}


@dataclass(frozen=True)
class DrawRun(AbstractRun):
    """One repetition of timed steps.

    Parameters
    ----------
    rows : int
        Rows.
    repeat : int
        Its number.
    """

    rows: int
    repeat: int

    def settings(self) -> Row:
        """Return everything that decides what is run, as plain values."""
        return {"part": "draws", "dataset": "normal numbers", "test_rows": 0} | picked(self, "rows", "repeat")


def demo_variance_study() -> VarianceStudy:
    """Return a study for a minute on two cores: three seeds, and steps on up to a million rows."""
    return VarianceStudy(seeds=(0, 1, 2), sizes=(1_000, 10_000, 100_000, 1_000_000))
