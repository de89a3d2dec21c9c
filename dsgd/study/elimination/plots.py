"""The figures of the study of elimination: who stays active, how the gap closes, what is saved."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, PercentFormatter

from dsgd.study.drawing import log_scale, picture, share_legend, spread
from dsgd.study.elimination.claims import LESS_TIME, SEQUENTIAL
from dsgd.study.elimination.grid import PRESETS, REFERENCE, SOLVERS
from dsgd.study.elimination.model import TEN_GIGABIT
from dsgd.study.elimination.summary import EliminationCell, EliminationSummary
from dsgd.study.elimination.tables import simulated
from dsgd.study.summary import Stat
from dsgd.study.theme import DARK, LIGHT, PRESET_DASHES, PRESET_MARKERS, VERMILION, Theme, preset_colour, rc_params

__all__ = ["FIGURES", "EliminationFigure", "draw_elimination"]

_COLUMNS: Final = 3


@dataclass(frozen=True)
class EliminationFigure:
    """One figure of the report.

    Parameters
    ----------
    name : str
        Name of the file, without its ending.
    title : str
        Heading in the report.
    caption : str
        How to read it.
    plot : callable
        Takes the summary and the theme and returns the figure, or None where there is nothing to show.
    """

    name: str
    title: str
    caption: str
    plot: Callable[[EliminationSummary, Theme], Figure | None]


def draw_elimination(spec: EliminationFigure, summary: EliminationSummary, *, dark: bool = False) -> bytes | None:
    """Return a figure as PNG, or None where the study ran nothing that it could show.

    Parameters
    ----------
    spec : EliminationFigure
        Which figure.
    summary : EliminationSummary
        The study.
    dark : bool, default False
        Draw on a dark ground.
    """
    theme = DARK if dark else LIGHT
    with mpl.rc_context(rc_params(theme)):
        figure = spec.plot(summary, theme)
        return None if figure is None else picture(figure)


# -- curves, one panel per problem -----------------------------------------------------------------------------------


def _panels(summary: EliminationSummary) -> tuple[Figure, list[tuple[Any, list[EliminationCell]]]]:
    """Return a figure with a panel per problem, each with the cells of its presets at the smallest cache."""
    problems = [name for name in summary.problems() if summary.presets(name, _tight(summary))]
    columns = min(_COLUMNS, len(problems))
    lines = math.ceil(len(problems) / columns)
    figure = Figure(figsize=(3.9 * columns, 2.55 * lines + 0.3), layout="constrained")
    axes = figure.subplots(lines, columns, squeeze=False).ravel()
    for axis in axes[len(problems) :]:
        axis.set_axis_off()
    panels = []
    for axis, name in zip(axes, problems, strict=False):
        cells = summary.presets(name, _tight(summary))
        row = cells[0].rows[0]
        axis.set_title(name, pad=14)
        about = f"{row['rows']:,} rows, {row['n_support'] / row['rows']:.0%} support vectors"
        axis.annotate(about, (0, 1), xycoords="axes fraction", xytext=(0, 3), textcoords="offset points", fontsize=8)
        panels.append((axis, cells))
    return figure, panels


def _active(summary: EliminationSummary, theme: Theme) -> Figure | None:
    if not summary.caches():
        return None
    figure, panels = _panels(summary)
    for number, (axis, cells) in enumerate(panels):
        ends = []
        for cell in cells:
            points = cell.rows[0]["curve"]
            share = [100 * active / points["n_active"][0] for active in points["n_active"]]
            steps = [step / 1000 for step in points["n_iter"]]
            axis.plot(steps, share, **_line(cell.method, theme))
            axis.plot(steps[-1:], share[-1:], ".", color=preset_colour(cell.method, theme), markersize=5)
            ends.append((steps[-1], share[-1], cell.method))
        last = max(end[0] for end in ends)
        axis.set_xlim(0, 1.02 * last)
        axis.set_ylim(0, 104)
        axis.yaxis.set_major_formatter(PercentFormatter(decimals=0))
        axis.yaxis.set_major_locator(MaxNLocator(5))
        axis.xaxis.set_major_locator(MaxNLocator(5))
        _label_ends(axis, ends, 1.02 * last, theme)
        axis.set_xlabel("steps on two variables, thousands")
        if number % _COLUMNS == 0:
            axis.set_ylabel("samples still active")
    return figure


def _gap(summary: EliminationSummary, theme: Theme) -> Figure | None:
    if not summary.caches():
        return None
    figure, panels = _panels(summary)
    for number, (axis, cells) in enumerate(panels):
        shown = [cell for cell in cells if cell.method in {"none", "multi", "libsvm", "aggressive", "auto"}] or cells
        ends = []
        for cell in shown:
            points = cell.rows[0]["curve"]
            known = [
                (second, gap) for second, gap in zip(points["seconds"], points["gap"], strict=True) if gap and second
            ]
            if not known:
                continue
            axis.plot(*zip(*known, strict=True), **_line(cell.method, theme))
            ends.append((*known[-1], cell.method))
        tol = cells[0].rows[0]["tol"]
        axis.axhline(tol, color=theme.muted, linewidth=1)
        log_scale(axis.yaxis)
        axis.yaxis.set_major_locator(LogLocator(numticks=6))
        axis.xaxis.set_major_locator(MaxNLocator(5))
        axis.set_xlim(left=0)
        axis.annotate(
            f"tol {tol:g}", (0, tol), xycoords=("axes fraction", "data"), xytext=(3, 2), textcoords="offset points",
            fontsize=7.5, color=theme.muted,
        )  # fmt: skip
        axis.set_xlabel("seconds")
        if number % _COLUMNS == 0:
            axis.set_ylabel("gap among active samples")
    shown_axes = [axis for axis, _ in panels]
    share_legend(figure, [shown_axes[start : start + _COLUMNS] for start in range(0, len(shown_axes), _COLUMNS)])
    return figure


def _line(method: str, theme: Theme) -> dict[str, Any]:
    style = {"color": preset_colour(method, theme), "linewidth": 2.0 if method == "auto" else 1.3, "label": method}
    return style | ({"dashes": PRESET_DASHES[method]} if PRESET_DASHES[method] else {})


def _label_ends(axis: Any, ends: Sequence[tuple[float, float, str]], right: float, theme: Theme) -> None:
    """Name each line at the right border, one below the other, and lead from its end to its name."""
    low, high = axis.get_ylim()
    places = spread([end[1] for end in ends], 0.11 * (high - low), low, high)
    for (x, y, method), place in zip(ends, places, strict=True):
        colour = preset_colour(method, theme)
        axis.plot([x, right, 1.06 * right], [y, y, place], color=colour, linewidth=0.5, clip_on=False)
        axis.annotate(
            method, (1.06 * right, place), xytext=(2, 0), textcoords="offset points", va="center", fontsize=7.5,
            color=colour, annotation_clip=False,
        )  # fmt: skip


# -- dots, one line per problem --------------------------------------------------------------------------------------


def _work(summary: EliminationSummary, theme: Theme) -> Figure | None:
    return _relative(summary, theme, "kernel_evaluations", "kernel values computed, as a multiple of none")


def _time(summary: EliminationSummary, theme: Theme) -> Figure | None:
    return _relative(summary, theme, "seconds", "time, as a multiple of none")


def _relative(summary: EliminationSummary, theme: Theme, name: str, label: str) -> Figure | None:
    def pick(cell: EliminationCell) -> Stat | None:
        base = summary.cell(cell.problem, "none", cell.cache)
        return cell.ratio(base, name) if base and cell.method != "none" else None

    figure = _dots(summary, theme, pick)
    if figure is None:
        return None
    for axis in figure.axes:
        log_scale(axis.xaxis)
        _times(axis)
        low, high = axis.get_xlim()
        axis.set_xlim(min(low, 0.45), max(high, 1.25))
        axis.axvline(1, color=theme.text, linewidth=1.2)
        if name == "seconds":
            axis.axvspan(1 - LESS_TIME[1], 1 - LESS_TIME[0], color=theme.muted, alpha=0.12, linewidth=0)
        axis.set_xlabel(label)
    return figure


def _times(axis: Any) -> None:
    """Write a logarithmic axis of ratios as 0.5x, 1x, 2x."""
    low, high = axis.get_xlim()
    wide = high / low > 20
    ticks = [digit * 10.0**power for power in range(-4, 5) for digit in ((1, 2, 5) if wide else (1, 1.5, 2, 3, 5, 7))]
    axis.xaxis.set_major_locator(FixedLocator(ticks))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))


def _cache(summary: EliminationSummary, theme: Theme) -> Figure | None:
    figure = _dots(summary, theme, lambda cell: cell.stat("cache_share"), scale=100.0)
    for axis in figure.axes if figure else ():
        axis.set_xlim(-2, 102)
        axis.xaxis.set_major_formatter(PercentFormatter(decimals=0))
        axis.set_xlabel("share of the used kernel values that were cached")
    return figure


def _sequential(summary: EliminationSummary, theme: Theme) -> Figure | None:
    def pick(cell: EliminationCell) -> Stat | None:
        base = summary.cell(cell.problem, REFERENCE, cell.cache)
        return base.ratio(cell, "seconds") if base else None

    figure = _dots(summary, theme, pick)
    for axis in figure.axes if figure else ():
        log_scale(axis.xaxis)
        _times(axis)
        low, high = axis.get_xlim()
        axis.set_xlim(min(low, 0.8), max(high, 1.3 * SEQUENTIAL))
        axis.axvline(1, color=theme.text, linewidth=1.2)
        axis.axvline(SEQUENTIAL, color=VERMILION, linewidth=1, dashes=(4, 2))
        axis.annotate(
            f"published: {SEQUENTIAL:.0f}x", (SEQUENTIAL, 0), xycoords=("data", "axes fraction"), xytext=(-3, 4),
            textcoords="offset points", ha="right", fontsize=7.5, color=VERMILION,
        )  # fmt: skip
        axis.set_xlabel("speed-up over scikit-learn's SVC")
    return figure


def _dots(
    summary: EliminationSummary, theme: Theme, pick: Callable[[EliminationCell], Stat | None], *, scale: float = 1.0
) -> Figure | None:
    """Return a panel per cache, a band per problem, and in it a dot per preset with its range over repetitions."""
    problems, caches = summary.problems(), summary.caches()
    found = [
        (cell, stat)
        for problem in problems
        for cache in caches
        for cell in summary.presets(problem, cache)
        if (stat := pick(cell)) is not None
    ]
    if not found:
        return None
    methods = [method for method in PRESETS if any(cell.method == method for cell, _ in found)]
    figure = Figure(figsize=(1.6 + 4.8 * len(caches), 1.2 + 0.62 * len(problems)), layout="constrained")
    axes = figure.subplots(1, len(caches), squeeze=False, sharex=True, sharey=True)[0]
    for axis, cache in zip(axes, caches, strict=True):
        for number, method in enumerate(methods):
            chosen = [(problems.index(c.problem), s) for c, s in found if (c.cache, c.method) == (cache, method)]
            offset = 0.72 * ((number + 0.5) / len(methods) - 0.5)
            places = [place + offset for place, _ in chosen]
            middles = [scale * stat.median for _, stat in chosen]
            colour = preset_colour(method, theme)
            for place, (_, stat) in zip(places, chosen, strict=True):
                axis.plot([scale * stat.low, scale * stat.high], [place, place], color=colour, linewidth=1.2, alpha=0.6)
            axis.plot(middles, places, PRESET_MARKERS[method], color=colour, markersize=6, label=method)
        for place in range(0, len(problems), 2):
            axis.axhspan(place - 0.5, place + 0.5, color=theme.grid, alpha=0.45, linewidth=0)
        axis.set_yticks(range(len(problems)), problems)
        axis.tick_params(axis="y", length=0)
        axis.grid(visible=False, axis="y")
        axis.set_ylim(len(problems) - 0.5, -0.5)
        axis.set_title(_CACHE_TITLES[cache])
    axes[0].tick_params(axis="y", labelcolor=theme.text, labelsize=9.5)
    share_legend(figure, [list(axes)])
    return figure


# -- ranks -----------------------------------------------------------------------------------------------------------


def _ranks(summary: EliminationSummary, theme: Theme) -> Figure | None:
    """Return a panel per problem: seconds against ranks, full dots measured, open ones simulated."""
    problems = [name for name in summary.problems() if any(c.problem == name and c.ranks for c in summary.cells)]
    if not problems:
        return None
    columns = min(_COLUMNS, len(problems))
    lines = math.ceil(len(problems) / columns)
    figure = Figure(figsize=(3.7 * columns + 0.6, 3.0 * lines + 0.7), layout="constrained")
    axes = list(figure.subplots(lines, columns, squeeze=False).ravel())
    for axis in axes[len(problems) :]:
        axis.set_axis_off()
    for number, (axis, problem) in enumerate(zip(axes, problems, strict=False)):
        for solver in SOLVERS:
            for method in PRESETS:
                cells = summary.distributed(problem, solver, method)
                if cells:
                    _rank_line(axis, cells, f"{solver}, {method}", theme)
        log_scale(axis.yaxis)
        axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_xscale("log", base=2)
        axis.set_xticks(_ALL_RANKS, [str(ranks) for ranks in _ALL_RANKS])
        axis.set_title(problem)
        axis.set_xlabel("ranks")
        if number % columns == 0:
            axis.set_ylabel("seconds")
    share_legend(figure, [axes[start : start + columns] for start in range(0, len(axes), columns)])
    return figure


def _rank_line(axis: Any, cells: Sequence[EliminationCell], label: str, theme: Theme) -> None:
    """Draw one method: a line through what was measured, and on from one rank through what was simulated."""
    method = cells[0].method
    style = {"color": preset_colour(method, theme), "linewidth": 1.5}
    marker = _SOLVER_MARKERS[cells[0].solver]
    axis.plot(
        [cell.ranks for cell in cells], [cell.median("seconds") for cell in cells], marker, linestyle="-", label=label,
        markersize=6, **style,
    )  # fmt: skip
    if cells[0].ranks != 1:
        return
    found = [simulated(cells[0], ranks, TEN_GIGABIT).total_s for ranks in _ALL_RANKS]
    axis.plot(
        _ALL_RANKS, found, marker, linestyle=":", markerfacecolor=theme.ground, markersize=6, zorder=1.5,
        label=f"{label}, simulated", **style,
    )  # fmt: skip


_ALL_RANKS: Final = (1, 2, 4, 8)
_SOLVER_MARKERS: Final = {"block": "o", "pairwise": "s"}
_CACHE_TITLES: Final = {"small": "Cache of a tenth of the matrix", "fits": "Cache that fits"}


def _tight(summary: EliminationSummary) -> str:
    caches = summary.caches()
    return "small" if "small" in caches else caches[0]


FIGURES: Final = (
    EliminationFigure(
        "active",
        "Who stays active",
        "Share of the samples that are still active, against the steps of the solver, with the small cache. A line "
        "that falls early saves most; one that rises again had left samples out wrongly and took them back. Dots: the "
        "end of the run, when all samples are checked in float64.",
        _active,
    ),
    EliminationFigure(
        "gap",
        "How the gap closes",
        "Largest violation of optimality among the active samples against seconds, with the small cache; a run ends "
        "only when it is below tol over all samples.",
        _gap,
    ),
    EliminationFigure(
        "work",
        "Kernel values computed",
        "As a multiple of what the run without elimination computes. Left of the line elimination saves work.",
        _work,
    ),
    EliminationFigure(
        "time",
        "Time",
        "As a multiple of the run without elimination, bars from the fastest to the slowest repetition. Grey: the "
        "published 30 to 60 % less.",
        _time,
    ),
    EliminationFigure(
        "cache",
        "What the cache gives",
        "Of the kernel values that blocks used, the share that was found in the cache. Fewer active samples make "
        "shorter rows, of which more fit, so with a small cache the share rises. With one that fits it falls: what is "
        "left out would have been read from the cache.",
        _cache,
    ),
    EliminationFigure(
        "sequential",
        "Against the sequential baseline",
        "Speed-up over scikit-learn's SVC, which is LIBSVM on one thread with its own shrinking, at the same tolerance "
        "and cache.",
        _sequential,
    ),
    EliminationFigure(
        "ranks",
        "More ranks",
        "Seconds against ranks. Full: measured, one thread per rank. Open: simulated from what one rank counted, "
        "kernel values divided among the ranks and messages by the cost model; waiting is not in it.",
        _ranks,
    ),
)
