"""Summary of the study of automatic periods: seconds to the target, best fixed period, regret of each rule."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from dsgd.report import Claim, Table, figure_text
from dsgd.study.frame.rows import Row
from dsgd.study.frame.summary import AbstractCell, grouped
from dsgd.study.published import STATEMENTS
from dsgd.study.tuning.grid import AUTO, SEQUENTIAL
from dsgd.study.verdict import Interval, difference, ratio, were_busy

__all__ = [
    "TuningCell",
    "TuningSet",
    "check_tuning_claims",
    "regret_table",
    "seconds_to",
    "summarise_tuning",
    "sweep_table",
    "targets_of",
    "tuning_verdict",
]

_MISSED: Final = "No fixed period reaches the target, so there is none to be as fast as."


@dataclass(frozen=True)
class TuningCell(AbstractCell):
    """The runs of a policy on a set that differ only in the seed.

    Parameters
    ----------
    policy : str
        The period, or the name of the rule.
    every : int or None
        The period, where the study has fixed it.
    rows : sequence of dict
        The rows of its seeds.
    targets : mapping of int to float
        The objective to reach with each seed.
    """

    policy: str
    every: int | None
    rows: Sequence[Row]
    targets: Mapping[int, float]

    @property
    def seconds(self) -> float:
        """Seconds to the target, the median over seeds; infinite if most did not reach it."""
        return statistics.median(self.by_seed().values())

    def by_seed(self) -> dict[int, float]:
        """Return the seconds to the target with each seed."""
        return {row["seed"]: seconds_to(row, self.targets[row["seed"]]) for row in self.rows}

    @property
    def first_s(self) -> float:
        """Seconds of the first epoch, the median over seeds."""
        return float(statistics.median(row["curve"][0]["seconds"] for row in self.rows))

    @property
    def accuracy(self) -> float | None:
        """The final test accuracy, the median over seeds; None if the runs were ended early."""
        if not all(row["complete"] for row in self.rows):
            return None
        return self.median("test_accuracy")

    @property
    def share(self) -> float:
        """The share of wire and wait in the time of the ranks, the median over seeds."""
        return self.median("share")

    @property
    def period(self) -> int:
        """The final period, the (lower) median over seeds."""
        if self.every is not None:
            return self.every
        return int(statistics.median_low(row["periods"][-1]["period"] for row in self.rows))


@dataclass(frozen=True)
class TuningSet:
    """The runs on one dataset.

    Parameters
    ----------
    dataset : str
        Its name.
    targets : mapping of int to float
        The objective to reach with each seed.
    sweep : sequence of TuningCell
        The fixed periods, rising.
    rules : sequence of TuningCell
        The rules.
    """

    dataset: str
    targets: Mapping[int, float]
    sweep: Sequence[TuningCell]
    rules: Sequence[TuningCell]

    @property
    def best(self) -> TuningCell:
        """The fixed period that reaches the target first."""
        return min(self.sweep, key=lambda cell: cell.seconds)

    def regret(self, cell: TuningCell) -> float:
        """Return a policy's seconds to the target over those of the best fixed period, the median over seeds.

        The minimum of noisy numbers is biased: among equal periods the luckiest would be the baseline. So for each seed
        the best period is chosen by the other seeds, if there are any. NaN if neither reaches the target with any seed.
        """
        seconds, best = cell.by_seed(), self.judged_best(cell)
        ratios = [seconds[seed] / best[seed] for seed in best if min(seconds[seed], best[seed]) < math.inf]
        return statistics.median(ratios) if ratios else math.nan

    def judged_best(self, cell: TuningCell) -> dict[int, float]:
        """Return the seconds of the best period by seed, where the other seeds choose that period."""
        sweep = [other.by_seed() for other in self.sweep]
        seeds, found = set(cell.by_seed()).intersection(*sweep), {}
        for seed in seeds:
            judges = seeds - {seed} or seeds
            found[seed] = min(sweep, key=lambda one: statistics.median(one[judge] for judge in judges))[seed]
        return found

    def rule(self, name: str) -> TuningCell | None:
        """Return the runs of a rule, or None if it has not been run."""
        return next((cell for cell in self.rules if cell.policy == name), None)


def seconds_to(row: Row, target: float) -> float:
    """Return after how many seconds the objective of a run was `target`, between points of its curve by a line.

    Returns
    -------
    float
        Infinity if it never got there.
    """
    curve = row["curve"]
    if curve[0]["objective"] <= target:
        return float(curve[0]["seconds"])
    for before, after in pairwise(curve):
        if after["objective"] <= target:
            part = (before["objective"] - target) / (before["objective"] - after["objective"])
            return float(before["seconds"] + part * (after["seconds"] - before["seconds"]))
    return math.inf


def targets_of(rows: Iterable[Row]) -> dict[int, float]:
    """Return from the rows of one rank the objective to reach with each seed: its last one."""
    return {row["seed"]: float(row["curve"][-1]["objective"]) for row in rows}


def summarise_tuning(rows: Iterable[Row]) -> list[TuningSet]:
    """Return the sets that the rows of a study are of, in its order."""
    found = []
    for (dataset,), own in grouped(rows, "dataset").items():
        policies = grouped(own, "policy")
        alone = policies.pop((SEQUENTIAL,), [])
        if not alone:
            continue
        targets = targets_of(alone)
        cells = [TuningCell(policy, runs[0]["every"], runs, targets) for (policy,), runs in policies.items()]
        sweep = sorted((cell for cell in cells if cell.every is not None), key=lambda cell: cell.every or 0)
        if sweep:
            rules = [cell for cell in cells if cell.every is None]
            found.append(TuningSet(dataset, targets, sweep, rules))
    return found


def regret_table(sets: Sequence[TuningSet]) -> Table:
    """Return the regret of every rule on every set, the default first."""
    names = list(dict.fromkeys(cell.policy for one in sets for cell in one.rules))
    lines = []
    for name in names:
        regrets = [math.nan if (cell := one.rule(name)) is None else one.regret(cell) for one in sets]
        lines.append((name, *map(_times, regrets), _times(statistics.fmean(regrets)), _times(max(regrets))))
    best = [f"{one.best.period} in {1e3 * one.best.seconds:.2f} ms" for one in sets]
    return Table(
        "Regret: seconds to the target over those of the best fixed period",
        ("rule", *(one.dataset for one in sets), "mean", "worst"),
        lines,
        note="Best fixed periods: " + "; ".join(f"{s.dataset} {b}" for s, b in zip(sets, best, strict=True)) + ". "
        "Regret is the median over seeds; for each, the others tell which period is the best.",
    )


def sweep_table(one: TuningSet) -> Table:
    """Return all policies on a set."""
    lowest, highest = (figure_text(limit(one.targets.values())) for limit in (min, max))
    columns: dict[str, Callable[[TuningCell], str]] = {
        "policy": lambda cell: cell.policy,
        "ms to target": lambda cell: f"{1e3 * cell.seconds:.2f}" if math.isfinite(cell.seconds) else "not reached",
        "regret": lambda cell: _times(one.regret(cell)),
        "ms of first epoch": lambda cell: f"{1e3 * cell.first_s:.2f}",
        "communication %": lambda cell: f"{100 * cell.share:.1f}",
        "period in the end": lambda cell: str(cell.period),
        "accuracy %": lambda cell: "-" if cell.accuracy is None else f"{100 * cell.accuracy:.2f}",
    }
    note = (
        f"Target: an objective of {lowest} to {highest}, by seed. Runs without an accuracy were far behind after "
        "their first epoch and ended there."
    )
    return Table.of(f"{one.dataset}: every policy", (*one.sweep, *one.rules), columns, note)


def check_tuning_claims(sets: Sequence[TuningSet]) -> list[Claim]:
    """Return what is claimed of ``sync="auto"``, held against the study."""
    regrets, claims = [], []
    for one in sets:
        cell = one.rule(AUTO)
        if cell is None:
            continue
        if math.isinf(one.best.seconds):
            claims += [
                statement.not_run(one.dataset, _MISSED)
                for statement in (STATEMENTS["dsgd/auto-time"], STATEMENTS["dsgd/auto-accuracy"])
            ]
            continue
        best, regret = one.best, _certain_regret(one, cell)
        regrets.append(regret)
        busy = were_busy([*cell.rows, *best.rows])
        note = (
            f"The best fixed period is {best.period}: medians over seeds are {1e3 * cell.seconds:.2f} ms for auto and "
            f"{1e3 * best.seconds:.2f} ms for it."
        )
        if regret is None:
            claims.append(STATEMENTS["dsgd/auto-time"].said(one.dataset, "not reached", "fails", note))
        else:
            claims.append(
                STATEMENTS["dsgd/auto-time"].judged(one.dataset, regret, note, busy=busy, baseline=_worst_period(one))
            )
        change = difference(_accuracies(cell), _accuracies(best))
        if change is None or cell.accuracy is None or best.accuracy is None:
            claims.append(STATEMENTS["dsgd/auto-accuracy"].said(one.dataset, "not run", "not run", note))
        else:
            claims.append(STATEMENTS["dsgd/auto-accuracy"].judged(one.dataset, change, note))
    known = [regret for regret in regrets if regret is not None]
    if regrets:
        note = f"The mean over {len(regrets)} sets, of their ends as well."
        if len(known) < len(regrets):
            claims.append(STATEMENTS["dsgd/auto-time-mean"].said("all sets", "not reached", "fails", note))
        else:
            ends = [statistics.fmean(getattr(one, end) for one in known) for end in ("estimate", "low", "high")]
            mean = Interval(ends[0], ends[1], ends[2], min(one.n for one in known))
            busy = any(were_busy(one.sweep[0].rows) for one in sets)
            claims.append(STATEMENTS["dsgd/auto-time-mean"].judged("all sets", mean, note, busy=busy))
    return claims


def _certain_regret(one: TuningSet, cell: TuningCell) -> Interval | None:
    """Return the regret and its interval; None where auto has not come to the target with a seed.

    It reaches to what the medians of the figure say: where that is another answer, seeds are too few to tell.
    """
    seconds = cell.by_seed()
    found = ratio(seconds, one.judged_best(cell))
    if found is None or math.inf in seconds.values():
        return None
    shown = cell.seconds / one.best.seconds
    return Interval(found.estimate, min(found.low, shown), max(found.high, shown), found.n)


def _accuracies(cell: TuningCell) -> dict[int, float]:
    return {row["seed"]: float(row["test_accuracy"]) for row in cell.rows}


def _worst_period(one: TuningSet) -> str:
    """Return the regret of the fixed period that reaches the target last."""
    reached = [cell for cell in one.sweep if math.isfinite(cell.seconds)]
    worst = max(reached, key=lambda cell: cell.seconds, default=None)
    return "" if worst is None else f"{_times(one.regret(worst))}: always every={worst.period}"


def tuning_verdict(sets: Sequence[TuningSet]) -> str:
    """Return the answer of the study in a sentence or two."""
    regrets = {one.dataset: one.regret(cell) for one in sets if (cell := one.rule(AUTO)) is not None}
    if not regrets:
        return 'The study has not run sync="auto" on any set.'
    worst = max(regrets, key=lambda name: regrets[name])
    periods = ", ".join(f"{one.best.period} on {one.dataset}" for one in sets)
    return (
        f'sync="auto" takes {_times(statistics.fmean(regrets.values()))} as long to the target as the best of the '
        f"fixed periods in the mean, and {_times(regrets[worst])} at worst (on {worst}). Nobody knows the best ones "
        f"beforehand: {periods}."
    )


def _times(value: float) -> str:
    return f"{value:.2f}x" if math.isfinite(value) else "-"
