"""The rows of the study of the period, by sets, ranks and periods, and the figures made of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from dsgd.ledger import PHASES
from dsgd.report import Axis, Bars, Figure, Level, Line, Mark, Panel, Words, period_axis, seconds_text
from dsgd.report.figures import GREY, MARKERS, MUTED, PHASE_COLOURS, TEXT, VERMILION, Dash, ramp
from dsgd.report.figures import PHASES as SHOWN_PHASES
from dsgd.study.frame.report import line_of, lines_of
from dsgd.study.frame.rows import Cell, Row, Stat, cells_of, one_of
from dsgd.study.published import FIGURES

#: The period at which the abstract reads off the fall of communication, and that fall.
RARE, _REDUCTION = 512, 0.98
#: The published seconds of communication, by dataset, number of processes and period.
COMMUNICATION_S: Final[dict[str, dict[int, dict[int, float]]]] = {
    name: {int(ranks): dict(zip(FIGURES["msf"]["periods"], seconds, strict=False)) for ranks, seconds in by.items()}
    for name, by in FIGURES["msf"]["communication_s"].items()
}


# -- reading rows --------------------------------------------------------------------------------------------------

_CONTROL: Final = frozenset({"control_s", "control_bytes_sent", "control_messages"})
_PER_RANK: Final = _CONTROL | {"compute_s", "encode_s", "wire_s", "wait_s", "bytes_sent", "messages"}
# A model with this balanced accuracy (0.5 is a coin) has learnt almost nothing about the rare class.
_TRIVIAL_BALANCED: Final = 0.55


def _value(row: Row, name: str) -> float | None:
    """Return a column; seconds of phases, bytes and messages per rank, and of wire and wait as communication."""
    if name == "communication_s":
        wire, wait = _value(row, "wire_s"), _value(row, "wait_s")
        return None if wire is None or wait is None else wire + wait
    if name == "other_s":  # the loop around the phases, which the ledger does not charge
        phases = [_value(row, f"{phase}_s") for phase in PHASES]
        # The ledger of short rounds is an estimate from a sample of them, so its sum may exceed the time that passed.
        return None if None in phases else max(0.0, float(row["train_s"]) - sum(s for s in phases if s is not None))
    # In rows from before control was counted separately, other columns include it.
    value = row.get(name, 0.0 if name in _CONTROL else None)
    if value is None:
        return None
    return float(value) / row["ranks"] if name in _PER_RANK else float(value)


class PeriodRows:
    """The runs on one dataset: those of one rank, if there are any, and all by ranks and period."""

    def __init__(self, name: str, rows: Sequence[Row]) -> None:
        cells = cells_of(rows, "ranks", "every", make=partial(Cell, value=_value))
        self.name, self.cells = name, sorted(cells, key=lambda cell: (cell.ranks, cell.every or 0))
        self.sequential = one_of(self.cells, ranks=1, every=None)
        self.ranks = sorted({cell.ranks for cell in self.cells if cell.every is not None})

    def parallel(self, ranks: int | None = None) -> list[Cell]:
        """Return the cells with a period, by rising period; of the most ranks that were run by default."""
        most = max(self.ranks, default=0) if ranks is None else ranks
        return [cell for cell in self.cells if cell.ranks == most and cell.every is not None]

    def ends(self) -> tuple[Cell, Cell] | None:
        """Return the cells of period 1 and 512 at the most ranks, if both were run."""
        cells = {cell.every: cell for cell in self.parallel()}
        return (cells[1], cells[RARE]) if 1 in cells and RARE in cells else None


def sets_of(rows: Sequence[Row]) -> list[PeriodRows]:
    """Return the rows of each dataset."""
    return [PeriodRows(cell.dataset, cell.rows) for cell in cells_of(rows, "dataset")]


def is_trivial(cell: Cell) -> bool:
    """Return whether the models of a cell are no better than the majority vote."""
    return cell.is_trivial or cell.median("balanced_accuracy") < _TRIVIAL_BALANCED


# -- figures -------------------------------------------------------------------------------------------------------

# The panels of one dataset stand in a row, or those of all datasets, so that a figure reads the same for one set and
# for three. Points are medians over seeds; bars reach from the lowest to the highest seed.
_PERIOD: Final = "synchronisation period, samples"
_SEQUENTIAL: Final = "sequential run"
_MOST_WORDS: Final = 8


def figures_of(sets: Sequence[PeriodRows]) -> list[Figure]:
    """Return the figures of a study; none if it ran nothing on more than one rank."""
    figures = []
    for name, title, caption, kinds in _FIGURES if any(one.ranks for one in sets) else ():
        if len(kinds) == 3:  # a line of panels for each dataset
            panels, columns = [kind(one) for one in sets for kind in kinds], 3
        else:
            panels = [kind(one) for kind in kinds for one in sets]
            columns = max(2, len(kinds) if len(sets) == 1 else min(3, len(sets)))
        figures.append(Figure(name, title, caption, panels, columns))
    return figures


def _panel(one: PeriodRows, title: str, y: Axis, marks: Sequence[Mark]) -> Panel:
    """Return a panel against the period."""
    x = period_axis(_PERIOD, sorted({cell.every for cell in one.cells if cell.every is not None}))
    return Panel(f"{one.name}: {title}" if title else one.name, x, y, marks)


def _per_ranks(one: PeriodRows, pick: Callable[[Cell], Stat | None] | str) -> list[Mark]:
    """Return one line per number of ranks against the period, with the range over seeds."""
    return [*lines_of({f"{ranks} processes": one.parallel(ranks) for ranks in one.ranks}, "every", pick)]


def _level(one: PeriodRows, column: str) -> list[Mark]:
    return [Level(one.sequential.median(column), _SEQUENTIAL)] if one.sequential else []


def _total_time(one: PeriodRows) -> Panel:
    marks = [*_per_ranks(one, "train_s"), *_level(one, "train_s")]
    return _panel(one, "training time", Axis("training time", "log", "s"), marks)


def _shares(one: PeriodRows) -> Panel:
    """Shares of the phases as stacked bars, with the seconds of the run above each."""
    # Totals differ by a factor of a hundred and more over the periods: as heights, all but the first would vanish.
    cells = one.parallel()
    places, floor = list(range(len(cells))), [0.0] * len(cells)
    splits = [[cell.median(f"{phase}_s") for phase in SHOWN_PHASES] for cell in cells]
    marks: list[Mark] = []
    for number, phase in enumerate(SHOWN_PHASES):
        top = [low + split[number] / sum(split) for low, split in zip(floor, splits, strict=True)]
        names = [f"every: {c.every:,}, {seconds_text(split[number])}" for c, split in zip(cells, splits, strict=True)]
        sides = [place - 0.37 for place in places], [place + 0.37 for place in places]
        marks.append(Bars(phase, *sides, floor, top, PHASE_COLOURS[number], names))
        floor = top
    if len(cells) <= _MOST_WORDS:
        marks.append(Words(places, floor, [seconds_text(float(f"{cell.median('train_s'):.2g}")) for cell in cells]))
    title = f"{one.name}: where it goes" + (f" ({cells[0].ranks} processes)" if cells else "")
    every = Axis(_PERIOD, ticks={float(place): f"{cell.every:,}" for place, cell in enumerate(cells)}, grid=False)
    share = Axis("share of rank time", unit="%", low=0.0, high=1.1, ticks={n / 5: f"{20 * n}%" for n in range(6)})
    return Panel(title, every, share, marks)


def _accuracy(one: PeriodRows) -> Panel:
    stats = [stat for cell in one.cells if (stat := cell.stat("test_accuracy")) is not None]
    low, high = min(stat.low for stat in stats), max(stat.high for stat in stats)
    marks = [*_per_ranks(one, "test_accuracy"), *_level(one, "test_accuracy")]
    majority, title = one.cells[0].median("majority_accuracy"), "test accuracy"
    if majority > low - 0.05:
        marks.append(Level(majority, "commonest label", MUTED, "dotted"))
        low, high = min(low, majority), max(high, majority)
    else:  # far below: drawing it would flatten the curves
        title += f", commonest label {majority:.1%}"
    # At least a point high, so that a tenth of a point does not look like a cliff.
    middle, half = (low + high) / 2, 0.58 * max(0.01, high - low)
    return _panel(one, title, Axis("test accuracy", unit="%", low=middle - half, high=middle + half), marks)


def _communication(one: PeriodRows) -> Panel:
    return _panel(one, "wire + wait", Axis("per rank", "log", "s"), _per_ranks(one, "communication_s"))


def _communication_share(one: PeriodRows) -> Panel:
    marks: list[Mark] = []
    name = next((name for name in COMMUNICATION_S if one.name.startswith(name)), "")
    for ranks, dash in (("2", "dashed"), ("32", "dotted")) if name else ():
        seconds = COMMUNICATION_S[name][int(ranks)]
        shares = [value / seconds[1] for value in seconds.values()]
        style: dict[str, Any] = {"colour": GREY, "width": 1.4}
        marks.append(line_of(f"published, {ranks} processes", list(seconds), shares, marker="", dash=dash, **style))
    for number, ranks in enumerate(one.ranks):
        cells = one.parallel(ranks)
        if cells and cells[0].every == 1 and (before := cells[0].median("communication_s")) > 0:
            x, shares = [cell.every for cell in cells], [cell.median("communication_s") / before for cell in cells]
            marks.append(line_of(f"{ranks} processes", x, shares, number, dash="solid"))
    marks.append(Level(1 - _REDUCTION, "98 % less", VERMILION, "solid"))
    return _panel(one, "against every=1", Axis("share of every=1", "log", "%"), marks)


def _convergence(one: PeriodRows, against: str) -> Panel:
    cells = one.parallel()
    shown = [
        (cell, f"every={cell.every:,}", colour, MARKERS[number % len(MARKERS)])
        for number, (cell, colour) in enumerate(zip(cells, ramp(len(cells)), strict=True))
    ]
    marks: list[Mark] = []
    for cell, label, colour, marker in [*shown, *([(one.sequential, _SEQUENTIAL, TEXT, "")] if one.sequential else [])]:
        # The curve of the median seed.
        rows = sorted((row for row in cell.rows if row.get("curve")), key=lambda row: float(row["train_s"]))
        curve: list[dict[str, Any]] = rows[len(rows) // 2]["curve"] if rows else []
        points = [(at[against], at["train_loss"]) for at in curve if at["train_loss"] is not None]
        if points:
            dash: Dash = "solid" if marker else "dashed"
            places, losses = ([point[i] for point in points] for i in (0, 1))
            marks.append(Line(label, places, losses, colour, marker, dash, 1.5, 5.0))
    positive = all(value > 0 for mark in marks for value in mark.values("y"))
    axis = Axis("epochs") if against == "epoch" else Axis("time", "log", "s")
    loss = Axis("training loss", "log" if positive else "linear")
    return Panel(f"{one.name}: loss against {'epochs' if against == 'epoch' else 'time'}", axis, loss, marks)


_FIGURES: Final[Sequence[tuple[str, str, str, Sequence[Callable[[PeriodRows], Panel]]]]] = (
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
        "communication",
        "Communication",
        "Wire plus waiting time per rank, and as a share of what it is at every=1. Grey: the published curves; "
        "communication does not fall as 1/every because waiting for the slowest rank remains.",
        (_communication, _communication_share),
    ),
    (
        "convergence",
        "Training loss against epochs and seconds",
        "Mean loss of the rows of an epoch, each before its own update. Rare synchronisation costs epochs and saves "
        "seconds; the curves against seconds show what is left of the gain. Median seed by training time.",
        (partial(_convergence, against="epoch"), partial(_convergence, against="seconds")),
    ),
)
