"""The content of a figure, however it is drawn: panels with axes, lines, bars and levels; colours and labels.

`dsgd.report.png` draws it. Hues are those of Okabe and Ito (2008), distinct with any colour vision, made darker or
lighter until their contrast with the background is 3 or more (text 4.5). Series differ in marker or dashes as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, TypeAlias

from dsgd.report.tables import byte_text, figure_text, seconds_text


class Colour(NamedTuple):
    """A colour as it is drawn on a light and on a dark background."""

    light: str
    dark: str


GROUND: Final = Colour("#ffffff", "#161b22")
TEXT: Final = Colour("#1b1f24", "#e6edf3")
MUTED: Final = Colour("#57606a", "#9aa4b0")
GRID: Final = Colour("#e4e7eb", "#2b323b")
BLUE: Final = Colour("#0072b2", "#4fa8e8")
ORANGE: Final = Colour("#c98500", "#e9a93a")
GREEN: Final = Colour("#009e73", "#2dbe93")
VERMILION: Final = Colour("#d55e00", "#f0823c")
PURPLE: Final = Colour("#b8609a", "#db8fbe")
SKY: Final = Colour("#3a9bd6", "#7cc6f2")
GREY: Final = Colour("#7d8590", "#8c959f")

#: Colours and markers of series that have no colour of their own, in order.
SERIES: Final = (BLUE, VERMILION, GREEN, PURPLE, ORANGE)
MARKERS: Final = ("circle", "square", "triangle", "diamond", "inverted_triangle")

# Phases from work to waiting, in the order they are stacked; "other" is what the ledger leaves uncharged.
PHASES: Final = ("compute", "encode", "other", "control", "wire", "wait")
PHASE_COLOURS: Final = (BLUE, GREEN, GREY, PURPLE, ORANGE, VERMILION)


def ramp(n: int) -> list[Colour]:
    """Return `n` colours in an order that is seen (viridis), for series that are steps of one quantity."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    viridis = colormaps["viridis"]
    places = [number / max(1, n - 1) for number in range(n)]
    # On a dark ground the dark end of the map would vanish, on a light one the light end.
    return [Colour(to_hex(viridis(int(195 * place))), to_hex(viridis(int(100 + 155 * place)))) for place in places]


Dash: TypeAlias = Literal["solid", "dashed", "dotted", "dotdash"]
Side: TypeAlias = Literal["x", "y"]
_MARGIN: Final = 0.04
_FINE: Final = (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0)


@dataclass(frozen=True)
class Line:
    """Points, joined by a line or not.

    Parameters
    ----------
    label : str
        Its name in the legend; lines of one name are one entry. None with ``""``.
    x, y : sequence of float
        The points.
    colour : Colour
        Of line and points.
    marker : str, default ""
        ``"circle"``, ``"square"`` or another one of `dsgd.report.png`; no points are marked with ``""``.
    dash : str, default "solid"
        ``"solid"``, ``"dashed"``, ``"dotted"`` or ``"dotdash"``.
    width : float, default 1.8
        Of the line; 0 for points alone.
    size : float, default 7
        Of the markers.
    ranges : sequence of (float, float), optional
        Lowest and highest value at each point.
    ranges_along : {"y", "x"}, default "y"
        Which of the two coordinates they are of.
    names : sequence of str, optional
        What each point is, said when one hovers over it.
    written : mapping of str to str, optional
        Names whose points have a text beside them, and the text (`texts_at`).
    hollow, steps, pale : bool, default False
        Markers are rings; the line goes in steps; a line that is there for comparison only, thin and without hover.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    colour: Colour = BLUE
    marker: str = ""
    dash: Dash = "solid"
    width: float = 1.8
    size: float = 7.0
    ranges: Sequence[tuple[float, float]] = ()
    ranges_along: Side = "y"
    names: Sequence[str] = ()
    written: Mapping[str, str] = field(default_factory=dict)
    hollow: bool = False
    steps: bool = False
    pale: bool = False

    def values(self, side: Side) -> Iterator[float]:
        """Yield all coordinates on one side."""
        yield from self.x if side == "x" else self.y
        if side == self.ranges_along:
            yield from (value for ends in self.ranges for value in ends)


def texts_at(points: Mapping[str, tuple[float, float]]) -> dict[str, str]:
    """Return what is written at points; what is less than two per cent apart in both coordinates shares one text."""
    together: dict[str, list[str]] = {}
    for name, point in points.items():
        at = (first for first in together if all(map(_is_near, points[first], point)))
        together.setdefault(next(at, name), []).append(name)
    return {name: ", ".join(names) for name, names in together.items()}


def _is_near(one: float, other: float) -> bool:
    return abs(one - other) <= 0.02 * max(one, other)


@dataclass(frozen=True)
class Bars:
    """Rectangles.

    Parameters
    ----------
    label : str
        Name in the legend.
    left, right, bottom, top : sequence of float
        Their sides.
    colour : Colour
        Of all of them.
    names : sequence of str, optional
        What each is, said when one hovers over it, instead of its height.
    """

    label: str
    left: Sequence[float]
    right: Sequence[float]
    bottom: Sequence[float]
    top: Sequence[float]
    colour: Colour = BLUE
    names: Sequence[str] = ()

    def values(self, side: Side) -> Iterator[float]:
        """Yield all coordinates on one side."""
        yield from (*self.left, *self.right) if side == "x" else (*self.bottom, *self.top)


@dataclass(frozen=True)
class Level:
    """A value that others are held against, drawn from one end of the panel to the other.

    Parameters
    ----------
    value : float
        Where.
    label : str
        Name in the legend.
    colour : Colour
        Of the line.
    dash : str, default "dashed"
        See `Line`.
    along : {"y", "x"}, default "y"
        Which coordinate it is a value of.
    """

    value: float
    label: str
    colour: Colour = TEXT
    dash: Dash = "dashed"
    along: Side = "y"

    def values(self, side: Side) -> Iterator[float]:
        """Yield all coordinates on one side."""
        if side == self.along:
            yield self.value


@dataclass(frozen=True)
class Band:
    """A range of values, tinted from one end of the panel to the other.

    Parameters
    ----------
    low, high : float
        Its ends.
    label : str, default ""
        Name in the legend.
    colour : Colour
        Of the tint.
    along : {"y", "x"}, default "y"
        Which coordinate it is a range of.
    """

    low: float
    high: float
    label: str = ""
    colour: Colour = MUTED
    along: Side = "y"

    def values(self, side: Side) -> Iterator[float]:
        """Yield all coordinates on one side."""
        if side == self.along:
            yield from (self.low, self.high)


@dataclass(frozen=True)
class Words:
    """Texts that stand centred on places of the panel.

    Parameters
    ----------
    x, y : sequence of float
        The places.
    texts : sequence of str
        What is written just above each.
    """

    x: Sequence[float]
    y: Sequence[float]
    texts: Sequence[str]

    def values(self, side: Side) -> Iterator[float]:
        """Yield all coordinates on one side."""
        yield from self.x if side == "x" else self.y


#: What a panel draws.
Mark: TypeAlias = Line | Bars | Level | Band | Words


@dataclass(frozen=True)
class Axis:
    """One side of a panel.

    Parameters
    ----------
    label : str, default ""
        What it measures, with its unit.
    scale : {"linear", "log"}, default "linear"
        How values are laid out.
    unit : {"", "%", "x", "s", "B"}, default ""
        How a value is written: a plain number, a share in per cent, so many times, seconds, bytes.
    low, high : float, optional
        Its ends, where the values do not decide them.
    ticks : mapping of float to str, optional
        Where ticks are and what stands there; chosen by the values otherwise.
    grid : bool, default True
        Whether lines are drawn at the ticks.
    reverse : bool, default False
        Whether values rise towards the origin.
    """

    label: str = ""
    scale: Literal["linear", "log"] = "linear"
    unit: Literal["", "%", "x", "s", "B"] = ""
    low: float | None = None
    high: float | None = None
    ticks: Mapping[float, str] = field(default_factory=dict)
    grid: bool = True
    reverse: bool = False

    def text(self, value: float) -> str:
        """Return a value as it is said: what stands at its tick, or the number with its unit."""
        if value in self.ticks:
            return self.ticks[value]
        if self.unit == "%":
            return f"{100 * value:.4g}%"
        if self.unit == "x":
            return f"{value:.3g}x"
        if self.unit == "B":
            return byte_text(value)
        if self.unit == "s":
            return seconds_text(value)
        return figure_text(value) if abs(value) >= 1e-5 else f"{value:.3g}"

    def log_ticks(self, low: float, high: float) -> list[float]:
        """Return the ticks of a logarithmic axis: powers of ten, and round numbers between them where few are shown.

        Parameters
        ----------
        low, high : float
            The ends of the axis. There are ticks beyond them.
        """
        ratio = high / low
        steps = (1.0,) if ratio > 300 else (1.0, 2.0, 5.0) if ratio > 4 else _FINE
        powers = range(math.floor(math.log10(low)) - 2, math.ceil(math.log10(high)) + 3)
        return [step * 10.0**power for power in powers for step in steps]

    def limits(self, values: Sequence[float]) -> tuple[float, float]:
        """Return the lowest and the highest value of the axis, a little beyond the data.

        Parameters
        ----------
        values : sequence of float
            All coordinates on this side; on a logarithmic axis those that are not positive do not count.
        """
        log = self.scale == "log"
        there = [value for value in values if math.isfinite(value) and (value > 0 or not log)]
        known = [math.log10(value) if log else value for value in there]
        low, high = (min(known), max(known)) if known else (0.0, 1.0)
        if high - low < 1e-12 * max(1.0, abs(high)):
            low, high = (low - 0.3, high + 0.3) if log else (low - 0.5 * (abs(low) or 1), high + 0.5 * (abs(high) or 1))
        room = _MARGIN * (high - low)
        low, high = (10 ** (low - room), 10 ** (high + room)) if log else (low - room, high + room)
        return (low if self.low is None else self.low, high if self.high is None else self.high)


@dataclass(frozen=True)
class Panel:
    """One pair of axes and its contents.

    Parameters
    ----------
    title : str
        Heading.
    x, y : Axis
        Its sides.
    marks : sequence of Line, Bars, Level, Band, Words
        What it shows, from back to front.
    """

    title: str
    x: Axis
    y: Axis
    marks: Sequence[Mark]

    def values(self, side: Side) -> list[float]:
        """Return all coordinates on one side."""
        return [value for mark in self.marks for value in mark.values(side)]


@dataclass(frozen=True)
class Figure:
    """One figure of a page.

    Parameters
    ----------
    name : str
        Its address in the page, and the name of its file without the ending.
    title : str
        Heading.
    caption : str
        How to read it.
    panels : sequence of Panel
        From left to right, line by line.
    columns : int, default 3
        Panels beside each other, where there is room.
    height : int, default 280
        Of a panel, in pixels.
    share : {"", "x", "y", "xy"}, default ""
        The sides that all panels have in common: they have the same ends.
    """

    name: str
    title: str
    caption: str
    panels: Sequence[Panel]
    columns: int = 3
    height: int = 280
    share: Literal["", "x", "y", "xy"] = ""

    def limits(self, side: Side) -> list[tuple[float, float]]:
        """Return the ends of one side of every panel."""
        axes = [panel.x if side == "x" else panel.y for panel in self.panels]
        if side in self.share:
            together = [value for panel in self.panels for value in panel.values(side)]
            return [axes[0].limits(together)] * len(axes)
        return [axis.limits(panel.values(side)) for axis, panel in zip(axes, self.panels, strict=True)]


def series(number: int) -> tuple[Colour, str, Dash]:
    """Return colour, marker and dashes of a series by its number, the same in all figures."""
    colours = len(SERIES)
    return (
        SERIES[number % colours],
        MARKERS[(number + number // colours) % len(MARKERS)],
        ("solid" if number < colours else "dashed"),
    )


def period_axis(label: str, periods: Sequence[int]) -> Axis:
    """Return a logarithmic axis with a tick at every value, as for periods and ranks.

    Parameters
    ----------
    label : str
        What they are.
    periods : sequence of int
        The values, rising.
    """
    if not periods:
        return Axis(label, "log")
    ticks = {float(every): f"{every:,}" for every in periods}
    # Half a step at both ends.
    room = min(1.8, (periods[-1] / periods[0]) ** (0.5 / (len(periods) - 1))) if len(periods) > 1 else 1.8
    return Axis(label, "log", low=periods[0] / room, high=periods[-1] * room, ticks=ticks)
