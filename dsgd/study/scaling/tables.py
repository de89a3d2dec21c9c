"""The tables and the answer of the scaling study."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dsgd.report.claims import Claim
from dsgd.report.tables import Table, byte_text, figure_text
from dsgd.sim.network import Network
from dsgd.sim.scaling import Layer, Node, flop_per_byte, node_balance, place_layers, scaling_limit
from dsgd.study.scaling.model import VARIATIONS, Curve, Predicted, vary

__all__ = [
    "assumptions_table",
    "curve_table",
    "layers_table",
    "points_table",
    "scaling_answer",
    "scaling_claims",
    "variations_table",
]

# A prediction from nominal rates that comes this close is called right.
_CLOSE: Final = 0.25


def points_table(predicted: Sequence[Predicted]) -> Table:
    """Return the published speed-ups beside the predicted ones."""
    rows = [
        (
            found.point.name,
            f"{found.point.batch:,}",
            f"{found.point.speedup:g}x",
            f"{found.data.speedup:.1f}x",
            f"{found.hybrid.speedup:.1f}x",
            f"{found.ratio:.2f}",
            f"{1e3 * found.hybrid.step.seconds:.1f}",
            f"{1e3 * found.hybrid.step.exposed_s:.1f}",
            f"{1e3 * found.unexplained_s:.1f}",
            byte_text(found.hybrid.step.n_bytes),
        )
        for found in predicted
    ]
    columns = (
        "point", "batch", "published", "data parallel", "hybrid", "hybrid / published", "step ms", "waited ms",
        "unexplained ms", "sent / node",
    )  # fmt: skip
    note = (
        "Data parallel, hybrid: predicted. Step, waited, sent: of the hybrid. Unexplained: how much longer a step "
        "would take for the published speed-up on the assumed machine."
    )
    return Table("Published speed-ups and predictions", columns, rows, note)


def assumptions_table(predicted: Sequence[Predicted]) -> Table:
    """Return what is assumed of the machines and wires."""
    rows = []
    for point in {(p.point.node, p.point.network): p.point for p in predicted}.values():
        node, link = point.machine, point.wire.between
        rows.append(
            (
                f"{point.node}, {point.network}",
                f"{node.source}. Wire: {point.wire.source}",
                f"{node.flop_per_s / 1e12:.2f}",
                f"{node.conv_efficiency:.0%} / {node.linear_efficiency:.0%}",
                f"{node.memory_bytes_per_s / 1e9:.0f}",
                f"{1e6 * link.alpha_s:.1f}",
                f"{1e-9 / link.byte_s:.2f}",
                f"{node_balance(node, link):.0f}",
            )
        )
    columns = (
        "machine and wire", "from", "TFLOP/s", "reached: conv. / matrix", "memory GB/s", "latency us", "GB/s",
        "balance FLOP/B",
    )  # fmt: skip
    open_points = " ".join(f"{found.point.name}: {found.point.assumed}" for found in predicted)
    note = f"Balance: peak operations a second over bytes a second of the wire. {open_points}"
    return Table("What is assumed", columns, rows, note, n_text=2)


def variations_table(predicted: Sequence[Predicted]) -> Table:
    """Return the predicted speed-ups where other things are assumed."""
    rows = [
        (found.point.name, f"{found.point.speedup:g}x", *(f"{x:.1f}x" for x in vary(found.point)))
        for found in predicted
    ]
    return Table("Predicted speed-up, hybrid, by what is assumed", ("point", "published", *VARIATIONS), rows)


def layers_table(layers: Sequence[Layer], nodes: int, batch: int, node: Node, network: Network, title: str) -> Table:
    """Return one row per layer: what it computes for what it sends, and how it is best shared.

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
    rows = []
    for place in place_layers(layers, nodes, batch):
        layer = place.layer
        if not layer.n_params:
            continue
        rows.append(
            (
                layer.name,
                place.sharing,
                f"{layer.n_params:,}",
                figure_text(layer.forward_flop / 1e6),
                figure_text(flop_per_byte(layer, batch / nodes)),
                f"{place.groups} x {place.group_size}",
                byte_text(place.n_bytes),
            )
        )
    limit = scaling_limit(layers, batch, balance)
    convolutions = f" Its convolutions together are above it up to {limit:.0f} nodes." if limit < float("inf") else ""
    note = (
        f"FLOP/B: operations of a step per byte sent, shared by samples; the balance of the machine is {balance:.0f}."
        f"{convolutions} Groups x nodes in each: samples are divided between groups, weights inside."
    )
    columns = ("layer", "shared by", "parameters", "forward MFLOP", "FLOP/B", "groups x nodes", "sent / node")
    return Table(f"{title}: {nodes} nodes, batch {batch:,}", columns, rows, note, n_text=2)


def curve_table(found: Sequence[Curve], title: str) -> Table:
    """Return speed-up, efficiency and what is waited for, one row per number of nodes."""
    rows = []
    for data, hybrid in zip(*(curve.points for curve in found), strict=True):
        rows.append(
            (
                str(data.nodes),
                f"{data.speedup:.2f}x",
                f"{hybrid.speedup:.2f}x",
                f"{hybrid.efficiency:.0%}",
                f"{1e3 * hybrid.step.seconds:.3g}",
                f"{1e3 * hybrid.step.exposed_s:.3g}",
                byte_text(hybrid.step.n_bytes),
            )
        )
    columns = ("nodes", "data parallel", "hybrid", "efficiency", "step ms", "waited ms", "sent / node")
    return Table(title, columns, rows, "Efficiency, step, waited, sent: of the hybrid.")


def scaling_claims(predicted: Sequence[Predicted]) -> list[Claim]:
    """Return the published points as claims: whether the model says the same."""
    return [
        Claim(
            f"The model says {found.point.speedup:g}x on {found.point.nodes} nodes to within {_CLOSE:.0%}",
            found.point.name,
            f"{found.point.speedup:g}x",
            f"{found.hybrid.speedup:.1f}x",
            abs(found.ratio - 1.0) <= _CLOSE,
            f"Predicted from nominal rates. {found.point.assumed}",
        )
        for found in predicted
    ]


def scaling_answer(predicted: Sequence[Predicted]) -> str:
    """Return where predictions and publication agree and where they differ."""
    close = [found for found in predicted if abs(found.ratio - 1.0) <= _CLOSE]
    far = [found for found in predicted if abs(found.ratio - 1.0) > _CLOSE]
    between = sum(found.is_between for found in predicted)
    text = (
        f"{len(close)} of {len(predicted)} published speed-ups are predicted to within {_CLOSE:.0%} from nominal "
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
