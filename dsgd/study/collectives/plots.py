"""The figure of a study of collectives: time by length, measured and predicted, one panel per gang."""

from __future__ import annotations

from collections.abc import Sequence

from dsgd.collectives.model import ALGORITHMS
from dsgd.report import Axis, Figure, Line, Mark, Panel
from dsgd.report.theme import MARKERS, MUTED, SERIES, TEXT
from dsgd.study.collectives.summary import CollectiveGang, size_text

__all__ = ["collective_figure"]

_CAPTION = (
    "Median time of an all-reduce of float32 vectors, of the slowest rank: marked as measured, dashed as the model "
    "predicts from a calibration in the same gang. Rings mark what auto takes."
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
        marks.append(Line("what auto takes", x, y, TEXT, "circle", width=0.0, size=14.0, hollow=True))
    ticks = {float(n_bytes): size_text(n_bytes) for n_bytes in sizes}
    return Panel(gang.name, Axis("length", "log", ticks=ticks), Axis("time", "log", "s"), marks)
