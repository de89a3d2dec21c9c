"""Operations of all ranks together: sums, broadcasts, gathers, barriers, and their costs."""

from typing import TYPE_CHECKING

from dsgd.lazy import loaded_on_use

if TYPE_CHECKING:
    from dsgd.collectives.cost import (
        LINKS,
        Algorithm,
        Cost,
        Link,
        allreduce_cost,
        allreduce_seconds,
        broadcast_cost,
        choose_algorithm,
    )
    from dsgd.collectives.group import Group, calibrate
    from dsgd.collectives.means import compressed_cost, compressed_mean, gossip_cost, neighbour_mean, push_sum
    from dsgd.collectives.team import Team

__all__ = [
    "LINKS",
    "Algorithm",
    "Cost",
    "Group",
    "Link",
    "Team",
    "allreduce_cost",
    "allreduce_seconds",
    "broadcast_cost",
    "calibrate",
    "choose_algorithm",
    "compressed_cost",
    "compressed_mean",
    "gossip_cost",
    "neighbour_mean",
    "push_sum",
]

__getattr__ = loaded_on_use(__name__)
