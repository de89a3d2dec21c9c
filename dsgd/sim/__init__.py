"""Simulated clusters: the real training code on a virtual clock."""

from typing import TYPE_CHECKING

from dsgd.lazy import loaded_on_use

if TYPE_CHECKING:
    from dsgd.collectives.cost import Link
    from dsgd.sim.calibration import Calibration, calibrate
    from dsgd.sim.cluster import SimulatedCluster
    from dsgd.sim.cost import CostModel, EpochCost, RowCost, Workload
    from dsgd.sim.failures import Failures
    from dsgd.sim.measure import SavedCosts, known_costs, measure_costs, open_costs
    from dsgd.sim.network import (
        NETWORKS,
        AbstractStragglers,
        Compute,
        Exponential,
        HeavyTail,
        Network,
        NoStragglers,
        SlowRank,
    )
    from dsgd.sim.prediction import Prediction, predict
    from dsgd.sim.what_if import RunRecord, Sweep, WhatIf

__all__ = [
    "NETWORKS",
    "AbstractStragglers",
    "Calibration",
    "Compute",
    "CostModel",
    "EpochCost",
    "Exponential",
    "Failures",
    "HeavyTail",
    "Link",
    "Network",
    "NoStragglers",
    "Prediction",
    "RowCost",
    "RunRecord",
    "SavedCosts",
    "SimulatedCluster",
    "SlowRank",
    "Sweep",
    "WhatIf",
    "Workload",
    "calibrate",
    "known_costs",
    "measure_costs",
    "open_costs",
    "predict",
]

__getattr__ = loaded_on_use(__name__)
