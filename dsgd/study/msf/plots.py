"""The figures of the study of the period.

The panels of one dataset stand in a row, or those of all datasets, so that a figure reads the same for one set and for
three. Points are medians over seeds; bars reach from the lowest to the highest seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from dsgd.report import Axis, Bars, Figure, Level, Line, Mark, Panel, Words, period_axis, seconds_text, series
from dsgd.report.theme import (
    GREY,
    MARKERS,
    MUTED,
    PHASE_COLOURS,
    PHASE_MARKERS,
    PHASES,
    TEXT,
    VERMILION,
    Colour,
    ramp,
)
from dsgd.study.frame.summary import Stat
from dsgd.study.msf import published
from dsgd.study.msf.summary import Cell, Summary

__all__ = ["study_figures"]

_PERIOD: Final = "synchronisation period, samples"
_SEQUENTIAL: Final = "sequential run"
_MOST_WORDS: Final = 8


def study_figures(summary: Summary) -> list[Figure]:
    """Return the figures of a study; none if it ran nothing on more than one rank."""
    datasets = summary.datasets()
    if not any(summary.parallel(dataset) for dataset in datasets):
        return []
    figures = []
    for name, title, caption, kinds in _FIGURES:
        if len(kinds) == 3:  # a line of panels for each dataset
            panels = [kind(summary, dataset) for dataset in datasets for kind in kinds]
            figures.append(Figure(name, title, caption, panels, columns=3))
        else:
            panels = [kind(summary, dataset) for kind in kinds for dataset in datasets]
            columns = len(kinds) if len(datasets) == 1 else min(3, len(datasets))
            figures.append(Figure(name, title, caption, panels, columns=max(2, columns)))
    return figures


# -- panels --------------------------------------------------------------------------------------------------------


def _total_time(summary: Summary, dataset: str) -> Panel:
    marks = [
        *_per_ranks(summary, dataset, lambda cell: cell.stat("train_s")),
        *_sequential(summary, dataset, "train_s"),
    ]
    return Panel(f"{dataset}: training time", _periods(summary, dataset), Axis("training time", "log", "s"), marks)


def _shares(summary: Summary, dataset: str) -> Panel:
    """Shares of the phases as stacked bars, with the seconds of the run above each."""
    # Totals differ by a factor of a hundred and more over the periods: as heights, all but the first would vanish.
    cells = summary.parallel(dataset)
    splits = [_phase_seconds(cell) for cell in cells]
    floor = [0.0] * len(cells)
    marks: list[Mark] = []
    for number, phase in enumerate(PHASES):
        top = [low + split[number] / sum(split) for low, split in zip(floor, splits, strict=True)]
        sides = [place - 0.37 for place in range(len(cells))], [place + 0.37 for place in range(len(cells))]
        names = [
            f"every: {cell.every:,}, {seconds_text(split[number])}" for cell, split in zip(cells, splits, strict=True)
        ]
        marks.append(Bars(phase, *sides, floor, top, PHASE_COLOURS[number], names))
        floor = top
    if len(cells) <= _MOST_WORDS:
        texts = [seconds_text(float(f"{cell.median('train_s'):.2g}")) for cell in cells]
        marks.append(Words(list(range(len(cells))), floor, texts))
    title = f"{dataset}: where it goes" + (f" ({cells[0].ranks} processes)" if cells else "")
    every = Axis(_PERIOD, ticks={float(place): f"{cell.every:,}" for place, cell in enumerate(cells)}, grid=False)
    share = Axis("share of rank time", unit="%", low=0.0, high=1.1, ticks={n / 5: f"{20 * n}%" for n in range(6)})
    return Panel(title, every, share, marks)


def _accuracy(summary: Summary, dataset: str) -> Panel:
    cells = [cell for cell in summary.cells if cell.dataset == dataset]
    stats = [stat for cell in cells if (stat := cell.stat("test_accuracy")) is not None]
    low, high = min(stat.low for stat in stats), max(stat.high for stat in stats)
    marks = [
        *_per_ranks(summary, dataset, lambda cell: cell.stat("test_accuracy")),
        *_sequential(summary, dataset, "test_accuracy"),
    ]
    majority = cells[0].median("majority_accuracy")
    title = f"{dataset}: test accuracy"
    if majority > low - 0.05:
        marks.append(Level(majority, "commonest label", MUTED, "dotted"))
        low, high = min(low, majority), max(high, majority)
    else:  # far below: drawing it would flatten the curves
        title += f", commonest label {majority:.1%}"
    # At least a point high, so that a tenth of a point does not look like a cliff.
    middle, half = (low + high) / 2, 0.58 * max(0.01, high - low)
    axis = Axis("test accuracy", unit="%", low=middle - half, high=middle + half)
    return Panel(title, _periods(summary, dataset), axis, marks)


def _phases(summary: Summary, dataset: str) -> Panel:
    cells = summary.parallel(dataset)
    splits = [_phase_seconds(cell) for cell in cells]
    marks: list[Mark] = []
    for number, phase in enumerate(PHASES):
        points = [(cell.every or 1, split[number]) for cell, split in zip(cells, splits, strict=True)]
        points = [point for point in points if point[1] > 0]
        if points:
            x, y = zip(*points, strict=True)
            marks.append(Line(phase, x, y, PHASE_COLOURS[number], PHASE_MARKERS[number]))
    marks += _sequential(summary, dataset, "train_s", "sequential run, in all")
    return Panel(dataset, _periods(summary, dataset), Axis("per rank", "log", "s"), marks)


def _communication(summary: Summary, dataset: str) -> Panel:
    marks = _per_ranks(summary, dataset, lambda cell: cell.stat("communication_s"))
    return Panel(f"{dataset}: wire + wait", _periods(summary, dataset), Axis("per rank", "log", "s"), marks)


def _communication_share(summary: Summary, dataset: str) -> Panel:
    marks: list[Mark] = []
    family = published.family(dataset)
    for ranks, dash in ((2, "dashed"), (32, "dotted")) if family else ():
        seconds = published.COMMUNICATION_S[str(family)][ranks]
        shares = [value / seconds[1] for value in seconds.values()]
        marks.append(Line(f"published, {ranks} processes", list(seconds), shares, GREY, dash=dash, width=1.4))  # type: ignore[arg-type]
    for number, ranks in enumerate(summary.ranks(dataset)):
        cells = summary.parallel(dataset, ranks)
        if cells and cells[0].every == 1 and (before := cells[0].median("communication_s")) > 0:
            shares = [cell.median("communication_s") / before for cell in cells]
            colour, marker, _ = series(number)
            marks.append(Line(f"{ranks} processes", [cell.every or 1 for cell in cells], shares, colour, marker))
    marks.append(Level(1 - published.REDUCTION, "98 % less", VERMILION, "solid"))
    axis = Axis("share of every=1", "log", "%")
    return Panel(f"{dataset}: against every=1", _periods(summary, dataset), axis, marks)


def _over_sequential(summary: Summary, dataset: str) -> Panel:
    sequential = summary.sequential(dataset)
    base = sequential.median("train_s") if sequential else None
    marks = _per_ranks(summary, dataset, lambda cell: _ratio(base, cell.stat("train_s")))
    marks.append(Level(1.0, _SEQUENTIAL))
    for ranks in summary.ranks(dataset)[-1:]:
        marks.append(Level(float(ranks), f"ideal for {ranks} processes", MUTED, "dotted"))
    axis = Axis("times the sequential run", unit="x", low=0.0)
    return Panel(f"{dataset}: over the sequential run", _periods(summary, dataset), axis, marks)


def _over_frequent(summary: Summary, dataset: str) -> Panel:
    def ratio(cell: Cell) -> Stat | None:
        first = summary.cell(dataset, cell.ranks, 1)
        return _ratio(first.median("train_s") if first else None, cell.stat("train_s"))

    axis = Axis("times every=1", unit="x", low=0.0)
    marks = _per_ranks(summary, dataset, ratio)
    return Panel(f"{dataset}: over every=1", _periods(summary, dataset), axis, marks)


def _convergence(summary: Summary, dataset: str, against: str) -> Panel:
    cells = summary.parallel(dataset)
    marks: list[Mark] = []
    for number, (cell, colour) in enumerate(zip(cells, ramp(len(cells)), strict=True)):
        marks += _curve(cell, against, f"every={cell.every:,}", colour, MARKERS[number % len(MARKERS)])
    if sequential := summary.sequential(dataset):
        marks += _curve(sequential, against, _SEQUENTIAL, TEXT)
    positive = all(value > 0 for mark in marks for value in mark.values("y"))
    axis = Axis("epochs") if against == "epoch" else Axis("time", "log", "s")
    loss = Axis("training loss", "log" if positive else "linear")
    return Panel(f"{dataset}: loss against {'epochs' if against == 'epoch' else 'time'}", axis, loss, marks)


def _dispersion(summary: Summary, dataset: str) -> Panel:
    marks = _per_ranks(summary, dataset, lambda cell: cell.stat("dispersion"))
    axis = Axis("mean squared distance", "log" if any(any(mark.values("y")) for mark in marks) else "linear")
    return Panel(dataset, _periods(summary, dataset), axis, marks)


_Kind = Callable[[Summary, str], Panel]
_FIGURES: Final[Sequence[tuple[str, str, str, Sequence[_Kind]]]] = (
    (
        "msf",
        "Time, where it goes, and what it costs in accuracy",
        "Against the period: training time without placing the data; the shares of local steps (compute), packing "
        "(encode), bytes moving (wire), waiting for a slower peer (wait) and the loop around them (other) at the "
        "largest number of processes; and test accuracy of the averaged model. The dotted line is what always "
        "predicting the commonest label scores: a model on it has learnt nothing that accuracy can see.",
        (_total_time, _shares, _accuracy),
    ),
    (
        "phases",
        "Seconds of each phase",
        "Per rank, at the largest number of processes.",
        (_phases,),
    ),
    (
        "communication",
        "Communication",
        "Wire plus waiting time per rank, and as a share of what it is at every=1. Grey: the published curves; "
        "communication does not fall as 1/every because waiting for the slowest rank remains.",
        (_communication, _communication_share),
    ),
    (
        "speedup",
        "Speed-up",
        "Over the sequential run, and over synchronising every sample on as many processes.",
        (_over_sequential, _over_frequent),
    ),
    (
        "convergence",
        "Training loss against epochs and seconds",
        "Mean loss of the rows of an epoch, each before its own update. Rare synchronisation costs epochs and saves "
        "seconds; the curves against seconds show what is left of the gain. Median seed by training time.",
        (partial(_convergence, against="epoch"), partial(_convergence, against="seconds")),
    ),
    (
        "dispersion",
        "How far the ranks drift apart",
        "Mean squared distance of the ranks' models from their average, just before the last synchronisation.",
        (_dispersion,),
    ),
)


# -- parts of panels -----------------------------------------------------------------------------------------------


def _phase_seconds(cell: Cell) -> list[float]:
    return [cell.median(f"{phase}_s") for phase in PHASES]


def _per_ranks(summary: Summary, dataset: str, pick: Callable[[Cell], Stat | None]) -> list[Mark]:
    """Return one line per number of ranks against the period, with the range over seeds."""
    lines: list[Mark] = []
    for number, ranks in enumerate(summary.ranks(dataset)):
        points = [(cell, stat) for cell in summary.parallel(dataset, ranks) if (stat := pick(cell)) is not None]
        colour, marker, dash = series(number)
        if points:
            x, y = [cell.every or 1 for cell, _ in points], [stat.median for _, stat in points]
            ranges = [(stat.low, stat.high) for _, stat in points]
            lines.append(Line(f"{ranks} processes", x, y, colour, marker, dash, ranges=ranges))
    return lines


def _sequential(summary: Summary, dataset: str, column: str, label: str = _SEQUENTIAL) -> list[Mark]:
    found = summary.sequential(dataset)
    return [Level(found.median(column), label)] if found else []


def _curve(cell: Cell, against: str, label: str, colour: Colour, marker: str = "") -> list[Mark]:
    rows = sorted((row for row in cell.rows if row.get("curve")), key=lambda row: float(row["train_s"]))
    points: list[dict[str, Any]] = rows[len(rows) // 2]["curve"] if rows else []
    points = [point for point in points if point["train_loss"] is not None]
    if not points:
        return []
    x, y = [point[against] for point in points], [point["train_loss"] for point in points]
    return [Line(label, x, y, colour, marker, "solid" if marker else "dashed", 1.5, 5.0)]


def _ratio(base: float | None, stat: Stat | None) -> Stat | None:
    return None if base is None or stat is None else stat.under(base)


def _periods(summary: Summary, dataset: str) -> Axis:
    periods = sorted({cell.every for cell in summary.cells if cell.dataset == dataset and cell.every is not None})
    return period_axis(_PERIOD, periods)
