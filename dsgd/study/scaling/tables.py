"""The tables and the answer of the scaling study."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dsgd.report.claims import Claim
from dsgd.report.tables import Table, byte_text, figure_text
from dsgd.sim.network import Network
from dsgd.sim.scaling import (
    Layer,
    Node,
    Placement,
    ScalingPoint,
    flop_per_byte,
    node_balance,
    place_layers,
    scaling_limit,
)
from dsgd.study.scaling.model import VARIATIONS, Curve, Predicted, vary
from dsgd.study.scaling.points import CLOSE, PublishedPoint
from dsgd.study.verdict import exact

__all__ = [
    "assumptions_table",
    "curve_table",
    "layers_table",
    "points_table",
    "scaling_answer",
    "scaling_claims",
    "variations_table",
]


def points_table(predicted: Sequence[Predicted]) -> Table:
    """Return the published speed-ups beside the predicted ones."""
    columns: dict[str, Callable[[Predicted], str]] = {
        "point": lambda found: found.point.name,
        "batch": lambda found: f"{found.point.batch:,}",
        "published": lambda found: f"{found.point.speedup:g}x",
        "data parallel": lambda found: f"{found.data.speedup:.1f}x",
        "hybrid": lambda found: f"{found.hybrid.speedup:.1f}x",
        "hybrid / published": lambda found: f"{found.ratio:.2f}",
        "step ms": lambda found: f"{1e3 * found.hybrid.step.seconds:.1f}",
        "waited ms": lambda found: f"{1e3 * found.hybrid.step.exposed_s:.1f}",
        "unexplained ms": lambda found: f"{1e3 * found.unexplained_s:.1f}",
        "sent / node": lambda found: byte_text(found.hybrid.step.n_bytes),
    }
    note = (
        "Data parallel, hybrid: predicted. Step, waited, sent: of the hybrid. Unexplained: how much longer a step "
        "would take for the published speed-up on the assumed machine."
    )
    return Table.of("Published speed-ups and predictions", predicted, columns, note)


def assumptions_table(predicted: Sequence[Predicted]) -> Table:
    """Return what is assumed of the machines and wires."""
    points = {(found.point.node, found.point.network): found.point for found in predicted}.values()
    columns: dict[str, Callable[[PublishedPoint], str]] = {
        "machine and wire": lambda point: f"{point.node}, {point.network}",
        "from": lambda point: f"{point.machine.source}. Wire: {point.wire.source}",
        "TFLOP/s": lambda point: f"{point.machine.flop_per_s / 1e12:.2f}",
        "reached: conv. / matrix": lambda point: (
            f"{point.machine.conv_efficiency:.0%} / {point.machine.linear_efficiency:.0%}"
        ),
        "memory GB/s": lambda point: f"{point.machine.memory_bytes_per_s / 1e9:.0f}",
        "latency us": lambda point: f"{1e6 * point.wire.between.alpha_s:.1f}",
        "GB/s": lambda point: f"{1e-9 / point.wire.between.byte_s:.2f}",
        "balance FLOP/B": lambda point: f"{node_balance(point.machine, point.wire.between):.0f}",
    }
    open_points = " ".join(f"{found.point.name}: {found.point.assumed}" for found in predicted)
    note = f"Balance: peak operations a second over bytes a second of the wire. {open_points}"
    return Table.of("What is assumed", points, columns, note, n_text=2)


def variations_table(predicted: Sequence[Predicted]) -> Table:
    """Return the predicted speed-ups where other things are assumed."""
    rows = [
        (found.point.name, f"{found.point.speedup:g}x", *(f"{x:.1f}x" for x in vary(found.point)))
        for found in predicted
    ]
    return Table("Predicted speed-up, hybrid, by what is assumed", ("point", "published", *VARIATIONS), rows)


def layers_table(layers: Sequence[Layer], nodes: int, batch: int, node: Node, network: Network, title: str) -> Table:
    """Return one row per layer: its operations per byte, and how it is best shared.

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
        What the table is of.
    """
    balance = node_balance(node, network.between)
    columns: dict[str, Callable[[Placement], str]] = {
        "layer": lambda place: place.layer.name,
        "shared by": lambda place: place.sharing,
        "parameters": lambda place: f"{place.layer.n_params:,}",
        "forward MFLOP": lambda place: figure_text(place.layer.forward_flop / 1e6),
        "FLOP/B": lambda place: figure_text(flop_per_byte(place.layer, batch / nodes)),
        "groups x nodes": lambda place: f"{place.groups} x {place.group_size}",
        "sent / node": lambda place: byte_text(place.n_bytes),
    }
    places = [place for place in place_layers(layers, nodes, batch) if place.layer.n_params]
    limit = scaling_limit(layers, batch, balance)
    convolutions = f" Its convolutions together are above it up to {limit:.0f} nodes." if limit < float("inf") else ""
    note = (
        f"FLOP/B: operations of a step per byte sent, shared by samples; the balance of the machine is {balance:.0f}."
        f"{convolutions} Groups x nodes in each: samples are divided between groups, weights inside."
    )
    return Table.of(f"{title}: {nodes} nodes, batch {batch:,}", places, columns, note, n_text=2)


def curve_table(found: Sequence[Curve], title: str) -> Table:
    """Return speed-up, efficiency and waiting time, one row per number of nodes."""
    columns: dict[str, Callable[[tuple[ScalingPoint, ScalingPoint]], str]] = {
        "nodes": lambda pair: str(pair[0].nodes),
        "data parallel": lambda pair: f"{pair[0].speedup:.2f}x",
        "hybrid": lambda pair: f"{pair[1].speedup:.2f}x",
        "efficiency": lambda pair: f"{pair[1].efficiency:.0%}",
        "step ms": lambda pair: f"{1e3 * pair[1].step.seconds:.3g}",
        "waited ms": lambda pair: f"{1e3 * pair[1].step.exposed_s:.3g}",
        "sent / node": lambda pair: byte_text(pair[1].step.n_bytes),
    }
    data, hybrid = (curve.points for curve in found)
    pairs = zip(data, hybrid, strict=True)
    return Table.of(title, pairs, columns, "Efficiency, step, waited, sent: of the hybrid.")


def scaling_claims(predicted: Sequence[Predicted]) -> list[Claim]:
    """Return the published points as claims: whether the model agrees."""
    claims = []
    for found in predicted:
        point = found.point
        note, alone = f"From nominal rates. {point.assumed}", f"{found.data.speedup:.1f}x: data parallel alone"
        claims.append(point.statement.judged(point.name, exact(found.hybrid.speedup), note, baseline=alone))
    return claims


def scaling_answer(predicted: Sequence[Predicted]) -> str:
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
