"""Predictions of the scaling study, and their dependence on its assumptions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from dsgd.sim.network import Link, Network
from dsgd.sim.scaling import Layer, Node, ScalingPoint, Sharing, predict_step, speedup_curve
from dsgd.study.scaling.points import PublishedPoint

__all__ = ["VARIATIONS", "Curve", "Predicted", "curves", "node_counts", "predict_point", "vary"]

#: Variations of the assumptions, to see how far a prediction depends on them.
VARIATIONS: Final = ("as assumed", "half the bandwidth", "10x the latency", "nodes twice as fast", "no overlap")


@dataclass(frozen=True)
class Predicted:
    """A published point and its prediction.

    Parameters
    ----------
    point : PublishedPoint
        What was published.
    alone_s : float
        Seconds of the whole batch on one node.
    data, hybrid : ScalingPoint
        All layers shared by samples; each layer shared in the best way.
    """

    point: PublishedPoint
    alone_s: float
    data: ScalingPoint
    hybrid: ScalingPoint

    @property
    def ratio(self) -> float:
        """The predicted speed-up over the published one."""
        return self.hybrid.speedup / self.point.speedup

    @property
    def unexplained_s(self) -> float:
        """How much longer the published step is than the predicted one, on the assumed machine."""
        return self.alone_s / self.point.speedup - self.hybrid.step.seconds

    @property
    def is_between(self) -> bool:
        """Whether the published speed-up lies between data parallel training alone and the best sharing."""
        return self.data.speedup <= self.point.speedup <= self.hybrid.speedup


@dataclass(frozen=True)
class Curve:
    """Speed-ups of one way of sharing.

    Parameters
    ----------
    sharing : {"data", "model", "hybrid"}
        How layers are shared.
    points : sequence of ScalingPoint
        One for each number of nodes.
    """

    sharing: Sharing
    points: Sequence[ScalingPoint]


def predict_point(point: PublishedPoint) -> Predicted:
    """Return the prediction for a published point."""
    settings = point.layers, [point.nodes], point.batch, point.machine, point.wire
    data, hybrid = (speedup_curve(*settings, sharing=sharing)[0] for sharing in ("data", "hybrid"))
    alone = predict_step(point.layers, 1, point.batch, point.machine, point.wire)
    return Predicted(point, alone.seconds, data, hybrid)


def curves(layers: Sequence[Layer], nodes: Sequence[int], batch: int, node: Node, network: Network) -> list[Curve]:
    """Return the speed-up against nodes, data parallel and hybrid.

    Parameters
    ----------
    layers : sequence of Layer
        The network.
    nodes : sequence of int
        Numbers of nodes.
    batch : int
        Samples of a step over all nodes.
    node : Node
        The machine.
    network : Network
        The wire.
    """
    settings = layers, nodes, batch, node, network
    return [
        Curve("data", speedup_curve(*settings, sharing="data")),
        Curve("hybrid", speedup_curve(*settings, sharing="hybrid")),
    ]


def node_counts(most: int) -> list[int]:
    """Return the powers of two up to `most`, and `most` itself.

    Examples
    --------
    >>> node_counts(12)
    [1, 2, 4, 8, 12]
    """
    return sorted({2**level for level in range(most.bit_length())} | {most})


def vary(point: PublishedPoint) -> list[float]:
    """Return the predicted speed-up under each of `VARIATIONS`."""
    node, wire = point.machine, point.wire
    link = wire.between
    fast = replace(
        node,
        flop_per_s=2 * node.flop_per_s,
        memory_bytes_per_s=2 * node.memory_bytes_per_s,
        layer_s=node.layer_s / 2,
    )
    cases = (
        (node, wire, True),
        (node, replace(wire, between=replace(link, byte_s=2 * link.byte_s)), True),
        (node, replace(wire, between=Link(link.byte_s, 10 * link.overhead_s, 10 * link.latency_s)), True),
        (fast, wire, True),
        (node, wire, False),
    )
    found = []
    for machine, network, overlaps in cases:
        sizes = (1, point.nodes)
        steps = [predict_step(point.layers, n, point.batch, machine, network, overlaps=overlaps) for n in sizes]
        found.append(steps[0].seconds / steps[1].seconds)
    return found
