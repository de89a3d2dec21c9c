"""The networks and machines of the published scaling results.

The layers are those of the published descriptions; nodes and wires are given by their nominal rates, with the share of
the peak that dense kernels of the time reached. Nothing of it was measured here.

Source: Simonyan and Zisserman 2014, column A (VGG-A); Sermanet et al. 2013, table 1 (OverFeat, fast model); Seide, Li
and Yu 2011 (deep network for speech, 7 hidden layers); Das et al. 2016 (the machines).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Final

from dsgd.sim.network import NETWORKS, Link, Network
from dsgd.sim.scaling.layers import Layer, Node, conv_layer, linear_layer, other_layer


def vgg_a() -> tuple[Layer, ...]:
    """Return VGG-A: 8 convolutions and 3 fully connected layers on images of 224 by 224, 132.9 million parameters."""
    layers: list[Layer] = []
    maps, size = 3, 224
    for block, widths in enumerate(((64,), (128,), (256, 256), (512, 512), (512, 512)), start=1):
        for number, width in enumerate(widths, start=1):
            layers.append(conv_layer(f"conv{block}_{number}", maps, width, (3, 3), (size, size), (size, size)))
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
            Network("Aries", Link(1.25e-10, 5e-7, 1e-6), NETWORKS["10GbE"].inside, source=f"8 GB/s a node: {_NOMINAL}"),
            Network("FDR", Link(1.43e-10, 5e-7, 1e-6), NETWORKS["10GbE"].inside, source=f"56 Gbit/s: {_NOMINAL}"),
            NETWORKS["10GbE"],
        )
    }
)
