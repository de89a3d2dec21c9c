"""The topologies that the properties of all topologies are held on."""

from __future__ import annotations

from dsgd.comm.topology import (
    AbstractTopology,
    Bipartite,
    Complete,
    Exponential,
    Grid,
    Groups,
    RandomRegular,
    Ring,
    Star,
)

#: One line per topology; every member has the properties below on 1 to 33 ranks.
TOPOLOGIES: dict[str, AbstractTopology] = {
    "ring": Ring(),
    "grid": Grid(),
    "torus": Grid(wraps=True),
    "complete": Complete(),
    "star": Star(),
    "star of 3": Star(hub=3),
    "exponential": Exponential(),
    "exponential of 2": Exponential(peers=2),
    "bipartite": Bipartite(),
    "random regular": RandomRegular(degree=3, seed=1),
    "random pairs": RandomRegular(degree=1),
    "random regular of 6": RandomRegular(degree=6),
    "groups": Groups(4),
}
