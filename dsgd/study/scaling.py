"""The scaling study: published speed-ups of synchronous SGD, and predictions from the balance equations.

Nothing is trained: `dsgd.sim.scaling` computes a step from the shapes of the layers and nominal rates of machines and
wires. The published points are in ``published.toml``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from dsgd.collectives.cost import Link
from dsgd.report.figures import (
    BLUE,
    GREEN,
    MUTED,
    ORANGE,
    TEXT,
    VERMILION,
    Axis,
    Bars,
    Colour,
    Figure,
    Level,
    Line,
    Mark,
    Panel,
    period_axis,
)
from dsgd.report.tables import Claim, Table, figure_text
from dsgd.sim import scaling as balances
from dsgd.sim.network import Network
from dsgd.study.frame.rows import Row
from dsgd.study.frame.study import Study
from dsgd.study.published import FIGURES, STATEMENTS, Statement, exact

__all__ = ["STUDY"]

# -- points -------------------------------------------------------------------------------------------------------

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
    def layers(self) -> tuple[balances.Layer, ...]:
        """The layers of the network."""
        return balances.MODELS[self.model]

    @property
    def machine(self) -> balances.Node:
        """The machine."""
        return balances.NODES[self.node]

    @property
    def wire(self) -> Network:
        """The network between machines."""
        return balances.INTERCONNECTS[self.network]


#: The five points.
PUBLISHED: Final = tuple(PublishedPoint(**point) for point in FIGURES["pcl"]["points"])


# -- model --------------------------------------------------------------------------------------------------------

#: Variations of the assumptions, to see how far a prediction depends on them.
VARIATIONS: Final = ("as assumed", "half the bandwidth", "10x the latency", "nodes twice as fast", "no overlap")


@dataclass(frozen=True)
class Predicted:
    """A published point and its prediction."""

    point: PublishedPoint
    alone_s: float
    data: balances.ScalingPoint
    hybrid: balances.ScalingPoint

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


def predict_point(point: PublishedPoint) -> Predicted:
    """Return the prediction for a published point."""
    found = _curves(point, [point.nodes])
    alone = balances.predict_step(point.layers, 1, point.batch, point.machine, point.wire)
    return Predicted(point, alone.seconds, found["data"][0], found["hybrid"][0])


def _curves(point: PublishedPoint, nodes: Sequence[int]) -> dict[balances.Sharing, Sequence[balances.ScalingPoint]]:
    """Return the speed-up against nodes, data parallel and hybrid."""
    ways: tuple[balances.Sharing, ...] = ("data", "hybrid")
    common = (point.layers, nodes, point.batch, point.machine, point.wire)
    return {way: balances.speedup_curve(*common, sharing=way) for way in ways}


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
        node, flop_per_s=2 * node.flop_per_s, memory_bytes_per_s=2 * node.memory_bytes_per_s, layer_s=node.layer_s / 2
    )
    slow = Link(byte_s=link.byte_s, overhead_s=10 * link.overhead_s, latency_s=10 * link.latency_s)
    cases = (
        (node, wire, True),
        (node, replace(wire, between=replace(link, byte_s=2 * link.byte_s)), True),
        (node, replace(wire, between=slow), True),
        (fast, wire, True),
        (node, wire, False),
    )
    found = []
    for machine, network, overlaps in cases:
        alone, together = (
            balances.predict_step(point.layers, n, point.batch, machine, network, overlaps=overlaps)
            for n in (1, point.nodes)
        )
        found.append(alone.seconds / together.seconds)
    return found


# -- tables -------------------------------------------------------------------------------------------------------


def _points_table(predicted: Sequence[Predicted]) -> Table:
    """Return the published speed-ups beside the predicted ones."""
    columns = (
        "point = point.name | batch = point.batch:, | published = point.speedup:{:g}x | "
        "data parallel = data.speedup:{:.1f}x | hybrid = hybrid.speedup:{:.1f}x | hybrid / published = ratio:.2f | "
        "step ms = hybrid.step.seconds*1e3:.1f | waited ms = hybrid.step.exposed_s*1e3:.1f | "
        "unexplained ms = unexplained_s*1e3:.1f | sent / node = hybrid.step.n_bytes:B"
    )
    note = (
        "Data parallel, hybrid: predicted. Step, waited, sent: of the hybrid. Unexplained: how much longer a step "
        "would take for the published speed-up on the assumed machine."
    )
    return Table.of("Published speed-ups and predictions", predicted, columns, note)


def _assumptions_table(predicted: Sequence[Predicted]) -> Table:
    """Return what is assumed of the machines and wires."""
    points = {(found.point.node, found.point.network): found.point for found in predicted}.values()
    columns = (
        "machine and wire = {0.node}, {0.network} | from = {0.machine.source}. Wire: {0.wire.source} | "
        "TFLOP/s = machine.flop_per_s*1e-12:.2f | "
        "reached: conv. / matrix = {0.machine.conv_efficiency:.0%} / {0.machine.linear_efficiency:.0%} | "
        "memory GB/s = machine.memory_bytes_per_s*1e-9:.0f | latency us = wire.between.alpha_s*1e6:.1f | GB/s = rate | "
        "balance FLOP/B = balance"
    )
    open_points = " ".join(f"{found.point.name}: {found.point.assumed}" for found in predicted)
    note = f"Balance: peak operations a second over bytes a second of the wire. {open_points}"
    return Table.of(
        "What is assumed",
        points,
        columns,
        note,
        2,
        rate=lambda point: f"{1e-9 / point.wire.between.byte_s:.2f}",
        balance=lambda point: f"{balances.node_balance(point.machine, point.wire.between):.0f}",
    )


def _variations_table(predicted: Sequence[Predicted]) -> Table:
    """Return the predicted speed-ups where other things are assumed."""
    rows = [
        (found.point.name, f"{found.point.speedup:g}x", *(f"{x:.1f}x" for x in vary(found.point)))
        for found in predicted
    ]
    return Table("Predicted speed-up, hybrid, by what is assumed", ("point", "published", *VARIATIONS), rows)


def layers_table(point: PublishedPoint) -> Table:
    """Return one row per layer: its operations per byte, and how it is best shared."""
    layers, nodes, batch = point.layers, point.nodes, point.batch
    balance = balances.node_balance(point.machine, point.wire.between)
    columns = (
        "layer = layer.name | shared by = sharing | parameters = layer.n_params:, | "
        "forward MFLOP = layer.forward_flop*1e-6:3 | FLOP/B = ratio | groups x nodes = {0.groups} x {0.group_size} | "
        "sent / node = n_bytes:B"
    )
    places = [place for place in balances.place_layers(layers, nodes, batch) if place.layer.n_params]
    limit = balances.scaling_limit(layers, batch, balance)
    convolutions = f" Its convolutions together are above it up to {limit:.0f} nodes." if limit < float("inf") else ""
    note = (
        f"FLOP/B: operations of a step per byte sent, shared by samples; the balance of the machine is {balance:.0f}."
        f"{convolutions} Groups x nodes in each: samples are divided between groups, weights inside."
    )
    return Table.of(
        f"{point.model}, {point.network}: {nodes} nodes, batch {batch:,}",
        places,
        columns,
        note,
        2,
        ratio=lambda place: figure_text(balances.flop_per_byte(place.layer, batch / nodes)),
    )


def _claims(predicted: Sequence[Predicted]) -> list[Claim]:
    """Return the published points as claims: whether the model agrees."""
    claims = []
    for found in predicted:
        point = found.point
        note, alone = f"From nominal rates. {point.assumed}", f"{found.data.speedup:.1f}x: data parallel alone"
        claims.append(point.statement.judged(point.name, exact(found.hybrid.speedup), note, baseline=alone))
    return claims


def _answer(predicted: Sequence[Predicted]) -> str:
    """Return where predictions and publication agree and where they differ."""
    close = [found for found in predicted if abs(found.ratio - 1.0) <= CLOSE]
    far = [found for found in predicted if abs(found.ratio - 1.0) > CLOSE]
    between = sum(found.is_between for found in predicted)
    text = (
        f"{len(close)} of {len(predicted)} published speed-ups are predicted to within {CLOSE:.0%} from nominal "
        f"rates; {between} lie between what data parallel training alone would reach and what the best sharing of each "
        "layer could."
    )
    if far:
        listed = "; ".join(
            f"{found.point.name}: {found.hybrid.speedup:.0f}x against {found.point.speedup:g}x, "
            f"{1e3 * found.unexplained_s:.0f} ms of a step unexplained"
            for found in far
        )
        text += (
            f" They differ on {listed}. The model knows no skew between nodes, no jitter of the network and no kernels "
            "that slow down on few samples per node, which all cost more on more nodes."
        )
    return text


# -- figures ------------------------------------------------------------------------------------------------------

_STYLES: Final = {"data": ("data parallel", VERMILION, "square"), "hybrid": ("hybrid", BLUE, "circle")}


def _speedup_figure(predicted: Sequence[Predicted]) -> Figure:
    """Return predicted speed-up against nodes, one panel per published point, with that point."""
    panels = []
    for found in predicted:
        point = found.point
        nodes = node_counts(point.nodes)
        marks = [Line("linear", nodes, nodes, TEXT, dash="dashed", width=1.2)]
        for way, curve in _curves(point, nodes).items():
            label, colour, marker = _STYLES[way]
            names = [f"{label}, {at.nodes} nodes, waits {at.step.exposed_s:.3g} s" for at in curve]
            marks.append(Line(label, nodes, [at.speedup for at in curve], colour, marker, names=names))
        marks.append(Line("published", [point.nodes], [point.speedup], ORANGE, "diamond", width=0, size=11))
        title = f"{point.model}, batch {point.batch}, {point.network}"
        y = Axis("speed-up", "log", "x", ticks={n: f"{n}x" for n in nodes})
        panels.append(Panel(title, period_axis("nodes", nodes), y, marks))
    caption = (
        "Speed-up of a step on a fixed batch, predicted from nominal rates, and the published points. Data parallel: "
        "all layers are shared by samples; hybrid: each layer as sends the fewest bytes."
    )
    return Figure("speedup", "Predicted and published speed-up", caption, panels)


def _ratio_figure(points: Sequence[PublishedPoint]) -> Figure:
    """Return operations per byte of each layer, one panel per published point, with the balance of the machine."""
    panels = []
    for point in points:
        layers = [layer for layer in point.layers if layer.n_params]
        ratios = [balances.flop_per_byte(layer, point.batch / point.nodes) for layer in layers]
        at = list(range(len(layers)))
        balance = balances.node_balance(point.machine, point.wire.between)
        names, style = [layer.name for layer in layers], {"width": 0.0, "size": 9.0}
        dots = Line("layer, shared by samples", at, ratios, BLUE, "circle", names=names, **style)  # type: ignore[arg-type]
        marks: list[Mark] = [Level(balance, "balance of the machine"), dots]
        x = Axis("", ticks={place: layer.name.replace("conv", "c") for place, layer in enumerate(layers)}, grid=False)
        panels.append(Panel(point.name, x, Axis("FLOP / byte", "log"), marks))
    caption = (
        "Operations of a step per byte that a layer sends when it is shared by samples. Above the line its sum takes "
        "less time than its work; below, ranks wait unless other layers hide it, and sharing by weights may send less."
    )
    return Figure("ratio", "Compute to communication, layer by layer", caption, panels)


def _groups_figure(cases: Sequence[tuple[PublishedPoint, int]]) -> Figure:
    """Return bytes per node against groups, a panel per point and number of a layer."""
    panels = []
    for point, number in cases:
        layer, nodes = point.layers[number], point.nodes
        title = f"{point.model}, {layer.name}, {nodes} nodes"
        groups = [g for g in range(1, nodes + 1) if nodes % g == 0]
        sent = [balances.shared_bytes(layer, nodes, g, point.batch) for g in groups]
        best = min(range(len(groups)), key=lambda k: (sent[k], -groups[k]))
        marks = [
            Line("bytes a node sends", groups, sent, BLUE, "circle"),
            Line("fewest", [groups[best]], [sent[best]], ORANGE, "diamond", width=0, size=11),
        ]
        panels.append(Panel(title, period_axis("groups", groups), Axis("sent in a step", "log", "B"), marks))
    caption = "One group: weights are divided between all nodes. As many groups as nodes: every node has all weights."
    return Figure("groups", "The best number of groups", caption, panels)


def _step_figure(point: PublishedPoint) -> Figure:
    """Return what a node does when, in a data parallel and in a hybrid step."""
    panels, common = [], (point.layers, point.nodes, point.batch, point.machine, point.wire)
    for name, step in (
        ("data parallel", balances.predict_step(*common, sharing="data")),
        ("hybrid", balances.predict_step(*common)),
    ):
        text = f"{name}: {1e3 * step.seconds:.3g} ms, {1e3 * step.exposed_s:.3g} ms of it waiting"
        panels.append(_timeline(text, step))
    caption = (
        "The upper line computes, the lower one sends. Gradients are summed beside the backward pass, the last layer's "
        "first; where a layer's weights are divided, its inputs are gathered before its forward pass."
    )
    return Figure("step", f"A step: {point.name}", caption, panels, columns=1, height=190, share="x")


def _timeline(title: str, step: balances.Step) -> Panel:
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
            left, right = [1e3 * span.begin_s for span in spans], [1e3 * span.end_s for span in spans]
            sides = [level - 0.35] * len(spans), [level + 0.35] * len(spans)
            names = [f"{label}: {span.layers}, {1e3 * (span.end_s - span.begin_s):.3g} ms" for span in spans]
            marks.append(Bars(label, left, right, *sides, colour, names=names))
    y = Axis("", low=-0.6, high=1.6, ticks={0.0: "wire", 1.0: "compute"}, grid=False)
    return Panel(title, Axis("ms", low=0.0), y, marks)


# -- report -------------------------------------------------------------------------------------------------------


def _report(study: Study, rows: Sequence[Row]) -> dict[str, Any]:
    del study, rows
    predicted, points = [predict_point(point) for point in PUBLISHED], PUBLISHED
    return {
        "answer": _answer(predicted),
        "highlights": [
            (f"{found.hybrid.speedup:.0f}x / {found.point.speedup:g}x", f"{found.point.name}: predicted / published")
            for found in predicted[:4]
        ],
        "claims": _claims(predicted),
        "figures": [
            _speedup_figure(predicted),
            _step_figure(points[0]),
            _ratio_figure([points[0], points[2], points[4]]),
            _groups_figure([(points[0], -3), (points[2], -3), (points[3], 3)]),
        ],
        "tables": [_points_table(predicted), _assumptions_table(predicted), _variations_table(predicted)],
        "details": list(map(layers_table, points)),
    }


#: The study.
STUDY: Final = Study(
    "scaling",
    "How far does synchronous SGD scale?",
    ("pcl",),
    options={},
    grids=(),
    report=_report,
    needs_rows=False,
    about=(
        "For each published point: what data parallel training alone would reach, what the best sharing of each layer "
        "could, and under which assumptions. Nothing is trained; it takes seconds."
    ),
    examples=(
        "dsgd study scaling --out study/",
    ),
)  # fmt: skip
