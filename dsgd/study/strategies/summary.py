"""Summary of the study of strategies: the target, the cost of reaching it, tables and claims."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from dsgd.report import Claim, Table, byte_text, figure_text
from dsgd.study.frame.report import gang_text
from dsgd.study.frame.rows import Row
from dsgd.study.frame.summary import AbstractCell, grouped, pareto
from dsgd.study.frame.verdict import Interval, Margin, difference, judged
from dsgd.study.strategies.grid import SEQUENTIAL

__all__ = [
    "StrategyCell",
    "StrategyGang",
    "check_strategy_claims",
    "strategy_table",
    "strategy_verdict",
    "summarise_strategies",
]

# A strategy is as good as the sequential run if its accuracy is at most this much lower.
_CLOSE: Final = 0.01
_LEARNT: Final = 0.005


@dataclass(frozen=True)
class StrategyCell(AbstractCell):
    """The runs of a strategy that differ only in the seed.

    Parameters
    ----------
    name : str
        Name of the strategy.
    rows : sequence of dict
        The rows of its seeds.
    """

    name: str
    rows: Sequence[Row]

    @property
    def family(self) -> str:
        """With which peers its ranks exchange."""
        return str(self.rows[0]["family"])

    def reached(self, target: float) -> dict[str, float] | None:
        """Return the first point of the curve with an objective of `target` or less; None if there is none."""
        return next((point for point in self.curve() if point["objective"] <= target), None)


@dataclass(frozen=True)
class StrategyGang:
    """All strategies on one dataset and one number of ranks, and the sequential run.

    Parameters
    ----------
    dataset : str
        Name of the data.
    ranks : int
        How many.
    network : str or None
        Network of simulated ranks; None for worker processes.
    sequential : StrategyCell
        The run of one rank.
    cells : sequence of StrategyCell
        The strategies, in the order of the study.
    """

    dataset: str
    ranks: int
    network: str | None
    sequential: StrategyCell
    cells: Sequence[StrategyCell]

    @property
    def name(self) -> str:
        """Its name in tables and figures."""
        return f"{self.dataset}, {gang_text(self.ranks, self.network)}"

    def target(self, excess: float) -> float:
        """Return the final training objective of the sequential run times (1 + `excess`)."""
        return self.sequential.median("objective") * (1.0 + excess)

    def reached(self, excess: float) -> dict[str, dict[str, float]]:
        """Return the point at which each strategy reaches the target, by name, for those that do."""
        target = self.target(excess)
        found = {cell.name: cell.reached(target) for cell in self.cells}
        return {name: point for name, point in found.items() if point is not None}

    def front(self, excess: float) -> list[str]:
        """Return the Pareto front of seconds and bytes to the target, fastest first."""
        reached = self.reached(excess)
        return pareto({name: (point["seconds"], point["bytes_sent"]) for name, point in reached.items()})

    @property
    def is_trivial(self) -> bool:
        """Whether the sequential run is less than half a point better than always predicting the commonest label."""
        return self.sequential.median("test_accuracy") - self.sequential.median("majority_accuracy") < _LEARNT

    def behind(self, cell: StrategyCell) -> float:
        """Return the test accuracy of a strategy less that of the sequential run."""
        return cell.median("test_accuracy") - self.sequential.median("test_accuracy")


def summarise_strategies(rows: Iterable[Row]) -> list[StrategyGang]:
    """Return one entry per number of ranks and dataset with a sequential run."""
    gangs = grouped(rows, "dataset", "ranks", "network")
    found = []
    for (dataset, ranks, network), own in gangs.items():
        alone = grouped(gangs.get((dataset, 1, network), ()), "strategy").get((SEQUENTIAL,))
        if ranks > 1 and alone:
            cells = [StrategyCell(name, seeds) for (name,), seeds in grouped(own, "strategy").items()]
            found.append(StrategyGang(dataset, ranks, network, StrategyCell(SEQUENTIAL, alone), cells))
    return found


def strategy_table(gang: StrategyGang, *, excess: float) -> Table:
    """Return one row per strategy, the sequential run first; the target is its final objective and an excess."""
    target, front = gang.target(excess), gang.front(excess)
    columns = (
        "strategy", "rate", "s / epoch", "sent / epoch", "control / epoch", "epochs to target", "s to target",
        "sent to target", "accuracy", "- sequential", "objective", "rounds", "messages",
    )  # fmt: skip
    rows = [_row(gang, cell, target, front) for cell in (gang.sequential, *gang.cells)]
    note = (
        f"Target: a training objective of {target:.4g}, that of the sequential run plus {excess:.0%}. Objective and "
        "accuracy (on test rows) are those of the model that training returns after so many epochs. Sent: by all ranks "
        "and servers together, for the algorithm; control: all other messages. "
        f"{_over(gang)} * no other strategy needs fewer seconds and fewer bytes."
    )
    return Table(gang.name, columns, rows, note)


def _over(gang: StrategyGang) -> str:
    n_seeds = len(gang.sequential.rows)
    return f"Medians over {n_seeds} seeds." if n_seeds > 1 else "One seed."


def _row(gang: StrategyGang, cell: StrategyCell, target: float, front: Sequence[str]) -> tuple[str, ...]:
    epochs, point, alone = cell.rows[0]["epochs"], cell.reached(target), cell is gang.sequential
    # In rows from before control was counted separately, the bytes sent include it.
    first, control = cell.rows[0], cell.stat("control_bytes_sent")
    return (
        cell.name + " *" * (cell.name in front),
        f"{first['eta0']:g}" if first["schedule"] == "constant" else str(first["schedule"]),
        figure_text(cell.median("train_s") / epochs),
        "-" if alone else byte_text(cell.median("bytes_sent") / epochs),
        "-" if alone or control is None else byte_text(control.median / epochs),
        f"{point['epoch']:.0f}" if point else "not reached",
        figure_text(point["seconds"]) if point else "-",
        byte_text(point["bytes_sent"]) if point and not alone else "-",
        f"{cell.median('test_accuracy'):.2%}",
        "-" if alone else f"{100 * gang.behind(cell):+.2f}",
        f"{cell.median('objective'):.4f}",
        "-" if alone else f"{cell.median('rounds'):,.0f}",
        "-" if alone else f"{cell.median('messages'):,.0f}",
    )


def check_strategy_claims(gangs: Sequence[StrategyGang], *, excess: float) -> list[Claim]:
    """Return the promises of this library about its strategies, and whether they hold here; see `strategy_table`."""
    claims = []
    for gang in gangs:
        lowest = min(gang.cells, key=gang.behind)
        far = [f"{cell.name} ({100 * gang.behind(cell):+.1f})" for cell in gang.cells if gang.behind(cell) < -_CLOSE]
        note = f"More than a point below: {', '.join(far)}." if far else "Of the strategies that were run."
        accurate = judged(
            ("Every strategy is within a point of the sequential accuracy", gang.name, "-1.00 points or better"),
            _distance(gang, lowest), _points, Margin(-_CLOSE), note, trivial=gang.is_trivial,
        )  # fmt: skip
        claims.append(replace(accurate, ours=f"{accurate.ours}, {lowest.name}"))
        late = [cell.name for cell in gang.cells if cell.name not in gang.reached(excess)]
        claims.append(
            Claim(
                f"Every strategy comes within {excess:.0%} of the sequential objective in as many epochs", gang.name,
                f"{len(gang.cells)} strategies", f"{len(gang.cells) - len(late)} strategies",
                None if gang.is_trivial else not late,
                f"Not reached by {', '.join(late)}." if late else "All of those that were run.",
                gang.is_trivial,
            )
        )  # fmt: skip
    return claims


def _points(share: float) -> str:
    return f"{100 * share:+.2f} points"


def _distance(gang: StrategyGang, cell: StrategyCell) -> Interval:
    """Return the accuracy of a strategy less that of the sequential run, over the seeds."""
    found = difference(cell.column("test_accuracy"), gang.sequential.column("test_accuracy"))
    # Seeds are run in their order, so that both have the first.
    assert found is not None
    return found


def strategy_verdict(gangs: Sequence[StrategyGang], *, excess: float) -> str:
    """Return the answer of the study, a sentence or two per dataset and number of ranks; see `strategy_table`."""
    return " ".join(_answer(gang, excess) for gang in gangs) or "No strategy has been run beside a sequential run yet."


def _answer(gang: StrategyGang, excess: float) -> str:
    reached, n_cells = gang.reached(excess), len(gang.cells)
    if not reached:
        return f"On {gang.name} none of {n_cells} strategies came within {excess:.0%} of the sequential objective."
    soonest = min(reached, key=lambda name: reached[name]["seconds"])
    fewest = min(reached, key=lambda name: reached[name]["bytes_sent"])
    alone = gang.sequential.reached(gang.target(excess))
    seconds = figure_text(reached[soonest]["seconds"])
    beside = f" (sequential: {figure_text(alone['seconds'])} s)" if alone else ""
    sent = byte_text(reached[fewest]["bytes_sent"])
    least = f"with the fewest bytes, {sent}" if fewest == soonest else f"{fewest} with the fewest bytes, {sent}"
    return (
        f"On {gang.name}, {len(reached)} of {n_cells} strategies came within {excess:.0%} of the sequential objective: "
        f"{soonest} soonest, after {seconds} s{beside}, {'and ' if fewest == soonest else ''}{least}."
    )
