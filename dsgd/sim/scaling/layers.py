"""Layers and nodes: operations and sizes of a network, speed of a machine.

A layer is five numbers, per sample where it says so. They come from a published description (`dsgd.sim.scaling.MODELS`)
or from a module that is traced (`dsgd.torch.trace`). With ifm input maps, ofm output maps, kernels of kw by kh and an
output of ow by oh, a forward pass over one sample takes ``F = 2 ifm ofm kw kh ow oh`` operations; the gradient of the
weights and that of the inputs take F each.

Source: Das et al. 2016, "Distributed deep learning using synchronous stochastic gradient descent", section 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from dsgd.validation import check_number

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
class Node:
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
    flop_per_s: float
    memory_bytes_per_s: float
    conv_efficiency: float = 1.0
    linear_efficiency: float = 1.0
    layer_s: float = 0.0
    step_s: float = 0.0
    measured: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    source: str = ""

    def __post_init__(self) -> None:
        """Refuse rates that are not positive."""
        for name in ("flop_per_s", "memory_bytes_per_s"):
            check_number(f"Node({name}=...)", getattr(self, name), low=0, open_low=True)
        for name in ("conv_efficiency", "linear_efficiency"):
            check_number(f"Node({name}=...)", getattr(self, name), low=0, high=1, open_low=True)
        for name in ("layer_s", "step_s"):
            check_number(f"Node({name}=...)", getattr(self, name), low=0)

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
