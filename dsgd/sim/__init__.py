"""Simulated clusters: the real training code on a virtual clock."""

from __future__ import annotations

from dsgd.sim.calibration import Calibration, calibrate
from dsgd.sim.cluster import SimulatedCluster
from dsgd.sim.compute import AbstractStragglers, Compute, Exponential, HeavyTail, NoStragglers, SlowRank
from dsgd.sim.cost import CostModel, EpochCost, RowCost, Workload
from dsgd.sim.measure import measure_costs
from dsgd.sim.network import NETWORKS, Link, Network
from dsgd.sim.predict import Prediction, predict
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
