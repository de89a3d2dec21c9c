"""What is published of gTop-k."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from dsgd.report import Publication
from dsgd.study.frame.statement import Source, Statement, as_points
from dsgd.study.frame.verdict import Margin

__all__ = [
    "ACCURACY",
    "CONVERGENCE",
    "GROWTH",
    "OVER_DENSE",
    "OVER_TOPK",
    "RANKS",
    "SIZES",
    "SOURCE",
    "SPEEDS",
    "WARM_UP",
    "Speeds",
]

#: The publication, and how many ranks its figures are of.
SOURCE: Final = Source(
    "gtopk",
    "gTop-k",
    (
        Publication(
            ("Shi", "Wang", "Zhao", "Tang", "Wang", "Tang", "Chu"),
            "A distributed synchronous SGD algorithm with global top-k sparsification for low bandwidth networks",
            2019,
            arxiv="1901.04359",
        ),
    ),
    "dsgd.compress.GTopK",
    "sync=MinibatchSGD(compressor=GTopK(0.001))",
    "Of the largest entries that ranks choose only those that are largest over all ranks are summed, in"
    " a tree of merges.",
)
RANKS: Final = 32
#: Numbers of ranks whose speeds are published, and the densities of the first epochs.
SIZES: Final = (4, 8, 16, 32)
WARM_UP: Final = (0.25, 0.0625, 0.015625, 0.004)


@dataclass(frozen=True)
class Speeds:
    """Rows a second of one rank, as measured by the authors.

    Parameters
    ----------
    batch : int or None
        Rows of a rank in a step; None where nothing says.
    alone : float
        With one rank.
    dense, topk, gtopk : sequence of float
        With as many ranks as `SIZES` says, by how gradients are summed.
    parts_s : tuple of float, optional
        Seconds of a step of gTop-k on 32 ranks: computing, compressing, communicating.
    """

    batch: int | None
    alone: float
    dense: Sequence[float]
    topk: Sequence[float]
    gtopk: Sequence[float]
    parts_s: tuple[float, float, float] | None = None

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


#: Speeds by network, from the scripts that the authors released with their code (icdcs2019), which draw the figures of
#: scaling efficiency and of the parts of a step. Batches are those of the runs of which the parts are; batch over speed
#: agrees with the sum of the parts to a tenth.
SPEEDS: Final[Mapping[str, Speeds]] = MappingProxyType(
    {
        "ResNet-20, CIFAR-10": Speeds(
            128,
            920.632,
            (821.7, 705.2, 520.4, 287.9),
            (908.837, 752.985, 737.594, 696.029),
            (916.26, 868.73, 808.5, 789.3),
            (0.146005, 0.001618, 0.024686),
        ),
        "VGG-16, CIFAR-10": Speeds(
            128,
            1317.333,
            (104.2, 92.56, 39.48, 12.6),
            (110.576, 109.9, 97.865, 63.002),
            (131.06, 130.551, 126.434, 123.2),
            (0.139536, 0.091353, 0.811753),
        ),
        "ResNet-50, ImageNet": Speeds(
            256,
            52.873,
            (39.002, 36.989, 23.176, 10.721),
            (37.729, 35.703, 34.495, 30.583),
            (39.795, 39.713, 39.06, 39.119),
            (4.882041, 0.15405, 1.424253),
        ),
        "AlexNet, ImageNet": Speeds(
            64,
            173.469,
            (14.01, 12.118, 4.936, 1.234),
            (14.238, 13.865, 13.352, 9.236),
            (16.536, 16.446, 16.359, 15.777),
            (0.257205, 0.383776, 3.36298),
        ),
        "LSTM, PTB": Speeds(None, 392.0, (12.657, 8.7, 4.1, 2.1), (19.9, 18.6, 14.8, 5.4), (17.8, 17.6, 15.1, 10.8)),
    }
)

#: Statements.
OVER_DENSE: Final = Statement(
    "gtopk/dense",
    SOURCE,
    "gTop-k by a tree is 2.7 to 12 times as efficient as dense sums",
    "2.7x to 12x (32 ranks, 1 GbE)",
    "abstract",
    Margin(2.7, 12.0),
    "{:.2f}x".format,
)
OVER_TOPK: Final = Statement(
    "gtopk/topk",
    SOURCE,
    "gTop-k by a tree is 1.1 to 1.7 times as efficient as Top-k",
    "1.1x to 1.7x (32 ranks, 1 GbE)",
    "abstract",
    Margin(1.1, 1.7),
    "{:.2f}x".format,
)
GROWTH: Final = Statement(
    "gtopk/growth",
    SOURCE,
    "What a rank sends grows like log P, where Top-k grows like P",
    "O(k log P), Top-k O(k P)",
    "abstract",
    Margin(most=2.5 * 1.1),
    "{:.2f}x".format,
    "From 4 to 32 ranks log P grows 2.5-fold; a tenth more for headers.",
)
ACCURACY: Final = Statement(
    "gtopk/accuracy",
    SOURCE,
    "gTop-k ends as accurate as dense sums",
    "nearly consistent convergence",
    "abstract",
    Margin(-0.005),
    as_points,
    "Half a point below still counts as kept.",
)
CONVERGENCE: Final = Statement(
    "gtopk/convergence",
    SOURCE,
    "With a thousandth of the entries after a warm-up, networks end as accurate as with dense sums",
    "nearly consistent convergence",
    "abstract",
    Margin(-0.005),
    as_points,
    "Half a point below still counts as kept.",
)
