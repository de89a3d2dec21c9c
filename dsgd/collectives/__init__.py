"""Operations of all ranks together: sums, broadcasts, barriers, and what they cost."""

from dsgd.collectives.cost import (
    Algorithm,
    Cost,
    allgather_cost,
    allgatherv_cost,
    allreduce_cost,
    barrier_cost,
    broadcast_cost,
    choose_algorithm,
    gather_cost,
)
from dsgd.collectives.gossip import gossip_cost, neighbour_mean, push_sum
from dsgd.collectives.group import Group

__all__ = [
    "Algorithm",
    "Cost",
    "Group",
    "allgather_cost",
    "allgatherv_cost",
    "allreduce_cost",
    "barrier_cost",
    "broadcast_cost",
    "choose_algorithm",
    "gather_cost",
    "gossip_cost",
    "neighbour_mean",
    "push_sum",
]
