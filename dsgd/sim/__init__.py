"""Simulated clusters: the real training code on a virtual clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dsgd.lazy import loaded_on_use

if TYPE_CHECKING:
    from dsgd.collectives.cost import Link
    from dsgd.sim.calibration import Calibration, calibrate
    from dsgd.sim.cluster import SimulatedCluster
    from dsgd.sim.cost import CostModel, EpochCost, RowCost, Workload
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

_HOMES: Final = {
    name: home
    for home, names in {
        "dsgd.sim.calibration": ("Calibration", "calibrate"),
        "dsgd.sim.cluster": ("SimulatedCluster",),
        "dsgd.sim.cost": ("CostModel", "EpochCost", "RowCost", "Workload"),
        "dsgd.collectives.cost": ("Link",),
        "dsgd.sim.measure": ("SavedCosts", "known_costs", "measure_costs", "open_costs"),
        "dsgd.sim.network": (
            "NETWORKS",
            "AbstractStragglers",
            "Compute",
            "Exponential",
            "HeavyTail",
            "Network",
            "NoStragglers",
            "SlowRank",
        ),
        "dsgd.sim.prediction": ("Prediction", "predict"),
    }.items()
    for name in names
}

__getattr__ = loaded_on_use(__name__, _HOMES)
