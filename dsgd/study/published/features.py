"""What is published of random features, and of agents that learn with them."""

from __future__ import annotations

from typing import Final

from dsgd.report import Publication
from dsgd.study.frame.statement import Source, Statement, as_percent, as_points, as_times
from dsgd.study.frame.verdict import Margin

__all__ = ["ACCURACY", "ANY_GRAPH", "FEW_ROWS", "LINEAR", "OPTIMAL", "VALUES"]

#: Sources.
_AGENTS: Final = Source(
    "agents",
    "Decentralised random features",
    (
        Publication(
            ("Richards", "Rebeschini", "Rosasco"),
            "Decentralised learning with random features and distributed gradient descent",
            2020,
            arxiv="2007.00360",
            venue="ICML",
        ),
    ),
    "dsgd.local.GradientDescent",
    "optimizer=GradientDescent()",
    "Agents on a graph take full gradient steps on random features that all of them share, and average with their"
    " neighbours.",
)
_FEATURES: Final = Source(
    "rff",
    "Random Fourier features",
    (
        Publication(("Rahimi", "Recht"), "Random features for large-scale kernel machines", 2007, venue="NIPS"),
        Publication(
            ("Yu", "Suresh", "Choromanski", "Holtmann-Rice", "Kumar"),
            "Orthogonal random features",
            2016,
            arxiv="1610.09072",
        ),
    ),
    "dsgd.kernel_approximation.RandomFeatures",
    "features=RandomFeatures(2000, gamma=0.1)",
    "Rows become random features whose inner products are a kernel on average, and a linear model is learnt on them.",
)

#: Statements.
ANY_GRAPH: Final = Statement(
    "agents/any-graph",
    _AGENTS,
    "With enough rows per agent, each agent's error is that of one machine that has all rows, on any graph",
    "optimal rates for any topology",
    "abstract",
    Margin(most=1.1),
    as_times,
    "A tenth more counts as the same. The graph with the smallest gap, at the most rows per agent.",
)
FEW_ROWS: Final = Statement(
    "agents/few-rows",
    _AGENTS,
    "With few rows per agent and a small spectral gap, the error is larger than that of one machine",
    "rows must grow with agents and the inverse gap",
    "abstract",
    Margin(1.1),
    as_times,
    "A tenth more counts as larger. The same graph at the fewest rows per agent.",
)
LINEAR: Final = Statement(
    "agents/speed-up",
    _AGENTS,
    "With enough rows per agent the speed-up is linear in the number of agents, on any graph",
    "linear",
    "abstract",
    Margin(0.8),
    as_percent,
    "Four fifths of the number of agents count as linear, on the graph with the smallest gap.",
)
OPTIMAL: Final = Statement(
    "agents/rate",
    _AGENTS,
    "The error falls at least as fast as one over the root of the rows of all agents",
    "power -0.5 or below",
    "abstract: minimax optimal rates",
    Margin(most=-0.5),
    "{:.2f}".format,
    "The rate of the hardest function in the space of the kernel; others have faster ones.",
)
VALUES: Final = Statement(
    "rff/values",
    _FEATURES,
    "The error of kernel values falls like one over the root of the number of features",
    "power -0.5",
    "claim 1",
    Margin(-0.55, most=-0.45),
    "{:.3f}".format,
    "The bound is of this order; a twentieth of a power counts as equal.",
)
ACCURACY: Final = Statement(
    "rff/accuracy",
    _FEATURES,
    "Linear models of random features are as accurate as kernel machines",
    "competitive or better",
    "abstract",
    Margin(-0.01),
    as_points,
    "A point less counts as accurate as.",
)
