"""The figures of a study of strategies: the objective against seconds and bytes, and what the target costs."""

from __future__ import annotations

import math
from typing import Any, Final, Literal

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from dsgd.report import byte_text
from dsgd.study.drawing import picture, reference, spread
from dsgd.study.strategies.grid import FAMILIES
from dsgd.study.strategies.summary import StrategyCell, StrategyGang
from dsgd.study.theme import DARK, LIGHT, MARKERS, RANK_COLOURS, Theme, rc_params

__all__ = ["draw_curves", "draw_front"]

_COLUMNS: Final = 3
_LABELS: Final = {"seconds": "seconds", "bytes_sent": "sent by all ranks"}
# What early points are allowed to take of the height, over the sequential run's last one.
_HIGHEST: Final = 1.3
# Of the panel's sides: what points that share a name are apart, flocks of points, and names below each other.
_SAME: Final = 0.012
_APART: Final = 0.25
_ROOM: Final = 0.045


def draw_curves(
    gang: StrategyGang, against: Literal["seconds", "bytes_sent"], *, excess: float, dark: bool = False
) -> bytes:
    """Return the training objective against seconds or bytes as PNG, one panel per family of strategies.

    Parameters
    ----------
    gang : StrategyGang
        What was run.
    against : {"seconds", "bytes_sent"}
        What it is drawn against.
    excess : float
        The target is the final training objective of the sequential run times (1 + `excess`).
    dark : bool, default False
        Draw on a dark ground.
    """
    theme = DARK if dark else LIGHT
    families = [name for name in FAMILIES if any(cell.family == name for cell in gang.cells)]
    columns = min(_COLUMNS, len(families))
    lines = -(-len(families) // columns)
    with mpl.rc_context(rc_params(theme)):
        figure = Figure(figsize=(3.9 * columns, 3.1 * lines + 0.3), layout="constrained")
        axes: Any = figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True).ravel()
        for axis in axes[len(families) :]:
            axis.set_axis_off()
        for number, (axis, name) in enumerate(zip(axes, families, strict=False)):
            _family_panel(axis, gang, name, against, gang.target(excess), theme)
            if number % columns == 0:
                axis.set_ylabel("training objective")
            if number + columns >= len(families):
                axis.set_xlabel(_LABELS[against])
                axis.tick_params(labelbottom=True)
        return picture(figure)


def _family_panel(axis: Any, gang: StrategyGang, family: str, against: str, target: float, theme: Theme) -> None:
    """Draw the strategies of a family, with those of the others pale behind."""
    for cell in gang.cells:
        if cell.family != family:
            axis.plot(*_line(cell, against), color=theme.grid, linewidth=1.0, zorder=1)
    for number, cell in enumerate(cell for cell in gang.cells if cell.family == family):
        colour, marker = RANK_COLOURS[number % 5], MARKERS[(number + number // 5) % 5]
        style = {"color": colour, "marker": marker, "markersize": 4, "linewidth": 1.5, "label": cell.name}
        axis.plot(*_line(cell, against), dashes=(4, 1.5) if number >= len(RANK_COLOURS) else (), **style)
    if against == "seconds":
        axis.plot(*_line(gang.sequential, against), color=theme.text, dashes=(1, 1), linewidth=1.4, label="sequential")
    reference(axis, target, "target", theme)
    axis.set_title(family)
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter(_formatter(against))
    axis.xaxis.set_minor_formatter(NullFormatter())
    last = gang.sequential.median("objective")
    lowest = min([last, *(point["objective"] for cell in gang.cells for point in cell.curve())])
    highest = max(target, *(point["objective"] for cell in gang.cells for point in cell.curve()))
    room = 0.05 * (min(highest, _HIGHEST * last) - lowest)
    axis.set_ylim(lowest - room, min(highest, _HIGHEST * last) + room)
    axis.yaxis.set_major_locator(MaxNLocator(nbins=6))
    axis.legend(loc="upper right", fontsize=7.5, handlelength=2.4, labelspacing=0.3)


def draw_front(gang: StrategyGang, *, excess: float, dark: bool = False) -> bytes:
    """Return the bytes to the target against the seconds to it as PNG, with the strategies no other beats in both.

    Parameters
    ----------
    gang : StrategyGang
        What was run.
    excess : float
        The target is the final training objective of the sequential run times (1 + `excess`).
    dark : bool, default False
        Draw on a dark ground.
    """
    theme = DARK if dark else LIGHT
    reached, front = gang.reached(excess), gang.front(excess)
    with mpl.rc_context(rc_params(theme)):
        figure = Figure(figsize=(9.6, 5.6), layout="constrained")
        axis: Any = figure.subplots()
        axis.set_title(f"To a training objective of {gang.target(excess):.4g}: {gang.name}")
        axis.set_xlabel("seconds to the target")
        axis.set_ylabel("sent by all ranks to the target")
        for number, name in enumerate(FAMILIES):
            points = [reached[cell.name] for cell in gang.cells if cell.family == name and cell.name in reached]
            if points:
                axis.scatter(
                    [point["seconds"] for point in points], [point["bytes_sent"] for point in points],
                    color=RANK_COLOURS[number], marker=MARKERS[number], s=42, label=name, zorder=3,
                )  # fmt: skip
        if reached:
            _mark_front(axis, reached, front, theme)
            _name_points(figure, axis, reached, front, theme)
        else:
            axis.text(0.5, 0.5, "no strategy has reached it", transform=axis.transAxes, ha="center", color=theme.muted)
        return picture(figure)


def _mark_front(axis: Any, reached: dict[str, dict[str, float]], front: list[str], theme: Theme) -> None:
    steps = [(reached[name]["seconds"], reached[name]["bytes_sent"]) for name in front]
    axis.plot(*zip(*steps, strict=True), color=theme.text, linewidth=1.2, drawstyle="steps-post", label="Pareto front")
    for side, name in ((axis.xaxis, "seconds"), (axis.yaxis, "bytes_sent")):
        values = [point[name] for point in reached.values()]
        low, high = min(values), max(values)
        (axis.set_xscale if name == "seconds" else axis.set_yscale)("log")
        (axis.set_xlim if name == "seconds" else axis.set_ylim)(low / 1.3, high * 1.3)
        side.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 50 * low else (1.0,)))
        side.set_major_formatter(_formatter(name))
        side.set_minor_formatter(NullFormatter())


def _name_points(
    figure: Figure, axis: Any, reached: dict[str, dict[str, float]], front: list[str], theme: Theme
) -> None:
    """Write the names right of the points, a column for each flock of them, with lines between."""
    (left, right), (low, high) = axis.get_xlim(), axis.get_ylim()
    spots: dict[tuple[float, float], list[str]] = {}
    for name, point in reached.items():
        x = math.log(point["seconds"] / left) / math.log(right / left)
        y = math.log(point["bytes_sent"] / low) / math.log(high / low)
        # Points that cover each other share a name.
        near = next((spot for spot in spots if math.dist(spot, (x, y)) < _SAME), (x, y))
        spots.setdefault(near, []).append(name)
    flocks: list[list[tuple[float, float]]] = []
    for spot in sorted(spots):
        if flocks and spot[0] - flocks[-1][-1][0] < _APART:
            flocks[-1].append(spot)
        else:
            flocks.append([spot])
    for flock in flocks:
        flock.sort(key=lambda spot: spot[1])
        room = min(_ROOM, 0.96 / len(flock))
        for spot, place in zip(flock, spread([y for _, y in flock], room, 0.03, 0.99), strict=True):
            names = spots[spot]
            axis.annotate(
                ", ".join(names), spot, xycoords="axes fraction", textcoords="axes fraction",
                xytext=(max(x for x, _ in flock) + 0.06, place), va="center", fontsize=8.5,
                fontweight="bold" if any(name in front for name in names) else "normal", annotation_clip=False,
                arrowprops={"arrowstyle": "-", "color": theme.muted, "linewidth": 0.6, "relpos": (0.0, 0.5)},
            )  # fmt: skip
    figure.legend(loc="outside lower center", ncols=3)


def _line(cell: StrategyCell, against: str) -> tuple[list[float], list[float]]:
    curve = cell.curve()
    return [point[against] for point in curve], [point["objective"] for point in curve]


def _formatter(against: str) -> FuncFormatter:
    if against == "bytes_sent":
        return FuncFormatter(lambda value, _: byte_text(value))
    return FuncFormatter(lambda value, _: f"{value:g}")
