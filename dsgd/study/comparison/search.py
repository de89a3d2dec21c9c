"""The search for rate and period: the same number of trials for every method.

Problem: methods that are compared at one rate and one period are compared at what suits one of them.

Method: trials lie on a grid around what was given, rates and periods in powers of four, the nearest first. All trials
of all methods have one seed, which no run of the comparison has. The target is the best final objective among them and
a little. Of each method the trial is taken that reaches it in the fewest seconds; where none does, the one with the
lowest objective. What was tried is reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, Final

from dsgd.report import Table, figure_text
from dsgd.study.comparison.methods import SEQUENTIAL, period_of, with_period
from dsgd.study.comparison.problem import ComparisonRun, Problem
from dsgd.study.comparison.summary import first_point
from dsgd.study.frame.cells import cells_of
from dsgd.study.frame.rows import Row
from dsgd.sync import AbstractStrategy

_STEP: Final = 4.0
_REACH: Final = 3


def trials(problem: Problem, methods: Mapping[str, AbstractStrategy[Any]], n: int, seed: int) -> list[ComparisonRun]:
    """Return the trials of all methods, `n` of each at most, method by method, and of one rank first."""
    found = []
    for name, strategy in methods.items():
        ranks = 1 if name == SEQUENTIAL else problem.place.ranks
        rates = range(-_REACH, _REACH + 1) if problem.has_rate else (0,)
        _, period = (None, None) if ranks == 1 else period_of(strategy)
        periods = range(-_REACH, _REACH + 1) if period else (0,)
        # Nearest first; of equally near ones the larger rate, then the shorter period.
        grid = sorted(product(rates, periods), key=lambda at: (abs(at[0]) + abs(at[1]), abs(at[1]), -at[0], at[1]))
        runs = dict[tuple[str, float], ComparisonRun]()
        for rate, longer in grid:
            moved = with_period(strategy, max(1, round(period * _STEP**longer))) if period else strategy
            run = ComparisonRun(problem, name, moved, ranks, problem.estimator.eta0 * _STEP**rate, seed, "search")
            runs.setdefault((repr(run.strategy), run.eta0), run)
        found += list(runs.values())[:n]
    return found


def mark_chosen(rows: Sequence[Row], excess: float, target: float | None = None) -> list[Row]:
    """Return the rows of a search, each with ``chosen``, whether it is the best of its method, and ``to_target_s``."""
    finals = [row["objective"] for row in rows if not row["diverged"]]
    if target is None:
        target = min(finals, default=0.0) * (1.0 + excess)
    marked = []
    for cell in cells_of(rows, "strategy"):
        told = [{**row, "to_target_s": _reached_s(row, target)} for row in cell.rows]
        best = min(range(len(told)), key=lambda place: _standing(told[place]))
        marked += [{**row, "chosen": place == best} for place, row in enumerate(told)]
    return marked


def _reached_s(row: Row, target: float) -> float | None:
    point = None if row["diverged"] else first_point(row["curve"], target)
    return None if point is None else float(point["seconds"])


def _standing(row: Row) -> tuple[bool, bool, float]:
    """Return what the best trial has least of."""
    reached = row["to_target_s"]
    worth = row["objective"] if reached is None and not row["diverged"] else reached
    return row["diverged"], reached is None, float("inf") if worth is None else worth


def chosen_runs(runs: Iterable[ComparisonRun], rows: Sequence[Row]) -> dict[str, ComparisonRun]:
    """Return the trial that was chosen of each method, by name."""
    keys = {row["key"] for row in rows if row["chosen"]}
    return {run.name: replace(run, stage="final") for run in runs if run.key in keys}


def search_table(rows: Sequence[Row]) -> Table:
    """Return what was tried, one row per trial."""
    return Table.of(
        "Search for rate and period",
        rows,
        {
            "strategy": lambda row: row["strategy"] + " *" * row["chosen"],
            "with": lambda row: row["sync"],
            "rate": lambda row: f"{row['eta0']:g}" if row["schedule"] != "optimal" else "optimal",
            "s to target": lambda row: "-" if row["to_target_s"] is None else figure_text(row["to_target_s"]),
            "objective": lambda row: "diverged" if row["diverged"] else f"{row['objective']:.4g}",
        },
        f"All trials have seed {rows[0]['seed']}, which no other run has. * taken: soonest at the target, which is the "
        "best final objective of all trials and a little; else the lowest objective.",
        n_text=2,
    )
