"""The figures of the study of synchronisation.

One column of panels per dataset, so that a figure reads the same for one set and for three. Points are medians over
seeds, bars reach from the lowest to the highest seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, PercentFormatter

from dsgd.study import published
from dsgd.study.drawing import duration, picture, plain_log_y, reference, series, share_legend
from dsgd.study.summary import Cell, Stat, Summary
from dsgd.study.theme import (
    DARK,
    LIGHT,
    MARKERS,
    PHASE_COLOURS,
    PHASE_MARKERS,
    PHASES,
    VERMILION,
    Theme,
    rc_params,
)

__all__ = ["FIGURES", "FigureSpec", "draw", "hero"]


@dataclass(frozen=True)
class FigureSpec:
    """One figure of the report.

    Parameters
    ----------
    name : str
        Name of the file, without its ending.
    title : str
        Heading in the report.
    caption : str
        How to read it.
    rows : int
        Panels above each other.
    panel : callable
        Draws the panels of one dataset: takes the axes from top to bottom, the summary, the dataset and the theme.
    """

    name: str
    title: str
    caption: str
    rows: int
    panel: Callable[[Sequence[Any], Summary, str, Theme], None]


def draw(spec: FigureSpec, summary: Summary, *, dark: bool = False) -> bytes:
    """Return a figure as PNG.

    Parameters
    ----------
    spec : FigureSpec
        Which figure.
    summary : Summary
        The study.
    dark : bool, default False
        Draw on a dark ground.
    """
    theme = DARK if dark else LIGHT
    datasets = summary.datasets()
    with mpl.rc_context(rc_params(theme)):
        figure = Figure(figsize=(1.4 + 3.7 * len(datasets), 0.75 + 2.55 * spec.rows), layout="constrained")
        axes: Any = figure.subplots(spec.rows, len(datasets), squeeze=False)
        for column, dataset in enumerate(datasets):
            spec.panel(axes[:, column], summary, dataset, theme)
            axes[0, column].set_title(dataset)
        share_legend(figure, axes)
        return picture(figure)


def hero(summary: Summary, dataset: str, *, dark: bool = False) -> bytes:
    """Return the picture of the README: where time goes and what accuracy does, against the period, on one dataset.

    Parameters
    ----------
    summary : Summary
        The study.
    dataset : str
        Which of its datasets.
    dark : bool, default False
        Draw on a dark ground.
    """
    theme = DARK if dark else LIGHT
    with mpl.rc_context(rc_params(theme)):
        figure = Figure(figsize=(12.5, 3.9), layout="constrained")
        left, middle, right = figure.subplots(1, 3)
        cells = summary.parallel(dataset)
        _total_time(left, summary, dataset, theme)
        left.set_title(f"Training time on {dataset}")
        _stack_shares(middle, cells, theme)
        middle.set_title(f"Where it goes ({cells[0].ranks} processes)" if cells else "Where it goes")
        _accuracy(right, summary, dataset, theme)
        right.set_title("What it costs in accuracy")
        for axis in (left, middle, right):
            axis.set_xlabel(_PERIOD)
        share_legend(figure, [[left, middle, right]])
        return picture(figure)


# -- panels --------------------------------------------------------------------------------------------------------

_PERIOD: Final = "samples between two synchronisations (every)"


def _time_split(axes: Sequence[Any], summary: Summary, dataset: str, theme: Theme) -> None:
    cells = summary.parallel(dataset)
    splits = [_phase_seconds(cell) for cell in cells]
    for number, phase in enumerate(PHASES):
        points = [(cell.every, split[number]) for cell, split in zip(cells, splits, strict=True) if split[number] > 0]
        if points:
            style = {"color": PHASE_COLOURS[number], "marker": PHASE_MARKERS[number], "markersize": 4}
            axes[0].plot(*zip(*points, strict=True), label=f"_{phase}", **style)
    if sequential := summary.sequential(dataset):
        reference(axes[0], sequential.median("train_s"), "sequential run, in all", theme)
    _log_x(axes[0], _all_periods(summary, dataset))
    plain_log_y(axes[0])
    axes[0].set_ylabel("seconds per rank")
    _stack_shares(axes[1], cells, theme)
    axes[1].set_xlabel(_PERIOD)


def _time_accuracy(axes: Sequence[Any], summary: Summary, dataset: str, theme: Theme) -> None:
    _total_time(axes[0], summary, dataset, theme)
    _accuracy(axes[1], summary, dataset, theme)
    axes[1].set_xlabel(_PERIOD)


def _communication(axes: Sequence[Any], summary: Summary, dataset: str, theme: Theme) -> None:
    _per_ranks(axes[0], summary, dataset, lambda cell: cell.stat("communication_s"))
    plain_log_y(axes[0])
    axes[0].set_ylabel("wire + wait, s per rank")
    for number, ranks in enumerate(summary.ranks(dataset)):
        cells = summary.parallel(dataset, ranks)
        if cells and cells[0].every == 1 and (before := cells[0].median("communication_s")) > 0:
            shares = [cell.median("communication_s") / before for cell in cells]
            axes[1].plot(_periods(cells), shares, **series(number, f"{ranks} processes"))
    family = published.family(dataset)
    for ranks, dashes in ((2, (4, 2)), (32, (1, 1.5))) if family else ():
        seconds = published.COMMUNICATION_S[str(family)][ranks]
        axes[1].plot(
            list(seconds), [value / seconds[1] for value in seconds.values()],
            color=theme.muted, dashes=dashes, linewidth=1.4, label=f"published, {ranks} processes",
        )  # fmt: skip
    axes[1].axhline(1 - published.REDUCTION, color=VERMILION, linewidth=1, alpha=0.7, label="98 % less")
    _log_x(axes[1], _all_periods(summary, dataset))
    axes[1].set_yscale("log")
    axes[1].yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g}%"))
    axes[1].yaxis.set_minor_formatter(NullFormatter())
    axes[1].set_ylabel("share of every=1")
    axes[1].set_xlabel(_PERIOD)


def _speedup(axes: Sequence[Any], summary: Summary, dataset: str, theme: Theme) -> None:
    sequential = summary.sequential(dataset)
    base = sequential.median("train_s") if sequential else None

    def against_sequential(cell: Cell) -> Stat | None:
        return _ratio(base, cell.stat("train_s"))

    def against_frequent(cell: Cell) -> Stat | None:
        first = summary.cell(dataset, cell.ranks, 1)
        return _ratio(first.median("train_s") if first else None, cell.stat("train_s"))

    _per_ranks(axes[0], summary, dataset, against_sequential)
    axes[0].axhline(1, color=theme.text, linewidth=1, dashes=(4, 2), label="sequential run")
    for ranks in summary.ranks(dataset)[-1:]:
        axes[0].axhline(ranks, color=theme.muted, linewidth=1, dashes=(1, 1.5), label=f"ideal for {ranks} processes")
    axes[0].set_ylim(bottom=0)
    axes[0].set_ylabel("x sequential")
    _per_ranks(axes[1], summary, dataset, against_frequent)
    axes[1].set_ylim(bottom=0)
    axes[1].set_ylabel("x every=1")
    axes[1].set_xlabel(_PERIOD)


def _convergence(axes: Sequence[Any], summary: Summary, dataset: str, theme: Theme) -> None:
    cells = summary.parallel(dataset)
    colours = mpl.colormaps["viridis"]
    for number, cell in enumerate(cells):
        place = number / max(1, len(cells) - 1)
        # On a dark ground the dark end of the colour map would vanish, on a light one the light end.
        colour = colours(0.25 + 0.75 * place if theme.name == "dark" else 0.85 * place)
        _curve(axes, cell, f"every={cell.every:,}", color=colour, marker=MARKERS[number % len(MARKERS)], markersize=3.5)
    if sequential := summary.sequential(dataset):
        _curve(axes, sequential, "sequential run", color=theme.text, dashes=(4, 2))
    axes[1].set_xscale("log")
    axes[1].xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes[1].xaxis.set_minor_formatter(NullFormatter())
    axes[0].xaxis.get_major_locator().set_params(integer=True)
    axes[0].set_xlabel("epochs")
    axes[1].set_xlabel("seconds")
    for axis in axes:
        axis.set_ylabel("training loss")
        if len(cells) and all(point > 0 for line in axis.get_lines() for point in line.get_ydata()):
            axis.set_yscale("log")
            axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
            axis.yaxis.set_minor_formatter(NullFormatter())


def _dispersion(axes: Sequence[Any], summary: Summary, dataset: str, theme: Theme) -> None:
    del theme
    _per_ranks(axes[0], summary, dataset, lambda cell: cell.stat("dispersion"))
    if any(len(container) for container in axes[0].containers):
        plain_log_y(axes[0])
    axes[0].set_ylabel(r"$\frac{1}{P}\sum_r \|w_r-\bar w\|^2$")
    axes[0].set_xlabel(_PERIOD)


FIGURES: Final = (
    FigureSpec(
        "time_split",
        "Where the time goes",
        "Seconds per rank at the largest number of processes: local steps (compute), packing (encode), bytes moving "
        "(wire), waiting for a slower peer (wait), and the loop around them (other). Below, the same as shares of what "
        "is written above each bar.",
        2,
        _time_split,
    ),
    FigureSpec(
        "time_accuracy",
        "Time and accuracy against the period",
        "Training time, data placement excluded, and test accuracy of the averaged model. The dotted line is what "
        "always predicting the commonest label scores: a model on it has learnt nothing that accuracy can see.",
        2,
        _time_accuracy,
    ),
    FigureSpec(
        "communication",
        "Communication",
        "Wire plus waiting time per rank, and as a share of what it is at every=1. Grey: the published curves; "
        "communication does not fall as 1/every because waiting for the slowest rank remains.",
        2,
        _communication,
    ),
    FigureSpec(
        "speedup",
        "Speed-up",
        "Over the sequential run (top) and over synchronising every sample on as many processes (bottom).",
        2,
        _speedup,
    ),
    FigureSpec(
        "convergence",
        "Training loss against epochs and seconds",
        "Mean loss of the rows of an epoch, each before its own update. Rare synchronisation costs epochs and saves "
        "seconds; the curves against seconds show what is left of the gain. Median seed by training time.",
        2,
        _convergence,
    ),
    FigureSpec(
        "dispersion",
        "How far the ranks drift apart",
        "Mean squared distance of the ranks' models from their average, just before the last synchronisation.",
        1,
        _dispersion,
    ),
)


# -- parts of panels -----------------------------------------------------------------------------------------------


def _phase_seconds(cell: Cell) -> list[float]:
    return [cell.median(f"{phase}_s") for phase in PHASES]


def _stack_shares(axis: Any, cells: Sequence[Cell], theme: Theme) -> None:
    """Draw the shares of the phases as stacked bars, with the seconds they add up to above each bar."""
    # Totals differ by a factor of a hundred and more over the periods: as heights, all but the first would vanish.
    splits = [_phase_seconds(cell) for cell in cells]
    floor = [0.0] * len(cells)
    for number, phase in enumerate(PHASES):
        heights = [100 * split[number] / sum(split) for split in splits]
        axis.bar(range(len(cells)), heights, bottom=floor, color=PHASE_COLOURS[number], width=0.74, label=phase)
        floor = [low + height for low, height in zip(floor, heights, strict=True)]
    for place in range(len(cells)):
        axis.annotate(
            duration(cells[place].median("train_s")), (place, 100), xytext=(0, 2), textcoords="offset points",
            ha="center", fontsize=8 if len(cells) < 8 else 7, color=theme.muted,
        )  # fmt: skip
    axis.set_ylim(0, 108)
    axis.set_yticks([0, 20, 40, 60, 80, 100])
    axis.yaxis.set_major_formatter(PercentFormatter(decimals=0))
    axis.set_xticks(range(len(cells)), [f"{cell.every}" for cell in cells])
    axis.grid(visible=False, axis="x")
    axis.set_ylabel("share of rank time")


def _total_time(axis: Any, summary: Summary, dataset: str, theme: Theme) -> None:
    _per_ranks(axis, summary, dataset, lambda cell: cell.stat("train_s"))
    if sequential := summary.sequential(dataset):
        reference(axis, sequential.median("train_s"), "sequential run", theme)
    plain_log_y(axis)
    axis.set_ylabel("training time, s")


def _accuracy(axis: Any, summary: Summary, dataset: str, theme: Theme) -> None:
    _per_ranks(axis, summary, dataset, lambda cell: cell.stat("test_accuracy"), scale=100.0)
    cells = [cell for cell in summary.cells if cell.dataset == dataset]
    if sequential := summary.sequential(dataset):
        reference(axis, 100 * sequential.median("test_accuracy"), "sequential run", theme)
    stats = [stat for cell in cells if (stat := cell.stat("test_accuracy")) is not None]
    low, high = 100 * min(stat.low for stat in stats), 100 * max(stat.high for stat in stats)
    majority = 100 * cells[0].median("majority_accuracy")
    if majority > low - 5:
        axis.axhline(majority, color=theme.muted, dashes=(1, 1.5), linewidth=1.6, label="commonest label")
        low, high = min(low, majority), max(high, majority)
    else:  # far below: drawing it would flatten what there is to see
        text = f"always the commonest label: {majority:.1f}%"
        axis.annotate(text, (0.02, 0.03), xycoords="axes fraction", fontsize=8, color=theme.muted)
    # At least a point high, so that a tenth of a point does not look like a cliff.
    middle, half = (low + high) / 2, 0.58 * max(1.0, high - low)
    axis.set_ylim(middle - half, middle + half)
    axis.yaxis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10]))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}%"))
    axis.set_ylabel("test accuracy")


def _per_ranks(
    axis: Any, summary: Summary, dataset: str, pick: Callable[[Cell], Stat | None], *, scale: float = 1.0
) -> None:
    """Draw one line per number of ranks against the period, with the range over seeds."""
    for number, ranks in enumerate(summary.ranks(dataset)):
        points = [(cell.every, stat) for cell in summary.parallel(dataset, ranks) if (stat := pick(cell)) is not None]
        if not points:
            continue
        stats = [stat for _, stat in points]
        axis.errorbar(
            [every for every, _ in points],
            [scale * stat.median for stat in stats],
            yerr=[[scale * (s.median - s.low) for s in stats], [scale * (s.high - s.median) for s in stats]],
            elinewidth=1,
            capsize=2,
            **series(number, f"{ranks} processes"),
        )
    _log_x(axis, _all_periods(summary, dataset))


def _curve(axes: Sequence[Any], cell: Cell, label: str, **style: Any) -> None:
    rows = sorted((row for row in cell.rows if row.get("curve")), key=lambda row: float(row["train_s"]))
    if not rows:
        return
    points = [point for point in rows[len(rows) // 2]["curve"] if point["train_loss"] is not None]
    losses = [point["train_loss"] for point in points]
    axes[0].plot([point["epoch"] for point in points], losses, label=label, linewidth=1.5, **style)
    axes[1].plot([point["seconds"] for point in points], losses, label=label, linewidth=1.5, **style)


def _ratio(base: float | None, stat: Stat | None) -> Stat | None:
    if base is None or stat is None or stat.low <= 0:
        return None
    return Stat(base / stat.median, base / stat.high, base / stat.low)


def _periods(cells: Sequence[Cell]) -> list[int]:
    return [cell.every for cell in cells if cell.every is not None]


def _all_periods(summary: Summary, dataset: str) -> list[int]:
    return sorted({cell.every for cell in summary.cells if cell.dataset == dataset and cell.every is not None})


def _log_x(axis: Any, periods: Sequence[int]) -> None:
    axis.set_xscale("log", base=2)
    axis.set_xticks(list(periods), [str(every) for every in periods])
    if any(high <= 2 * low for low, high in pairwise(periods) if high >= 100):
        axis.tick_params(axis="x", rotation=45, pad=1)
    axis.xaxis.set_minor_formatter(NullFormatter())
    if periods:
        axis.set_xlim(periods[0] / 1.5, periods[-1] * 1.5)
