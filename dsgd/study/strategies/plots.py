"""The figures of the study of strategies: cost of the target, objective against seconds and bytes."""

from __future__ import annotations

from typing import Final, Literal

from dsgd.report import Axis, Figure, Level, Line, Mark, Panel, series
from dsgd.report.theme import GREY, ORANGE, TEXT
from dsgd.study.comparison.figures import front_figure
from dsgd.study.comparison.methods import FAMILIES
from dsgd.study.comparison.summary import StrategyCell, StrategyGang

__all__ = ["strategy_figures"]

_CURVES: Final = (
    "Training objective of the model that training returns after so many epochs, one panel per family; the others are "
    "pale behind. Medians over seeds. Where a curve ends earlier, its epochs cost less. Curves that begin higher are "
    "cut off."
)
# What early points are allowed to take of the height, over the sequential run's last one.
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
    front = front_figure(gang, excess, f"pareto{tail}")
    return [front, *curves]


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
