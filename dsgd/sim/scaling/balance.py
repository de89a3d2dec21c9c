"""The balance equations: bytes sent and operations of a layer, and the division that sends least.

Problem: N nodes take a step on a batch of MB samples. A layer can be shared by samples (data parallel: every node has
all weights, and gradients are summed), by weights (model parallel: every node has all samples and a part of the
weights, and activations are exchanged), or both: G groups of N / G nodes, model parallel inside a group and data
parallel between groups.

Bytes per node and step, for elements of s bytes and an overlap ov in [0, 1] of sending gradients with receiving sums:

- data parallel: ``s n_params (2 - ov)`` for any N; a layer of F operations a sample then does
  ``R = 3 F MB / (N s n_params (2 - ov))`` operations per byte. For a convolution F / n_params is ``2 ow oh``, so R
  depends on the size of its output and on the samples per node, not on kernels, channels or strides. The layer scales
  while R is above the balance of the machine, its operations a second over its bytes a second on the wire;
- model parallel: ``2 s n_inputs MB``: inputs are gathered forward, their gradients summed backward;
- hybrid: ``V(G) = [G < N] 2 s n_inputs MB / G + [G > 1] s (2 - ov) n_params G / N``, least near ``G = sqrt(2 N MB
  n_inputs / ((2 - ov) n_params))``, which is ``sqrt(N MB / n_outputs)`` for a fully connected layer without overlap.
  The divisors of N are tried, because that G need not be one.

Source: Das et al. 2016, section 3; Krizhevsky 2014 (data parallel convolutions, model parallel layers above).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dsgd.errors import InvalidParameterError
from dsgd.sim.network import Link
from dsgd.sim.scaling.layers import FLOAT_BYTES, Layer, Node
from dsgd.validation import check_number

#: How a layer is shared by nodes.
Sharing = Literal["data", "model", "hybrid"]


@dataclass(frozen=True)
class Placement:
    """How a layer is shared.

    Parameters
    ----------
    layer : Layer
        The layer.
    nodes : int
        How many nodes share it.
    groups : int
        G: groups that have all weights each; `nodes` of them are data parallel, one is model parallel.
    n_bytes : float
        Bytes that a node sends in a step, V(G).
    """

    layer: Layer
    nodes: int
    groups: int
    n_bytes: float

    @property
    def sharing(self) -> Sharing:
        """Data parallel, model parallel, or both."""
        if self.groups == self.nodes:
            return "data"
        return "model" if self.groups == 1 else "hybrid"

    @property
    def group_size(self) -> int:
        """Nodes that have the weights together."""
        return self.nodes // self.groups


def flop_per_byte(layer: Layer, rows: float, *, overlap: float = 0.0, itemsize: int = FLOAT_BYTES) -> float:
    """Return the operations that a data parallel layer does per byte it sends.

    Parameters
    ----------
    layer : Layer
        A layer with parameters.
    rows : float
        Samples per node, MB / N.
    overlap : float, default 0
        ov, in [0, 1].
    itemsize : int, default 4
        Bytes of an element.

    Returns
    -------
    float
        R; infinite where there is nothing to send.
    """
    n_bytes = itemsize * layer.n_params * (2.0 - _checked(overlap))
    return layer.step_flop * rows / n_bytes if n_bytes else float("inf")


def node_balance(node: Node, link: Link) -> float:
    """Return the operations a second of a node, at its best, over the bytes a second of its wire."""
    return node.flop_per_s * link.byte_s


def scaling_limit(
    layers: Sequence[Layer], batch: int, balance: float, *, overlap: float = 0.0, itemsize: int = FLOAT_BYTES
) -> float:
    """Return on how many nodes the convolutions of a network, together, still compute longer than they send.

    Parameters
    ----------
    layers : sequence of Layer
        The network.
    batch : int
        Samples of a step over all nodes.
    balance : float
        Of the machine, see `node_balance`.
    overlap : float, default 0
        ov, in [0, 1].
    itemsize : int, default 4
        Bytes of an element.

    Returns
    -------
    float
        N where R equals the balance; infinite without convolutions.
    """
    convolutions = [layer for layer in layers if layer.kind == "conv"]
    flop = batch * sum(layer.step_flop for layer in convolutions)
    n_bytes = itemsize * (2.0 - _checked(overlap)) * sum(layer.n_params for layer in convolutions)
    return flop / (n_bytes * balance) if n_bytes else float("inf")


def shared_bytes(
    layer: Layer, nodes: int, groups: int, batch: int, *, overlap: float = 0.0, itemsize: int = FLOAT_BYTES
) -> float:
    """Return the bytes that a node sends in a step, V(G).

    Parameters
    ----------
    layer : Layer
        The layer.
    nodes, groups : int
        N and G, which divides N.
    batch : int
        Samples of a step over all nodes.
    overlap : float, default 0
        ov, in [0, 1].
    itemsize : int, default 4
        Bytes of an element.

    Raises
    ------
    InvalidParameterError
        `groups` does not divide `nodes`, or `overlap` lies outside [0, 1].
    """
    if nodes < 1 or groups < 1 or nodes % groups:
        raise InvalidParameterError(f"shared_bytes(groups=...) must divide the nodes ({nodes}). Got {groups}.")
    overlap = _checked(overlap)
    exchanged = 2.0 * itemsize * layer.n_inputs * batch / groups if groups < nodes else 0.0
    summed = itemsize * (2.0 - overlap) * layer.n_params * groups / nodes if groups > 1 else 0.0
    return exchanged + summed


def place_layer(
    layer: Layer, nodes: int, batch: int, *, overlap: float = 0.0, itemsize: int = FLOAT_BYTES
) -> Placement:
    """Return the way of sharing a layer that sends the fewest bytes; of equal ones that with the smallest groups.

    Parameters
    ----------
    layer : Layer
        The layer.
    nodes : int
        How many nodes.
    batch : int
        Samples of a step over all nodes.
    overlap : float, default 0
        ov, in [0, 1].
    itemsize : int, default 4
        Bytes of an element.
    """
    divisors = [groups for groups in range(nodes, 0, -1) if nodes % groups == 0]
    # Exchanging activations keeps the next layer waiting and summing gradients does not: ties go to smaller groups.
    found = {
        groups: shared_bytes(layer, nodes, groups, batch, overlap=overlap, itemsize=itemsize) for groups in divisors
    }
    groups = min(divisors, key=lambda groups: found[groups])
    return Placement(layer, nodes, groups, found[groups])


def place_layers(
    layers: Sequence[Layer],
    nodes: int,
    batch: int,
    *,
    sharing: Sharing = "hybrid",
    overlap: float = 0.0,
    itemsize: int = FLOAT_BYTES,
) -> tuple[Placement, ...]:
    """Return how the layers of a network are shared.

    Parameters
    ----------
    layers : sequence of Layer
        The network.
    nodes : int
        How many nodes.
    batch : int
        Samples of a step over all nodes.
    sharing : {"data", "model", "hybrid"}
        All layers by samples, all by weights, or each layer as is best for it.
    overlap : float, default 0
        ov, in [0, 1].
    itemsize : int, default 4
        Bytes of an element.
    """
    if sharing == "hybrid":
        return tuple(place_layer(layer, nodes, batch, overlap=overlap, itemsize=itemsize) for layer in layers)
    placed = []
    for layer in layers:
        # Without weights there is nothing to divide.
        groups = 1 if sharing == "model" and layer.n_params else nodes
        n_bytes = shared_bytes(layer, nodes, groups, batch, overlap=overlap, itemsize=itemsize)
        placed.append(Placement(layer, nodes, groups, n_bytes))
    return tuple(placed)


def _checked(overlap: float) -> float:
    check_number("overlap=...", overlap, low=0, high=1)
    return overlap
