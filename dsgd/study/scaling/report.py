"""The report of the scaling study."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dsgd.report import Page, Table
from dsgd.sim.network import Network
from dsgd.sim.scaling import Layer, Node
from dsgd.study.published import citations
from dsgd.study.scaling.figures import groups_figure, own_figure, ratio_figure, speedup_figure, step_figure
from dsgd.study.scaling.model import Predicted, curves
from dsgd.study.scaling.points import SOURCE
from dsgd.study.scaling.tables import (
    assumptions_table,
    curve_table,
    layers_table,
    points_table,
    scaling_answer,
    scaling_claims,
    variations_table,
)

__all__ = ["Own", "own_tables", "scaling_page"]


@dataclass(frozen=True)
class Own:
    """A network of the reader's own.

    Parameters
    ----------
    name : str
        What it is called.
    layers : tuple of Layer
        Its layers.
    nodes : sequence of int
        Numbers of nodes.
    batch : int
        Samples of a step over all nodes.
    node : Node
        The machine.
    network : Network
        The wire.
    """

    name: str
    layers: tuple[Layer, ...]
    nodes: Sequence[int]
    batch: int
    node: Node
    network: Network


def own_tables(own: Own) -> list[Table]:
    """Return the curve and the layers of a network."""
    found = curves(own.layers, own.nodes, own.batch, own.node, own.network)
    title = f"{own.name}, batch {own.batch:,}, {own.network.name}"
    layers = layers_table(own.layers, max(own.nodes), own.batch, own.node, own.network, own.name)
    return [curve_table(found, title), layers]


def scaling_page(predicted: Sequence[Predicted], own: Own | None = None, *, command: str = "") -> Page:
    """Return the report on the published points and, if given, on a network of the reader's own."""
    points = [found.point for found in predicted]
    tables, figures = [points_table(predicted), assumptions_table(predicted), variations_table(predicted)], []
    if own is not None:
        tables = [*own_tables(own), *tables]
        found = curves(own.layers, own.nodes, own.batch, own.node, own.network)
        figures.append(own_figure(found, f"{own.name}, batch {own.batch:,}, {own.network.name}"))
    first = points[0]
    figures += [
        speedup_figure(predicted),
        step_figure(first.layers, first.nodes, first.batch, first.machine, first.wire, first.name),
        ratio_figure([points[0], points[2], points[4]]),
        groups_figure(
            [
                (f"{point.model}, {layer.name}, {point.nodes} nodes", layer, point.nodes, point.batch)
                for point, layer in (
                    (points[0], points[0].layers[-3]),
                    (points[2], points[2].layers[-3]),
                    (points[3], points[3].layers[3]),
                )
            ]
        ),
    ]
    return Page(
        title="How far does synchronous SGD scale?",
        answer=scaling_answer(predicted),
        ran=[("Command", command)] if command else [],
        highlights=[
            (f"{found.hybrid.speedup:.0f}x / {found.point.speedup:g}x", f"{found.point.name}: predicted / published")
            for found in predicted[:4]
        ],
        claims=scaling_claims(predicted),
        source=f"{SOURCE.reference}.",
        figures=figures,
        tables=tables,
        details=[
            layers_table(
                point.layers, point.nodes, point.batch, point.machine, point.wire, f"{point.model}, {point.network}"
            )
            for point in points
        ],
        rows=[
            {
                "point": found.point.name,
                "nodes": found.point.nodes,
                "batch": found.point.batch,
                "published": found.point.speedup,
                "data_parallel": found.data.speedup,
                "hybrid": found.hybrid.speedup,
                "step_s": found.hybrid.step.seconds,
                "exposed_s": found.hybrid.step.exposed_s,
                "sent_bytes": found.hybrid.step.n_bytes,
            }
            for found in predicted
        ],
        citations=citations([SOURCE]),
    )
