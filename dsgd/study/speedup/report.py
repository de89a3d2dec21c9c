"""The report of the study of speed-up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dsgd.report import Axis, Bars, Figure, Level, Line, Page, Panel, figure_text, series, span_of
from dsgd.report.figures import Words
from dsgd.report.theme import ORANGE
from dsgd.study.frame.report import data_table, doubts, facts, joined
from dsgd.study.frame.rows import Row, check_rows
from dsgd.study.published import SOURCES, citations
from dsgd.study.speedup.grid import SpeedupStudy, Way
from dsgd.study.speedup.summary import (
    SpeedupSet,
    check_speedup_claims,
    speedup_table,
    speedup_verdict,
    summarise_speedup,
)

__all__ = ["speedup_page"]

_CURVES: Final = (
    "Test accuracy against the seconds of a whole fit, from its checks to its last synchronisation; a point for each "
    "number of epochs. Medians over seeds, bars from the fastest to the slowest."
)
_BARS: Final = "Seconds of the shortest fit that is accurate, over those of one thread of dsgd: lower is better."
_COMMONEST: Final = "commonest label: test accuracy of always predicting it."


def speedup_page(study: SpeedupStudy, rows: Sequence[Row]) -> Page:
    """Return the report of a study from its finished fits.

    Raises
    ------
    DsgdError
        There are no rows.
    """
    check_rows(rows)
    sets = summarise_speedup(rows, margin=study.margin)
    ways = list(dict.fromkeys(way for one in sets for way in one.ways))
    return Page(
        title="When are several processes faster than one?",
        answer=speedup_verdict(sets),
        ran=facts(
            rows,
            ("Ways", f"{'; '.join(way.name for way in ways)}; seeds {joined(study.seeds)}"),
            (
                "Model",
                f"averaged SGD, {study.loss} loss, alpha {study.alpha:g}, {study.dtype}; {joined(study.epochs)} epochs",
            ),
        ),
        highlights=_highlights(sets),
        doubts=doubts(rows, asked=study.count()),
        data=[data_table(rows, "features", "non-zero", "commonest label", "best possible", note=_COMMONEST)],
        claims=check_speedup_claims(sets),
        source="The claims are those of this library. Rows are made by the workers that train on them.",
        figures=[
            Figure("speedup", "Accuracy against seconds", _CURVES, [_curves(one, ways) for one in sets], columns=2),
            Figure("speedup_seconds", "Seconds to the accuracy", _BARS, [_bars(one) for one in sets], columns=2),
        ],
        tables=[speedup_table(one) for one in sets],
        rows=rows,
        citations=citations([SOURCES["local"]]),
    )


def _highlights(sets: Sequence[SpeedupSet]) -> list[tuple[str, str]]:
    found = []
    for other, text in ((Way("threads", 1), "one thread"), (Way("scikit-learn", 1), "scikit-learn")):
        gains = [gain for one in sets if (way := one.best()) and (gain := one.gain(way, other))]
        if gains:
            found.append((span_of(gains, "{:.2g}") + "x", f"as fast as {text}, workers that have their rows"))
    return found


def _curves(one: SpeedupSet, ways: Sequence[Way]) -> Panel:
    """Return accuracy over seconds, a line per way."""
    marks: list[Line | Level] = [Level(one.target, "target", ORANGE)]
    for number, way in enumerate(ways):
        cells = one.curve(way)
        colour, marker, dash = series(number)
        ends = [stat for cell in cells if (stat := cell.stat("fit_s"))]
        marks.append(
            Line(
                way.name,
                [stat.median for stat in ends],
                [cell.median("test_accuracy") for cell in cells],
                colour,
                marker,
                dash,
                ranges=[(stat.low, stat.high) for stat in ends],
                ranges_along="x",
                names=[f"{way.name}, {cell.epochs} epochs" for cell in cells],
            )
        )
    return Panel(one.dataset, Axis("time of a fit", "log", "s"), Axis("test accuracy", unit="%"), marks)


def _folded(name: str) -> str:
    """Return a name with a line for each word of it."""
    return name.replace(", ", "\n").replace(" ", "\n", 1)


def _bars(one: SpeedupSet) -> Panel:
    """Return the seconds to the accuracy, a bar per way that reaches it."""
    found = [(way, cell) for way in one.ways if (cell := one.soonest(way))]
    alone = one.soonest(Way("threads", 1))
    unit = alone.median("fit_s") if alone else 1.0
    heights = [cell.median("fit_s") / unit for _, cell in found]
    places = [float(k) for k in range(len(found))]
    bars = Bars(
        "",
        [place - 0.35 for place in places],
        [place + 0.35 for place in places],
        [0.0] * len(found),
        heights,
        names=[f"{way.name}: {figure_text(cell.median('fit_s'))} s" for way, cell in found],
    )
    texts = [f"{figure_text(cell.median('fit_s'))} s" for _, cell in found]
    ticks = {place: _folded(way.name) for place, (way, _) in zip(places, found, strict=True)}
    top = max(heights, default=1.0)
    return Panel(
        one.dataset,
        Axis(ticks=ticks, grid=False),
        Axis("time, 1 thread = 1", low=0.0, high=1.15 * top),
        [bars, Words(places, heights, texts)],
    )
