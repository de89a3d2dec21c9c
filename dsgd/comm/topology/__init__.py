"""Topologies: which ranks exchange in a round, as pure functions of rank, number of ranks and round.

`graphs` has the topologies, `mixing` the weights with which neighbours are averaged and the order in which they
exchange. No rank is needed to call either. Called by strategies, collectives and the simulator. Begin with `graphs`.
"""

from dsgd.comm.topology.graphs import (
    AbstractFixedGraph,
    AbstractTopology,
    Bipartite,
    Complete,
    Exponential,
    Grid,
    Groups,
    RandomRegular,
    Ring,
    Star,
    grid_shape,
)

__all__ = [
    "AbstractFixedGraph",
    "AbstractTopology",
    "Bipartite",
    "Complete",
    "Exponential",
    "Grid",
    "Groups",
    "RandomRegular",
    "Ring",
    "Star",
    "grid_shape",
]
