"""Scaling efficiency of the five networks, by whose compute times it is, beside what was published.

The cost of messages is the same in all of them; see `dsgd.study.gtopk.model`.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from dsgd.collectives.model import LinkCost
from dsgd.report import Claim, Table, figure_text
from dsgd.study.frame.rows import Row
from dsgd.study.frame.summary import grouped
from dsgd.study.gtopk.model import GIGABIT, MODELS, NetModel, Scaling, compute_range, scaling
from dsgd.study.gtopk.speeds import RANKS, SIZES, SPEEDS
from dsgd.study.published import STATEMENTS
from dsgd.study.verdict import Interval, average, exact, were_busy

__all__ = [
    "HERE",
    "PUBLISHED",
    "assumed_steps",
    "check_gtopk_claims",
    "efficiency_table",
    "measured_steps",
    "parts_table",
    "published_steps",
    "scaling_table",
]

#: Whose compute time it is, as tables say it.
PUBLISHED: Final = "published"
HERE: Final = "one thread here"
_COMPUTING: Final = {PUBLISHED: "compute time as published", HERE: f"compute time of {HERE}"}
# Ways of summing by what speeds call them and by the field that has their seconds.
_WAYS: Final = (("dense", "dense_s"), ("topk", "topk_s"), ("gtopk", "tree_s"))


def published_steps(size: int, link: LinkCost = GIGABIT, density: float = 0.001) -> list[Scaling]:
    """Return steps with the compute times that the authors measured, of the networks of which there is one."""
    found = ((model, SPEEDS[model.name].compute_s) for model in MODELS)
    return [
        replace(scaling(model, size, seconds, link, density), basis=PUBLISHED)
        for model, seconds in found
        if seconds is not None
    ]


def measured_steps(rows: Iterable[Row], size: int, link: LinkCost = GIGABIT, density: float = 0.001) -> list[Scaling]:
    """Return steps with compute times that were measured here.

    Parameters
    ----------
    rows : iterable of dict
        Rows of a study that have ``model`` and ``seconds``; see `dsgd.study.gtopk.timing.time_network`.
    size, link, density
        See `dsgd.study.gtopk.scaling`.
    """
    by_name = {model.name: model for model in MODELS}
    steps = []
    for (name,), own in grouped((row for row in rows if "seconds" in row), "model").items():
        seconds = own[-1]["seconds"]
        step = scaling(by_name[name], size, statistics.median(seconds), link, density)
        steps.append(replace(step, basis=HERE, repeats=tuple(seconds)))
    return steps


def assumed_steps(
    size: int, tflops: float, link: LinkCost = GIGABIT, density: float = 0.001, models: Sequence[NetModel] = MODELS
) -> list[Scaling]:
    """Return steps on 32 rows whose operations take place at so many million million a second."""
    basis = f"{tflops:g} Tflop/s"
    return [replace(scaling(model, size, model.compute_s(tflops), link, density), basis=basis) for model in models]


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
    """Return scaling efficiency by ranks: as published, and from the cost of messages with each compute time.

    Parameters
    ----------
    steps : sequence of sequences of Scaling
        For each model and compute time, one for each of `sizes`.
    sizes : sequence of int
        Numbers of ranks; those that nothing is published of are left out.
    """
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
        ("model", "computing", "ranks", *heads, *over), rows, note, n_text=2,
    )  # fmt: skip


def parts_table(steps: Sequence[Scaling]) -> Table:
    """Return what sums took on 32 ranks, as published, over what the cost of messages gives: where figures part."""
    rows = []
    for step in (step for step in steps if step.basis == PUBLISHED):
        speeds = SPEEDS[step.model.name]
        cells = [step.model.name]
        for way, field in _WAYS:
            took, model = speeds.beside_s(way, RANKS) or 0.0, getattr(step, field)
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
    """Return the published gains in efficiency as claims, with the compute times for which each would hold.

    Parameters
    ----------
    steps : sequence of Scaling
        One for each model and compute time.
    size : int
        Ranks of all of them.
    rows : sequence of dict
        The rows in which compute times were measured, which say whether the machine was busy.
    """
    busy = bool(rows) and were_busy(rows)
    claims = []
    for step in steps:
        for statement, other, way, other_s in (
            (STATEMENTS["gtopk/dense"], "dense sums", "dense", step.dense_s),
            (STATEMENTS["gtopk/topk"], "Top-k", "topk", step.topk_s),
        ):
            between = compute_range(other_s, step.tree_s, statement.margin.least, statement.margin.published)
            found = _gain(step, other_s)
            claims.append(
                statement.judged(
                    f"{step.model.name}, {size} ranks, {_COMPUTING.get(step.basis, step.basis)}",
                    found,
                    f"A step computes {figure_text(1e3 * step.compute_s)} ms. {_where(between)}{_why(step, way, size)}",
                    busy=busy and bool(step.repeats),
                    baseline=f"1x: {other}",
                )
            )  # fmt: skip
    return claims


def _gain(step: Scaling, other_s: float) -> Interval:
    """Return the gain over another sum, with an interval over the repetitions where the compute time was measured."""
    found = average({number: step.gain(other_s, seconds) for number, seconds in enumerate(step.repeats)})
    return exact(step.gain(other_s, step.compute_s)) if found is None else found


def _where(between: tuple[float, float] | None) -> str:
    if between is None:
        return "No compute time puts the gain into the range."
    least, most = (figure_text(1e3 * end) for end in between)
    return f"The gain is in the range for {least if between[0] else 0} to {most} ms."


def _why(step: Scaling, way: str, size: int) -> str:
    """Return what is published of this network, and how far its sums were from the cost of messages."""
    speeds = SPEEDS[step.model.name]
    if size not in SIZES:
        return ""
    gain = speeds.efficiency("gtopk", size) / speeds.efficiency(way, size)
    said = f" Published of this network: {gain:.2f}x"
    other, gtopk = speeds.beside_s(way, size), speeds.beside_s("gtopk", size)
    if other is None or gtopk is None:
        return f"{said}."
    slower = other / (step.dense_s if way == "dense" else step.topk_s)
    names = {"dense": "dense sums", "topk": "Top-k"}
    return (
        f"{said}; there {names[way]} took {slower:.0f} times what the cost of messages gives, and gTop-k "
        f"{gtopk / step.tree_s:.0f} times."
    )
