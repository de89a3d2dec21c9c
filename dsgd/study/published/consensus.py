"""What is published of strategies whose ranks solve problems of their own and agree by prices."""

from __future__ import annotations

from typing import Final

from dsgd.report import Publication
from dsgd.study.frame.statement import Source, Statement, as_times
from dsgd.study.frame.verdict import Margin

__all__ = ["ITERATIONS", "OBJECTIVE", "TIME"]

_ASYNCHRONOUS: Final = Source(
    "async-admm",
    "Asynchronous ADMM",
    (Publication(("Zhang", "Kwok"), "Asynchronous distributed ADMM for consensus optimization", 2014, venue="ICML"),),
    "dsgd.sync.AsyncADMM",
    "sync=AsyncADMM(every=64)",
    "The consensus is updated as soon as some workers have arrived, if none of the others is too late.",
)

#: Statements.
ITERATIONS: Final = Statement(
    "admm/iterations",
    Source(
        "admm",
        "Consensus ADMM",
        (
            Publication(
                ("Boyd", "Parikh", "Chu", "Peleato", "Eckstein"),
                "Distributed optimization and statistical learning via the alternating direction method of multipliers",
                2011,
            ),
        ),
        "dsgd.sync.ADMM",
        "sync=ADMM(every=64)",
        "Every rank minimises its own objective beside a spring, and prices for disagreeing bring models together.",
    ),
    "Modest accuracy takes a few tens of iterations",
    "a few tens",
    "section on convergence",
    Margin(most=50.0),
    "{:.0f} iterations".format,
    "A few tens are 50 at most, and modest accuracy is an objective of 1 % above the least.",
)
TIME: Final = Statement(
    "async-admm/time",
    _ASYNCHRONOUS,
    "With stragglers training is faster than synchronous ADMM",
    "faster in wall-clock time",
    "abstract",
    Margin(1.0),
    as_times,
    "The source gives curves; the statement is their order.",
)
OBJECTIVE: Final = Statement(
    "async-admm/objective",
    _ASYNCHRONOUS,
    "It converges like its synchronous counterpart",
    "the same rate",
    "abstract",
    Margin(most=1.05),
    as_times,
    "A training objective within 5 % counts as equal.",
)
