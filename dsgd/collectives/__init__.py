"""Operations of all ranks together: sums, broadcasts, gathers, barriers, and their costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dsgd.lazy import loaded_on_use

if TYPE_CHECKING:
    from dsgd.collectives.compressed import compressed_cost, compressed_mean
    from dsgd.collectives.cost import (
        DEFAULT_LINK,
        LINKS,
        Algorithm,
        Cost,
        Link,
        allgather_cost,
        allgather_seconds,
        allgatherv_cost,
        allreduce_cost,
        allreduce_seconds,
        barrier_cost,
        barrier_seconds,
        broadcast_cost,
        broadcast_seconds,
        choose_algorithm,
        choose_gather,
        gather_cost,
        gossip_seconds,
        hierarchical_seconds,
        tally_seconds,
    )
    from dsgd.collectives.gossip import gossip_cost, neighbour_mean, push_sum
    from dsgd.collectives.group import Group, Team, calibrate

__all__ = [
    "DEFAULT_LINK",
    "LINKS",
    "Algorithm",
    "Cost",
    "Group",
    "Link",
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
    "DEFAULT_LINK": "dsgd.collectives.cost",
    "LINKS": "dsgd.collectives.cost",
    "Algorithm": "dsgd.collectives.cost",
    "Cost": "dsgd.collectives.cost",
    "Group": "dsgd.collectives.group",
    "Link": "dsgd.collectives.cost",
    "Team": "dsgd.collectives.group",
    "allgather_cost": "dsgd.collectives.cost",
    "allgather_seconds": "dsgd.collectives.cost",
    "allgatherv_cost": "dsgd.collectives.cost",
    "allreduce_cost": "dsgd.collectives.cost",
    "allreduce_seconds": "dsgd.collectives.cost",
    "barrier_cost": "dsgd.collectives.cost",
    "barrier_seconds": "dsgd.collectives.cost",
    "broadcast_cost": "dsgd.collectives.cost",
    "broadcast_seconds": "dsgd.collectives.cost",
    "calibrate": "dsgd.collectives.group",
    "choose_algorithm": "dsgd.collectives.cost",
    "choose_gather": "dsgd.collectives.cost",
    "compressed_cost": "dsgd.collectives.compressed",
    "compressed_mean": "dsgd.collectives.compressed",
    "gather_cost": "dsgd.collectives.cost",
    "gossip_cost": "dsgd.collectives.gossip",
    "gossip_seconds": "dsgd.collectives.cost",
    "hierarchical_seconds": "dsgd.collectives.cost",
    "neighbour_mean": "dsgd.collectives.gossip",
    "push_sum": "dsgd.collectives.gossip",
    "tally_seconds": "dsgd.collectives.cost",
}

__getattr__ = loaded_on_use(__name__, _HOMES)
