"""Figures drawn by matplotlib: as SVG in pages, as PNG in files.

Only this module of the package imports matplotlib.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Sequence
from itertools import pairwise, product
from typing import Any, Final
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullFormatter, NullLocator
from matplotlib.transforms import Bbox
from PIL import Image  # comes with matplotlib

from dsgd.report import figures

_SVG: Final = "http://www.w3.org/2000/svg"
_DPI: Final = 120
_CROWDED: Final = 7
_NAMES_PT: Final = 8.5
#: Characters that fit beside a panel of the usual size, along its upper edge and along its left one.
_TITLE: Final = 36
_LEFT_LABEL: Final = 28
#: Characters of the size of ticks that fit along its lower edge.
_LOWER_EDGE: Final = 50
_MARKERS: Final = {
    "circle": "o", "square": "s", "triangle": "^", "diamond": "D", "inverted_triangle": "v", "x": "X", "plus": "P",
    "dash": "|", "hex": "h",
}  # fmt: skip
_DASHES: Final[dict[str, Any]] = {
    "solid": "-", "dashed": (0, (4, 2)), "dotted": (0, (1, 1.2)), "dotdash": (0, (1, 1.5, 5, 1.5)),
}  # fmt: skip


ElementTree.register_namespace("", _SVG)
ElementTree.register_namespace("xlink", "http://www.w3.org/1999/xlink")


def draw(figure: figures.Figure, *, dark: bool = False) -> bytes:
    """Return a figure as PNG; see `canvas`."""
    with mpl.rc_context(settings(dark=dark)):
        return picture(canvas(figure, dark=dark))


def canvas(figure: figures.Figure, *, dark: bool = False) -> Canvas:
    """Return a figure as one of matplotlib."""
    columns = min(figure.columns, len(figure.panels))
    lines = -(-len(figure.panels) // columns)
    with mpl.rc_context(settings(dark=dark)):
        size = (max(5.2, 3.9 * columns), 0.0102 * figure.height * lines + 0.5)
        drawn = Canvas(figsize=size, dpi=_DPI, layout="constrained")
        axes = list(drawn.subplots(lines, columns, squeeze=False).ravel())
        for axis in axes[len(figure.panels) :]:
            axis.set_axis_off()
        limits = zip(axes, figure.panels, figure.limits("x"), figure.limits("y"), strict=False)
        for number, (axis, panel, x_limits, y_limits) in enumerate(limits):
            _panel(axis, panel, int(dark), number)
            _side(axis.xaxis, axis.set_xlim, panel.x, x_limits)
            _side(axis.yaxis, axis.set_ylim, panel.y, y_limits)
        _legend(drawn, axes)
        _write_names(drawn, axes, figure.panels)
        return drawn


def vectors(canvas: Canvas, figure: figures.Figure) -> str:
    """Return the canvas of a figure as SVG for a page, whose ground its colours follow; points say what they are."""
    buffer = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": figure.name}):
        FigureCanvasSVG(canvas).print_svg(buffer)
    root = ElementTree.fromstring(buffer.getvalue())
    said = {f"{i} {k}": _said(mark, p) for i, p in enumerate(figure.panels) for k, mark in enumerate(p.marks)}
    for group in list(root.iter(f"{{{_SVG}}}g")):
        texts = said.get(group.attrib.pop("id", ""), [])
        points = list(group.iter(f"{{{_SVG}}}use"))
        if points and len(points) != len(texts):
            continue  # of a line with points that are not drawn nobody knows which those are
        for point in points or [group]:  # each bar is a group
            if texts:
                ElementTree.SubElement(point, f"{{{_SVG}}}title").text = texts.pop(0)
    for name in ("metadata", "defs"):  # the first definitions are a style, which would be that of the whole page
        found = root.find(f"{{{_SVG}}}{name}")
        if found is not None:
            root.remove(found)
    del root.attrib["height"]
    root.set("width", f"{96 * canvas.get_figwidth():.0f}")
    root.set("style", "stroke-linejoin: round; stroke-linecap: butt")
    marks = [mark for panel in figure.panels for mark in panel.marks if not isinstance(mark, figures.Words)]
    text = ElementTree.tostring(root, encoding="unicode")
    for light, dark in {figures.GROUND, figures.TEXT, figures.MUTED, figures.GRID, *(mark.colour for mark in marks)}:
        text = text.replace(f": {light}", f": light-dark({light}, {dark})")
    return text


def _said(mark: figures.Mark, panel: figures.Panel) -> list[str]:
    """Return what every point or bar of a mark is."""
    if isinstance(mark, figures.Bars):
        names, heights = mark.names or [""] * len(mark.top), np.subtract(mark.top, mark.bottom)
        parts = [[mark.label, name, _value(panel.y, height)] for name, height in zip(names, heights, strict=True)]
    elif isinstance(mark, figures.Line) and not mark.pale:
        names = mark.names or [mark.label] * len(mark.x)
        parts = [
            [name, _value(panel.x, x), _value(panel.y, y)] for name, x, y in zip(names, mark.x, mark.y, strict=True)
        ]
        for part, (low, high) in zip(parts, mark.ranges, strict=False):
            axis, place = (panel.x, 1) if mark.ranges_along == "x" else (panel.y, 2)
            part[place] += f" ({axis.text(low)} to {axis.text(high)})"
    else:
        return []
    return ["\n".join(filter(None, part)) for part in parts]


def _value(axis: figures.Axis, value: float) -> str:
    return f"{axis.label}: {axis.text(value)}" if axis.label else axis.text(value)


def picture(canvas: Canvas) -> bytes:
    """Return a figure of matplotlib as PNG, with a palette of its own."""
    canvas.set_dpi(_DPI)
    drawn, buffer = FigureCanvasAgg(canvas), io.BytesIO()
    drawn.draw()  # once; savefig draws a second time to find out where the labels are
    image = Image.fromarray(np.asarray(drawn.buffer_rgba())).convert("RGB")
    # A palette holds the few colours of a figure and their blends with the ground in a third of the bytes. Not
    # optimize=True, which saves a twelfth of the bytes and takes eight times as long.
    image.quantize(192, dither=Image.Dither.NONE).save(buffer, format="png")
    return buffer.getvalue()


def settings(*, dark: bool = False) -> dict[str, Any]:
    """Return the settings of matplotlib that draw in the colours of a page."""
    ground, text, muted, grid = (
        colour[int(dark)] for colour in (figures.GROUND, figures.TEXT, figures.MUTED, figures.GRID)
    )
    return {
        "figure.facecolor": ground,
        "savefig.facecolor": ground,
        "axes.facecolor": ground,
        "axes.edgecolor": muted,
        "axes.labelcolor": text,
        "axes.titlecolor": text,
        "axes.titlesize": 11,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.labelsize": 9.5,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": grid,
        "grid.linewidth": 0.8,
        "xtick.color": muted,
        "ytick.color": muted,
        "xtick.labelsize": 8.5,
        "ytick.labelsize": 8.5,
        "xtick.minor.size": 0,
        "ytick.minor.size": 0,
        "text.color": text,
        "legend.frameon": False,
        "legend.fontsize": 9,
        "font.family": "DejaVu Sans",
    }


def log_scale(axis: Any) -> None:
    """Make one axis (``axes.xaxis`` or ``axes.yaxis``) logarithmic, with numbers written out."""
    set_scale = axis.axes.set_xscale if axis.axis_name == "x" else axis.axes.set_yscale
    set_scale("log")
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def _panel(axis: Any, panel: figures.Panel, ground: int, number: int) -> None:
    axis.set_xscale(panel.x.scale)
    axis.set_yscale(panel.y.scale)
    if panel.title:
        axis.set_title(textwrap.fill(panel.title, _TITLE))
    for k, mark in enumerate(panel.marks):
        _mark(axis, mark, ground, f"{number} {k}")


def _mark(axis: Any, mark: figures.Mark, ground: int, gid: str) -> None:
    if isinstance(mark, figures.Line):
        _line(axis, mark, mark.colour[ground], ground)
        if not mark.pale:  # a pointer needs a larger target than the point
            axis.plot(mark.x, mark.y, "o", color=mark.colour[ground], markersize=12, alpha=0.0, gid=gid)
    elif isinstance(mark, figures.Bars):
        heights = [top - bottom for bottom, top in zip(mark.bottom, mark.top, strict=True)]
        widths = [right - left for left, right in zip(mark.left, mark.right, strict=True)]
        style: dict[str, Any] = {"color": mark.colour[ground], "label": mark.label or None}
        axis.bar(mark.left, heights, widths, mark.bottom, align="edge", gid=gid, **style)
    elif isinstance(mark, (figures.Level, figures.Band)):
        style = {"color": mark.colour[ground], "label": mark.label or None}
        if isinstance(mark, figures.Level):
            (axis.axhline if mark.along == "y" else axis.axvline)(
                mark.value, linewidth=1.3, linestyle=_DASHES[mark.dash], **style
            )
        else:
            (axis.axhspan if mark.along == "y" else axis.axvspan)(mark.low, mark.high, alpha=0.13, linewidth=0, **style)
    else:
        size = 6.2 if len(mark.texts) > _CROWDED else 7.5
        for x, y, text in zip(mark.x, mark.y, mark.texts, strict=True):
            axis.annotate(
                text,
                (x, y),
                xytext=(0, 2),
                textcoords="offset points",
                ha="center",
                fontsize=size,
                color=figures.MUTED[ground],
            )


def _line(axis: Any, mark: figures.Line, colour: figures.Colour | str, ground: int) -> None:
    if mark.ranges:
        ends = ([low for low, _ in mark.ranges], [high for _, high in mark.ranges])
        style = {"color": colour, "linewidth": 1.0, "alpha": 0.7}
        if mark.ranges_along == "x":
            axis.hlines(mark.y, *ends, **style)
        else:
            axis.vlines(mark.x, *ends, **style)
    axis.plot(
        mark.x,
        mark.y,
        color=colour,
        linestyle=_DASHES[mark.dash] if mark.width else "",
        linewidth=mark.width,
        drawstyle="steps-post" if mark.steps else "default",
        marker=_MARKERS[mark.marker] if mark.marker else "",
        markersize=0.75 * mark.size,
        markerfacecolor=("none" if not mark.width else figures.GROUND[ground]) if mark.hollow else colour,
        label=mark.label or None,
        zorder=1.5 if mark.pale else 2,
    )


def _write_names(canvas: Canvas, axes: Sequence[Any], panels: Sequence[figures.Panel]) -> None:
    """Write the texts of points beside them: on the first side where they cover neither points nor each other."""
    named = [(axis, panel, texts) for axis, panel in zip(axes, panels, strict=False) if (texts := _texts(panel))]
    if named:
        FigureCanvasAgg(canvas)
        canvas.draw_without_rendering()  # until then nobody knows where the panels are
    for axis, panel, texts in named:
        lines = [mark for mark in panel.marks if isinstance(mark, figures.Line) and (mark.marker or mark.written)]
        points = axis.transData.transform([point for mark in lines for point in zip(mark.x, mark.y, strict=True)])
        taken = [Bbox.from_bounds(x - 4, y - 4, 8, 8) for x, y in points]
        for text, at in texts:
            written = axis.annotate(text, at, (0, 0), textcoords="offset points", fontsize=_NAMES_PT)
            written.set_in_layout(False)
            for (ha, x), (va, y) in product((("right", -4), ("left", 4)), (("top", -1), ("bottom", 1))):
                written.set(ha=ha, va=va, position=(x, y))
                box = written.get_window_extent()
                if not box.count_overlaps(taken):
                    break
            taken.append(box)


def _texts(panel: figures.Panel) -> list[tuple[str, tuple[float, float]]]:
    """Return what is written at which points of a panel."""
    lines = [mark for mark in panel.marks if isinstance(mark, figures.Line) and mark.written]
    named = [
        (mark.written.get(name), at) for mark in lines for name, *at in zip(mark.names, mark.x, mark.y, strict=True)
    ]
    return [(text, (x, y)) for text, (x, y) in named if text is not None]


def _side(axis: Any, set_limits: Any, wanted: figures.Axis, limits: tuple[float, float]) -> None:
    set_limits(*(limits[::-1] if wanted.reverse else limits))
    axis.set_label_text(textwrap.fill(wanted.label, _LEFT_LABEL) if axis.axis_name == "y" else wanted.label)
    if wanted.ticks:
        axis.set_ticks(list(wanted.ticks), list(wanted.ticks.values()))
        if axis.axis_name == "x" and len(wanted.ticks) > _CROWDED:
            axis.set_tick_params(rotation=45)
    else:
        low, high = limits
        seen = [tick for tick in wanted.log_ticks(low, high) if low <= tick <= high] if wanted.scale == "log" else []
        if axis.axis_name == "x" and _touch(wanted, seen, math.log(high / low) if seen else 1.0):
            seen = seen[::2]
        axis.set_major_locator(FixedLocator(seen) if wanted.scale == "log" else MaxNLocator(6))
        axis.set_major_formatter(FuncFormatter(lambda value, _: _tick(wanted, value)))
    axis.set_minor_locator(NullLocator())  # matplotlib lays minor ticks out even where they have no length
    if not wanted.grid:
        axis.grid(visible=False)


def _touch(wanted: figures.Axis, ticks: Sequence[float], span: float) -> bool:
    """Return whether texts of neighbouring ticks would touch along a logarithmic axis of so many powers of e."""
    return any(
        math.log(after / before) / span * _LOWER_EDGE < (len(_tick(wanted, before)) + len(_tick(wanted, after))) / 2 + 1
        for before, after in pairwise(ticks)
    )


def _tick(axis: figures.Axis, value: float) -> str:
    return axis.text(value) if axis.unit in {"%", "s", "B"} else f"{value:g}{axis.unit}"


def _legend(canvas: Canvas, axes: Sequence[Any]) -> None:
    """Put one legend under the figure for all its panels."""
    entries: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    if entries:
        widest_in = 0.6 + 0.07 * max(map(len, entries))  # a line, blanks and the longest name
        columns = max(1, min(len(entries), int(canvas.get_figwidth() / widest_in)))
        canvas.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=columns)
