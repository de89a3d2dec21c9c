"""Operations of all ranks together: sums, broadcasts, gathers, barriers, and their costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsgd.lazy import loaded_on_use

if TYPE_CHECKING:
    from dsgd.collectives.calibration import calibrate
    from dsgd.collectives.compressed.cost import compressed_cost
    from dsgd.collectives.compressed.mean import compressed_mean
    from dsgd.collectives.cost import (
        Algorithm,
        Cost,
        allgather_cost,
        allgatherv_cost,
        allreduce_cost,
        barrier_cost,
        broadcast_cost,
        gather_cost,
    )
    from dsgd.collectives.gossip import gossip_cost, neighbour_mean, push_sum
    from dsgd.collectives.group import Group
    from dsgd.collectives.model import (
        DEFAULT_LINK,
        LINKS,
        LinkCost,
        allgather_seconds,
        allreduce_seconds,
        barrier_seconds,
        broadcast_seconds,
        choose_algorithm,
        choose_gather,
        gossip_seconds,
        hierarchical_seconds,
        tally_seconds,
    )
    from dsgd.collectives.team import Team


__all__ = [
    "DEFAULT_LINK",
    "LINKS",
    "Algorithm",
    "Cost",
    "Group",
    "LinkCost",
    "Team",
    "allgather_cost",
    "allgather_seconds",
    "allgatherv_cost",
    "allreduce_cost",
    "allreduce_seconds",
    "barrier_cost",
    "barrier_seconds",
    "broadcast_cost",
    "broadcast_seconds",
    "calibrate",
    "choose_algorithm",
    "choose_gather",
    "compressed_cost",
    "compressed_mean",
    "gather_cost",
    "gossip_cost",
    "gossip_seconds",
    "hierarchical_seconds",
    "neighbour_mean",
    "push_sum",
    "tally_seconds",
]


__getattr__ = loaded_on_use(
    __name__,
    {
        ".calibration": "calibrate",
        ".compressed.cost": "compressed_cost",
        ".compressed.mean": "compressed_mean",
        ".cost": (
            "Algorithm Cost allgather_cost allgatherv_cost allreduce_cost barrier_cost broadcast_cost gather_cost"
        ),
        ".gossip": "gossip_cost neighbour_mean push_sum",
        ".group": "Group",
        ".model": (
            "DEFAULT_LINK LINKS LinkCost allgather_seconds allreduce_seconds barrier_seconds broadcast_seconds "
            "choose_algorithm choose_gather gossip_seconds hierarchical_seconds tally_seconds"
        ),
        ".team": "Team",
    },
)
