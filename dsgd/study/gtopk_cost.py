"""What a step of gTop-k costs: speeds that its authors measured, and a model of the cost of messages.

Efficiency is the share of a step that computes, nothing overlapped. Compute times are those of the authors, those of
one thread of this machine, or assumed. And what one sum by a tree loses of what ranks have chosen.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from dsgd.collectives.cost import Link
from dsgd.collectives.payloads import Entries, merge_all
from dsgd.compress.sparse import sparse_bytes
from dsgd.errors import InvalidParameterError
from dsgd.report import Claim, Table, figure_text
from dsgd.study.frame.rows import Row, cells_of
from dsgd.study.published import FIGURES, STATEMENTS, average, exact, were_busy

#: How many ranks the published figures are of.
RANKS: Final[int] = FIGURES["gtopk"]["ranks"]
#: Numbers of ranks whose speeds are published.
SIZES: Final = tuple(FIGURES["gtopk"]["sizes"])
#: The densities of the first epochs.
WARM_UP: Final = tuple(FIGURES["gtopk"]["warm_up"])


@dataclass(frozen=True)
class Speeds:
    """Rows a second of one rank, as measured by the authors: alone, and among `SIZES` by how gradients are summed."""

    alone: float
    dense: Sequence[float]
    topk: Sequence[float]
    gtopk: Sequence[float]
    # Rows of a rank in a step; None where nothing says.
    batch: int | None = None
    # Seconds of a step of gTop-k on 32 ranks: computing, compressing, communicating.
    parts_s: Sequence[float] | None = None

    @property
    def compute_s(self) -> float | None:
        """Seconds in which one rank computes a step; None where the batch is not known."""
        return None if self.batch is None else self.batch / self.alone

    def efficiency(self, way: str, size: int) -> float:
        """Return the speed of a rank among so many, in `SIZES`, over that of one alone."""
        speed: float = getattr(self, way)[SIZES.index(size)]
        return speed / self.alone

    def beside_s(self, way: str, size: int) -> float | None:
        """Return the seconds of a step that are not those of a rank alone: what the sum took, with all around it."""
        alone_s = self.compute_s
        return None if alone_s is None else alone_s / self.efficiency(way, size) - alone_s


#: Speeds by network.
SPEEDS: Final[Mapping[str, Speeds]] = {name: Speeds(**one) for name, one in FIGURES["gtopk"]["speeds"].items()}


#: One gigabit, as the authors of gTop-k measured it.
GIGABIT: Final = Link(latency_s=0.436e-3, byte_s=9e-9)
_DENSITY: Final = 0.001


@dataclass(frozen=True)
class NetModel:
    """A model of the publication."""

    name: str
    n_params: int


#: The models of the publication. A sample of the language model is 35 words.
MODELS: Final = (
    NetModel("ResNet-20, CIFAR-10", 272_474),
    NetModel("VGG-16, CIFAR-10", 14_728_266),
    NetModel("ResNet-50, ImageNet", 25_557_032),
    NetModel("AlexNet, ImageNet", 61_100_840),
    NetModel("LSTM, PTB", 66_034_000),
)


@dataclass(frozen=True)
class Scaling:
    """What a step of one model takes, by how its gradients are summed."""

    model: NetModel
    compute_s: float
    dense_s: float
    topk_s: float
    tree_s: float
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


def scaling(model: NetModel, size: int, compute_s: float, link: Link = GIGABIT, density: float = _DENSITY) -> Scaling:
    """Return what a step takes on `size` ranks, a power of two, each of which computes for so many seconds."""
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
        levels * (alpha + sparse_bytes(k, model.n_params, 4) * beta),
    )


def compute_range(other_s: float, gtopk_s: float, low: float, high: float) -> tuple[float, float] | None:
    """Return the range of compute times in which one algorithm is `low` to `high` times as efficient as another.

    The gain ``(c + other) / (c + gtopk)`` falls towards one as the compute time c grows.
    """

    def at(gain: float) -> float:
        return (other_s - gain * gtopk_s) / (gain - 1.0)

    least, most = max(0.0, at(high)), at(low)
    return (least, most) if most > 0.0 else None


def lost_share(size: int, n: int = 2000, k: int = 20, n_draws: int = 20, seed: int = 0) -> tuple[float, float]:
    """Return the share of the mass chosen by all ranks that is neither applied nor kept: put-back, conserving.

    Every rank has n numbers, each a normal one that all have in common plus one of its own, as gradients of one model
    on different rows; the k largest are merged by a tree. The mass is the sum of magnitudes.
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


# -- efficiency ---------------------------------------------------------------------------------------------------

#: Whose compute time it is, as tables say it.
PUBLISHED: Final = "published"
HERE: Final = "one thread here"
_COMPUTING: Final = {PUBLISHED: "compute time as published", HERE: f"compute time of {HERE}"}
# Ways of summing by what speeds call them and by the field that has their seconds.
_WAYS: Final = (("dense", "dense_s"), ("topk", "topk_s"), ("gtopk", "tree_s"))


def published_steps(size: int, link: Link = GIGABIT, density: float = 0.001) -> list[Scaling]:
    """Return steps with the compute times that the authors measured, of the networks of which there is one."""
    found = ((model, SPEEDS[model.name].compute_s) for model in MODELS)
    return [
        replace(scaling(model, size, seconds, link, density), basis=PUBLISHED)
        for model, seconds in found
        if seconds is not None
    ]


def measured_steps(rows: Iterable[Row], size: int, link: Link = GIGABIT, density: float = 0.001) -> list[Scaling]:
    """Return steps with compute times that were measured here."""
    by_name = {model.name: model for model in MODELS}
    steps = []
    for own in cells_of([row for row in rows if "seconds" in row], "model"):
        seconds = own.rows[-1]["seconds"]
        step = scaling(by_name[own.model], size, statistics.median(seconds), link, density)
        steps.append(replace(step, basis=HERE, repeats=tuple(seconds)))
    return steps


def scaling_table(steps: Sequence[Scaling], size: int) -> Table:
    """Return times and efficiencies, one row per model and compute time."""
    rows = [
        (
            step.model.name,
            step.basis,
            *(f"{1e3 * s:,.1f}" for s in (step.compute_s, step.dense_s, step.topk_s, step.tree_s, step.packed_s)),
            *(f"{step.efficiency(s):.1%}" for s in (step.dense_s, step.topk_s, step.tree_s, step.packed_s)),
            f"{step.over_dense:.2f}x",
            f"{step.over_topk:.2f}x",
        )
        for step in steps
    ]
    columns = ("model", "computing", "compute ms", "dense ms", "Top-k ms", "gTop-k ms", "packed ms")
    efficiencies = ("dense", "Top-k", "gTop-k", "packed", "over dense", "over Top-k")
    note = (
        "Milliseconds of a step, by the cost of messages; then scaling efficiency, and how many times as efficient "
        "gTop-k by a tree is. Packed: a butterfly whose places are coded in about 12 bits, as dsgd sends them."
    )
    return Table(f"A step on {size} ranks", (*columns, *efficiencies), rows, note, n_text=2)


def efficiency_table(steps: Sequence[Sequence[Scaling]], sizes: Sequence[int]) -> Table:
    """Return scaling efficiency by ranks: as published, and from the cost of messages with each compute time."""
    rows = []
    for size in (size for size in sizes if size in SIZES):
        for own in steps:
            step, speeds = own[sizes.index(size)], SPEEDS[own[0].model.name]
            said = [speeds.efficiency(way, size) for way, _ in _WAYS]
            ours = [step.efficiency(getattr(step, field)) for _, field in _WAYS]
            gains = [said[2] / said[0], step.over_dense, said[2] / said[1], step.over_topk]
            cells = [f"{share:.1%}" for pair in zip(said, ours, strict=True) for share in pair]
            rows.append((step.model.name, step.basis, f"{size}", *cells, *(f"{gain:.2f}x" for gain in gains)))
    heads = [f"{way}, {whose}" for way in ("dense", "Top-k", "gTop-k") for whose in ("published", "model")]
    over = ["over dense, published", "over dense, model", "over Top-k, published", "over Top-k, model"]
    note = (
        "Published: rows a second of a rank among so many over those of one alone, from the scripts beside the "
        "authors' code. Model: the cost of messages with the compute time of the second column."
    )
    return Table(
        "Scaling efficiency, published and from the cost of messages",
        ("model", "computing", "ranks", *heads, *over),
        rows,
        note,
        n_text=2,
    )


def parts_table(steps: Sequence[Scaling]) -> Table:
    """Return what sums took on 32 ranks, as published, over what the cost of messages gives: where figures part."""
    rows = []
    for step in (step for step in steps if step.basis == PUBLISHED):
        speeds = SPEEDS[step.model.name]
        cells = [step.model.name]
        for way, name in _WAYS:
            took, model = speeds.beside_s(way, RANKS) or 0.0, getattr(step, name)
            cells += [f"{1e3 * took:,.0f}", f"{1e3 * model:,.0f}", f"{took / model:.0f}x"]
        cells.append("-" if speeds.parts_s is None else " + ".join(f"{1e3 * part:,.0f}" for part in speeds.parts_s))
        rows.append(cells)
    columns = [f"{way} {what}" for way in ("dense", "Top-k", "gTop-k") for what in ("published", "model", "ratio")]
    note = (
        "Milliseconds of a step on 32 ranks beside those of a rank alone, from the published speeds; by the published "
        "cost of messages; and one over the other. Last: a step of gTop-k in parts, computing, compressing, "
        "communicating, as published."
    )
    return Table("Where published steps spend their time", ("model", *columns, "parts of a step"), rows, note)


def check_gtopk_claims(steps: Sequence[Scaling], size: int, rows: Sequence[Row] = ()) -> list[Claim]:
    """Return the published gains in efficiency as claims, with the compute times for which each would hold."""
    busy = bool(rows) and were_busy(rows)
    claims = []
    for step in steps:
        speeds, data = (
            SPEEDS[step.model.name],
            f"{step.model.name}, {size} ranks, {_COMPUTING.get(step.basis, step.basis)}",
        )
        for way, other, other_s in (("dense", "dense sums", step.dense_s), ("topk", "Top-k", step.topk_s)):
            statement = STATEMENTS[f"gtopk/{way}"]
            between = compute_range(other_s, step.tree_s, statement.margin.least, statement.margin.published)
            note = f"A step computes {figure_text(1e3 * step.compute_s)} ms. "
            if between is None:
                note += "No compute time puts the gain into the range."
            else:
                least, most = (figure_text(1e3 * end) if end else "0" for end in between)
                note += f"The gain is in the range for {least} to {most} ms."
            # What is published of this network, and how far its sums were from the cost of messages.
            if size in SIZES:
                gain = speeds.efficiency("gtopk", size) / speeds.efficiency(way, size)
                took, gtopk = speeds.beside_s(way, size), speeds.beside_s("gtopk", size)
                parts = (
                    f"; there {other} took {took / other_s:.0f} times what the cost of messages gives, and gTop-k "
                    f"{gtopk / step.tree_s:.0f} times"
                    if took is not None and gtopk is not None
                    else ""
                )
                note += f" Published of this network: {gain:.2f}x{parts}."
            # Where the compute time was measured, the interval is over the repetitions.
            found = average({number: step.gain(other_s, seconds) for number, seconds in enumerate(step.repeats)})
            found = found or exact(step.gain(other_s, step.compute_s))
            is_busy = busy and bool(step.repeats)
            claims.append(statement.judged(data, found, note, busy=is_busy, baseline=f"1x: {other}"))
    return claims
