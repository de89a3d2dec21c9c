"""The report of the study of collectives."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Final

from dsgd.collectives.model import ALGORITHMS
from dsgd.report import Axis, Figure, Line, Mark, Page, Panel, Publication
from dsgd.report.theme import MARKERS, MUTED, SERIES, TEXT
from dsgd.study.collectives.grid import CollectiveStudy
from dsgd.study.collectives.parts import PartOfBox, parts_figure, parts_table
from dsgd.study.collectives.summary import (
    CollectiveGang,
    check_collective_claims,
    collective_table,
    collective_verdict,
    link_table,
    size_text,
    summarise_collectives,
)
from dsgd.study.frame.report import doubts, facts, joined
from dsgd.study.frame.rows import Row, check_rows

__all__ = ["collective_figure", "collective_page"]

_CAPTION = (
    "Median time of an all-reduce of float32 vectors, of the slowest rank: marked as measured, dashed as the model "
    "predicts from a calibration in the same gang. Rings mark the choice of auto."
)


# Where the costs of the algorithms are from.
_COSTS: Final = {
    "mpich": Publication(
        ("Thakur", "Rabenseifner", "Gropp"),
        "Optimization of Collective Communication Operations in MPICH",
        2005,
    ),
    "two-tree": Publication(
        ("Sanders", "Speck", "Träff"),
        "Two-tree algorithms for full bandwidth broadcast, reduction and scan",
        2009,
    ),
}


def collective_page(study: CollectiveStudy, rows: Sequence[Row], parts: Sequence[PartOfBox] = ()) -> Page:
    """Return the report of a study from its finished runs.

    Parameters
    ----------
    study : CollectiveStudy
        What was asked for.
    rows : sequence of dict
        Its runs.
    parts : sequence of PartOfBox, default empty
        Simulated sums in parts of a box, to be shown with them.

    Raises
    ------
    DsgdError
        There are no rows.
    """
    check_rows(rows)
    gangs = summarise_collectives(rows)
    sizes = joined(map(size_text, sorted(set(study.sizes))))
    ratios = [ratio for gang in gangs for ratio in gang.prediction_ratios()]
    chosen = [ratio for gang in gangs for n_bytes in gang.sizes() if (ratio := gang.auto_ratio(n_bytes)) is not None]
    return Page(
        title="How long does a sum over all ranks take?",
        answer=collective_verdict(gangs),
        ran=facts(rows, ("Grid", f"vectors of {sizes}; {study.repeats} repetitions, algorithms in turn")),
        highlights=[
            (f"{statistics.median(ratios):.2f}", "predicted over measured time, median"),
            *(
                [(f"{statistics.median(chosen):.2f}x", "the fastest algorithm's time with auto, median")]
                if chosen
                else []
            ),
            (f"{len(rows):,}", f"sums timed in {len(gangs)} gangs"),
        ],
        doubts=doubts(rows, asked=study.count()),
        data=[link_table(gangs)],
        claims=check_collective_claims(gangs),
        source=(
            "The claims are those of this library. Costs of the algorithms are those of "
            f"{'; '.join(map(str, _COSTS.values()))}."
        ),
        figures=[collective_figure(gangs), *([parts_figure(parts)] if parts else [])],
        tables=[*map(collective_table, gangs), *([parts_table(parts)] if parts else [])],
        rows=rows,
        citations=[one.bibtex(key) for key, one in _COSTS.items()],
    )


def collective_figure(gangs: Sequence[CollectiveGang]) -> Figure:
    """Return the figure of a study: a panel per gang."""
    columns = 2 if len(gangs) == 4 else 3
    panels = [_panel(gang) for gang in gangs]
    return Figure("collectives", "Time by length", _CAPTION, panels, columns, height=320, share="y")


def _panel(gang: CollectiveGang) -> Panel:
    sizes = gang.sizes()
    marks: list[Mark] = []
    for name in gang.algorithms():
        cells = [gang.at(n_bytes)[name] for n_bytes in sizes]
        number, label = ALGORITHMS.index(name), name.replace("_", " ")
        colour, marker = (*SERIES, MUTED)[number], (*MARKERS, "plus")[number]
        predicted = [row["predicted_s"] for row in cells]
        said = [f"{label}, predicted"] * len(sizes)
        marks.append(Line("predicted", sizes, predicted, colour, dash="dashed", width=1.0, names=said))
        marks.append(Line(label, sizes, [row["seconds"] for row in cells], colour, marker, width=1.6))
    chosen = [(n_bytes, row["seconds"]) for n_bytes in sizes if (row := gang.auto(n_bytes)) is not None]
    if chosen:
        x, y = zip(*chosen, strict=True)
        marks.append(Line("choice of auto", x, y, TEXT, "circle", width=0.0, size=14.0, hollow=True))
    ticks = {float(n_bytes): size_text(n_bytes) for n_bytes in sizes}
    return Panel(gang.name, Axis("length", "log", ticks=ticks), Axis("time", "log", "s"), marks)
