"""The figures of a comparison: learning curves against what they took, and the cost of the target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dsgd.report import Axis, Figure, Level, Line, Mark, Panel, series
from dsgd.report.figures import texts_at
from dsgd.report.theme import GREY, MARKERS, ORANGE, SERIES, SKY, TEXT
from dsgd.study.comparison.methods import FAMILIES
from dsgd.study.comparison.summary import StrategyCell, StrategyGang
from dsgd.study.frame.cells import Stat

_FRONT: Final = (
    "Every strategy that reaches the target, at what that took. Along the line lie those that no other beats in both; "
    "their names are written. Hover over a point for its name."
)
_CURVES: Final = (
    "Training objective of the model that training returns, against the rows seen by then, what all ranks together "
    "have sent for the algorithm, and the time. Medians over seeds, with the lowest and the highest. Each point is a "
    "training of its own; the first are of a part of an epoch. Curves that begin higher are cut off."
)
#: What curves are drawn against: the column of a point, the name of the panel, and the axis.
_AGAINST: Final = (
    ("rows", "Rows", Axis("rows seen", "log")), ("bytes_sent", "Bytes", Axis("sent by all ranks", "log", "B")),
    ("messages", "Messages", Axis("messages of all ranks", "log")), ("seconds", "Seconds", Axis("time", "log", "s")),
)  # fmt: skip
# What early points are allowed to take of the height, over the target.
_HIGHEST: Final = 2.5


def curves_figure(gang: StrategyGang, excess: float) -> Figure:
    """Return the learning curves of all strategies against rows, bytes, messages and seconds."""
    panels = [Panel(title, x, *_curves(gang, name, excess)) for name, title, x in _AGAINST]
    return Figure("curves", f"Learning curves: {gang.name}", _CURVES, panels, columns=2, height=330, share="y")


def _curves(gang: StrategyGang, against: str, excess: float) -> tuple[Axis, list[Mark]]:
    """Return the vertical axis and the marks of the curves against a column of their points."""
    target = gang.target(excess)
    marks: list[Mark] = []
    if against in ("rows", "seconds"):
        marks.append(_line(gang.sequential, against, "dotted"))
    marks += [_line(cell, against, "", number) for number, cell in enumerate(gang.cells) if cell.rows]
    marks.append(Level(target, "target", ORANGE))
    values = [value for mark in marks for value in mark.values("y")]
    low, high = min(values), min(max(values), _HIGHEST * target)
    room = 0.05 * (high - low)
    return Axis("training objective", low=low - room, high=high + room), marks


def _line(cell: StrategyCell, against: str, dash: str, number: int = 0) -> Line:
    """Return the curve of a strategy, or that of one rank, dotted."""
    columns = [
        [Stat.of(point[name] for point in seeds) for seeds in zip(*(row["curve"] for row in cell.rows), strict=True)]
        for name in (against, "objective")
    ]
    # What has sent nothing has no place on an axis of powers.
    points = [(x, y) for x, y in zip(*columns, strict=True) if x is not None and y is not None and x.median > 0]
    x, y = [at.median for at, _ in points], [value.median for _, value in points]
    if dash:
        return Line(cell.name, x, y, TEXT, dash="dotted", width=1.6)
    colour, marker, own_dash = series(number)
    ranges = [(value.low, value.high) for _, value in points] if len(cell.rows) > 1 else []
    return Line(cell.name, x, y, colour, marker, own_dash, 1.6, 5.5, ranges)


def front_figure(gang: StrategyGang, excess: float, name: str = "pareto") -> Figure:
    """Return the cost of the target: seconds, and bytes."""
    title = f"Bytes and seconds to the target: {gang.name}"
    return Figure(name, title, _FRONT, [_front(gang, excess)], height=480)


def _below(values: Sequence[float], share: float) -> float:
    """Return where an axis of powers begins that leaves a share of its length free below the values."""
    low, high = min(values), max(values)
    begin: float = low * (low / high) ** (share / (1.0 - share))
    return min(0.6 * low, begin)


def _front(gang: StrategyGang, excess: float) -> Panel:
    reached, front = gang.reached(excess), gang.front(excess)
    points = {name: (at["seconds"], max(1.0, at["bytes_sent"])) for name, at in reached.items()}
    written = texts_at({name: points[name] for name in front})
    marks: list[Mark] = []
    if front:
        x, y = zip(*(points[name] for name in front), strict=True)
        marks.append(Line("Pareto front", x, y, GREY, width=1.4, steps=True, pale=True))
    for number, family in enumerate(FAMILIES):
        names = [cell.name for cell in gang.cells if cell.name in reached and cell.family == family]
        if names:
            x, y = zip(*(points[name] for name in names), strict=True)
            colour, marker = (*SERIES, SKY, TEXT)[number % 7], MARKERS[number % len(MARKERS)]
            marks.append(Line(family, x, y, colour, marker, width=0.0, size=10.0, names=names, written=written))
    target = f"{gang.target(excess):.4g}"
    title = f"To a training objective of {target}" if reached else f"No strategy has reached {target}"
    # Names stand left of and below the points of the front, where no other can be; they need room.
    low_s, low_bytes = (
        _below([max(least, point[side]) for point in reached.values()], share) if reached else None
        for side, least, share in (("seconds", 1e-9, 0.35), ("bytes_sent", 1.0, 0.0))
    )
    x_axis = Axis("time to the target", "log", "s", low=low_s)
    return Panel(title, x_axis, Axis("sent by all ranks", "log", "B", low=low_bytes), marks)
