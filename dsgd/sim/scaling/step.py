"""The seconds of a step on many nodes: passes over layers, overlapping sums of gradients, and waiting.

Problem: bytes over bandwidth give the time that a step sends, not the time that it waits: sums of gradients run while
other layers compute, and only the remainder makes a step longer.

Model: a node computes one pass at a time and sends one message after the other, in the order in which they are ready.
Where a layer is divided inside a group the pass waits for its gathered inputs. Backward, of a layer with all weights
the gradient of the weights comes first, so that its sum can begin; of a divided layer that of the inputs. Sums go in
buckets of whole layers beside the backward pass, or at once when it has ended, and a step ends with the last of them.

Cost: microseconds for each layer; no bytes move.

Source: Das et al. 2016, section 3 (sums beside the backward pass); Li et al. 2020 (buckets). Collectives take what
`dsgd.collectives.allreduce_seconds` says.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from dsgd.collectives.cost import Link, allgather_seconds, allreduce_seconds, choose_algorithm
from dsgd.errors import InvalidParameterError
from dsgd.sim.network import Network, network_for
from dsgd.sim.scaling.layers import FLOAT_BYTES, Layer, Node, Placement, Sharing, place_layers
from dsgd.validation import check_number


@dataclass(frozen=True)
class Span:
    """Something that a node does for a while.

    Parameters
    ----------
    what : {"forward", "backward", "exchange", "sum"}
        Two of them compute, two send.
    layers : str
        The layer, or the layers of a bucket.
    begin_s, end_s : float
        When, from the beginning of the step on.
    """

    what: Literal["forward", "backward", "exchange", "sum"]
    layers: str
    begin_s: float
    end_s: float


@dataclass(frozen=True)
class Step:
    """The time of a step on one of many nodes.

    Parameters
    ----------
    seconds : float
        Until the last gradient is summed.
    compute_s : float
        Of it, the node computes.
    wire_s : float
        How long it sends, beside computing or not.
    n_bytes : float
        What it sends.
    spans : tuple of Span
        What it does when.
    """

    seconds: float
    compute_s: float
    wire_s: float
    n_bytes: float
    spans: tuple[Span, ...] = field(repr=False, default=())

    @property
    def exposed_s(self) -> float:
        """Seconds that are waited."""
        return self.seconds - self.compute_s


@dataclass(frozen=True)
class ScalingPoint:
    """A step on a number of nodes.

    Parameters
    ----------
    nodes : int
        How many.
    step : Step
        The step.
    speedup : float
        Seconds of the same batch on one node over those here.
    """

    nodes: int
    step: Step
    speedup: float

    @property
    def efficiency(self) -> float:
        """Speed-up over nodes."""
        return self.speedup / self.nodes


def predict_step(
    layers: Sequence[Layer],
    nodes: int,
    batch: int,
    node: Node,
    network: Network | Link | str,
    *,
    sharing: Sharing = "hybrid",
    overlaps: bool = True,
    bucket_bytes: float = 0.0,
    itemsize: int = FLOAT_BYTES,
) -> Step:
    """Predict the time of a training step.

    Parameters
    ----------
    layers : sequence of Layer
        The network.
    nodes : int
        How many nodes.
    batch : int
        Samples of a step over all nodes.
    node : Node
        The machine.
    network : Network, str or Link
        The name of a preset, or the costs of a message.
    sharing : {"hybrid", "data", "model"}
        How layers are shared, see `place_layers`.
    overlaps : bool, default True
        Whether gradients are summed beside the backward pass.
    bucket_bytes : float, default 0
        If sums overlap, each starts when so many bytes of gradients are ready; 0 sums every layer by itself.
    itemsize : int, default 4
        Bytes of an element.

    Returns
    -------
    Step
        Seconds, and how they come about.

    Raises
    ------
    InvalidParameterError
        There are no layers, or fewer samples than nodes.
    """
    if not layers:
        raise InvalidParameterError("predict_step(layers=...) must name at least one layer.")
    if not 1 <= nodes <= batch:
        raise InvalidParameterError(f"predict_step(nodes=...) must lie in 1 to the batch ({batch}). Got {nodes}.")
    check_number("predict_step(bucket_bytes=...)", bucket_bytes, low=0)
    placed = place_layers(layers, nodes, batch, sharing=sharing, itemsize=itemsize)
    if isinstance(network, Link):
        link = network
    else:
        # Adding up reads two numbers and writes one.
        link = replace(network_for(network).between, added_byte_s=3.0 / node.memory_bytes_per_s)
    play = _Play(placed, batch, node, link, float(bucket_bytes) if overlaps else math.inf, itemsize)
    seconds = play.run()
    return Step(seconds, play.compute_s, play.wire_s, play.n_bytes, tuple(play.spans))


def speedup_curve(
    layers: Sequence[Layer],
    nodes: Sequence[int],
    batch: int,
    node: Node,
    network: Network | Link | str,
    *,
    sharing: Sharing = "hybrid",
    overlaps: bool = True,
    bucket_bytes: float = 0.0,
    itemsize: int = FLOAT_BYTES,
) -> list[ScalingPoint]:
    """Return the speed-up of a step on a fixed batch, for each number of nodes.

    Parameters
    ----------
    layers, batch, node, network, sharing, overlaps, bucket_bytes, itemsize
        See `predict_step`.
    nodes : sequence of int
        Numbers of nodes.
    """

    def step(n: int) -> Step:
        return predict_step(
            layers,
            n,
            batch,
            node,
            network,
            sharing=sharing,
            overlaps=overlaps,
            bucket_bytes=bucket_bytes,
            itemsize=itemsize,
        )

    alone = step(1).seconds
    steps = [step(n) for n in nodes]
    return [ScalingPoint(n, step, alone / step.seconds) for n, step in zip(nodes, steps, strict=True)]


class _Play:
    """One node's clock and its wire."""

    def __init__(
        self, placed: Sequence[Placement], batch: int, node: Node, link: Link, bucket_bytes: float, itemsize: int
    ) -> None:
        self._placed, self._batch, self._node, self._link = placed, batch, node, link
        self._bucket_bytes, self._itemsize = bucket_bytes, itemsize
        self._now, self._wire_free = node.step_s, 0.0
        self._waiting: dict[int, list[int]] = {}
        self.spans: list[Span] = []
        self.compute_s, self.wire_s, self.n_bytes = node.step_s, 0.0, 0.0

    def run(self) -> float:
        """Play a step; return when it ends."""
        for place in self._placed:
            if place.group_size > 1:
                self._now = self._exchange(place, adds=False)
            self._compute("forward", place)
        for number, place in reversed(list(enumerate(self._placed))):
            # Nobody asks for the gradient of what the first layer reads.
            is_first, exchanged_at = number == 0, 0.0
            if place.group_size > 1 and not is_first:
                self._compute("backward", place)
                exchanged_at = self._exchange(place, adds=True)
            if place.layer.n_params:
                self._compute("backward", place)
                if place.groups > 1:
                    # Into its bucket, which is sent when it is full.
                    bucket = self._waiting.setdefault(place.groups, [])
                    bucket.append(number)
                    if sum(map(self._gradient_bytes, bucket)) >= self._bucket_bytes:
                        self._sum(place.groups)
            if place.group_size == 1 and not is_first:
                self._compute("backward", place)
            self._now = max(self._now, exchanged_at)
        for groups in list(self._waiting):
            self._sum(groups)
        return max(self._now, self._wire_free)

    def _gradient_bytes(self, number: int) -> float:
        place = self._placed[number]
        return self._itemsize * place.layer.n_params / place.group_size

    def _sum(self, groups: int) -> None:
        bucket = self._waiting.pop(groups)
        n_bytes = round(sum(map(self._gradient_bytes, bucket)))
        seconds = allreduce_seconds(choose_algorithm(n_bytes, groups, self._link), n_bytes, groups, self._link)
        names = " + ".join(self._placed[number].layer.name for number in bucket)
        self._send("sum", names, seconds, 2 * (groups - 1) / groups * n_bytes)

    def _exchange(self, place: Placement, *, adds: bool) -> float:
        """Gather the inputs of a divided layer in a group, or add up their gradients; return when that has ended."""
        size = place.group_size
        share = round(self._itemsize * place.layer.n_inputs * self._batch / place.groups / size)
        seconds = allgather_seconds(share, size, self._link) + (size - 1) * share * self._link.added_byte_s * adds
        return self._send("exchange", place.layer.name, seconds, float((size - 1) * share))

    def _send(self, what: Literal["exchange", "sum"], layers: str, seconds: float, n_bytes: float) -> float:
        begin = max(self._now, self._wire_free)
        self._wire_free = begin + seconds
        self.wire_s += seconds
        self.n_bytes += n_bytes
        self.spans.append(Span(what, layers, begin, self._wire_free))
        return self._wire_free

    def _compute(self, what: Literal["forward", "backward"], place: Placement) -> None:
        rows = self._batch / place.groups
        # A data parallel node has its own samples; one of a group has those of the group, and a part of the weights.
        seconds = self._node.pass_seconds(place.layer, rows, place.group_size, self._itemsize)
        self.spans.append(Span(what, place.layer.name, self._now, self._now + seconds))
        self._now += seconds
        self.compute_s += seconds
