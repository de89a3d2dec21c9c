"""The runs of the study of speed-up: data sets, ways to fit, epochs and seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

from dsgd.study.frame.data import DTYPES, DataSource
from dsgd.study.frame.grid import check_grid
from dsgd.study.frame.measure import LOSSES
from dsgd.study.frame.rows import AbstractRun, Row, picked

__all__ = ["SpeedupRun", "SpeedupStudy", "Way", "demo_speedup_study"]

Place: TypeAlias = Literal["scikit-learn", "threads", "workers", "workers, rows sent"]
#: Where a model is trained. Workers have their rows before the fit begins, unless they are sent.
PLACES: Final[tuple[Place, ...]] = get_args(Place)


class Way(NamedTuple):
    """A way to fit.

    Parameters
    ----------
    place : str
        A name in `PLACES`.
    ranks : int
        Threads or worker processes; 1 for scikit-learn.
    """

    place: Place
    ranks: int

    @property
    def name(self) -> str:
        """What it is called in tables, ``2 workers``."""
        if self.place == "scikit-learn":
            return self.place
        kind, comma, rest = self.place.partition(",")
        return f"{self.ranks} {kind if self.ranks > 1 else kind.removesuffix('s')}{comma}{rest}"


@dataclass(frozen=True)
class SpeedupStudy:
    """A grid of whole fits of averaged SGD.

    Scikit-learn and one thread are included always: what is faster is faster than these.

    Parameters
    ----------
    data : sequence of DataSource
        The datasets. Generated rows are made by the workers that train on them.
    ranks : sequence of int
        Numbers of threads, and of worker processes of one thread each.
    epochs : sequence of int
        Passes over the rows; a fit for each number.
    seeds : sequence of int
        Every fit is repeated with each.
    alpha : float
        Strength of the L2 penalty, as in scikit-learn.
    loss : {"hinge", "squared_hinge", "log_loss"}
        The loss.
    dtype : {"float32", "float64"}
        Precision of data and model.
    margin : float
        A way is accurate once its test accuracy is at most so much below the best of all ways.

    Raises
    ------
    InvalidParameterError
        If a value is outside its domain.
    """

    data: Sequence[DataSource] = (
        DataSource("higgs-like", 4_000_000, 400_000),
        DataSource("criteo-like", 1_000_000, 100_000),
    )
    ranks: Sequence[int] = (2,)
    epochs: Sequence[int] = (1, 2, 5, 10)
    seeds: Sequence[int] = (0, 1, 2)
    alpha: float = 1e-6
    loss: str = "hinge"
    dtype: str = "float32"
    margin: float = 0.002

    def __post_init__(self) -> None:
        check_grid(
            self,
            given=("data", "ranks", "epochs", "seeds"),
            least={"ranks": 2, "epochs": 1, "seeds": 0, "margin": 0},
            above={"alpha": 0},
            choices={"loss": LOSSES, "dtype": DTYPES},
        )

    def ways(self) -> list[Way]:
        """Return the ways to fit, those in this process first."""
        several = sorted(set(self.ranks))
        alone = [Way("scikit-learn", 1), Way("threads", 1)]
        return alone + [Way(place, ranks) for place in PLACES[1:] for ranks in several]

    def count(self) -> int:
        """Return the number of fits."""
        return len(self.data) * len(self.ways()) * len(set(self.epochs)) * len(self.seeds)

    def runs(self, dataset: str, rows: int, test_rows: int) -> list[SpeedupRun]:
        """Return the fits of one dataset. Ways take turns, so that each meets the same moments of a busy machine."""
        return [
            SpeedupRun(self, dataset, rows, test_rows, way, epochs, seed)
            for seed in self.seeds
            for epochs in sorted(set(self.epochs))
            for way in self.ways()
        ]


@dataclass(frozen=True)
class SpeedupRun(AbstractRun):
    """One fit of a study.

    Parameters
    ----------
    study, dataset, rows, test_rows, way, epochs, seed
        See `SpeedupStudy.runs`.
    """

    study: SpeedupStudy
    dataset: str
    rows: int
    test_rows: int
    way: Way
    epochs: int
    seed: int

    def settings(self) -> Row:
        """Return everything that decides what is run, as plain values."""
        own = picked(self, "dataset", "rows", "test_rows", "epochs", "seed")
        return own | picked(self.way, "place", "ranks") | picked(self.study, "alpha", "loss", "dtype")


def demo_speedup_study() -> SpeedupStudy:
    """Return a study of two sets that are large enough for two processes, for two cores and a minute."""
    return SpeedupStudy(
        data=(DataSource("higgs-like", 2_000_000, 100_000), DataSource("criteo-like", 600_000, 50_000)),
        epochs=(1, 4),
    )
