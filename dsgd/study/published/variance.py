"""What is published of methods that reduce the variance of steps."""

from __future__ import annotations

from typing import Final

from dsgd.report import Publication
from dsgd.study.frame.statement import Source, Statement, as_times
from dsgd.study.frame.verdict import Margin

__all__ = ["AS_GOOD", "DRAW", "OUTLIERS", "SAGA_LINEAR", "SRG", "SVRG_LINEAR"]

#: Sources.
SRG: Final = Source(
    "srg",
    "SRG",
    (
        Publication(
            ("El Hanchi", "Stephens", "Maddison"), "Stochastic reweighted gradient descent", 2022, venue="ICML"
        ),
        Publication(
            ("El Hanchi", "Stephens"),
            "Adaptive importance sampling for finite-sum optimization and sampling with decreasing step-sizes",
            2020,
            venue="NeurIPS",
        ),
    ),
    "dsgd.local.Importance",
    "sampling=Importance(uniform=0.5)",
    "Rows are drawn in proportion to the norms of the gradients that they had when they were last seen, mixed with"
    " uniform draws.",
)
_SAGA: Final = Source(
    "saga",
    "SAGA",
    (
        Publication(
            ("Defazio", "Bach", "Lacoste-Julien"),
            "SAGA: a fast incremental gradient method with support for non-strongly convex composite objectives",
            2014,
            arxiv="1407.0202",
        ),
    ),
    "dsgd.local.SAGA",
    "optimizer=SAGA()",
    "The last gradient of each row is remembered, and corrects the next step on it.",
)
_SVRG: Final = Source(
    "svrg",
    "SVRG",
    (
        Publication(
            ("Johnson", "Zhang"),
            "Accelerating stochastic gradient descent using predictive variance reduction",
            2013,
            venue="NIPS",
        ),
    ),
    "dsgd.local.SVRG",
    "optimizer=SVRG()",
    "Now and then a full gradient is computed, and the gradients at its model correct the steps that follow.",
)
_SIXTY: Final = "The objective is within 1e-8 of its minimum after 60 passes over the rows, on every problem."

#: Statements.
OUTLIERS: Final = Statement(
    "srg/outliers",
    SRG,
    "Where outliers dominate, the error at a constant rate is many times smaller than that of uniform draws",
    "up to n times",
    "abstract",
    Margin(5.0),
    as_times,
    "Of 40 numbers with one outlier, and half of the draws uniform, the closed form promises 5.1 times.",
)
AS_GOOD: Final = Statement(
    "srg/as-good",
    SRG,
    "Where no rows stand out, the error at a constant rate is no larger than that of uniform draws",
    "improved asymptotic error",
    "abstract",
    Margin(most=1.1),
    as_times,
    "A tenth more counts as no larger.",
)
DRAW: Final = Statement(
    "srg/draw",
    SRG,
    "A draw reads O(log n) numbers",
    "a red-black tree",
    "abstract of the first version",
    Margin(most=1.5),
    as_times,
    "Groups of eight numbers that a draw reads, over the logarithm of n to base 8, largest of all sizes.",
)
SAGA_LINEAR: Final = Statement(
    "saga/linear",
    _SAGA,
    "Converges linearly on strongly convex objectives",
    "linear",
    "corollary 1",
    Margin(most=1e-8),
    "{:.1e}".format,
    _SIXTY,
)
SVRG_LINEAR: Final = Statement(
    "svrg/linear",
    _SVRG,
    "Converges linearly on strongly convex objectives",
    "linear",
    "theorem 1",
    Margin(most=1e-8),
    "{:.1e}".format,
    _SIXTY,
)
