"""Rules by which `dsgd.sync.AutoSync` chooses the period: one file per rule, each a pure function."""

from dsgd.sync.adaptive.adacomm import AdaComm
from dsgd.sync.adaptive.base import WHYS, AbstractRule, Choice, Measured, Why, comm_floor
from dsgd.sync.adaptive.budget import BudgetedPeriod, drift_bound
from dsgd.sync.adaptive.communication import CommFloor
from dsgd.sync.adaptive.dynamic import DynamicAveraging
from dsgd.sync.adaptive.fixed import FixedPeriod
from dsgd.sync.adaptive.post_local import PostLocal
from dsgd.sync.adaptive.qsr import QSR
from dsgd.sync.adaptive.variance_band import VarianceBand

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
