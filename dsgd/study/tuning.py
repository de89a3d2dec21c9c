"""The study of automatic periods: the rules of ``sync="auto"`` compared with fixed periods.

The speed of a shared machine changes from minute to minute, so the policies of a seed take turns, fit by fit, and are
finished together. A period whose first epoch takes far longer than the best of the others needs to reach the target is
not the best one, so its later epochs are not run. Nor are those between the target and the end, where only the accuracy
matters. This saves most of the time of the study and changes none of its results.

The target of a seed is the training objective of one rank after half of the epochs.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Final

from dsgd.errors import DsgdError
from dsgd.estimators import SGDClassifier
from dsgd.ledger import PHASES
from dsgd.report import Axis, Claim, Figure, Level, Line, Panel, Table, figure_text, period_axis, series
from dsgd.sim import SimulatedCluster
from dsgd.study.frame import options
from dsgd.study.frame.data import DataSource, classifier, objective, place, score
from dsgd.study.frame.report import joined
from dsgd.study.frame.rows import Cell, Row, Run, any_busy, cells_of, one_of
from dsgd.study.frame.study import Batch, Grid, Option, Study
from dsgd.study.published import STATEMENTS, Interval, Statement, ratio, were_busy
from dsgd.sync import AbstractStrategy, AutoSync, EpochAveraging, LocalSGD, adaptive

__all__ = ["STUDY"]

# The default of ``sync="auto"``, and the run of one rank.
_AUTO, _ALONE = "auto", "sequential"
#: Every rule by its name in a study.
RULES: Final[Mapping[str, adaptive.AbstractRule]] = MappingProxyType(
    {
        _AUTO: adaptive.CommFloor(), "fixed": adaptive.FixedPeriod(), "adacomm": adaptive.AdaComm(),
        "qsr": adaptive.QSR(), "variance-band": adaptive.VarianceBand(), "dynamic": adaptive.DynamicAveraging(),
        "budget": adaptive.BudgetedPeriod(), "post-local": adaptive.PostLocal(),
    }
)  # fmt: skip
# Raised when the same settings come to mean a different run. Since 2, simulated ranks hold the rows that workers hold.
_DEFINITION: Final = 2
# A first epoch may take this multiple of the fastest time to the target before the later ones are skipped.
_SLOW_PERIOD, _SLOW_RULE = 2.0, 20.0


# -- measuring -----------------------------------------------------------------------------------------------------


def _strategy(run: Run) -> AbstractStrategy[Any]:
    if run.policy == _ALONE:
        return EpochAveraging()
    return AutoSync(run.study.target, RULES[run.policy]) if run.policy in RULES else LocalSGD(int(run.policy))


def _decides(run: Run) -> Row:
    """Return what follows from the policy of a run, and decides what is run."""
    is_alone, study = run.policy == _ALONE, run.study
    return {
        "ranks": 1 if is_alone else study.ranks,
        "every": None if is_alone or run.policy in RULES else int(run.policy),
        "sync": repr(_strategy(run)), "target_epochs": study.epochs // 2, "definition": _DEFINITION,
    }  # fmt: skip


def _measure(batch: Batch, runs: list[Run]) -> list[Row]:
    """Train the policies of a seed on one dataset."""
    study, data, described = batch.study, batch.data, batch.data.describe()
    alone, others = batch.runs[0], [run for run in runs if run.policy != _ALONE]
    rows = []
    if alone in runs:
        curve = _Curve(alone, None, data, None)
        curve.look(study.epochs // 2)
        rows.append(described | curve.as_row())
    if others:
        (last,) = rows or batch.rows(key=alone.key)
        target = last["curve"][-1]["objective"]
        where = batch.client or SimulatedCluster(study.ranks, study.network)
        blocks, _ = place(where, (data.X, data.y), study.ranks, "shuffled")
        if batch.client is not None:  # loading compiled code is in no timing
            _model(others[0], where, 1).fit(blocks, None)
        curves = [_Curve(run, where, data, blocks) for run in others]
        train_by_turns(study, curves, target)
        rows += [described | curve.as_row() for curve in curves]
    return rows


def epochs_of_points(study: Study) -> list[int]:
    """Return the numbers of epochs after which a run is evaluated: mostly where it may reach the target."""
    target = study.epochs // 2
    return sorted({1, *range(max(1, target // 2), study.epochs, max(1, target // 4)), study.epochs})


def train_by_turns(study: Study, curves: Sequence[Any], target: float) -> None:
    """Train all policies of a seed for each point of their curves, by turns."""
    # A virtual clock shows the same every time.
    repeats = 1 if study.network is not None else study.repeats
    *points, last = epochs_of_points(study)
    going = list(curves)
    for epochs in [*points, *[last] * repeats]:
        for curve in going:
            if epochs == last or curve.objective > target:
                curve.look(epochs)
        fastest = study.epochs // 2 * min(curve.first_s for curve in curves)
        if epochs == points[0] and study.network is None:  # a machine may stall for a moment
            for curve in going:
                if curve.first_s > curve.patience * fastest:
                    curve.look(epochs)
        going = [curve for curve in going if curve.first_s <= curve.patience * fastest]


class _Curve:
    """The quality of the models of a run after some epochs, and their seconds.

    Each point is a separate training run, because the quality of a model is known only at the end of training.
    """

    def __init__(self, run: Run, where: Any, data: Any, blocks: Any) -> None:
        self._run, self._where, self._data, self._blocks = run, where, data, blocks
        self._worth: dict[int, list[float]] = {}
        self._seconds: dict[int, list[float]] = {}
        self._accuracies: list[float] = []
        self._model = _model(run, where, 1)
        self.patience = _SLOW_RULE if run.every is None else _SLOW_PERIOD

    @property
    def objective(self) -> float:
        """The training objective at the last evaluation, infinite before the first."""
        return statistics.fmean(self._worth[max(self._worth)]) if self._worth else math.inf

    @property
    def first_s(self) -> float:
        """Seconds of the first epoch, at best."""
        return min(self._seconds[1])

    def look(self, epochs: int) -> None:
        """Train for so many epochs."""
        run, data = self._run, self._data
        self._model = model = _model(run, self._where, epochs)
        model.fit(data.X, data.y) if self._blocks is None else model.fit(self._blocks, None)
        for record in model.fit_report_["epochs"]:
            self._seconds.setdefault(record["epoch"], []).append(record["seconds"])
        if epochs not in self._worth:
            self._accuracies = []
        self._worth.setdefault(epochs, []).append(objective(model, data.X, data.y, loss=run.loss, alpha=run.alpha))
        test = score(model, data.X_test, data.y_test)["accuracy"]
        self._accuracies.append(float(test) if test is not None else math.nan)

    def as_row(self) -> Row:
        """Return the contents of the row of the run."""
        curve = [
            # From the first sample to the end of the epoch, on the first rank.
            {"epoch": e, "seconds": statistics.median(self._seconds[e]), "objective": statistics.fmean(self._worth[e])}
            for e in sorted(self._worth)
        ]
        totals = self._model.ledger_.totals()
        spent = sum(totals[f"{phase}_s"] for phase in PHASES)
        return {
            "curve": curve,
            "complete": curve[-1]["epoch"] >= self._run.epochs,
            "test_accuracy": statistics.fmean(self._accuracies),
            "share": (totals["wire_s"] + totals["wait_s"]) / spent if spent else 0.0,
            "rounds": int(totals["rounds"]),
            "periods": self._model.sync_history_,
        }


def _model(run: Run, where: Any, epochs: int) -> SGDClassifier:
    jobs = None if isinstance(where, SimulatedCluster) else run.ranks
    return classifier(run, max_iter=epochs, sync=_strategy(run), n_jobs=jobs, client=where)


# -- reading rows --------------------------------------------------------------------------------------------------


def seconds_to(row: Row, target: float) -> float:
    """Return after how many seconds the objective was `target`, by a line between points; infinity if never."""
    curve = row["curve"]
    if curve[0]["objective"] <= target:
        return float(curve[0]["seconds"])
    for before, after in pairwise(curve):
        if after["objective"] <= target:
            part = (before["objective"] - target) / (before["objective"] - after["objective"])
            return float(before["seconds"] + part * (after["seconds"] - before["seconds"]))
    return math.inf


class _Policy(Cell):
    """The runs of a policy on a set that differ only in the seed, with the objective to reach with each."""

    targets: Mapping[int, float]

    def by_seed(self) -> dict[int, float]:
        """Return the seconds to the target with each seed."""
        return {row["seed"]: seconds_to(row, self.targets[row["seed"]]) for row in self.rows}

    @property
    def seconds(self) -> float:
        """Seconds to the target, the median over seeds; infinite if most did not reach it."""
        return statistics.median(self.by_seed().values())

    @property
    def accuracy(self) -> float | None:
        """The final test accuracy, the median over seeds; None if the runs were ended early."""
        return self.median("test_accuracy") if all(row["complete"] for row in self.rows) else None

    @property
    def period(self) -> int:
        """The final period, the (lower) median over seeds."""
        if self.every is not None:
            return int(self.every)
        return int(statistics.median_low(row["periods"][-1]["period"] for row in self.rows))


class _Set:
    """The runs on one dataset: fixed periods, rising, and rules."""

    def __init__(self, cells: Sequence[_Policy], alone: _Policy) -> None:
        self.dataset = alone.dataset
        # The objective to reach with each seed: the last one of one rank.
        self.targets = {row["seed"]: float(row["curve"][-1]["objective"]) for row in alone.rows}
        others = [cell for cell in cells if cell is not alone]
        for cell in others:
            cell.targets = self.targets
        self.sweep = sorted((cell for cell in others if cell.every is not None), key=lambda cell: cell.every)
        self.rules = [cell for cell in others if cell.every is None]

    @property
    def best(self) -> _Policy:
        """The fixed period that reaches the target first."""
        return min(self.sweep, key=lambda cell: cell.seconds)

    def regret(self, cell: _Policy) -> float:
        """Return a policy's seconds to the target over those of the best fixed period, the median over seeds.

        The minimum of noisy numbers is biased: among equal periods the luckiest would be the baseline. So for each seed
        the best period is chosen by the other seeds, if there are any. NaN if neither reaches the target with any seed.
        """
        seconds, best = cell.by_seed(), self.judged_best(cell)
        ratios = [seconds[seed] / best[seed] for seed in best if min(seconds[seed], best[seed]) < math.inf]
        return statistics.median(ratios) if ratios else math.nan

    def judged_best(self, cell: _Policy) -> dict[int, float]:
        """Return the seconds of the best period by seed, where the other seeds choose that period."""
        sweep = [other.by_seed() for other in self.sweep]
        seeds, found = set(cell.by_seed()).intersection(*sweep), {}
        for seed in seeds:
            judges = seeds - {seed} or seeds
            found[seed] = min(sweep, key=lambda one: statistics.median(one[judge] for judge in judges))[seed]
        return found


def _sets(rows: Sequence[Row]) -> list[_Set]:
    """Return the sets on which one rank and a period were run, in the order of the study."""
    found = []
    for own in cells_of(rows, "dataset"):
        cells = cells_of(own.rows, "policy", make=_Policy)
        alone = one_of(cells, policy=_ALONE)
        if alone is not None and (one := _Set(cells, alone)).sweep:
            found.append(one)
    return found


def _times(value: float) -> str:
    return f"{value:.2f}x" if math.isfinite(value) else "-"


def _claims(sets: Sequence[_Set]) -> list[Claim]:
    """Return what is claimed of ``sync="auto"``, and whether it holds here."""
    time, mean, accuracy = (STATEMENTS[f"dsgd/auto-{name}"] for name in ("time", "time-mean", "accuracy"))
    regrets: list[Interval | None] = []
    claims = []
    for one in sets:
        cell, best = one_of(one.rules, policy=_AUTO), one.best
        if cell is None:
            continue
        if math.isinf(best.seconds):
            note = "No fixed period reaches the target, so there is none to be as fast as."
            claims += [statement.not_run(one.dataset, note) for statement in (time, accuracy)]
            continue
        regret = _certain_regret(one, cell)
        regrets.append(regret)
        note = (
            f"The best fixed period is {best.period}: medians over seeds are {1e3 * cell.seconds:.2f} ms for auto and "
            f"{1e3 * best.seconds:.2f} ms for it."
        )
        if regret is None:
            claims.append(time.said(one.dataset, "not reached", "fails", note))
        else:
            busy, worst = any_busy(cell, best), _worst_period(one)
            claims.append(time.judged(one.dataset, regret, note, busy=busy, baseline=worst))
        change = cell.minus(best, "test_accuracy")
        if change is None or cell.accuracy is None or best.accuracy is None:
            claims.append(accuracy.said(one.dataset, "not run", "not run", note))
        else:
            claims.append(accuracy.judged(one.dataset, change, note, baseline=_least_accurate(one, best, accuracy)))
    known = [regret for regret in regrets if regret is not None]
    if regrets:
        note = f"The mean over {len(regrets)} sets, of their ends as well."
        if len(known) < len(regrets):
            claims.append(mean.said("all sets", "not reached", "fails", note))
        else:
            ends = [statistics.fmean(getattr(one, end) for one in known) for end in ("estimate", "low", "high")]
            found = Interval(ends[0], ends[1], ends[2], min(one.n for one in known))
            claims.append(mean.judged("all sets", found, note, busy=any(were_busy(one.sweep[0].rows) for one in sets)))
    return claims


def _certain_regret(one: _Set, cell: _Policy) -> Interval | None:
    """Return the regret and its interval; None where auto has not come to the target with a seed.

    It reaches to what the medians of the figure say: where that is another answer, seeds are too few to tell.
    """
    seconds = cell.by_seed()
    found = ratio(seconds, one.judged_best(cell))
    if found is None or math.inf in seconds.values():
        return None
    shown = cell.seconds / one.best.seconds
    return Interval(found.estimate, min(found.low, shown), max(found.high, shown), found.n)


def _worst_period(one: _Set) -> str:
    """Return the regret of the fixed period that reaches the target last."""
    reached = [cell for cell in one.sweep if math.isfinite(cell.seconds)]
    worst = max(reached, key=lambda cell: cell.seconds, default=None)
    return "" if worst is None else f"{_times(one.regret(worst))}: always every={worst.period}"


def _least_accurate(one: _Set, best: _Policy, accuracy: Statement) -> str:
    """Return how far the least accurate of the fixed periods is from the best one."""
    worst = min(one.sweep, key=lambda cell: cell.median("test_accuracy"))
    change = worst.minus(best, "test_accuracy")
    return f"{accuracy.form(change.estimate)}: always every={worst.period}" if change else ""


# -- reporting -----------------------------------------------------------------------------------------------------


def _report(study: Study, rows: Sequence[Row]) -> dict[str, Any]:
    sets = _sets(rows)
    if not sets:
        raise DsgdError("the study has no finished period yet, so there is nothing to report: run it first")
    ranks = "worker processes" if study.network is None else f"simulated ranks on {study.network}"
    times = (
        "Seconds until the training objective is that of one rank after some epochs, for every fixed period (medians "
        "over seeds), and what each rule takes to the same target. Periods that were hopelessly slow are left out."
    )
    return {
        "answer": _answer(sets),
        "ran": [
            ("Ranks", f"{study.ranks} {ranks}; seeds {joined(study.seeds)}"),
            (
                "Model",
                f"{study.loss} loss, alpha {study.alpha:g}, {study.dtype}; target: the objective of one rank after "
                f"{study.epochs // 2} epochs with the same seed; curves end after {study.epochs}",
            ),
        ],
        "claims": _claims(sets),
        "figures": [Figure("tuning_seconds", "Seconds to the target", times, [_time_panel(one) for one in sets])],
        "tables": [regret_table(rows)],
        "details": [_sweep_table(one) for one in sets],
    }


def _answer(sets: Sequence[_Set]) -> str:
    regrets = {one.dataset: one.regret(cell) for one in sets if (cell := one_of(one.rules, policy=_AUTO)) is not None}
    if not regrets:
        return 'The study has not run sync="auto" on any set.'
    worst = max(regrets, key=lambda name: regrets[name])
    periods = ", ".join(f"{one.best.period} on {one.dataset}" for one in sets)
    return (
        f'sync="auto" takes {_times(statistics.fmean(regrets.values()))} as long to the target as the best of the '
        f"fixed periods in the mean, and {_times(regrets[worst])} at worst (on {worst}). Nobody knows the best ones "
        f"beforehand: {periods}."
    )


def regret_table(rows: Sequence[Row]) -> Table:
    """Return the regret of every rule on every set, the default first."""
    sets, lines = _sets(rows), []
    for name in dict.fromkeys(cell.policy for one in sets for cell in one.rules):
        regrets = [one.regret(cell) if (cell := one_of(one.rules, policy=name)) else math.nan for one in sets]
        lines.append((name, *map(_times, regrets), _times(statistics.fmean(regrets)), _times(max(regrets))))
    best = "; ".join(f"{one.dataset} {one.best.period} in {1e3 * one.best.seconds:.2f} ms" for one in sets)
    return Table(
        "Regret: seconds to the target over those of the best fixed period",
        ("rule", *(one.dataset for one in sets), "mean", "worst"),
        lines,
        note=f"Best fixed periods: {best}. Regret is the median over seeds; for each, the others tell which period is "
        "the best.",
    )


def _sweep_table(one: _Set) -> Table:
    """Return all policies on a set."""
    lowest, highest = (figure_text(limit(one.targets.values())) for limit in (min, max))
    columns = (
        "policy = policy | ms to target = target | regret = regret | ms of first epoch = first | "
        "communication % = share*100:.1f | period in the end = {0.period} | accuracy % = accuracy*100:.2f"
    )
    note = (
        f"Target: an objective of {lowest} to {highest}, by seed. Runs without an accuracy were far behind after "
        "their first epoch and ended there."
    )
    return Table.of(
        f"{one.dataset}: every policy",
        (*one.sweep, *one.rules),
        columns,
        note,
        target=lambda cell: f"{1e3 * cell.seconds:.2f}" if math.isfinite(cell.seconds) else "not reached",
        regret=lambda cell: _times(one.regret(cell)),
        first=lambda cell: f"{1e3 * statistics.median(row['curve'][0]['seconds'] for row in cell.rows):.2f}",
    )


def _time_panel(one: _Set) -> Panel:
    """Return seconds to the target over the period, with the rules as levels."""
    cells = [cell for cell in one.sweep if math.isfinite(cell.seconds)]
    periods = [cell.every or 1 for cell in cells]
    marks: list[Line | Level] = [Line("fixed period", periods, [cell.seconds for cell in cells], marker="circle")]
    for number, cell in enumerate(one.rules, start=1):
        if math.isfinite(cell.seconds):
            colour, _, dash = series(number)
            marks.append(Level(cell.seconds, cell.policy, colour, "solid" if cell.policy == _AUTO else dash))
    return Panel(one.dataset, period_axis("period, rows", periods), Axis("time to target", "log", unit="s"), marks)


#: The study.
STUDY: Final = Study(
    "tuning",
    "Which period does training choose, and how good is it?",
    (),
    options={
        "data": options.data(
            [
                DataSource("ijcnn1", 28_000, 30_000), DataSource("a9a"), DataSource("covtype-subset", 28_000),
                DataSource("epsilon-like", 16_000, 8_000), DataSource("webspam-like", 24_000, 24_000),
            ],
            demo=(DataSource("ijcnn1", 14_000, 10_000), DataSource("webspam-like", 8_000, 4_000)),
        ),
        "rules": Option(
            tuple(RULES),
            "auto, fixed, adacomm, qsr, variance-band, dynamic, budget, post-local; repeat for several.",
            flags=("--rule", "-r"), choices=tuple(RULES), demo=(_AUTO, "adacomm", "qsr", "post-local"),
            may_be_empty=True,
        ),
        "every": Option(
            tuple(2**power for power in range(13)), "The fixed periods, as 1,16,256.", least=1,
            demo=(16, 64, 256, 1024, 4096),
        ),
        "ranks": Option(2, "Worker processes.", least=2),
        "seeds": options.seeds((0, 1, 2, 3, 4), demo=(0, 1, 2)),
        "epochs": options.epochs(16, least=2, demo=6),
        "repeats": Option(7, "Times that the longest run is trained.", least=1, demo=3),
        "target": Option(
            0.1, "AutoSync(target=...): the share of communication.", flags=("--share",), panel="The model",
            check=AutoSync,
        ),
        "alpha": options.alpha(1e-4),
        "loss": options.loss("log_loss"),
        "dtype": options.dtype(),
        "network": options.network("Simulate the ranks, on 1GbE, 10GbE, 100GbE, InfiniBand, NVLink or WAN."),
    },
    grids=[
        Grid(
            # One rank, falling periods, rules.
            lambda s: {
                "dataset": s.data, "seed": s.seeds,
                "policy": [_ALONE, *(str(n) for n in sorted(set(s.every), reverse=True)), *s.rules],
            },
            _measure,
            ("epochs", "repeats", "loss", "alpha", "dtype", "network"),
            derive=_decides,
            together=("dataset", "seed"),
            workers=lambda run: run.study.ranks if run.study.network is None else 0,
        )
    ],
    report=_report,
    about="The best period is found by trying all of them, on two worker processes.",
    examples=(
        "dsgd study tuning --demo --out demo/",
        "dsgd study tuning --out study/",
        "dsgd study tuning --network 1GbE --ranks 8 --out study/",
        "dsgd study tuning -d a9a -r auto -r qsr --every 16,256,4096 --scheduler tcp://10.0.0.5:8786 --out study/",
    ),
    columns=("policy", "dataset"),
    on_cluster=True,
)  # fmt: skip
