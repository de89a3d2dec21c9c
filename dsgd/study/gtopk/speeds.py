"""The published speeds of gTop-k: see ``published.toml``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dsgd.study.published import FIGURES

__all__ = ["RANKS", "SIZES", "SPEEDS", "WARM_UP", "Speeds"]

#: How many ranks the published figures are of.
RANKS: Final[int] = FIGURES["gtopk"]["ranks"]
#: Numbers of ranks whose speeds are published, and the densities of the first epochs.
SIZES: Final = tuple(FIGURES["gtopk"]["sizes"])
WARM_UP: Final = tuple(FIGURES["gtopk"]["warm_up"])


@dataclass(frozen=True)
class Speeds:
    """Rows a second of one rank, as measured by the authors: alone, and among `SIZES` by how gradients are summed."""

    alone: float
    dense: Sequence[float]
    topk: Sequence[float]
    gtopk: Sequence[float]
    # Rows of a rank in a step; None where nothing says.
    batch: int | None = None
    # Seconds of a step of gTop-k on 32 ranks: computing, compressing, communicating.
    parts_s: Sequence[float] | None = None

    @property
    def compute_s(self) -> float | None:
        """Seconds in which one rank computes a step; None where the batch is not known."""
        return None if self.batch is None else self.batch / self.alone

    def efficiency(self, way: str, size: int) -> float:
        """Return the speed of a rank among so many, in `SIZES`, over that of one alone."""
        return self._speed(way, size) / self.alone

    def beside_s(self, way: str, size: int) -> float | None:
        """Return the seconds of a step that are not those of a rank alone: what the sum took, with all around it."""
        return None if self.batch is None else self.batch / self._speed(way, size) - self.batch / self.alone

    def _speed(self, way: str, size: int) -> float:
        return {"dense": self.dense, "topk": self.topk, "gtopk": self.gtopk}[way][SIZES.index(size)]


#: Speeds by network.
SPEEDS: Final[Mapping[str, Speeds]] = {name: Speeds(**one) for name, one in FIGURES["gtopk"]["speeds"].items()}
