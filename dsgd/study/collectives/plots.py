"""The figure of a study of collectives: time by length, measured and predicted, one panel per gang."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter

from dsgd.collectives.model import ALGORITHMS
from dsgd.study.collectives.summary import CollectiveGang, size_text
from dsgd.study.drawing import log_scale, picture, share_legend
from dsgd.study.theme import DARK, LIGHT, MARKERS, RANK_COLOURS, Theme, rc_params

__all__ = ["draw_collectives"]

_COLUMNS: Final = 3


def draw_collectives(gangs: Sequence[CollectiveGang], *, dark: bool = False) -> bytes:
    """Return the figure as PNG.

    Parameters
    ----------
    gangs : sequence of CollectiveGang
        The study.
    dark : bool, default False
        Draw on a dark ground.
    """
    theme = DARK if dark else LIGHT
    with mpl.rc_context(rc_params(theme)):
        return picture(_plot(gangs, theme))


def _plot(gangs: Sequence[CollectiveGang], theme: Theme) -> Figure:
    columns = 2 if len(gangs) == 4 else min(_COLUMNS, len(gangs))
    lines = math.ceil(len(gangs) / columns)
    figure = Figure(figsize=(3.9 * columns, 2.9 * lines + 0.4), layout="constrained")
    axes = figure.subplots(lines, columns, squeeze=False, sharey=True).ravel()
    for axis in axes[len(gangs) :]:
        axis.set_axis_off()
    for number, (axis, gang) in enumerate(zip(axes, gangs, strict=False)):
        sizes = gang.sizes()
        for name in gang.algorithms():
            cells = [gang.at(n_bytes)[name] for n_bytes in sizes]
            style = _style(name, theme)
            axis.plot(sizes, [1e3 * row["predicted_s"] for row in cells], color=style["color"], dashes=(3, 2), lw=1.0)
            axis.plot(sizes, [1e3 * row["seconds"] for row in cells], **style)
        chosen = [(n_bytes, row["seconds"]) for n_bytes in sizes if (row := gang.auto(n_bytes)) is not None]
        axis.plot(
            [n_bytes for n_bytes, _ in chosen], [1e3 * seconds for _, seconds in chosen], "o", label="what auto takes",
            markersize=11, markerfacecolor="none", markeredgecolor=theme.text,
        )  # fmt: skip
        axis.plot([], [], color=theme.muted, dashes=(3, 2), lw=1.0, label="predicted")
        axis.set_title(gang.name)
        log_scale(axis.yaxis)
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_locator(FixedLocator(sizes))
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: size_text(int(value))))
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.tick_params(axis="x", labelrotation=40)
        if number % columns == 0:
            axis.set_ylabel("milliseconds")
    share_legend(figure, [list(axes)])
    return figure


def _style(name: str, theme: Theme) -> dict[str, Any]:
    number = ALGORITHMS.index(name)
    colours, markers = (*RANK_COLOURS, theme.muted), (*MARKERS, "P")
    label = name.replace("_", " ")
    return {"color": colours[number], "marker": markers[number], "markersize": 5, "linewidth": 1.6, "label": label}
