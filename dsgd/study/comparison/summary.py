"""Rows of a comparison put together: the target, who reaches it at what cost, and what may be said of it.

The target is the final training objective of one rank, and a little. A strategy whose model is no better than always
predicting the commonest label, or that diverged with some seed, makes no claim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from dsgd.errors import DsgdError
from dsgd.report import Table, byte_text, figure_text
from dsgd.study.comparison.methods import SEQUENTIAL
from dsgd.study.frame.cells import Cell, cells_of, pareto
from dsgd.study.frame.rows import Row
from dsgd.study.verdict import Interval, difference, ratio

_LEARNT: Final = 0.005


class StrategyCell(Cell):
    """The runs of a strategy that differ in nothing but the seed.

    Parameters
    ----------
    rows : sequence of dict
        The rows of the seeds.
    name : str, optional
        What the strategy is called, as its rows say by default.

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
    def is_trivial(self) -> bool:
        """Whether it is less than half a point better than always predicting the commonest label: it claims nothing."""
        return not self.rows or self.median("test_accuracy") - self.median("majority_accuracy") < _LEARNT

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


def strategy_table(gang: StrategyGang, *, excess: float) -> Table:
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
    note = (
        f"Target: a training objective of {target:.4g}, {_origin(gang, excess)}. Objective and "
        "accuracy (on test rows) are those of the model that training returns after so many epochs. Sent: by all ranks "
        "and servers together, for the algorithm; control: what they say beside it. "
        f"{_over(gang)} * no other strategy needs fewer seconds and fewer bytes."
    )
    if any(cell.n_diverged for cell in gang.cells):
        note += " Diverged: the model left the range of numbers with some seed; medians are those of the others."
    if any(cell.is_trivial for cell in gang.cells if not cell.n_diverged):
        note += " No claim: no better than always predicting the commonest label."
    return Table(gang.name, columns, rows, note)


def _origin(gang: StrategyGang, excess: float) -> str:
    return "as given" if gang.given is not None else f"that of the sequential run plus {excess:.0%}"


def _over(gang: StrategyGang) -> str:
    n_seeds = len(gang.sequential.rows)
    return f"Medians over {n_seeds} seeds." if n_seeds > 1 else "One seed."


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
        figure_text(cell.median("train_s") / epochs),
        "-" if alone else byte_text(cell.median("bytes_sent") / epochs),
        "-" if alone or control is None else byte_text(control.median / epochs),
        f"{point['epoch']:g}" if point else missed,
        figure_text(point["seconds"]) if point else "-",
        byte_text(point["bytes_sent"]) if point and not alone else "-",
        f"{cell.median('test_accuracy'):.2%}",
        "-" if alone else f"{100 * gang.behind(cell):+.2f}",
        f"{cell.median('objective'):.4f}",
        "-" if alone else f"{cell.median('rounds'):,.0f}",
        "-" if alone else f"{cell.median('messages'):,.0f}",
    )


def strategy_answer(gang: StrategyGang, excess: float) -> str:
    """Return who reaches the target on one dataset and number of ranks, soonest and with the fewest bytes."""
    reached, n_cells = gang.reached(excess), len(gang.cells)
    goal = f"within {excess:.0%} of the sequential objective"
    if gang.given is not None:
        goal = f"to a training objective of {gang.given:.4g}"
    silent = [cell.name for cell in gang.cells if cell.is_trivial and not cell.n_diverged]
    said = f" No better than always predicting the commonest label: {', '.join(silent)}." if silent else ""
    if not reached:
        return f"On {gang.name} none of {n_cells} strategies came {goal}.{said}"
    soonest = min(reached, key=lambda name: reached[name]["seconds"])
    fewest = min(reached, key=lambda name: reached[name]["bytes_sent"])
    alone = gang.sequential.reached(gang.target(excess))
    seconds = figure_text(reached[soonest]["seconds"])
    beside = f" (sequential: {figure_text(alone['seconds'])} s)" if alone else ""
    sent = byte_text(reached[fewest]["bytes_sent"])
    least = f"with the fewest bytes, {sent}" if fewest == soonest else f"{fewest} with the fewest bytes, {sent}"
    return (
        f"On {gang.name}, {len(reached)} of {n_cells} strategies came {goal}: {soonest} soonest, after {seconds} "
        f"s{beside}, {'and ' if fewest == soonest else ''}{least}.{said}"
    )


def versus_table(gang: StrategyGang, *, excess: float, busy: bool = False) -> Table:
    """Return how each strategy compares with the first, with 95 % intervals over the seeds that both have."""
    first, *others = gang.cells
    rows = [_versus(gang, first, cell, excess, busy=busy) for cell in others]
    note = (
        "95 % intervals over the seeds, pair by pair; an interval that crosses equality is undecided. Seconds and "
        f"bytes are those to the target, of {first.name} over those of the other: more than 1x is less of it."
    )
    if busy:
        note += " The machine was busy with other work, so its seconds decide nothing."
    columns = (f"beside {first.name}", "seconds", "verdict", "bytes", "verdict", "accuracy", "verdict")
    return Table(f"Beside {first.name}", columns, rows, note, n_text=7)


def _versus(
    gang: StrategyGang, first: StrategyCell, cell: StrategyCell, excess: float, *, busy: bool
) -> tuple[str, ...]:
    if not (first.may_claim and cell.may_claim):
        return (cell.name, *("-", "no claim") * 3)
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
        said += ["-", missed[0]] if missed else _said(found, _times, 1.0, words)
        if busy and name == "seconds" and found is not None:
            said[-1] = "undecided"
    accuracy = [{row["seed"]: float(row["test_accuracy"]) for row in one.rows} for one in (cell, first)]
    said += _said(difference(*accuracy), _points, 0.0, ("worse", "better"))
    return tuple(said)


def _said(found: Interval | None, form: Callable[[float], str], even: float, words: tuple[str, str]) -> list[str]:
    """Return a figure with its interval, and the word for the side of equality on which all of it is."""
    if found is None:
        return ["-", "undecided"]
    low, high = words
    if found.n < 2 or found.low <= even <= found.high:
        is_equal = found.n > 1 and found.low == found.high
        return [found.text(form), "equal" if is_equal else "undecided"]
    return [found.text(form), high if found.low > even else low]


def _times(value: float) -> str:
    return f"{value:.3g}x"


def _points(share: float) -> str:
    return f"{100 * share:+.2f} points"
