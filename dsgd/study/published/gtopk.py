"""What is published of gTop-k."""

from __future__ import annotations

from typing import Final

from dsgd.report import Publication
from dsgd.study.frame.statement import Source, Statement, as_points
from dsgd.study.frame.verdict import Margin

__all__ = ["ACCURACY", "GROWTH", "OVER_DENSE", "OVER_TOPK", "RANKS", "SOURCE"]

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
