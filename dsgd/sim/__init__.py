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
    "NETWORKS": "dsgd.sim.network",
    "AbstractStragglers": "dsgd.sim.network",
    "Calibration": "dsgd.sim.calibration",
    "Compute": "dsgd.sim.network",
    "CostModel": "dsgd.sim.cost",
    "EpochCost": "dsgd.sim.cost",
    "Exponential": "dsgd.sim.network",
    "HeavyTail": "dsgd.sim.network",
    "Link": "dsgd.collectives.cost",
    "Network": "dsgd.sim.network",
    "NoStragglers": "dsgd.sim.network",
    "Prediction": "dsgd.sim.prediction",
    "RowCost": "dsgd.sim.cost",
    "SavedCosts": "dsgd.sim.measure",
    "SimulatedCluster": "dsgd.sim.cluster",
    "SlowRank": "dsgd.sim.network",
    "Workload": "dsgd.sim.cost",
    "calibrate": "dsgd.sim.calibration",
    "known_costs": "dsgd.sim.measure",
    "measure_costs": "dsgd.sim.measure",
    "open_costs": "dsgd.sim.measure",
    "predict": "dsgd.sim.prediction",
}

__getattr__ = loaded_on_use(__name__, _HOMES)
