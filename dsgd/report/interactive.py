"""Interactive figures for a page, drawn by bokeh in the browser.

Only this module of the package imports bokeh. Colours are those of the light ground; the page exchanges them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from bokeh.core.json_encoder import serialize_json
from bokeh.core.properties import value
from bokeh.document import Document
from bokeh.models import Axis as BokehAxis
from bokeh.models import (
    BoxAnnotation,
    ColumnDataSource,
    CustomJSTickFormatter,
    FixedTicker,
    HoverTool,
    NoOverlap,
    Plot,
    Quad,
    Range1d,
    Scatter,
    Segment,
    Span,
    Step,
    Text,
)
from bokeh.models import Line as BokehLine
from bokeh.plotting import figure as new_plot
from bokeh.resources import Resources

from dsgd.report.figures import Axis, Band, Bars, Figure, Level, Line, Panel, Side, Words
from dsgd.report.theme import GRID, GROUND, MUTED, TEXT

__all__ = ["drawing", "library"]

_FONT: Final = "system-ui, sans-serif"
_CROWDED: Final = 7
_TOOLTIP: Final = """<div class="dsgd-tip"><b>@label</b><br>@x_text<br>@y_text</div>"""
_TICKS: Final = """
const plain = (value, digits) => String(Number(value.toPrecision(digits)));
if (unit == "%") return plain(100 * tick, 6) + "%";
if (unit == "x") return plain(tick, 6) + "x";
if (unit == "s") {
  for (const [name, size] of [["s", 1], ["ms", 1e-3], ["µs", 1e-6]])
    if (Math.abs(tick) >= 0.999 * size || name == "µs") return tick == 0 ? "0" : plain(tick / size, 4) + " " + name;
}
if (unit == "B") {
  for (const [name, size] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3], ["B", 1]])
    if (Math.abs(tick) >= 0.999 * size || name == "B") return plain(tick / size, 4) + " " + name;
}
if (tick != 0 && (Math.abs(tick) < 1e-4 || Math.abs(tick) >= 1e7)) return tick.toExponential(1).replace(".0e", "e");
return Number(tick.toPrecision(8)).toLocaleString("en", {maximumFractionDigits: 8});
"""


def library() -> str:
    """Return the script that draws in the browser, to be put into the page: it is fetched from nowhere."""
    return str(Resources(mode="inline", components=["bokeh"]).render_js())


def drawing(figure: Figure) -> dict[str, Any]:
    """Return what the browser needs to draw a figure, as JSON has it.

    Parameters
    ----------
    figure : Figure
        What to draw.

    Returns
    -------
    dict
        ``doc``: a document of bokeh; ``roots``: its plots, in the order of the panels.
    """
    document = Document()
    shared: dict[Side, Range1d] = {}
    roots = []
    with document.models.freeze():  # else bokeh walks through the whole document at every plot that comes
        for number, panel in enumerate(figure.panels):
            limits: dict[Side, tuple[float, float]] = {}
            ranges: dict[Side, Range1d] = {}
            sides: tuple[tuple[Side, Axis], ...] = (("x", panel.x), ("y", panel.y))
            for side, axis in sides:
                low, high = limits[side] = figure.limits(side)[number]
                own = Range1d(high, low) if axis.reverse else Range1d(low, high)
                ranges[side] = shared.setdefault(side, own) if side in figure.share else own
            plot = _plot(panel, figure.height, limits, ranges)
            document.add_root(plot)
            roots.append(plot.id)
    doc: dict[str, Any] = json.loads(serialize_json(document.to_json(deferred=False)))
    return {"doc": doc, "roots": roots}


def _plot(
    panel: Panel, height: int, limits: Mapping[Side, tuple[float, float]], ranges: Mapping[Side, Range1d]
) -> Plot:
    plot = new_plot(
        height=height, sizing_mode="stretch_width", min_width=220, x_range=ranges["x"], y_range=ranges["y"],
        x_axis_type=panel.x.scale, y_axis_type=panel.y.scale, tools="pan,box_zoom,wheel_zoom,reset,save",
        active_drag="box_zoom", toolbar_location="above", toolbar_inner=True,
        background_fill_color=None, border_fill_color=None, outline_line_color=None,
    )  # fmt: skip
    plot.toolbar.logo = None
    plot.toolbar.autohide = True
    _dress(plot.xaxis[0], plot.xgrid[0], panel.x, limits["x"])
    _dress(plot.yaxis[0], plot.ygrid[0], panel.y, limits["y"])
    if len(panel.x.ticks) > _CROWDED:
        plot.xaxis[0].major_label_orientation = 0.8
    touched: list[Any] = []
    for mark in panel.marks:
        if isinstance(mark, Line):
            touched += _line(plot, mark, panel)
        elif isinstance(mark, Bars):
            touched += _bars(plot, mark, panel)
        elif isinstance(mark, Words):
            source = ColumnDataSource({"x": list(mark.x), "y": list(mark.y), "texts": list(mark.texts)})
            text = Text(
                x="x", y="y", text="texts", text_align="center", text_baseline="bottom", text_font=value(_FONT),
                text_font_size="10px", text_color=MUTED.light, y_offset=-2,
            )  # fmt: skip
            plot.add_glyph(source, text, name="words")  # the page hides them where they have no room
        else:
            plot.add_layout(_level(mark) if isinstance(mark, Level) else _band(mark))
    plot.add_tools(HoverTool(renderers=touched, tooltips=_TOOLTIP, point_policy="snap_to_data"))
    return plot


def _dress(drawn: BokehAxis, grid: Any, axis: Axis, limits: tuple[float, float]) -> None:
    """Give an axis its label, ticks and colours."""
    drawn.axis_label = axis.label or None
    drawn.formatter = CustomJSTickFormatter(args={"unit": axis.unit}, code=_TICKS)
    drawn.major_label_policy = NoOverlap()
    if axis.ticks or axis.scale == "log":
        drawn.ticker = FixedTicker(ticks=list(axis.ticks) or axis.log_ticks(*limits), minor_ticks=[])
        drawn.major_label_overrides = dict(axis.ticks)
    drawn.update(
        axis_label_text_color=TEXT.light, axis_label_text_font=_FONT, axis_label_text_font_size="12px",
        axis_label_text_font_style="normal", major_label_text_color=MUTED.light, major_label_text_font=_FONT,
        major_label_text_font_size="11px", axis_line_color=GRID.light, major_tick_line_color=None,
        minor_tick_line_color=None,
    )  # fmt: skip
    grid.grid_line_color = GRID.light if axis.grid else None
    grid.ticker = drawn.ticker


def _line(plot: Any, mark: Line, panel: Panel) -> list[Any]:
    """Draw a line; return the targets that react to a pointer over its points."""
    colour = mark.colour.light
    data: dict[str, list[Any]] = {"x": list(mark.x), "y": list(mark.y)}
    if mark.ranges:
        data |= {"low": [low for low, _ in mark.ranges], "high": [high for _, high in mark.ranges]}
    says = [("x_text", panel.x, mark.x, "x"), ("y_text", panel.y, mark.y, "y")]
    for column, axis, values, side in says:
        texts = [axis.text(value) for value in values]
        if mark.ranges and mark.ranges_along == side:
            texts = [
                text if low == high else f"{text} ({axis.text(low)} to {axis.text(high)})"
                for text, (low, high) in zip(texts, mark.ranges, strict=True)
            ]
        data[column] = [f"{axis.label}: {text}" if axis.label else text for text in texts]
    data["label"] = list(mark.names) or [mark.label] * len(data["x"])
    source = ColumnDataSource(data)
    # Not plot.line() and its like, which make three more glyphs for each: selected, not selected, and muted.
    add, name = partial(plot.add_glyph, source), mark.label or None
    if mark.ranges:
        x0, y0, x1, y1 = ("low", "y", "high", "y") if mark.ranges_along == "x" else ("x", "low", "x", "high")
        add(Segment(x0=x0, y0=y0, x1=x1, y1=y1, line_color=colour, line_width=1.2, line_alpha=0.7), name=name)
    if mark.width:
        style = {"x": "x", "y": "y", "line_color": colour, "line_width": mark.width, "line_dash": mark.dash}
        add(Step(mode="after", **style) if mark.steps else BokehLine(line_join="round", **style), name=name)
    if mark.pale:
        return []
    if mark.marker:
        fill = GROUND.light if mark.hollow and mark.width else None if mark.hollow else colour
        points = Scatter(
            x="x", y="y", marker=value(mark.marker), size=mark.size, fill_color=fill, line_color=colour,
            line_width=1.6 if mark.hollow else 1.0,
        )  # fmt: skip
        add(points, name=name)
    if mark.written:
        chosen = [number for number, name in enumerate(mark.names) if name in mark.written]
        written = ColumnDataSource({name: [data[name][number] for number in chosen] for name in ("x", "y")})
        written.data["text"] = [mark.written[mark.names[number]] for number in chosen]
        text = Text(
            x="x", y="y", text="text", x_offset=-7, y_offset=2, text_align="right", text_baseline="top",
            text_font=value(_FONT), text_font_size="12px", text_color=TEXT.light,
        )  # fmt: skip
        plot.add_glyph(written, text, name=name)
    # Fingers and fast pointers need a larger target than the visible point.
    target = Scatter(x="x", y="y", size=16, fill_alpha=0, line_alpha=0)
    pointed = Scatter(x="x", y="y", size=16, fill_color=colour, fill_alpha=0.25, line_color=None)
    return [add(target, hover_glyph=pointed, name=name)]


def _bars(plot: Any, mark: Bars, panel: Panel) -> list[Any]:
    heights = [top - bottom for bottom, top in zip(mark.bottom, mark.top, strict=True)]
    source = ColumnDataSource(
        {
            "left": list(mark.left), "right": list(mark.right), "bottom": list(mark.bottom), "top": list(mark.top),
            "label": [mark.label] * len(heights), "x_text": list(mark.names) or [""] * len(heights),
            "y_text": [f"{panel.y.label}: {panel.y.text(height)}" for height in heights],
        }
    )  # fmt: skip
    bars = Quad(
        left="left", right="right", bottom="bottom", top="top", fill_color=mark.colour.light,
        line_color=GROUND.light, line_width=0.5,
    )  # fmt: skip
    return [plot.add_glyph(source, bars, name=mark.label or None)]


def _level(mark: Level) -> Span:
    dimension = "width" if mark.along == "y" else "height"
    return Span(
        location=mark.value, dimension=dimension, line_color=mark.colour.light, line_dash=mark.dash, line_width=1.4,
        name=mark.label or None,
    )  # fmt: skip


def _band(mark: Band) -> BoxAnnotation:
    ends = {"bottom": mark.low, "top": mark.high} if mark.along == "y" else {"left": mark.low, "right": mark.high}
    return BoxAnnotation(
        **ends, fill_color=mark.colour.light, fill_alpha=0.13, line_color=None, level="underlay",
        name=mark.label or None,
    )  # fmt: skip
