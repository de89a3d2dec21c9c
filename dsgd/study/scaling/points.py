"""The published speed-ups: see ``published.toml``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dsgd.sim.network import Network
from dsgd.sim.scaling import INTERCONNECTS, MODELS, NODES, Layer, Node
from dsgd.study.published import FIGURES, SOURCES, STATEMENTS, Statement

__all__ = ["CLOSE", "PUBLISHED", "SOURCE", "PublishedPoint"]

#: The publication.
SOURCE: Final = SOURCES["pcl"]
#: Relative distance at which a prediction counts as right.
CLOSE: Final = 0.25


@dataclass(frozen=True)
class PublishedPoint:
    """A published speed-up of a training step on a fixed batch, with the machine and the wire that are assumed."""

    model: str
    nodes: int
    batch: int
    speedup: float
    node: str
    network: str
    # What the source leaves open.
    assumed: str

    @property
    def name(self) -> str:
        """What tables and figures call it."""
        return f"{self.model}, {self.nodes} nodes, {self.network}"

    @property
    def statement(self) -> Statement:
        """What is published, and when a prediction agrees with it."""
        return STATEMENTS[f"pcl/{self.model.lower().replace(' ', '-')}-{self.nodes}-{self.network.lower()}"]

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers of the network."""
        return MODELS[self.model]

    @property
    def machine(self) -> Node:
        """The machine."""
        return NODES[self.node]

    @property
    def wire(self) -> Network:
        """The network between machines."""
        return INTERCONNECTS[self.network]


#: The five points.
PUBLISHED: Final = tuple(PublishedPoint(**point) for point in FIGURES["pcl"]["points"])
