"""The figures of the study of strategies: cost of the target, objective against seconds and bytes."""

from __future__ import annotations

from typing import Final, Literal

from dsgd.report import Axis, Figure, Level, Line, Mark, Panel, series
from dsgd.report.theme import GREY, MARKERS, ORANGE, SERIES, SKY, TEXT
from dsgd.study.strategies.grid import FAMILIES
from dsgd.study.strategies.summary import StrategyCell, StrategyGang

__all__ = ["strategy_figures"]

_CURVES: Final = (
    "Training objective of the model that training returns after so many epochs, one panel per family; the others are "
    "pale behind. Medians over seeds. Where a curve ends earlier, its epochs cost less. Curves that begin higher are "
    "cut off."
)
_FRONT: Final = (
    "Every strategy that reaches the target, at what that took. Along the line lie those that no other beats in both; "
    "their names are written. Hover over a point for its name."
)
# Height that early points may take, as a multiple of the sequential run's last one.
_HIGHEST: Final = 1.3


def strategy_figures(gang: StrategyGang, *, excess: float, tail: str = "") -> list[Figure]:
    """Return the figures of one dataset and number of ranks; `tail` ends their names, where there are several gangs."""
    families = [name for name in FAMILIES if any(cell.family == name for cell in gang.cells)]
    sides: tuple[tuple[Literal["seconds", "bytes_sent"], str], ...] = (("seconds", "seconds"), ("bytes_sent", "bytes"))
    curves = [
        Figure(
            f"loss_{name}{tail}",
            f"Objective against {name}: {gang.name}",
            _CURVES,
            [_family(gang, family, against, excess) for family in families],
            share="xy",
        )
        for against, name in sides
    ]
    front = Figure(
        f"pareto{tail}", f"Bytes and seconds to the target: {gang.name}", _FRONT, [_front(gang, excess)], height=480
    )
    return [front, *curves]


def _front(gang: StrategyGang, excess: float) -> Panel:
    reached, front = gang.reached(excess), gang.front(excess)
    marks: list[Mark] = []
    if front:
        x = [reached[name]["seconds"] for name in front]
        y = [max(1.0, reached[name]["bytes_sent"]) for name in front]
        marks.append(Line("Pareto front", x, y, GREY, width=1.4, steps=True, pale=True))
    for number, family in enumerate(FAMILIES):
        names = [cell.name for cell in gang.cells if cell.family == family and cell.name in reached]
        if names:
            x = [reached[name]["seconds"] for name in names]
            y = [max(1.0, reached[name]["bytes_sent"]) for name in names]
            colour, marker = (*SERIES, SKY, TEXT)[number % 7], MARKERS[number % len(MARKERS)]
            marks.append(Line(family, x, y, colour, marker, width=0.0, size=10.0, names=names, written=front))
    target = f"{gang.target(excess):.4g}"
    title = f"To a training objective of {target}" if reached else f"No strategy has reached {target}"
    # Names stand to the left of and below the points of the front, where there are no others; they need room.
    low_s, low_bytes = (
        0.6 * max(least, min(point[side] for point in reached.values())) if reached else None
        for side, least in (("seconds", 0.0), ("bytes_sent", 1.0))
    )
    x_axis = Axis("time to the target", "log", "s", low=low_s)
    return Panel(title, x_axis, Axis("sent by all ranks", "log", "B", low=low_bytes), marks)


def _family(gang: StrategyGang, family: str, against: Literal["seconds", "bytes_sent"], excess: float) -> Panel:
    """Return the strategies of a family, with those of the others pale behind."""
    marks: list[Mark] = [
        Line("", *_points(cell, against), GREY, width=0.5, pale=True) for cell in gang.cells if cell.family != family
    ]
    if against == "seconds":
        marks.append(Line("sequential", *_points(gang.sequential, against), TEXT, dash="dotted", width=1.6))
    for number, cell in enumerate(cell for cell in gang.cells if cell.family == family):
        colour, marker, dash = series(number)
        marks.append(Line(cell.name, *_points(cell, against), colour, marker, dash, 1.6, 5.5))
    target, last = gang.target(excess), gang.sequential.median("objective")
    marks.append(Level(target, "target", ORANGE))
    values = [point["objective"] for cell in gang.cells for point in cell.curve()]
    low, high = min([last, *values]), min(max([target, *values]), _HIGHEST * last)
    room = 0.05 * (high - low)
    x = Axis("time", "log", "s") if against == "seconds" else Axis("sent by all ranks", "log", "B")
    return Panel(family, x, Axis("training objective", low=low - room, high=high + room), marks)


def _points(cell: StrategyCell, against: str) -> tuple[list[float], list[float]]:
    # A curve without bytes cannot be drawn on a logarithmic axis.
    curve = [point for point in cell.curve() if point[against] > 0.0]
    return [point[against] for point in curve], [point["objective"] for point in curve]
