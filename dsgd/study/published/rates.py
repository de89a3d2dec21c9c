"""What is published of rates that rise and fall, and of batches that grow instead."""

from __future__ import annotations

from typing import Final

from dsgd.report import Publication
from dsgd.study.frame.statement import Source, Statement, as_points, as_times
from dsgd.study.frame.verdict import Margin

__all__ = ["CYCLE_ACCURACY", "CYCLE_OBJECTIVE", "GROWN_ACCURACY", "GROWN_OBJECTIVE", "GROWN_UPDATES", "ONE_CYCLE"]

_KEPT: Final = "Half a point below still counts as kept."
_GROWING: Final = Source(
    "growing",
    "Growing batches",
    (
        Publication(
            ("Smith", "Kindermans", "Ying", "Le"),
            "Don't decay the learning rate, increase the batch size",
            2018,
            arxiv="1711.00489",
        ),
    ),
    "dsgd.sync.GrowingBatch",
    "sync=MinibatchSGD(32, growth=2.0, growth_every=2)",
    "Where others divide the rate by a factor, the batch is multiplied by it.",
)
_CYCLICAL: Final = Source(
    "cyclical",
    "Cyclical rates",
    (Publication(("Smith",), "Cyclical learning rates for training neural networks", 2017, arxiv="1506.01186"),),
    "dsgd.local.Cyclical",
    'learning_rate=Cyclical("triangular2")',
    "The rate goes up and down between two bounds, instead of being tuned to one value.",
)

#: Statements.
GROWN_OBJECTIVE: Final = Statement(
    "growing/objective",
    _GROWING,
    "The learning curve on the training set is that of a rate that falls",
    "the same curve",
    "abstract",
    Margin(0.95, most=1.05),
    as_times,
    "A final objective within 5 % counts as the same.",
)
GROWN_ACCURACY: Final = Statement(
    "growing/accuracy",
    _GROWING,
    "Test accuracy after as many epochs is that of a rate that falls",
    "equivalent",
    "abstract",
    Margin(-0.005),
    as_points,
    _KEPT,
)
GROWN_UPDATES: Final = Statement(
    "growing/updates",
    _GROWING,
    "It takes fewer updates of the model than a rate that falls",
    "fewer updates",
    "abstract, without a figure",
    Margin(1.0),
    as_times,
)
CYCLE_ACCURACY: Final = Statement(
    "cyclical/accuracy",
    _CYCLICAL,
    "Without tuning, test accuracy is better than with a fixed rate",
    "improved accuracy",
    "abstract",
    Margin(0.0),
    as_points,
    "Beside the best of three fixed rates between the bounds.",
)
CYCLE_OBJECTIVE: Final = Statement(
    "cyclical/objective",
    _CYCLICAL,
    "Without tuning, the loss after as many steps is lower than with a fixed rate",
    "often fewer iterations",
    "abstract",
    Margin(most=1.0),
    "{:.4f}x".format,
    "Beside the best of three fixed rates between the bounds.",
)
ONE_CYCLE: Final = Statement(
    "one-cycle/epochs",
    Source(
        "one-cycle",
        "One cycle",
        (
            Publication(
                ("Smith", "Topin"),
                "Super-convergence: very fast training of neural networks using large learning rates",
                2018,
                arxiv="1708.07120",
            ),
        ),
        "dsgd.local.OneCycle",
        "learning_rate=OneCycle()",
        "One long way up, to rates that would diverge from the start, and down again.",
    ),
    "Training is an order of magnitude faster than with a fixed rate",
    "about 10x",
    "abstract",
    Margin(10.0),
    as_times,
)
