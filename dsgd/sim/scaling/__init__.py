"""How synchronous SGD scales: balance equations of layers, division of work, and time of a step."""

from __future__ import annotations

from dsgd.sim.scaling.layers import (
    INTERCONNECTS,
    MODELS,
    NODES,
    Kind,
    Layer,
    Node,
    Placement,
    Sharing,
    conv_layer,
    flop_per_byte,
    linear_layer,
    node_balance,
    other_layer,
    place_layer,
    place_layers,
    scaling_limit,
    shared_bytes,
)
from dsgd.sim.scaling.step import ScalingPoint, Span, Step, predict_step, speedup_curve

__all__ = [
    "INTERCONNECTS",
    "MODELS",
    "NODES",
    "Kind",
    "Layer",
    "Node",
    "Placement",
    "ScalingPoint",
    "Sharing",
    "Span",
    "Step",
    "conv_layer",
    "flop_per_byte",
    "linear_layer",
    "node_balance",
    "other_layer",
    "place_layer",
    "place_layers",
    "predict_step",
    "scaling_limit",
    "shared_bytes",
    "speedup_curve",
]
