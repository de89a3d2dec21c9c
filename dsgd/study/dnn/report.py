"""The report of the study of neural networks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from dsgd.report import Axis, Figure, Line, Page, Panel, origin_doubts
from dsgd.report.figures import series, texts_at
from dsgd.report.theme import MUTED
from dsgd.study.dnn.grid import DnnStudy
from dsgd.study.dnn.summary import DnnGang, check_dnn_claims, dnn_answer, dnn_data_table, dnn_table, summarise_dnn
from dsgd.study.frame.missing import missing_runs
from dsgd.study.frame.report import facts, joined, where
from dsgd.study.published import citations, sources_of

__all__ = ["curves_figure", "dnn_doubts", "dnn_page", "pareto_figure"]

_SENT: Final = Axis("sent by all ranks", "log", "B")
_SECONDS: Final = Axis("seconds", "log", "s")
_ERROR: Final = Axis("test error", "log", "%")


def dnn_page(study: DnnStudy, rows: Sequence[dict[str, Any]]) -> Page:
    """Return the report of a study from its finished runs, at least one."""
    gangs = summarise_dnn(rows)
    figures = [pareto_figure(gangs)] if gangs else []
    # With one point per curve, the first figure shows all there is.
    if gangs and len(study.looks) > 1:
        figures.append(curves_figure(gangs))
    return Page(
        title="How should the ranks of a neural network synchronise?",
        answer=dnn_answer(gangs),
        ran=facts(
            rows,
            ("Ranks", f"{joined(study.ranks)}; {where(study.network)}"),
            (
                "Training",
                f"{study.batch} rows of a rank in a step, rate {study.lr:g}, momentum {study.momentum:g}; evaluated "
                f"after {joined(study.looks)} epochs; seeds {joined(study.seeds)}",
            ),
        ),
        doubts=dnn_doubts(study, rows),
        data=[dnn_data_table(rows)],
        claims=check_dnn_claims(gangs),
        source="What this library promises.",
        figures=figures,
        tables=[dnn_table(gang) for gang in gangs],
        rows=rows,
        citations=citations(sources_of(row["sync"] for row in rows)),
    )


def dnn_doubts(study: DnnStudy, rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return what makes figures of a study hard to compare."""
    missing = missing_runs(len(rows), study.count())
    found = [*([missing] if missing else []), *origin_doubts(rows)]
    if study.network is not None:
        found.append("Seconds are those of a virtual clock with an estimated cost of work; bytes and models are real.")
        return found
    cores = rows[-1]["machine"]["cores"]
    if max(row["ranks"] for row in rows) > cores:
        found.append(f"There are {cores} cores: gangs with more ranks take turns, which makes their times longer.")
    return found


def pareto_figure(gangs: Sequence[DnnGang]) -> Figure:
    """Return test error against bytes and seconds at the end of training, a line of two panels per gang."""
    panels = []
    for gang in gangs:
        for cost, axis in (("bytes_sent", _SENT), ("train_s", _SECONDS)):
            front = gang.front(cost)
            points = {cell.name: (cell.median(cost), 1.0 - cell.median("test_accuracy")) for cell in gang.cells}
            edge = [points[name] for name in front]
            x, y = [point[0] for point in edge], [point[1] for point in edge]
            # Labels of the others would overlap; the legend names them.
            written = texts_at({name: points[name] for name in front})
            marks = [Line("Pareto front", x, y, MUTED, width=1.2, steps=True)]
            for number, (name, (at, error)) in enumerate(points.items()):
                colour, marker, _ = series(number)
                marks.append(Line(name, [at], [error], colour, marker, width=0, size=8, names=[name], written=written))
            costs, errors = zip(*points.values(), strict=True)
            panels.append(Panel(_title(gang), _roomy(axis, costs, 0.25), _roomy(_ERROR, errors, 0.12), marks))
    caption = (
        "Test error of the model that training returns, against what all ranks have sent and against the time it took. "
        "The line joins the Pareto front: no other method is better in both."
    )
    return Figure("pareto", "Accuracy for bytes and for seconds", caption, panels, columns=2, height=330)


def curves_figure(gangs: Sequence[DnnGang]) -> Figure:
    """Return test error against bytes and seconds after some epochs and at the end, a line of panels per gang."""
    panels = []
    for gang in gangs:
        for cost, axis in (("bytes_sent", _SENT), ("seconds", _SECONDS)):
            marks = []
            for number, cell in enumerate(gang.cells):
                colour, marker, dash = series(number)
                curve = cell.curve()
                names = [f"{cell.name} after {point['epoch']:g} epochs" for point in curve]
                x, y = [point[cost] for point in curve], [1.0 - point["accuracy"] for point in curve]
                marks.append(Line(cell.name, x, y, colour, marker, dash, names=names))
            panels.append(Panel(_title(gang), axis, _ERROR, marks))
    caption = "Each point is a training of its own, from the same start, that ends after so many epochs."
    return Figure("curves", "Test error during training", caption, panels, columns=2, height=330)


def _roomy(axis: Axis, values: Sequence[float], share: float) -> Axis:
    """Return an axis with a share of its length left free below the values, for the names of points.

    Values within a factor of four get a linear axis, since a logarithmic one has few ticks there.
    """
    low, high = min(values), max(values)
    if low <= 0.0 or high <= 4.0 * low:
        room = (high - low) or 0.5 * high or 1.0
        return replace(axis, scale="linear", low=max(0.0, low - share * room), high=high + 0.08 * room)
    factor = high / low
    return replace(axis, low=low / factor**share, high=high * factor**0.08)


def _title(gang: DnnGang) -> str:
    return f"{gang.model.upper()}, {gang.ranks} ranks ({where(gang.network)})"
