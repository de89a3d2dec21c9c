"""A simulated cluster: the loop of training, the strategies and the collectives on a virtual clock."""

from __future__ import annotations

from dsgd.sim.calibration import Calibration, calibrate
from dsgd.sim.cluster import SimulatedCluster
from dsgd.sim.compute import AbstractStragglers, Compute, Exponential, HeavyTail, NoStragglers, SlowRank
from dsgd.sim.network import NETWORKS, Link, Network
from dsgd.sim.predict import Prediction, predict

__all__ = [
    "NETWORKS",
    "AbstractStragglers",
    "Calibration",
    "Compute",
    "Exponential",
    "HeavyTail",
    "Link",
    "Network",
    "NoStragglers",
    "Prediction",
    "SimulatedCluster",
    "SlowRank",
    "calibrate",
    "predict",
]
