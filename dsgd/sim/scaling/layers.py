"""Layers and nodes, the published ones among them, and the balance of what is computed and what is sent.

A layer is five numbers, per sample where it says so. They come from a published description (`MODELS`) or from a module
that is traced (`dsgd.torch.parts`). With ifm input maps, ofm output maps, kernels of kw by kh and an output of ow by
oh, a forward pass over one sample takes ``F = 2 ifm ofm kw kh ow oh`` operations; the gradient of the weights and that
of the inputs take F each. The published nodes and wires are given by their nominal rates, with the share of the peak
that dense kernels of the time reached. Nothing of it was measured here.

N nodes take a step on a batch of MB samples. A layer is shared by samples (data parallel), by weights (model parallel),
or both: G groups of N / G nodes, model parallel inside and data parallel between them. docs/scaling.rst has the bytes
of each per node and step, and the balance of operations and bytes up to which a layer scales. Of G the divisors of N
are tried.

Source: Das et al. 2016, "Distributed deep learning using synchronous stochastic gradient descent", section 3 (balance,
machines); Krizhevsky 2014 (data parallel convolutions, model parallel layers above); Simonyan and Zisserman 2014,
column A (VGG-A); Sermanet et al. 2013, table 1 (OverFeat, fast model); Seide, Li and Yu 2011 (speech, 7 hidden layers).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import MappingProxyType
from typing import Final, Literal

from dsgd.collectives.cost import Link
from dsgd.errors import InvalidParameterError
from dsgd.sim.network import NETWORKS, Network
from dsgd.validation import Checked, check_number, number

#: What a layer does, as far as its speed goes: "other" has few operations and moves its activations through memory.
Kind = Literal["conv", "linear", "other"]

#: Bytes of an element, unless it is said otherwise.
FLOAT_BYTES: Final = 4


@dataclass(frozen=True)
class Layer:
    """A layer of a network.

    Parameters
    ----------
    name : str
        Its name in reports.
    kind : {"conv", "linear", "other"}
        What sets its speed.
    n_params : int
        Its parameters.
    forward_flop : float
        Operations of a forward pass over one sample, additions and multiplications counted apart.
    n_inputs, n_outputs : int
        Numbers that go in and come out, per sample.

    Raises
    ------
    InvalidParameterError
        A number is negative.
    """

    name: str
    kind: Kind
    n_params: int
    forward_flop: float
    n_inputs: int
    n_outputs: int

    def __post_init__(self) -> None:
        """Refuse negative numbers."""
        for name in ("n_params", "forward_flop", "n_inputs", "n_outputs"):
            check_number(f"Layer({name}=...)", getattr(self, name), low=0)

    @property
    def step_flop(self) -> float:
        """Operations of a training step per sample: forward, and both gradients."""
        return 3.0 * self.forward_flop


def conv_layer(
    name: str,
    maps_in: int,
    maps_out: int,
    kernel: tuple[int, int],
    size_in: tuple[int, int],
    size_out: tuple[int, int],
    *,
    groups: int = 1,
    bias: bool = True,
) -> Layer:
    """Return a convolution.

    Parameters
    ----------
    name : str
        Its name in reports.
    maps_in, maps_out : int
        Input and output maps.
    kernel, size_in, size_out : tuple of int
        Width and height of a kernel, of the input, of the output.
    groups : int, default 1
        Into how many convolutions side by side the maps are divided.
    bias : bool, default True
        Whether each output map has a number that is added.
    """
    weights = maps_in // groups * maps_out * kernel[0] * kernel[1]
    area_in, area_out = size_in[0] * size_in[1], size_out[0] * size_out[1]
    return Layer(
        name, "conv", weights + maps_out * bias, 2.0 * weights * area_out, maps_in * area_in, maps_out * area_out
    )


def linear_layer(name: str, n_inputs: int, n_outputs: int, *, bias: bool = True) -> Layer:
    """Return a fully connected layer, which is a convolution whose input and output are one pixel."""
    weights = n_inputs * n_outputs
    return Layer(name, "linear", weights + n_outputs * bias, 2.0 * weights, n_inputs, n_outputs)


def other_layer(name: str, n_inputs: int, n_outputs: int, n_params: int = 0) -> Layer:
    """Return a layer that passes once over its activations: pooling, a nonlinearity, a normalisation."""
    return Layer(name, "other", n_params, float(n_inputs), n_inputs, n_outputs)


@dataclass(frozen=True)
class Node(Checked):
    """A machine that trains.

    A pass over a layer takes ``layer_s + max(operations / (peak efficiency), bytes / memory)`` seconds: it is as fast
    as its arithmetic or as its memory, whichever is slower (the roofline).

    Parameters
    ----------
    name : str
        Its name in reports.
    flop_per_s : float
        Peak of operations a second.
    memory_bytes_per_s : float
        Bandwidth of its memory.
    conv_efficiency, linear_efficiency : float
        Share of the peak that convolutions and matrix products reach on long batches, in (0, 1].
    layer_s : float, default 0
        Overhead of a pass over a layer, in seconds.
    step_s : float, default 0
        Overhead of a step, in seconds: fetching rows, the loss, the optimiser's bookkeeping.
    measured : mapping of str to (float, float), optional
        Measured layers, by name: seconds of a pass, and seconds per sample in addition. These replace the estimate from
        the layer's shape.
    source : str, default ""
        Where the numbers are from.

    Raises
    ------
    InvalidParameterError
        A rate is not positive, an efficiency not in (0, 1], or a time negative.
    """

    name: str
    flop_per_s: float = number(low=0, open_low=True)
    memory_bytes_per_s: float = number(low=0, open_low=True)
    conv_efficiency: float = number(1.0, low=0, high=1, open_low=True)
    linear_efficiency: float = number(1.0, low=0, high=1, open_low=True)
    layer_s: float = number(0.0, low=0)
    step_s: float = number(0.0, low=0)
    measured: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    source: str = ""

    def flop_rate(self, kind: Kind) -> float:
        """Return the operations a second that a kind of layer reaches where memory is no limit."""
        return self.flop_per_s * (self.conv_efficiency if kind == "conv" else self.linear_efficiency)

    def pass_seconds(self, layer: Layer, rows: float, parts: int = 1, itemsize: int = FLOAT_BYTES) -> float:
        """Return the seconds of one pass over a layer, forward or for one of its gradients.

        Parameters
        ----------
        layer : Layer
            The layer.
        rows : float
            Samples that go through it here.
        parts : int, default 1
            Into how many parts its weights are divided; this node has one of them, and all of the inputs.
        itemsize : int, default 4
            Bytes of an element.
        """
        if layer.name in self.measured:
            call_s, row_s = self.measured[layer.name]
            return call_s + rows * row_s / parts
        arithmetic_s = layer.forward_flop * rows / parts / self.flop_rate(layer.kind)
        moved = layer.n_params / parts + rows * (layer.n_inputs + layer.n_outputs / parts)
        return self.layer_s + max(arithmetic_s, moved * itemsize / self.memory_bytes_per_s)

    def slower(self, factor: float) -> Node:
        """Return this node with every pass `factor` times as long, as where that many ranks take turns on a core."""
        return replace(
            self,
            flop_per_s=self.flop_per_s / factor,
            memory_bytes_per_s=self.memory_bytes_per_s / factor,
            layer_s=self.layer_s * factor,
            step_s=self.step_s * factor,
            measured={name: (call_s * factor, row_s * factor) for name, (call_s, row_s) in self.measured.items()},
        )


def vgg_a() -> tuple[Layer, ...]:
    """Return VGG-A: 8 convolutions and 3 fully connected layers on images of 224 by 224, 132.9 million parameters."""
    layers: list[Layer] = []
    maps, size = 3, 224
    for block, widths in enumerate(((64,), (128,), (256, 256), (512, 512), (512, 512)), start=1):
        for which, width in enumerate(widths, start=1):
            layers.append(conv_layer(f"conv{block}_{which}", maps, width, (3, 3), (size, size), (size, size)))
            maps = width
        layers.append(other_layer(f"pool{block}", maps * size**2, maps * size**2 // 4))
        size //= 2
    widths = (maps * size**2, 4096, 4096, 1000)
    return (*layers, *_fully_connected(6, widths))


def overfeat_fast() -> tuple[Layer, ...]:
    """Return OverFeat's fast model: 5 convolutions and 3 fully connected layers, 145.9 million parameters."""
    return (
        conv_layer("conv1", 3, 96, (11, 11), (231, 231), (56, 56)),
        other_layer("pool1", 96 * 56**2, 96 * 28**2),
        conv_layer("conv2", 96, 256, (5, 5), (28, 28), (24, 24)),
        other_layer("pool2", 256 * 24**2, 256 * 12**2),
        conv_layer("conv3", 256, 512, (3, 3), (12, 12), (12, 12)),
        conv_layer("conv4", 512, 1024, (3, 3), (12, 12), (12, 12)),
        conv_layer("conv5", 1024, 1024, (3, 3), (12, 12), (12, 12)),
        other_layer("pool5", 1024 * 12**2, 1024 * 6**2),
        *_fully_connected(6, (1024 * 6**2, 3072, 4096, 1000)),
    )


def asr_dnn() -> tuple[Layer, ...]:
    """Return a network for speech: 11 frames of 39 features, 7 hidden layers of 2,048, 9,304 states."""
    return _fully_connected(1, (429, *(2048,) * 7, 9304))


def _fully_connected(first: int, widths: Sequence[int]) -> tuple[Layer, ...]:
    return tuple(linear_layer(f"fc{k}", n_in, n_out) for k, (n_in, n_out) in enumerate(pairwise(widths), first))


#: The networks of the publication by name, layer by layer.
MODELS: Final = MappingProxyType({"VGG-A": vgg_a(), "OverFeat-FAST": overfeat_fast(), "ASR DNN": asr_dnn()})
_PEAK: Final = "nominal: cores x clock x 32 operations a cycle (AVX2, two fused multiply-adds); efficiencies assumed"

#: Machines of the publication.
NODES: Final = MappingProxyType(
    {
        node.name: node
        for node in (
            Node("2x Xeon E5-2698v3", 2.36e12, 1.1e11, 0.75, 0.7, 2e-5, source=f"32 cores, 2.3 GHz; {_PEAK}"),
            Node("2x Xeon E5-2697v3", 2.33e12, 1.1e11, 0.75, 0.7, 2e-5, source=f"28 cores, 2.6 GHz; {_PEAK}"),
            Node("c4.8xlarge", 1.67e12, 1.0e11, 0.75, 0.7, 2e-5, source=f"18 cores, 2.9 GHz; {_PEAK}"),
        )
    }
)
_NOMINAL: Final = "nominal rate, typical latency of MPI over it; not measured here"

#: Networks of the publication that are no preset of the simulator, and its 10 GbE.
INTERCONNECTS: Final = MappingProxyType(
    {
        network.name: network
        for network in (
            Network(
                "Aries",
                Link(byte_s=1.25e-10, overhead_s=5e-7, latency_s=1e-6),
                NETWORKS["10GbE"].inside,
                source=f"8 GB/s a node: {_NOMINAL}",
            ),
            Network(
                "FDR",
                Link(byte_s=1.43e-10, overhead_s=5e-7, latency_s=1e-6),
                NETWORKS["10GbE"].inside,
                source=f"56 Gbit/s: {_NOMINAL}",
            ),
            NETWORKS["10GbE"],
        )
    }
)

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
