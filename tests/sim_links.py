"""A network whose links are all alike, and how long rank programs take on it."""

from __future__ import annotations

from typing import Any

from dsgd.comm.frames import HEADER_BYTES
from dsgd.sim import Compute, Link, Network, SimulatedCluster

ALPHA, BETA, GAMMA = 3e-4, 2e-8, 5e-9
FLAT = Network("flat", between=Link(byte_s=BETA, overhead_s=ALPHA), inside=Link(byte_s=BETA, overhead_s=ALPHA))
#: No work costs anything but that of adding up.
IDLE = Compute(0.0, 0.0, 0.0, 0.0, GAMMA, "none")


def cost(n: int) -> float:
    """Seconds of a frame of n payload bytes."""
    return ALPHA + BETA * (HEADER_BYTES + n)


def seconds(program: Any, ranks: int, network: Network = FLAT, **options: Any) -> list[float]:
    """Run ``program(rank, number)`` and return when each rank had ended."""
    cluster = SimulatedCluster(ranks, network, **{"compute": IDLE, **options})
    return [stat["virtual_s"] for stat in cluster.run(program, list(range(ranks))).stats]
