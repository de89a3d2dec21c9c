"""The cost model of sparse sums on a slow network, and the loss of gTop-k.

Problem: gTop-k was published with a scaling efficiency of 2.7 to 12 times that of dense sums and 1.1 to 1.7 times that
of Top-k, on 32 nodes with 1 GbE, for models that take different times to compute. Which of that follows from the cost
of messages, and for which models?

The model, with P ranks, m parameters, k of them sent, latency alpha and beta seconds per byte, as published: 4 bytes a
parameter, 8 bytes an entry that is sent::

    dense ring         2 (P - 1) alpha + 2 (P - 1) / P 4 m beta
    Top-k              log2(P) alpha + (P - 1) 8 k beta
    gTop-k, tree       2 log2(P) alpha + 2 log2(P) 8 k beta
    gTop-k, butterfly  log2(P) alpha + log2(P) 8 k beta

and ``efficiency = compute / (compute + communication)`` of one step, nothing overlapped. With places packed
(`dsgd.compress.sparse`) an entry takes less than 8 bytes; that is a line of its own.

Compute times are those that the authors measured, those of one thread here (`dsgd.study.gtopk.timing`), or assumed from
the operations of the model, forward and twice as many backward. For each claim the study also says for which compute
times it would hold.

Source: Shi et al. 2019 (claims, alpha and beta), and the scripts beside their code (speeds); the operation counts are
those of the models' authors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np

from dsgd.collectives.compressed.gtopk import Entries, merge_all
from dsgd.collectives.model import LinkCost
from dsgd.compress.sparse import sparse_bytes
from dsgd.errors import InvalidParameterError
from dsgd.report import Table

__all__ = [
    "GIGABIT",
    "MODELS",
    "NetModel",
    "Scaling",
    "compute_range",
    "lost_share",
    "mass_rows",
    "mass_table",
    "scaling",
]

#: One gigabit, as the authors of gTop-k measured it.
GIGABIT: Final = LinkCost(0.436e-3, 9e-9)
_BATCH: Final = 32
_DENSITY: Final = 0.001


@dataclass(frozen=True)
class NetModel:
    """A model of the publication.

    Parameters
    ----------
    name : str
        The model and what it learns.
    n_params : int
        Its parameters.
    forward_gflop : float
        Thousand million operations of a forward pass over one sample.
    """

    name: str
    n_params: int
    forward_gflop: float

    def compute_s(self, tflops: float) -> float:
        """Return the seconds of a step on 32 rows at so many million million operations a second.

        Raises
        ------
        InvalidParameterError
            `tflops` is not positive.
        """
        if not tflops > 0.0:
            raise InvalidParameterError(f"NetModel.compute_s(tflops=...) must be positive. Got {tflops!r}.")
        return 3 * _BATCH * self.forward_gflop / (1000.0 * tflops)


#: The models of the publication. A sample of the language model is 35 words.
MODELS: Final = (
    NetModel("ResNet-20, CIFAR-10", 272_474, 0.082),
    NetModel("VGG-16, CIFAR-10", 14_728_266, 0.63),
    NetModel("ResNet-50, ImageNet", 25_557_032, 8.2),
    NetModel("AlexNet, ImageNet", 61_100_840, 1.43),
    NetModel("LSTM, PTB", 66_034_000, 3.6),
)


@dataclass(frozen=True)
class Scaling:
    """What a step of one model takes, by how its gradients are summed.

    Parameters
    ----------
    model : NetModel
        The model.
    compute_s : float
        Seconds that a rank computes.
    dense_s, topk_s, tree_s, butterfly_s, packed_s : float
        Seconds that the sum takes; packed is the butterfly with packed places.
    basis : str
        Whose compute time it is, in words.
    repeats : sequence of float
        Seconds that a rank computed in each repetition, where it was measured here.
    """

    model: NetModel
    compute_s: float
    dense_s: float
    topk_s: float
    tree_s: float
    butterfly_s: float
    packed_s: float
    basis: str = "assumed"
    repeats: Sequence[float] = field(default=())

    def efficiency(self, communication_s: float) -> float:
        """Return the share of a step that computes."""
        return self.compute_s / (self.compute_s + communication_s)

    @property
    def over_dense(self) -> float:
        """Efficiency of gTop-k by a tree over that of dense sums."""
        return self.gain(self.dense_s, self.compute_s)

    @property
    def over_topk(self) -> float:
        """Efficiency of gTop-k by a tree over that of Top-k."""
        return self.gain(self.topk_s, self.compute_s)

    def gain(self, other_s: float, compute_s: float) -> float:
        """Return how many times as efficient gTop-k by a tree is as another sum, for any compute time."""
        return (compute_s + other_s) / (compute_s + self.tree_s)

    def as_row(self) -> dict[str, Any]:
        """Return everything as plain values, with both gains."""
        return asdict(self) | {"over_dense": self.over_dense, "over_topk": self.over_topk}


def scaling(
    model: NetModel, size: int, compute_s: float, link: LinkCost = GIGABIT, density: float = _DENSITY
) -> Scaling:
    """Return what a step takes on `size` ranks, a power of two, each of which computes for so many seconds.

    Raises
    ------
    InvalidParameterError
        `size` is no power of two from 2 on, or `compute_s` is not positive.
    """
    if size < 2 or size & (size - 1):
        raise InvalidParameterError(f"scaling(size=...) must be a power of two from 2 on. Got {size}.")
    if not compute_s > 0.0:
        raise InvalidParameterError(f"scaling(compute_s=...) must be positive. Got {compute_s!r}.")
    alpha, beta, levels = link.latency_s, link.byte_s, size.bit_length() - 1
    k = math.ceil(density * model.n_params)
    return Scaling(
        model,
        compute_s,
        2 * (size - 1) * alpha + 2 * (size - 1) / size * 4 * model.n_params * beta,
        levels * alpha + (size - 1) * 8 * k * beta,
        2 * levels * (alpha + 8 * k * beta),
        levels * (alpha + 8 * k * beta),
        levels * (alpha + sparse_bytes(k, model.n_params, 4) * beta),
    )


def compute_range(other_s: float, gtopk_s: float, low: float, high: float) -> tuple[float, float] | None:
    """Return the range of compute times in which one algorithm is `low` to `high` times as efficient as another.

    The gain ``(c + other) / (c + gtopk)`` falls towards one as the compute time c grows.

    Returns
    -------
    tuple of float or None
        Least and most seconds; None if there are none.
    """

    def at(gain: float) -> float:
        return (other_s - gain * gtopk_s) / (gain - 1.0)

    least, most = max(0.0, at(high)), at(low)
    return (least, most) if most > 0.0 else None


def lost_share(size: int, n: int = 2000, k: int = 20, n_draws: int = 20, seed: int = 0) -> tuple[float, float]:
    """Return the share of the mass chosen by all ranks that is neither applied nor kept: put-back, conserving.

    Every rank has n numbers, each the sum of a normal one that all have in common and a normal one of its own, as
    gradients of one model on different rows; it chooses the k largest, and they are merged by a tree. The mass is the
    sum of magnitudes.
    """
    lost, chosen = np.zeros(2), 0.0
    for draw in range(n_draws):
        own = []
        common = np.random.default_rng((seed, draw)).standard_normal(n)
        for rank in range(size):
            vector = common + np.random.default_rng((seed, draw, rank)).standard_normal(n)
            places = np.sort(np.argpartition(-np.abs(vector), k)[:k]).astype(np.uint32)
            own.append(Entries(places, vector[places]))
        total, dropped = merge_all(own, k, "tree")
        came_in, applied, kept = np.zeros(n), np.zeros(n), np.zeros(n)
        for entries in own:
            came_in[entries.places] += entries.values
            back = ~np.isin(entries.places, total.places)
            applied[entries.places[back]] += entries.values[back]
            chosen += float(np.abs(entries.values).sum())
        for _, entries in dropped:
            kept[entries.places] += entries.values
        applied[total.places] += total.values
        kept[total.places] += total.values
        lost += [np.abs(came_in - applied).sum(), np.abs(came_in - kept).sum()]
    return float(lost[0] / chosen), float(lost[1] / chosen)


def mass_rows(sizes: Sequence[int], shares: Sequence[tuple[float, float]]) -> list[dict[str, Any]]:
    """Return the shares that are lost as plain values, by number of ranks."""
    return [{"ranks": size, "put_back": p, "conserving": c} for size, (p, c) in zip(sizes, shares, strict=True)]


def mass_table(sizes: Sequence[int], shares: Sequence[tuple[float, float]]) -> Table:
    """Return the shares that are lost, one row per number of ranks."""
    lost = mass_rows(sizes, shares)
    rows = [(f"{row['ranks']}", f"{row['put_back']:.2%}", f"{row['conserving']:.2%}") for row in lost]
    return Table("Chosen mass that is neither applied nor kept", ("ranks", "put-back", "conserving"), rows)
