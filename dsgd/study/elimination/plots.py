"""The figures of the study of elimination: active samples, gap, savings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from dsgd.report import Axis, Band, Figure, Level, Line, Mark, Panel, period_axis
from dsgd.report.figures import Dash
from dsgd.report.theme import BLUE, GREEN, GREY, MUTED, ORANGE, PURPLE, SKY, TEXT, VERMILION, Colour
from dsgd.study.elimination.grid import PRESETS, REFERENCE, SOLVERS
from dsgd.study.elimination.model import TEN_GIGABIT
from dsgd.study.elimination.summary import EliminationCell, EliminationSummary
from dsgd.study.elimination.tables import simulated
from dsgd.study.frame.summary import Stat
from dsgd.study.published import STATEMENTS

__all__ = ["elimination_figures"]

_LOOKS: Final[dict[str, tuple[Colour, str, Dash]]] = {
    "none": (GREY, "plus", "dashed"),
    "single": (PURPLE, "inverted_triangle", "dotdash"),
    "multi": (BLUE, "circle", "solid"),
    "libsvm": (ORANGE, "square", "dotdash"),
    "aggressive": (VERMILION, "x", "dotted"),
    "average": (GREEN, "triangle", "dashed"),
    "conservative": (SKY, "hex", "dashed"),
    "auto": (TEXT, "diamond", "solid"),
    REFERENCE: (MUTED, "star", "dotted"),
}
_SHOWN_GAPS: Final = {"none", "multi", "libsvm", "aggressive", "auto"}
_ALL_RANKS: Final = (1, 2, 4, 8)
_SOLVERS: Final[dict[str, tuple[str, Dash]]] = {"block": ("circle", "solid"), "pairwise": ("square", "dashed")}
_HEIGHT: Final = 270


def elimination_figures(summary: EliminationSummary) -> list[Figure]:
    """Return the figures for which the study has runs."""
    makers = (_active, _gap, _work, _time, _cache, _sequential, _ranks)
    return [figure for make in makers if (figure := make(summary)).panels]


# -- curves, one panel per problem -----------------------------------------------------------------------------------


def _active(summary: EliminationSummary) -> Figure:
    panels = []
    for title, cells in _problems(summary):
        marks: list[Mark] = []
        for cell in cells:
            points = cell.rows[0]["curve"]
            share = [active / points["n_active"][0] for active in points["n_active"]]
            colour, _, dash = _LOOKS[cell.method]
            width = 2.4 if cell.method == "auto" else 1.5
            marks.append(Line(cell.method, [s / 1000 for s in points["n_iter"]], share, colour, dash=dash, width=width))
        x = Axis("steps on two variables, thousands", low=0.0)
        panels.append(Panel(title, x, Axis("samples still active", unit="%", low=0.0, high=1.04), marks))
    caption = (
        "Share of the samples that are still active, against the steps of the solver, with the small cache. A line "
        "that falls early saves most; one that rises again had left samples out wrongly and took them back. A line "
        "ends with the run, when all samples are checked in float64."
    )
    return Figure("active", "Who stays active", caption, panels, height=_HEIGHT)


def _gap(summary: EliminationSummary) -> Figure:
    panels = []
    for title, cells in _problems(summary):
        marks: list[Mark] = []
        for cell in [cell for cell in cells if cell.method in _SHOWN_GAPS] or cells:
            points = cell.rows[0]["curve"]
            known = [(s, gap) for s, gap in zip(points["seconds"], points["gap"], strict=True) if gap and s]
            if known:
                x, y = zip(*known, strict=True)
                colour, _, dash = _LOOKS[cell.method]
                marks.append(Line(cell.method, x, y, colour, dash=dash, width=2.4 if cell.method == "auto" else 1.5))
        marks.append(Level(cells[0].rows[0]["tol"], "tol", MUTED, "solid"))
        gap = Axis("gap among active samples", "log")
        panels.append(Panel(title, Axis("time", unit="s", low=0.0), gap, marks))
    caption = (
        "Largest violation of optimality among the active samples against seconds, with the small cache; a run ends "
        "only when it is below tol over all samples."
    )
    return Figure("gap", "How the gap closes", caption, panels, height=_HEIGHT)


def _problems(summary: EliminationSummary) -> list[tuple[str, list[EliminationCell]]]:
    """Return the cells of the presets of each problem at the smallest cache, with a title."""
    found = []
    for name in summary.problems():
        if cells := summary.presets(name, summary.tight()):
            row = cells[0].rows[0]
            found.append((f"{name}: {row['rows']:,} rows, {row['n_support'] / row['rows']:.0%} SVs", cells))
    return found


# -- dots, one line per problem --------------------------------------------------------------------------------------


def _work(summary: EliminationSummary) -> Figure:
    axis = Axis("kernel values, as a multiple of none", "log", "x")
    panels = _dots(summary, axis, _to_none(summary, "kernel_evaluations"), [Level(1.0, "none", TEXT, "solid", "x")])
    caption = "As a multiple of what the run without elimination computes. Left of the line elimination saves work."
    return _sideways(summary, "work", "Kernel values computed", caption, panels)


def _time(summary: EliminationSummary) -> Figure:
    low, high = 1 - STATEMENTS["shrinking/saved"].margin.published, 1 - STATEMENTS["shrinking/saved"].margin.least
    marks: list[Mark] = [
        Band(low, high, "published: 30 to 60 % less", along="x"),
        Level(1.0, "none", TEXT, "solid", "x"),
    ]
    panels = _dots(summary, Axis("time, as a multiple of none", "log", "x"), _to_none(summary, "seconds"), marks)
    caption = (
        "As a multiple of the run without elimination, bars from the fastest to the slowest repetition. Grey: the "
        "published 30 to 60 % less."
    )
    return _sideways(summary, "time", "Time", caption, panels)


def _to_none(summary: EliminationSummary, name: str) -> Callable[[EliminationCell], Stat | None]:
    def pick(cell: EliminationCell) -> Stat | None:
        base = summary.cell(cell.problem, "none", cell.cache)
        return cell.ratio(base, name) if base and cell.method != "none" else None

    return pick


def _cache(summary: EliminationSummary) -> Figure:
    axis = Axis("share of the used kernel values that were cached", unit="%", low=-0.02, high=1.02)
    panels = _dots(summary, axis, lambda cell: cell.stat("cache_share"))
    caption = (
        "Of the kernel values that blocks used, the share that was found in the cache. Fewer active samples make "
        "shorter rows, of which more fit, so with a small cache the share rises. With one that fits it falls: what is "
        "left out would have been read from the cache."
    )
    return _sideways(summary, "cache", "What the cache gives", caption, panels)


def _sequential(summary: EliminationSummary) -> Figure:
    def pick(cell: EliminationCell) -> Stat | None:
        base = summary.cell(cell.problem, REFERENCE, cell.cache)
        return base.ratio(cell, "seconds") if base else None

    published = STATEMENTS["shrinking/sequential"].margin.least
    marks = [
        Level(1.0, "as fast", TEXT, "solid", "x"),
        Level(published, f"published: {published:.0f}x", VERMILION, along="x"),
    ]
    panels = _dots(summary, Axis("speed-up over scikit-learn's SVC", "log", "x"), pick, marks)
    caption = (
        "Speed-up over scikit-learn's SVC, which is LIBSVM on one thread with its own shrinking, at the same tolerance "
        "and cache."
    )
    return _sideways(summary, "sequential", "Against the sequential baseline", caption, panels)


def _sideways(summary: EliminationSummary, name: str, title: str, caption: str, panels: Sequence[Panel]) -> Figure:
    """Return a figure with a line for each problem, and a panel for each cache."""
    return Figure(name, title, caption, panels, 2, 90 + 46 * len(summary.problems()), "xy")


def _dots(
    summary: EliminationSummary, axis: Axis, pick: Callable[[EliminationCell], Stat | None], behind: Sequence[Mark] = ()
) -> list[Panel]:
    """Return a panel per cache, a band per problem, and in it a dot per preset with its range over repetitions."""
    problems = summary.problems()
    found = [
        (cell, stat)
        for problem in problems
        for cache in summary.caches()
        for cell in summary.presets(problem, cache)
        if (stat := pick(cell)) is not None
    ]
    methods = [method for method in PRESETS if any(cell.method == method for cell, _ in found)]
    side = Axis(
        ticks={float(n): name for n, name in enumerate(problems)}, low=-0.5, high=len(problems) - 0.5, grid=False,
        reverse=True,
    )  # fmt: skip
    panels = []
    for cache in summary.caches() if found else ():
        marks: list[Mark] = [Band(n - 0.5, n + 0.5) for n in range(0, len(problems), 2)]
        marks += behind
        for number, method in enumerate(methods):
            chosen = [(cell, stat) for cell, stat in found if (cell.cache, cell.method) == (cache, method)]
            offset = 0.72 * ((number + 0.5) / len(methods) - 0.5)
            colour, marker, _ = _LOOKS[method]
            if chosen:
                marks.append(
                    Line(
                        method,
                        [stat.median for _, stat in chosen],
                        [problems.index(cell.problem) + offset for cell, _ in chosen],
                        colour,
                        marker,
                        width=0.0,
                        size=8.0,
                        ranges=[(stat.low, stat.high) for _, stat in chosen],
                        ranges_along="x",
                        names=[f"{method} on {cell.problem}" for cell, _ in chosen],
                    )
                )
        panels.append(Panel(summary.cache_text(cache), axis, side, marks))
    return panels


# -- ranks -----------------------------------------------------------------------------------------------------------


def _ranks(summary: EliminationSummary) -> Figure:
    """Draw a panel per problem: seconds against ranks, full dots measured, rings simulated."""
    panels = []
    for problem in summary.problems():
        marks: list[Mark] = []
        for solver in SOLVERS:
            marker, dash = _SOLVERS[solver]
            for method in PRESETS:
                cells = summary.distributed(problem, solver, method)
                if not cells:
                    continue
                colour, label = _LOOKS[method][0], f"{solver}, {method}"
                if cells[0].ranks == 1:
                    seconds = [simulated(cells[0], ranks, TEN_GIGABIT).total_s for ranks in _ALL_RANKS]
                    marks.append(
                        Line(f"{label}, simulated", _ALL_RANKS, seconds, colour, marker, "dotted", 1.4, hollow=True)
                    )
                ranks = [cell.ranks or 1 for cell in cells]
                marks.append(Line(label, ranks, [cell.median("seconds") for cell in cells], colour, marker, dash))
        if marks:
            panels.append(Panel(problem, period_axis("ranks", _ALL_RANKS), Axis("time", "log", "s"), marks))
    caption = (
        "Seconds against ranks. Full: measured, one thread per rank. Rings: simulated from what one rank counted, "
        "kernel values divided among the ranks and messages by the cost model; waiting is not in it."
    )
    return Figure("ranks", "More ranks", caption, panels, height=_HEIGHT)
