"""The runs of the study of neural networks: networks, methods, ranks and seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from dsgd.compress import DGC, QSGD, ErrorFeedback, GTopK, Layerwise, PowerSGD
from dsgd.errors import InvalidParameterError
from dsgd.sim.network import network_for
from dsgd.study.frame.grid import check_grid
from dsgd.study.frame.rows import AbstractRun, Row, picked
from dsgd.sync import (
    DPSGD,
    EASGD,
    SGP,
    AbstractStrategy,
    AsyncEASGD,
    AsyncLeaderSGD,
    DiLoCo,
    LeaderSGD,
    LocalSGD,
    MinibatchSGD,
    PostLocalSGD,
    StreamingDiLoCo,
)

__all__ = ["MODELS", "SYNCHRONOUS", "WAYS", "DnnRun", "DnnStudy", "Way", "demo_dnn_study"]

#: The networks of the study.
MODELS: Final = ("mlp", "cnn")
#: The baseline of the other methods.
SYNCHRONOUS: Final = "synchronous"
# Each weight is sent as its best approximation of rank 2.
_LOW_RANK: Final = Layerwise({"*": ErrorFeedback(PowerSGD(2))})
# Batches between two exchanges, for methods that do not exchange after every batch.
_RARE: Final = 16
# Parts of a model that is exchanged in parts; all of them in as many batches.
_FRAGMENTS: Final = 4
# Groups of ranks with a leader of their own.
_GROUPS: Final = 2


@dataclass(frozen=True)
class Way:
    """A method of synchronisation with its settings.

    Parameters
    ----------
    sync : AbstractStrategy
        The strategy.
    momentum : float
        Momentum of the optimiser; 0 if the strategy or its compressor has its own.
    """

    sync: AbstractStrategy[Any]
    momentum: float


def _gradients(study: DnnStudy, ranks: int, compressor: Any = None) -> MinibatchSGD:
    # The rate is for the batch of two ranks. With more ranks it grows in proportion, over the first half of an epoch.
    base = 2 * study.batch
    warmup = 0.5 if ranks > 2 else 0.0
    return MinibatchSGD(batch=ranks * study.batch, base_batch=base, warmup=warmup, compressor=compressor)


#: Every method by name: a function that makes it for a study and a number of ranks.
WAYS: Final[Mapping[str, Callable[[DnnStudy, int], Way]]] = MappingProxyType(
    {
        SYNCHRONOUS: lambda study, ranks: Way(_gradients(study, ranks), study.momentum),
        "local": lambda study, ranks: Way(LocalSGD(_RARE * study.batch), study.momentum),
        "post-local": lambda study, ranks: Way(PostLocalSGD(_RARE * study.batch, study.batch), study.momentum),
        "easgd": lambda study, ranks: Way(EASGD(_RARE * study.batch), study.momentum),
        "leader": lambda study, ranks: Way(LeaderSGD(_RARE * study.batch), study.momentum),
        "async-easgd": lambda study, ranks: Way(AsyncEASGD(_RARE * study.batch), study.momentum),
        "async-leader": lambda study, ranks: Way(AsyncLeaderSGD(_RARE * study.batch, n_groups=_GROUPS), study.momentum),
        "sgp": lambda study, ranks: Way(SGP(study.batch), study.momentum),
        "dpsgd": lambda study, ranks: Way(DPSGD(study.batch), study.momentum),
        "gtopk": lambda study, ranks: Way(_gradients(study, ranks, GTopK(study.density)), study.momentum),
        "dgc": lambda study, ranks: Way(_gradients(study, ranks, DGC(study.density, study.momentum)), 0.0),
        "powersgd": lambda study, ranks: Way(_gradients(study, ranks, _LOW_RANK), study.momentum),
        "qsgd": lambda study, ranks: Way(_gradients(study, ranks, QSGD()), study.momentum),
        "diloco": lambda study, ranks: Way(DiLoCo(_RARE * study.batch, 0.7, 0.5), study.momentum),
        "streaming": lambda study, ranks: Way(
            StreamingDiLoCo(_RARE // _FRAGMENTS * study.batch, _FRAGMENTS, 1, 0.5, 0.7, 0.5), study.momentum
        ),
    }
)


@dataclass(frozen=True)
class DnnStudy:
    """A grid of training runs of neural networks that differ in how ranks synchronise.

    Parameters
    ----------
    models : sequence of {"mlp", "cnn"}
        The networks.
    ways : sequence of str
        Names in `WAYS`; every study includes the synchronous run.
    ranks : sequence of int
        Numbers of ranks, 2 or more.
    network : str, optional
        Name of the network of simulated ranks. By default ranks are worker processes.
    rows, test_rows : int, optional
        Rows of the digits; all by default.
    looks : sequence of int
        Numbers of epochs after which a run is evaluated, rising; each is a separate training run from the same start.
    batch : int
        Rows of a rank in a step.
    lr : float
        The learning rate; where gradients are exchanged, that of a batch of two ranks. It falls linearly to zero at the
        end of training.
    momentum : float
        Momentum of the optimiser.
    density : float
        Share of the entries that gTop-k and DGC send.
    seeds : sequence of int
        Seeds of the initial weights and of the order of the rows.

    Raises
    ------
    InvalidParameterError
        A value is outside its domain.
    """

    models: Sequence[str] = MODELS
    ways: Sequence[str] = tuple(WAYS)
    ranks: Sequence[int] = (2, 4)
    network: str | None = None
    rows: int | None = None
    test_rows: int | None = None
    looks: Sequence[int] = (1, 8)
    batch: int = 32
    lr: float = 0.03
    momentum: float = 0.9
    density: float = 0.01
    seeds: Sequence[int] = (0,)

    def __post_init__(self) -> None:
        check_grid(
            self,
            given=("models", "ways", "ranks", "seeds", "looks"),
            least={"ranks": 2, "seeds": 0, "looks": 1, "batch": 1, "momentum": 0},
            above={"lr": 0, "density": 0},
            choices={"models": MODELS, "ways": tuple(WAYS)},
        )
        for name in ("ranks", "seeds", "looks"):
            numbers = list(getattr(self, name))
            if numbers != sorted(set(numbers)):
                raise InvalidParameterError(f"DnnStudy({name}=...) must be rising numbers. Got {numbers}.")
        if not self.momentum < 1:
            raise InvalidParameterError(f"DnnStudy(momentum={self.momentum}) must lie in [0, 1).")
        if self.network is not None:
            network_for(self.network)

    def names(self) -> list[str]:
        """Return the methods that are run, the synchronous one first."""
        return [SYNCHRONOUS, *(name for name in self.ways if name != SYNCHRONOUS)]

    def all_ranks(self) -> list[int]:
        """Return the numbers of ranks in the order they are run."""
        return list(self.ranks)

    def count(self) -> int:
        """Return the number of runs."""
        return len(self.models) * len(self.ranks) * len(self.seeds) * len(self.names())

    def runs(self, dataset: str, rows: int, test_rows: int, ranks: int) -> list[DnnRun]:
        """Return the runs on one number of ranks, of data of this name and numbers of rows."""
        return [
            DnnRun(self, dataset, rows, test_rows, ranks, model, name, seed)
            for model in self.models
            for seed in self.seeds
            for name in self.names()
        ]


@dataclass(frozen=True)
class DnnRun(AbstractRun):
    """One run of a study of neural networks.

    Parameters
    ----------
    study, dataset, rows, test_rows, ranks, seed
        See `DnnStudy.runs`.
    model, name : str
        The network and the method.
    """

    study: DnnStudy
    dataset: str
    rows: int
    test_rows: int
    ranks: int
    model: str
    name: str
    seed: int

    @property
    def way(self) -> Way:
        """The method."""
        return WAYS[self.name](self.study, self.ranks)

    def settings(self) -> Row:
        """Return everything that decides what is run, as plain values."""
        study, way = self.study, self.way
        return {
            **picked(self, "dataset", "rows", "test_rows", "model", "ranks"),
            "strategy": self.name,
            "sync": repr(way.sync),
            "network": study.network,
            "seed": self.seed,
            "looks": list(study.looks),
            **picked(study, "batch", "lr"),
            "momentum": way.momentum,
        }


def demo_dnn_study() -> DnnStudy:
    """Return a study of all ways on 16 simulated ranks, for one core and a minute."""
    return DnnStudy(models=("mlp",), ranks=(16,), network="10GbE", rows=8_000, test_rows=1_000, looks=(1, 3), batch=16)
