"""Rules by which `dsgd.sync.AutoSync` chooses the period: all of them in `rules`, each a pure function."""

from dsgd.sync.adaptive.base import WHYS, AbstractRule, Choice, Measured, Why, comm_floor
from dsgd.sync.adaptive.rules import (
    QSR,
    AdaComm,
    BudgetedPeriod,
    CommFloor,
    DynamicAveraging,
    FixedPeriod,
    PostLocal,
    VarianceBand,
    drift_bound,
)

__all__ = [
    "QSR",
    "WHYS",
    "AbstractRule",
    "AdaComm",
    "BudgetedPeriod",
    "Choice",
    "CommFloor",
    "DynamicAveraging",
    "FixedPeriod",
    "Measured",
    "PostLocal",
    "VarianceBand",
    "Why",
    "comm_floor",
    "drift_bound",
]
