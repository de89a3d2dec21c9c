"""Operations of all ranks together: sums, broadcasts, barriers, and what they cost."""

from dsgd.collectives.cost import (
    Algorithm,
    Cost,
    allgather_cost,
    allreduce_cost,
    barrier_cost,
    broadcast_cost,
    choose_algorithm,
)
from dsgd.collectives.group import Group

__all__ = [
    "Algorithm",
    "Cost",
    "Group",
    "allgather_cost",
    "allreduce_cost",
    "barrier_cost",
    "broadcast_cost",
    "choose_algorithm",
]
