"""Simulated clusters: the real training code on a virtual clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsgd.lazy import loaded_on_use

if TYPE_CHECKING:
    from dsgd.sim.calibration import Calibration, calibrate
    from dsgd.sim.cluster import SimulatedCluster
    from dsgd.sim.compute import AbstractStragglers, Compute, Exponential, HeavyTail, NoStragglers, SlowRank
    from dsgd.sim.cost import CostModel, EpochCost, RowCost, Workload
    from dsgd.sim.measure import measure_costs
    from dsgd.sim.network import NETWORKS, Link, Network
    from dsgd.sim.prediction import Prediction, predict
    from dsgd.sim.saved_costs import SavedCosts, known_costs, open_costs


__all__ = [
    "NETWORKS",
    "AbstractStragglers",
    "Calibration",
    "Compute",
    "CostModel",
    "EpochCost",
    "Exponential",
    "HeavyTail",
    "Link",
    "Network",
    "NoStragglers",
    "Prediction",
    "RowCost",
    "SavedCosts",
    "SimulatedCluster",
    "SlowRank",
    "Workload",
    "calibrate",
    "known_costs",
    "measure_costs",
    "open_costs",
    "predict",
]


__getattr__ = loaded_on_use(
    __name__,
    {
        ".calibration": "Calibration calibrate",
        ".cluster": "SimulatedCluster",
        ".compute": "AbstractStragglers Compute Exponential HeavyTail NoStragglers SlowRank",
        ".cost": "CostModel EpochCost RowCost Workload",
        ".measure": "measure_costs",
        ".network": "NETWORKS Link Network",
        ".prediction": "Prediction predict",
        ".saved_costs": "SavedCosts known_costs open_costs",
    },
)
