"""Operations of all ranks together: sums, broadcasts, gathers, barriers, and their costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

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

_HOMES: Final = {
    "DEFAULT_LINK": "dsgd.collectives.model",
    "LINKS": "dsgd.collectives.model",
    "Algorithm": "dsgd.collectives.cost",
    "Cost": "dsgd.collectives.cost",
    "Group": "dsgd.collectives.group",
    "LinkCost": "dsgd.collectives.model",
    "Team": "dsgd.collectives.team",
    "allgather_cost": "dsgd.collectives.cost",
    "allgather_seconds": "dsgd.collectives.model",
    "allgatherv_cost": "dsgd.collectives.cost",
    "allreduce_cost": "dsgd.collectives.cost",
    "allreduce_seconds": "dsgd.collectives.model",
    "barrier_cost": "dsgd.collectives.cost",
    "barrier_seconds": "dsgd.collectives.model",
    "broadcast_cost": "dsgd.collectives.cost",
    "broadcast_seconds": "dsgd.collectives.model",
    "calibrate": "dsgd.collectives.calibration",
    "choose_algorithm": "dsgd.collectives.model",
    "choose_gather": "dsgd.collectives.model",
    "compressed_cost": "dsgd.collectives.compressed.cost",
    "compressed_mean": "dsgd.collectives.compressed.mean",
    "gather_cost": "dsgd.collectives.cost",
    "gossip_cost": "dsgd.collectives.gossip",
    "gossip_seconds": "dsgd.collectives.model",
    "hierarchical_seconds": "dsgd.collectives.model",
    "neighbour_mean": "dsgd.collectives.gossip",
    "push_sum": "dsgd.collectives.gossip",
    "tally_seconds": "dsgd.collectives.model",
}

__getattr__ = loaded_on_use(__name__, _HOMES)
