"""The figures of the scaling study."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dsgd.report.figures import Axis, Bars, Figure, Level, Line, Mark, Panel, period_axis
from dsgd.report.theme import BLUE, GREEN, MUTED, ORANGE, TEXT, VERMILION, Colour
from dsgd.sim.network import Network
from dsgd.sim.scaling import Layer, Node, Step, flop_per_byte, node_balance, predict_step, shared_bytes
from dsgd.study.scaling.model import Curve, Predicted, curves, node_counts
from dsgd.study.scaling.points import PublishedPoint

__all__ = ["groups_figure", "own_figure", "ratio_figure", "speedup_figure", "step_figure"]

_STYLES: Final = {"data": ("data parallel", VERMILION, "square"), "hybrid": ("hybrid", BLUE, "circle")}


def speedup_figure(predicted: Sequence[Predicted]) -> Figure:
    """Return predicted speed-up against nodes, one panel per published point, with that point."""
    panels = []
    for found in predicted:
        point = found.point
        nodes = node_counts(point.nodes)
        lines = _curve_lines(curves(point.layers, nodes, point.batch, point.machine, point.wire))
        mark = Line("published", [point.nodes], [point.speedup], ORANGE, "diamond", width=0, size=11)
        panels.append(_speedup_panel(f"{point.model}, batch {point.batch}, {point.network}", nodes, [*lines, mark]))
    caption = (
        "Speed-up of a step on a fixed batch, predicted from nominal rates, and the published points. Data parallel: "
        "all layers are shared by samples; hybrid: each layer as sends the fewest bytes."
    )
    return Figure("speedup", "Predicted and published speed-up", caption, panels)


def own_figure(found: Sequence[Curve], title: str) -> Figure:
    """Return predicted speed-up against nodes of the network of this title, data parallel and hybrid."""
    nodes = [point.nodes for point in found[0].points]
    panel = _speedup_panel(title, nodes, _curve_lines(found))
    return Figure("own-speedup", f"Predicted speed-up: {title}", "Of a step on a fixed batch.", [panel], columns=1)


def _curve_lines(found: Sequence[Curve]) -> list[Line]:
    lines = []
    for curve in found:
        label, colour, marker = _STYLES[curve.sharing]
        names = [f"{label}, {point.nodes} nodes, waits {point.step.exposed_s:.3g} s" for point in curve.points]
        x, y = [point.nodes for point in curve.points], [point.speedup for point in curve.points]
        lines.append(Line(label, x, y, colour, marker, names=names))
    return lines


def _speedup_panel(title: str, nodes: Sequence[int], lines: Sequence[Line]) -> Panel:
    ideal = Line("linear", nodes, nodes, TEXT, dash="dashed", width=1.2)
    y = Axis("speed-up", "log", "x", ticks={n: f"{n}x" for n in nodes})
    return Panel(title, period_axis("nodes", nodes), y, [ideal, *lines])


def ratio_figure(points: Sequence[PublishedPoint]) -> Figure:
    """Return operations per byte of each layer, one panel per published point, with the balance of the machine."""
    panels = []
    for point in points:
        layers = [layer for layer in point.layers if layer.n_params]
        ratios = [flop_per_byte(layer, point.batch / point.nodes) for layer in layers]
        at = list(range(len(layers)))
        balance = node_balance(point.machine, point.wire.between)
        marks: list[Mark] = [
            Level(balance, "balance of the machine"),
            Line(
                "layer, shared by samples",
                at,
                ratios,
                BLUE,
                "circle",
                width=0,
                size=9,
                names=[layer.name for layer in layers],
            ),
        ]
        x = Axis("", ticks={place: layer.name.replace("conv", "c") for place, layer in enumerate(layers)}, grid=False)
        panels.append(Panel(point.name, x, Axis("FLOP / byte", "log"), marks))
    caption = (
        "Operations of a step per byte that a layer sends when it is shared by samples. Above the line its sum takes "
        "less time than its work; below, ranks wait unless other layers hide it, and sharing by weights may send less."
    )
    return Figure("ratio", "Compute to communication, layer by layer", caption, panels)


def groups_figure(cases: Sequence[tuple[str, Layer, int, int]]) -> Figure:
    """Return bytes per node against groups, a panel per title, layer, nodes and samples of a step over all of them."""
    panels = []
    for title, layer, nodes, batch in cases:
        groups = [g for g in range(1, nodes + 1) if nodes % g == 0]
        sent = [shared_bytes(layer, nodes, g, batch) for g in groups]
        best = min(range(len(groups)), key=lambda k: (sent[k], -groups[k]))
        marks = [
            Line("bytes a node sends", groups, sent, BLUE, "circle"),
            Line("fewest", [groups[best]], [sent[best]], ORANGE, "diamond", width=0, size=11),
        ]
        panels.append(Panel(title, period_axis("groups", groups), Axis("sent in a step", "log", "B"), marks))
    caption = "One group: weights are divided between all nodes. As many groups as nodes: every node has all weights."
    return Figure("groups", "The best number of groups", caption, panels)


def step_figure(layers: Sequence[Layer], nodes: int, batch: int, node: Node, network: Network, title: str) -> Figure:
    """Return what a node does when, in a data parallel and in a hybrid step.

    Parameters
    ----------
    layers : sequence of Layer
        The network.
    nodes, batch : int
        Nodes, and samples of a step over all of them.
    node : Node
        The machine.
    network : Network
        The wire.
    title : str
        What it is of.
    """
    panels = []
    for name, step in (
        ("data parallel", predict_step(layers, nodes, batch, node, network, sharing="data")),
        ("hybrid", predict_step(layers, nodes, batch, node, network)),
    ):
        text = f"{name}: {1e3 * step.seconds:.3g} ms, {1e3 * step.exposed_s:.3g} ms of it waiting"
        panels.append(_timeline(text, step))
    caption = (
        "The upper line computes, the lower one sends. Gradients are summed beside the backward pass, the last layer's "
        "first; where a layer's weights are divided, its inputs are gathered before its forward pass."
    )
    return Figure("step", f"A step: {title}", caption, panels, columns=1, height=190, share="x")


def _timeline(title: str, step: Step) -> Panel:
    rows: list[tuple[str, str, float, Colour]] = [
        ("forward", "forward", 1.0, BLUE),
        ("backward", "backward", 1.0, GREEN),
        ("exchange", "exchange of activations", 0.0, MUTED),
        ("sum", "sum of gradients", 0.0, VERMILION),
    ]
    marks = []
    for what, label, level, colour in rows:
        spans = [span for span in step.spans if span.what == what]
        if spans:
            marks.append(
                Bars(
                    label,
                    [1e3 * span.begin_s for span in spans],
                    [1e3 * span.end_s for span in spans],
                    [level - 0.35] * len(spans),
                    [level + 0.35] * len(spans),
                    colour,
                    names=[f"{label}: {span.layers}, {1e3 * (span.end_s - span.begin_s):.3g} ms" for span in spans],
                )
            )
    y = Axis("", low=-0.6, high=1.6, ticks={0.0: "wire", 1.0: "compute"}, grid=False)
    return Panel(title, Axis("ms", low=0.0), y, marks)
