"""The published speed-ups, and the assumptions about each.

Das et al., "Distributed deep learning using synchronous stochastic gradient descent" (2016, arXiv 1602.06709). The
speed-ups, batches and numbers of nodes are those of its abstract. Machines and wires are those it describes, with their
nominal rates; each point lists what the abstract leaves open.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dsgd.report import Publication
from dsgd.sim.network import Network
from dsgd.sim.scaling import INTERCONNECTS, MODELS, NODES, Layer, Node
from dsgd.study.frame.statement import Source, Statement
from dsgd.study.frame.verdict import Margin

__all__ = ["CLOSE", "PUBLISHED", "SOURCE", "STATEMENTS", "PublishedPoint"]

#: The publication.
SOURCE: Final = Source(
    "pcl",
    "PCL-DNN",
    (
        Publication(
            ("Das", "Avancha", "Mudigere", "Vaidynathan", "Sridharan", "Kalamkar", "Kaul", "Dubey"),
            "Distributed deep learning using synchronous stochastic gradient descent",
            2016,
            arxiv="1602.06709",
        ),
    ),
    "dsgd.sync.MinibatchSGD",
    "sync=MinibatchSGD(batch=256, bucket_bytes=2**20, overlap=True)",
    "Synchronous SGD scales if each layer is shared by samples or by weights, as its operations per "
    "byte allow, and sums are hidden behind the backward pass.",
)
#: Relative distance at which a prediction counts as right.
CLOSE: Final = 0.25


@dataclass(frozen=True)
class PublishedPoint:
    """A published speed-up of a training step on a fixed batch.

    Parameters
    ----------
    model : str
        The network, a name in `dsgd.sim.scaling.MODELS`.
    nodes, batch : int
        Nodes, and samples of a step over all of them.
    speedup : float
        Over one node.
    node, network : str
        The machine and the wire that are assumed.
    assumed : str
        What the source leaves open.
    """

    model: str
    nodes: int
    batch: int
    speedup: float
    node: str
    network: str
    assumed: str

    @property
    def name(self) -> str:
        """What tables and figures call it."""
        return f"{self.model}, {self.nodes} nodes, {self.network}"

    @property
    def statement(self) -> Statement:
        """What is published, and when a prediction agrees with it."""
        return Statement(
            f"pcl/{self.model.lower().replace(' ', '-')}-{self.nodes}-{self.network.lower()}",
            SOURCE,
            f"The model predicts {self.speedup:g}x for {self.model} on {self.nodes} nodes to within {CLOSE:.0%}",
            f"{self.speedup:g}x",
            "abstract",
            Margin((1.0 - CLOSE) * self.speedup, most=(1.0 + CLOSE) * self.speedup),
            "{:.1f}x".format,
            "A model from nominal rates that is right to within a quarter has explained the figure.",
        )

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


_CORI: Final = "Machine and wire of a Cray XC40 (Cori, phase 1)."

#: The five points.
PUBLISHED: Final = (
    PublishedPoint("VGG-A", 128, 512, 90.0, "2x Xeon E5-2698v3", "Aries", _CORI),
    PublishedPoint("VGG-A", 64, 256, 53.0, "2x Xeon E5-2698v3", "Aries", _CORI),
    PublishedPoint("OverFeat-FAST", 64, 256, 42.0, "2x Xeon E5-2698v3", "Aries", _CORI),
    PublishedPoint(
        "ASR DNN", 16, 1024, 6.5, "2x Xeon E5-2697v3", "FDR",
        "A batch of 1,024 frames; 7 hidden layers of 2,048, 429 inputs, 9,304 outputs.",
    ),
    PublishedPoint("VGG-A", 16, 256, 14.0, "c4.8xlarge", "10GbE", "VGG-A with a batch of 256; the figure is about 14."),
)  # fmt: skip

#: One for each point.
STATEMENTS: Final = tuple(point.statement for point in PUBLISHED)
