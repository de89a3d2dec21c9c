"""What all figures share: the picture as PNG or SVG, one legend for many panels, plain numbers on axes.

Only this module and the modules of figures import matplotlib.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Any, Final

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter
from PIL import Image  # comes with matplotlib

from dsgd.study.theme import MARKERS, RANK_COLOURS, Theme

__all__ = ["duration", "log_scale", "picture", "plain_log_y", "reference", "series", "share_legend", "spread"]

_DPI: Final = 120


def picture(figure: Figure) -> bytes:
    """Return a figure as PNG, with a palette of its own."""
    FigureCanvasAgg(figure)
    drawn, buffer = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=_DPI)
    # A palette holds the few colours of a figure and their blends with the ground in a third of the bytes.
    with Image.open(drawn) as image:
        image.convert("RGB").quantize(192, dither=Image.Dither.NONE).save(buffer, format="png", optimize=True)
    return buffer.getvalue()


def share_legend(figure: Figure, axes: Sequence[Sequence[Any]]) -> None:
    """Put one legend under the figure for all its panels."""
    entries: dict[str, Any] = {}
    for axis in (axis for row in axes for axis in row):
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    if entries:
        widest_in = 0.6 + 0.07 * max(map(len, entries))  # a line, blanks and the longest name
        columns = max(1, min(len(entries), int(figure.get_figwidth() / widest_in)))
        figure.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=columns)


def series(number: int, label: str) -> dict[str, Any]:
    """Return the style of a line by its number, the same in all figures."""
    colour, marker = RANK_COLOURS[number % len(RANK_COLOURS)], MARKERS[number % len(MARKERS)]
    return {"color": colour, "marker": marker, "markersize": 5, "linewidth": 1.8, "label": label}


def reference(axis: Any, value: float, label: str, theme: Theme) -> None:
    """Draw a dashed level that others are held against."""
    axis.axhline(value, color=theme.text, dashes=(4, 2), linewidth=1.3, label=label)


def plain_log_y(axis: Any) -> None:
    """Make the vertical axis logarithmic, with numbers written out."""
    log_scale(axis.yaxis)


def log_scale(axis: Any) -> None:
    """Make one axis (``axes.xaxis`` or ``axes.yaxis``) logarithmic, with numbers written out."""
    set_scale = axis.axes.set_xscale if axis.axis_name == "x" else axis.axes.set_yscale
    set_scale("log")
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def duration(seconds: float) -> str:
    """Return seconds with two digits, in s or ms."""
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{1e3 * seconds:.0f} ms" if seconds >= 0.01 else f"{1e3 * seconds:.1f} ms"


def spread(places: Sequence[float], room: float, low: float = -math.inf, high: float = math.inf) -> list[float]:
    """Move places apart until neighbours are `room` from each other, as little as that takes.

    Parameters
    ----------
    places : sequence of float
        Where labels would best be.
    room : float
        The least distance between two of them.
    low, high : float, optional
        Between these all must lie; there must be room enough.

    Returns
    -------
    list of float
        The new places, in the order of the old ones.
    """
    order = sorted(range(len(places)), key=lambda number: places[number])
    # Groups of touching labels sit around the mean of where they want to be; groups that would touch become one.
    groups: list[list[int]] = []
    middles: list[float] = []

    def middle_of(members: list[int]) -> float:
        half = room * (len(members) - 1) / 2
        return max(low + half, min(high - half, sum(places[member] for member in members) / len(members)))

    for number in order:
        groups.append([number])
        middles.append(middle_of([number]))
        while len(groups) > 1 and middles[-1] - middles[-2] < room * (len(groups[-1]) + len(groups[-2])) / 2:
            groups[-2:] = [groups[-2] + groups[-1]]
            middles[-2:] = [middle_of(groups[-1])]
    moved = list(places)
    for members, middle in zip(groups, middles, strict=True):
        for step, member in enumerate(members):
            moved[member] = middle + room * (step - (len(members) - 1) / 2)
    return moved
