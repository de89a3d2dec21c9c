"""Rows of a comparison put together: the target, who reaches it at what cost, and what may be said of it.

The target is the final training objective of one rank, and a little. A strategy whose model is no better than always
predicting the commonest label, or that diverged with some seed, makes no claim.

`Comparison` draws and writes them; the page of the study of strategies has the same tables, figure and sentences.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from dsgd import report
from dsgd.errors import DsgdError, InvalidParameterError
from dsgd.report.figures import GREY, MARKERS, ORANGE, SERIES, SKY, TEXT, texts_at
from dsgd.study.comparison.runs import FAMILIES, SEQUENTIAL
from dsgd.study.frame.report import data_table, joined, line_of
from dsgd.study.frame.rows import Cell, Row, cells_of, pareto, to_frame
from dsgd.study.frame.study import Study, study_page
from dsgd.study.published import Interval, as_points, as_times, ratio, were_busy

if TYPE_CHECKING:
    import pandas as pd

_WORTH: Final = ("objective", "test_accuracy")

#: What a comparison answers.
QUESTION: Final = "How do these methods compare?"


class StrategyCell(Cell):
    """The runs of a strategy that differ in nothing but the seed.

    Attributes
    ----------
    rows : list of dict
        The rows of the seeds whose model stayed in the range of numbers.
    n_diverged : int
        How many seeds there are besides.
    """

    def __init__(self, rows: Sequence[Row], name: str = "") -> None:
        super().__init__([row for row in rows if not row.get("diverged", False)])
        self.name, self.n_diverged = name or str(rows[0]["strategy"]), len(rows) - len(self.rows)

    @property
    def family(self) -> str:
        """To whom its ranks talk."""
        return str(self.rows[0]["family"])

    @property
    def may_claim(self) -> bool:
        """Whether it has learnt something, with every seed."""
        return not (self.is_trivial or self.n_diverged)

    def reached(self, target: float) -> dict[str, float] | None:
        """Return the first point of the curve with an objective of `target` or less; None if there is none."""
        return first_point(self.curve(), target)

    def reached_by_seed(self, target: float) -> dict[int, dict[str, float]]:
        """Return the first such point of each seed that has one."""
        found = {row["seed"]: first_point(row["curve"], target) for row in self.rows}
        return {seed: point for seed, point in found.items() if point is not None}


@dataclass(frozen=True)
class StrategyGang:
    """All strategies on one dataset and one number of ranks, and the sequential run.

    Parameters
    ----------
    dataset : str
        Name of the data.
    ranks : int
        How many.
    where : str
        How many ranks, and what they are.
    sequential : StrategyCell
        The run of one rank.
    cells : sequence of StrategyCell
        The strategies, in the order of the study.
    given : float or None, default None
        The target, where it is not that of the sequential run.
    """

    dataset: str
    ranks: int
    where: str
    sequential: StrategyCell
    cells: Sequence[StrategyCell]
    given: float | None = None

    @property
    def name(self) -> str:
        """What it is called in tables and figures."""
        return f"{self.dataset}, {self.where}"

    def target(self, excess: float) -> float:
        """Return the target that was given, or the final objective of the sequential run times (1 + `excess`)."""
        return self.given if self.given is not None else self.sequential.median("objective") * (1.0 + excess)

    def reached(self, excess: float) -> dict[str, dict[str, float]]:
        """Return where each strategy that does reaches the target, by name; who has learnt nothing does not."""
        target = self.target(excess)
        found = {cell.name: cell.reached(target) for cell in self.cells if cell.may_claim}
        return {name: point for name, point in found.items() if point is not None}

    def front(self, excess: float) -> list[str]:
        """Return the strategies that no other beats in both seconds and bytes to the target, soonest first."""
        reached = self.reached(excess)
        return pareto({name: (point["seconds"], point["bytes_sent"]) for name, point in reached.items()})

    def best(self, excess: float, cost: str) -> tuple[str, float] | None:
        """Return who reaches the target at the least cost (seconds, bytes_sent), and that cost; None if nobody does."""
        reached = self.reached(excess)
        return min(((name, at[cost]) for name, at in reached.items()), key=lambda pair: pair[1], default=None)

    def highlights(self, excess: float, noun: str) -> list[tuple[str, str]]:
        """Return how many reach the target, and the least seconds and bytes with which one does."""
        found = [(f"{len(self.reached(excess))} of {len(self.cells)}", f"{noun} reach the target")]
        for cost, text, word in (
            ("seconds", report.seconds_text, "soonest"),
            ("bytes_sent", report.byte_text, "fewest"),
        ):
            if best := self.best(excess, cost):
                found.append((text(best[1]), f"to the target, {word}: {best[0]}"))
        return found

    @property
    def is_trivial(self) -> bool:
        """Whether the sequential run is no better than always predicting the commonest label."""
        return self.sequential.is_trivial

    def behind(self, cell: StrategyCell) -> float:
        """Return the test accuracy of a strategy less that of the sequential run."""
        return cell.median("test_accuracy") - self.sequential.median("test_accuracy")


def first_point(curve: Iterable[dict[str, float]], target: float) -> dict[str, float] | None:
    """Return the first point of a curve with an objective of `target` or less; None if there is none."""
    return next((point for point in curve if point["objective"] <= target), None)


def gang_of(
    dataset: str, where: str, alone: Sequence[Row], rows: Sequence[Row], given: float | None = None
) -> StrategyGang:
    """Return the strategies of some rows, beside the rows of one rank."""
    sequential = StrategyCell(alone, SEQUENTIAL)
    if not sequential.rows:
        raise DsgdError(
            f"on {dataset} one rank diverges, so that there is no target: scale the rows (StandardScaler), or lower "
            "eta0."
        )
    cells = cells_of(rows, "strategy", make=StrategyCell)
    return StrategyGang(dataset, rows[0]["ranks"] if rows else 1, where, sequential, cells, given)


def strategy_table(gang: StrategyGang, *, excess: float) -> report.Table:
    """Return one row per strategy, the sequential run first; the target is its final objective and an excess."""
    target, front = gang.target(excess), gang.front(excess)
    columns = (
        "strategy", "rate", "s / epoch", "sent / epoch", "control / epoch", "epochs to target", "s to target",
        "sent to target", "accuracy", "- sequential", "objective", "rounds", "messages",
    )  # fmt: skip
    rows = [
        _row(gang, cell, target, front) if cell.rows else (cell.name, *("-",) * 4, "diverged", *("-",) * 7)
        for cell in (gang.sequential, *gang.cells)
    ]
    n_seeds = len(gang.sequential.rows)
    over = f"Medians over {n_seeds} seeds." if n_seeds > 1 else "One seed."
    origin = "as given" if gang.given is not None else f"that of the sequential run plus {excess:.0%}"
    note = (
        f"Target: a training objective of {target:.4g}, {origin}. Objective and "
        "accuracy (on test rows) are those of the model that training returns after so many epochs. Sent: by all ranks "
        "and servers together, for the algorithm; control: what they say beside it. "
        f"{over} * no other strategy needs fewer seconds and fewer bytes."
    )
    if any(cell.n_diverged for cell in gang.cells):
        note += " Diverged: the model left the range of numbers with some seed; medians are those of the others."
    if any(cell.is_trivial for cell in gang.cells if not cell.n_diverged):
        note += " No claim: no better than always predicting the commonest label."
    return report.Table(gang.name, columns, rows, note)


def _row(gang: StrategyGang, cell: StrategyCell, target: float, front: Sequence[str]) -> tuple[str, ...]:
    epochs, point, alone = cell.rows[0]["epochs"], cell.reached(target), cell is gang.sequential
    # Rows of before control was counted apart have it in what is sent.
    first, control = cell.rows[0], cell.stat("control_bytes_sent")
    if not cell.may_claim and not alone:
        point = None
    missed = "diverged" if cell.n_diverged else "no claim" if cell.is_trivial else "not reached"
    return (
        cell.name + " *" * (cell.name in front),
        f"{first['eta0']:g}" if first["schedule"] == "constant" else str(first["schedule"]),
        report.figure_text(cell.median("train_s") / epochs),
        "-" if alone else report.byte_text(cell.median("bytes_sent") / epochs),
        "-" if alone or control is None else report.byte_text(control.median / epochs),
        f"{point['epoch']:g}" if point else missed,
        report.figure_text(point["seconds"]) if point else "-",
        report.byte_text(point["bytes_sent"]) if point and not alone else "-",
        f"{cell.median('test_accuracy'):.2%}",
        "-" if alone else f"{100 * gang.behind(cell):+.2f}",
        f"{cell.median('objective'):.4f}",
        "-" if alone else f"{cell.median('rounds'):,.0f}",
        "-" if alone else f"{cell.median('messages'):,.0f}",
    )


def strategy_answer(gang: StrategyGang, excess: float) -> str:
    """Return who reaches the target on one dataset and number of ranks, soonest and with the fewest bytes."""
    n_cells, soonest, fewest = len(gang.cells), gang.best(excess, "seconds"), gang.best(excess, "bytes_sent")
    goal = f"within {excess:.0%} of the sequential objective"
    if gang.given is not None:
        goal = f"to a training objective of {gang.given:.4g}"
    silent = [cell.name for cell in gang.cells if cell.is_trivial and not cell.n_diverged]
    said = f" No better than always predicting the commonest label: {', '.join(silent)}." if silent else ""
    if soonest is None or fewest is None:
        return f"On {gang.name} none of {n_cells} strategies came {goal}.{said}"
    alone = gang.sequential.reached(gang.target(excess))
    beside = f" (sequential: {report.figure_text(alone['seconds'])} s)" if alone else ""
    least = f"with the fewest bytes, {report.byte_text(fewest[1])}"
    least = f"and {least}" if fewest[0] == soonest[0] else f"{fewest[0]} {least}"
    return (
        f"On {gang.name}, {len(gang.reached(excess))} of {n_cells} strategies came {goal}: {soonest[0]} soonest, after "
        f"{report.figure_text(soonest[1])} s{beside}, {least}.{said}"
    )


def versus_table(gang: StrategyGang, *, excess: float, beside: str | None = None, busy: bool = False) -> report.Table:
    """Return how strategies compare with one, or all with each other, with 95 % intervals over the seeds of both."""
    pairs = list(combinations(gang.cells, 2))
    if beside is not None:
        [first] = (cell for cell in gang.cells if cell.name == beside)
        pairs = [(first, cell) for cell in gang.cells if cell is not first]
    rows = [(first.name, *_versus(gang, first, cell, excess, busy=busy)) for first, cell in pairs]
    note = (
        "95 % intervals over the seeds, pair by pair; an interval that crosses equality is undecided. Seconds and "
        "bytes to the target, and the final objective, are those of the former over those of the latter: more than 1x "
        "is less of it. Accuracy is that of the latter less that of the former."
    )
    if busy:
        note += " The machine was busy with other work, so its seconds decide nothing."
    columns = (
        "of",
        "beside",
        *(name for one in ("seconds", "bytes", "objective", "accuracy") for name in (one, "verdict")),
    )
    title = "Method by method" if beside is None else f"Beside {beside}"
    return report.Table(title, columns, rows, note, n_text=len(columns))


def _versus(
    gang: StrategyGang, first: StrategyCell, cell: StrategyCell, excess: float, *, busy: bool
) -> tuple[str, ...]:
    if not (first.may_claim and cell.may_claim):
        return (cell.name, *("-", "no claim") * 4)
    said = [cell.name]
    points = [one.reached_by_seed(gang.target(excess)) for one in (first, cell)]
    for name, words in (("seconds", ("later", "sooner")), ("bytes_sent", ("more", "fewer"))):
        ours, other = ({seed: point[name] for seed, point in found.items()} for found in points)
        missed = [
            f"{one.name} {'not with every seed' if found else 'not reached'}"
            for one, found in zip((first, cell), points, strict=True)
            if len(found) < len(one.rows)
        ]
        found = None if missed else ratio(ours, other)
        said += ["-", missed[0]] if missed else _said(found, as_times, 1.0, words)
        if busy and name == "seconds" and found is not None:
            said[-1] = "undecided"
    said += _said(first.over(cell, "objective"), as_times, 1.0, ("higher", "lower"))
    change = cell.minus(first, "test_accuracy")
    return (*said, *_said(change, as_points, 0.0, ("worse", "better")))


def _said(found: Interval | None, form: Callable[[float], str], even: float, words: tuple[str, str]) -> list[str]:
    """Return a figure with its interval, and the word for the side of equality on which all of it is."""
    if found is None:
        return ["-", "undecided"]
    low, high = words
    if found.n < 2 or found.low <= even <= found.high:
        is_equal = found.n > 1 and found.low == found.high
        return [found.text(form), "equal" if is_equal else "undecided"]
    return [found.text(form), high if found.low > even else low]


#: What may be spent equally, and its text and noun.
_COSTS: Final[Mapping[str, tuple[Callable[[float], str], str]]] = {
    "seconds": (report.seconds_text, "seconds"), "bytes_sent": (report.byte_text, "bytes"),
}  # fmt: skip


def equal_table(
    gang: StrategyGang, cost: str, budget: float | None = None, *, beside: str, busy: bool = False
) -> report.Table:
    """Return what strategies have reached when each has spent as many seconds or bytes, beside one of them."""
    cells = [cell for cell in gang.cells if cell.may_claim]
    ends = [max(row["curve"][-1][cost] for row in cell.rows) for cell in cells]
    least = min(filter(None, ends), default=0.0)
    budget, (text, noun) = least if budget is None else budget, _COSTS[cost]
    seen: dict[str, dict[int, Row]] = {}
    for cell in cells:
        within = {row["seed"]: [point for point in row["curve"] if point[cost] <= budget] for row in cell.rows}
        if all(within.values()):
            seen[cell.name] = {seed: points[-1] for seed, points in within.items()}
    rows = list[tuple[str, ...]]()
    for cell in gang.cells:
        if cell.name not in seen:
            rows.append((cell.name, *("-",) * 5, "no point within" if cell in cells else "no claim"))
            continue
        at, of_other = (
            {
                name: {seed: point[name] for seed, point in seen.get(one, {}).items()}
                for name in ("epoch", cost, *_WORTH)
            }
            for one in (cell.name, beside)
        )
        medians = {name: float(np.median(list(values.values()))) for name, values in at.items()}
        said = ["-", "-"]
        if cell.name != beside:
            said = _said(ratio(at["objective"], of_other["objective"]), as_times, 1.0, ("lower", "higher"))
            said[-1] = "undecided" if busy and cost == "seconds" else said[-1]
        shown = f"{medians['objective']:.4f}", f"{medians['test_accuracy']:.2%}"
        rows.append((cell.name, f"{medians['epoch']:g}", text(medians[cost]), *shown, *said))
    note = (
        f"Of each method the last point of its curve that costs no more than {text(budget)}; medians over the seeds. "
        f"Beside {beside}: the objective over its own, with a 95 % interval over the seeds. More looks place methods "
        "better that have spent much less than they may."
    )
    columns = ("strategy", "epochs", "spent", "objective", "accuracy", f"beside {beside}", "verdict")
    return report.Table(f"At equal {noun}: {text(budget)}", columns, rows, note)


def search_table(rows: Sequence[Row]) -> report.Table:
    """Return what was tried for rates, periods and own parameters, one row per trial."""
    note = (
        f"All trials have seed {rows[0]['seed']}, which no other run has. * taken: soonest at the target, which is the "
        "best final objective of all trials and a little; else the lowest objective."
    )
    return report.Table.of(
        "Search for rates, periods and own parameters",
        rows,
        "strategy = name | with = sync | rate = rate | s to target = to_target_s:3 | objective = objective",
        note,
        2,
        name=lambda row: row["strategy"] + " *" * row["chosen"],
        rate=lambda row: f"{row['eta0']:g}" if row["schedule"] != "optimal" else "optimal",
        objective=lambda row: "diverged" if row["diverged"] else f"{row['objective']:.4g}",
    )


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
    ("rows", "Rows", report.Axis("rows seen", "log")),
    ("bytes_sent", "Bytes", report.Axis("sent by all ranks", "log", "B")),
    ("messages", "Messages", report.Axis("messages of all ranks", "log")),
    ("seconds", "Seconds", report.Axis("time", "log", "s")),
)

# What early points are allowed to take of the height, over the target; a method that ends higher is seen to its end.
_HIGHEST: Final = 2.5


def curves_figure(gang: StrategyGang, excess: float) -> report.Figure:
    """Return the learning curves of all strategies against rows, bytes, messages and seconds."""
    panels = []
    for against, title, x in _AGAINST:
        marks: list[report.Mark] = []
        if against in ("rows", "seconds"):
            marks.append(curve_line(gang.sequential, against, colour=TEXT, marker="", dash="dotted", ranges=()))
        marks += [
            curve_line(cell, against, number, size=5.5, **({} if len(cell.rows) > 1 else {"ranges": ()}))
            for number, cell in enumerate(gang.cells)
            if cell.rows
        ]
        marks.append(report.Level(gang.target(excess), "target", ORANGE))
        values = [value for mark in marks for value in mark.values("y")]
        ends = [cell.median("objective") for cell in gang.cells if cell.rows]
        highest = _HIGHEST * gang.target(excess)
        low, high = min(values), min(max(values), max([highest, *(1.1 * end for end in ends)]))
        axis = report.Axis("training objective", low=low - 0.05 * (high - low), high=high + 0.05 * (high - low))
        if high > highest and low > 0.0:
            axis = report.Axis("training objective", "log", low=0.9 * low, high=1.1 * high)
        panels.append(report.Panel(title, x, axis, marks))
    return report.Figure("curves", f"Learning curves: {gang.name}", _CURVES, panels, columns=2, height=330, share="y")


def curve_line(cell: StrategyCell, against: str, number: int = 0, **style: Any) -> report.Line:
    """Return the training objective of a strategy against a column of its curve."""
    # What has sent nothing has no place on an axis of powers.
    points = [(x, y) for x, y in zip(cell.along(against), cell.along("objective"), strict=True) if x.median > 0]
    x, y = [at.median for at, _ in points], [value for _, value in points]
    return line_of(cell.name, x, y, number, **{"width": 1.6} | style)


def front_figure(gang: StrategyGang, excess: float, name: str = "pareto") -> report.Figure:
    """Return the cost of the target: seconds, and bytes."""
    title = f"Bytes and seconds to the target: {gang.name}"
    return report.Figure(name, title, _FRONT, [_front(gang, excess)], height=480)


def _below(values: Sequence[float], share: float) -> float:
    """Return where an axis of powers begins that leaves a share of its length free below the values."""
    low, high = min(values), max(values)
    begin: float = low * (low / high) ** (share / (1.0 - share))
    return min(0.6 * low, begin)


def _front(gang: StrategyGang, excess: float) -> report.Panel:
    reached, front = gang.reached(excess), gang.front(excess)
    points = {name: (at["seconds"], max(1.0, at["bytes_sent"])) for name, at in reached.items()}
    written = texts_at({name: points[name] for name in front})
    marks: list[report.Mark] = []
    if front:
        x, y = zip(*(points[name] for name in front), strict=True)
        marks.append(report.Line("Pareto front", x, y, GREY, width=1.4, steps=True, pale=True))
    for number, family in enumerate(FAMILIES):
        names = [cell.name for cell in gang.cells if cell.name in reached and cell.family == family]
        if names:
            x, y = zip(*(points[name] for name in names), strict=True)
            colour, marker = (*SERIES, SKY, TEXT)[number % 7], MARKERS[number % len(MARKERS)]
            marks.append(report.Line(family, x, y, colour, marker, width=0.0, size=10.0, names=names, written=written))
    target = f"{gang.target(excess):.4g}"
    title = f"To a training objective of {target}" if reached else f"No strategy has reached {target}"
    # Names stand left of and below the points of the front, where no other can be; they need room.
    low_s, low_bytes = (
        _below([max(least, point[side]) for point in reached.values()], share) if reached else None
        for side, least, share in (("seconds", 1e-9, 0.35), ("bytes_sent", 1.0, 0.0))
    )
    x_axis = report.Axis("time to the target", "log", "s", low=low_s)
    return report.Panel(title, x_axis, report.Axis("sent by all ranks", "log", "B", low=low_bytes), marks)


@dataclass(frozen=True, repr=False)
class Comparison:
    """What `dsgd.compare` has measured.

    ``print`` shows its table and its answer.

    Parameters
    ----------
    rows : sequence of dict
        One row per method and seed, those of one rank first: what was run, on what, what it took, and its ``curve``.
    search : sequence of dict
        One row per trial of the search for rates and periods, ``chosen`` or not; empty if nothing was tuned.
    target_excess : float
        The target is the final training objective of one rank times (1 + `target_excess`).
    given_target : float or None, default None
        The target, where it was given.
    """

    rows: Sequence[Row]
    search: Sequence[Row]
    target_excess: float
    given_target: float | None = None

    @property
    def gang(self) -> StrategyGang:
        """The methods with what they reach, beside one rank."""
        alone = [row for row in self.rows if row["strategy"] == SEQUENTIAL]
        others = [row for row in self.rows if row["strategy"] != SEQUENTIAL]
        return gang_of(self.rows[0]["dataset"], self.rows[0]["where"], alone, others, self.given_target)

    @property
    def cells(self) -> Mapping[str, StrategyCell]:
        """The seeds of each method by its name, with medians and intervals."""
        return {cell.name: cell for cell in self.gang.cells}

    @property
    def target(self) -> float:
        """The training objective that is the target."""
        return self.gang.target(self.target_excess)

    @property
    def answer(self) -> str:
        """Who reaches the target soonest, and who with the fewest bytes, in a sentence or two."""
        return strategy_answer(self.gang, self.target_excess)

    def table(self) -> report.Table:
        """Return a row per method: seconds, bytes and epochs to the target, accuracy, objective; medians over seeds."""
        return strategy_table(self.gang, excess=self.target_excess)

    def versus(self, beside: str | None = None) -> report.Table:
        """Return how methods compare, with 95 % intervals over the seeds, and what these decide.

        Parameters
        ----------
        beside : str, optional
            The method that all others are compared with; by default every two are compared.

        Raises
        ------
        InvalidParameterError
            There is no such method.
        """
        if beside is not None and beside not in self.cells:
            raise InvalidParameterError(f"versus(beside=...) must be one of {', '.join(self.cells)}. Got {beside!r}.")
        return versus_table(self.gang, excess=self.target_excess, beside=beside, busy=were_busy(self.rows))

    def at_equal(
        self, cost: Literal["seconds", "bytes_sent"], budget: float | None = None, *, beside: str | None = None
    ) -> report.Table:
        """Return objective and accuracy of methods when each has spent as much, with intervals beside one of them.

        Parameters
        ----------
        cost : {"seconds", "bytes_sent"}
            What is spent: seconds of training, or bytes that all ranks send for the algorithm.
        budget : float, optional
            How much; by default as much as the cheapest method has spent at its end.
        beside : str, optional
            The method that others are compared with; by default the first.

        Raises
        ------
        InvalidParameterError
            There is no such cost or method.
        """
        beside = self.gang.cells[0].name if beside is None else beside
        if cost not in _COSTS or beside not in self.cells:
            raise InvalidParameterError(
                f"at_equal(cost=..., beside=...) must be one of {', '.join(_COSTS)}, and one of "
                f"{', '.join(self.cells)}. Got {cost!r}, {beside!r}."
            )
        return equal_table(self.gang, cost, budget, beside=beside, busy=were_busy(self.rows))

    def __str__(self) -> str:
        """Return the tables and the answer as text."""
        text = io.StringIO()
        report.show_tables(self._tables(), text).print(self.answer, markup=False)
        lines = text.getvalue().splitlines()
        return "\n".join(line.rstrip() for line in lines)

    def __repr__(self) -> str:
        """Return what was compared, in a line."""
        seeds = len({row["seed"] for row in self.rows})
        return f"<Comparison of {', '.join(self.cells)} on {self.gang.name}, {seeds} seeds>"

    def to_frame(self, of: Literal["runs", "curves", "search"] = "runs") -> pd.DataFrame:
        """Return rows as a pandas frame.

        Parameters
        ----------
        of : {"runs", "curves", "search"}, default "runs"
            A row per method and seed; a row per point of their curves, with ``strategy`` and ``seed``; or a row per
            trial of the search.

        Raises
        ------
        MissingPackageError
            pandas is not installed; `rows` and `search` hold the same, as dictionaries.
        """
        return to_frame(self.search if of == "search" else self.rows, curves=of == "curves")

    def plot(self, path: str | os.PathLike[str] | None = None, *, dark: bool = False) -> Any:
        """Draw the learning curves against rows, bytes, messages and seconds.

        Parameters
        ----------
        path : str or path-like, optional
            A PNG file to write as well.
        dark : bool, default False
            Draw on a dark ground.

        Returns
        -------
        matplotlib.figure.Figure
            The figure.

        Raises
        ------
        DsgdError
            matplotlib is not installed; says how to get it.
        """
        report.check_extras("plot()", "matplotlib")
        from dsgd.report.png import canvas, picture

        drawn = canvas(curves_figure(self.gang, self.target_excess), dark=dark)
        if path is not None:
            Path(path).write_bytes(picture(drawn))
        return drawn

    def page(self) -> report.Page:
        """Return the page: answer, figures, tables, what was run, and all rows to download."""
        return study_page(Study("compare", QUESTION, (), {}, (), self._report), [*self.rows, *self.search])

    def _report(self, study: Study, rows: Sequence[Row]) -> dict[str, Any]:
        first, gang, excess = self.rows[0], self.gang, self.target_excess
        names = {row["strategy"]: row for row in self.rows}
        methods = report.Table(
            "Methods",
            ("strategy", "sync=", "rate"),
            [(name, row["sync"], f"{row['eta0']:g}") for name, row in names.items()],
            f"Rates are those of the {first['schedule']} schedule."
            if first["schedule"] != "optimal"
            else "The schedule is optimal, which has no first rate of its own.",
            n_text=2,
        )
        spent = self.at_equal("seconds"), self.at_equal("bytes_sent")
        model = f"{first['model']}; {first['partition']} partition; looked at after {joined(first['looks'])} epochs"
        return {
            "answer": self.answer,
            "ran": [
                ("Ranks", f"{gang.where}; seeds {joined(sorted({row['seed'] for row in self.rows}))}"),
                ("Model", model),
            ],
            "highlights": gang.highlights(excess, "methods"),
            "data": [data_table(self.rows, "features", "non-zero", "commonest label")],
            "figures": [curves_figure(gang, excess), front_figure(gang, excess)],
            "tables": self._tables(),
            "details": [methods, *spent, *([search_table(self.search)] if self.search else [])],
        }

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page into one HTML file, which needs nothing else; return its path.

        Parameters
        ----------
        path : str or path-like
            The file, as ``comparison.html``; its folder is made if it is not there.

        Raises
        ------
        DsgdError
            jinja2 or matplotlib is not installed; says how to get them.
        """
        return self.page().write(path)

    def _tables(self) -> list[report.Table]:
        # All pairs of many methods would be a long page.
        return [self.table(), *([self.versus(self.gang.cells[0].name)] if len(self.gang.cells) > 1 else [])]
