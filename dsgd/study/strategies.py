"""The study of strategies: seconds and bytes to a target, and accuracy.

Every point of a curve is a training run of its own, from the same start and with the same seed, because the models of
ranks in the middle of a run are not what training returns. The target is the final training objective of the sequential
run, and a little.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from dsgd.errors import DsgdError, InvalidParameterError
from dsgd.kernels.state import SCHEDULES
from dsgd.report import Axis, Claim, Figure, Level, Mark, Panel
from dsgd.report.figures import ORANGE, TEXT
from dsgd.sim import SimulatedCluster
from dsgd.sim.network import stragglers_for
from dsgd.study.comparison.result import (
    StrategyGang,
    curve_line,
    front_figure,
    gang_of,
    strategy_answer,
    strategy_table,
)
from dsgd.study.comparison.runs import (
    FAMILIES,
    SEQUENTIAL,
    DivergedError,
    Held,
    check_shared_memory,
    looks,
    train_curve,
)
from dsgd.study.frame import options
from dsgd.study.frame.data import DataSource, classifier
from dsgd.study.frame.report import data_table, gang_text, joined, where
from dsgd.study.frame.rows import Row, Run, cells_of
from dsgd.study.frame.study import Batch, Grid, Option, Study
from dsgd.study.published import STATEMENTS, exact
from dsgd.sync import STRATEGIES, AbstractStrategy, BackupWorkers, MinibatchSGD, StalenessAware, resolve

__all__ = ["STUDY"]

# Steps of these are taken with the mean of many gradients, or at a share of the rate: they need a larger rate.
_MEANS: Final = (MinibatchSGD, StalenessAware, BackupWorkers)
_MOST: Final = 10.0
# Raised when equal settings come to mean another run; rows of before are made again. From 2 on simulated ranks hold the
# rows that the partition gives them.
_DEFINITION: Final = 2
# A strategy is as good as the sequential run if its accuracy is at most this much lower.
_CLOSE: Final = 0.01
# What early points are allowed to take of the height of a figure, over the sequential run's last one.
_HIGHEST: Final = 1.3


def chosen(study: Study) -> dict[str, AbstractStrategy[Any]]:
    """Return the strategies that are run, by name: all but Hogwild, whose ranks share memory, where none is named."""
    if study.strategies is not None:
        return {name: resolve(sync) for name, sync in study.strategies.items()}
    every = {name: resolve(name) for name in STRATEGIES}
    return {name: one for name, one in every.items() if not one.shares_memory}


def _check(study: Study) -> None:
    if study.network is None and study.stragglers != "none":
        raise InvalidParameterError(
            f"the study strategies: stragglers={study.stragglers!r} applies to simulated ranks: give a network as "
            "well, or leave it at 'none'."
        )
    if study.strategies is None:
        return
    if not study.strategies or SEQUENTIAL in study.strategies:
        raise InvalidParameterError(
            f"the study strategies: strategies must name at least one strategy, except {SEQUENTIAL!r}, which always "
            f"runs. Got {list(study.strategies)}."
        )
    for name, sync in study.strategies.items():
        check_shared_memory("the study strategies", name, resolve(sync))


# -- measuring -----------------------------------------------------------------------------------------------------


def _strategy(run: Run) -> AbstractStrategy[Any]:
    if run.strategy == SEQUENTIAL:
        return resolve("epoch")
    return resolve(run.strategy if run.study.strategies is None else run.study.strategies[run.strategy])


def rate_of(study: Study, strategy: AbstractStrategy[Any], ranks: int) -> tuple[str, float]:
    """Return the schedule and the rate of a strategy; stale gradients need small steps from the start."""
    schedule = "constant" if strategy.talks == "by mailbox" else study.schedule
    scaled = schedule == "constant" and type(strategy) in _MEANS
    return schedule, study.eta0 * (min(_MOST, max(1.0, ranks - 1.0)) if scaled else 1.0)


def _decides(run: Run) -> Row:
    strategy = _strategy(run)
    schedule, eta0 = rate_of(run.study, strategy, run.ranks)
    return {"sync": repr(strategy), "schedule": schedule, "eta0": eta0, "definition": _DEFINITION}


def _simulated(run: Run) -> SimulatedCluster:
    assert run.network is not None  # only simulated ranks have no client
    return SimulatedCluster(run.ranks, run.network, stragglers=run.stragglers, seed=run.seed)


def _measure(batch: Batch, runs: Sequence[Run]) -> Iterator[Row]:
    """Train the strategies on one dataset and one number of ranks."""
    described, first = batch.data.describe(), runs[0]
    held = Held(batch.client or _simulated(first), batch.data, first.ranks, first.partition)
    for run in runs:
        model = classifier(run, eta0=run.eta0, sync=_strategy(run))
        own = held if batch.client else replace(held, where=_simulated(run))
        try:
            yield described | train_curve(model, own, looks(run.epochs))
        except DivergedError as error:
            raise DsgdError(f"{run.strategy} on {run.ranks} ranks: {error} Leave it out, or lower --eta0.") from error


# -- reading rows --------------------------------------------------------------------------------------------------


def _gangs(rows: Sequence[Row]) -> list[StrategyGang]:
    """Return one entry per number of ranks and dataset with a sequential run."""
    found = []
    for own in cells_of(rows, "dataset", "ranks", "network"):
        alone = [
            row
            for row in rows
            if (row["dataset"], row["ranks"], row["network"], row["strategy"])
            == (own.dataset, 1, own.network, SEQUENTIAL)
        ]
        if own.ranks > 1 and alone:
            found.append(gang_of(own.dataset, gang_text(own.ranks, own.network), alone, own.rows))
    return found


def _claims(gang: StrategyGang, excess: float) -> list[Claim]:
    """Return the promises of this library about its strategies, and whether they hold here."""
    accuracy, objective = STATEMENTS["dsgd/strategies-accuracy"], STATEMENTS["dsgd/strategies-objective"]
    lowest = min(gang.cells, key=gang.behind)
    far = [f"{cell.name} ({100 * gang.behind(cell):+.1f})" for cell in gang.cells if gang.behind(cell) < -_CLOSE]
    note = f"More than a point below: {', '.join(far)}." if far else "Of the strategies that were run."
    behind = gang.sequential.median("majority_accuracy") - gang.sequential.median("test_accuracy")
    distance = lowest.minus(gang.sequential, "test_accuracy")
    commonest = f"{accuracy.form(behind)}: commonest label"
    accurate = accuracy.judged(gang.name, distance, note, trivial=gang.is_trivial, baseline=commonest)
    late = [cell.name for cell in gang.cells if cell.name not in gang.reached(excess)]
    share, n_cells = exact(1.0 - len(late) / len(gang.cells)), len(gang.cells)
    note = f"Not reached by {', '.join(late)}." if late else "All of those that were run."
    at_zero = math.log(2.0) if gang.sequential.loss == "log_loss" else 1.0
    zeros = objective.control("models of zeros", exact(float(at_zero <= gang.target(excess))))
    near = objective.judged(gang.name, share, note, trivial=gang.is_trivial, controls=[zeros])
    within = f"Every strategy comes within {excess:.0%} of the sequential objective in as many epochs"
    return [
        replace(accurate, ours=f"{accurate.ours}, {lowest.name}"),
        replace(near, name=within, published=f"{n_cells} strategies", ours=f"{n_cells - len(late)} strategies"),
    ]


# -- reporting -----------------------------------------------------------------------------------------------------


def _report(study: Study, rows: Sequence[Row]) -> dict[str, Any]:
    gangs, excess = _gangs(rows), study.target_excess
    ranks = where(study.network) + (f", stragglers {study.stragglers}" if study.network else "")
    tails = ["" if len(gangs) == 1 else f"-{gang.dataset}-{gang.ranks}" for gang in gangs]
    mixed = (
        f"Asynchronous strategies have a constant rate of {study.eta0:g}, the others the {study.schedule} "
        "schedule: between the two kinds curves differ by their rates first."
    )
    return {
        "answer": " ".join(strategy_answer(gang, excess) for gang in gangs)
        or "No strategy has been run beside a sequential run yet.",
        "ran": [
            ("Ranks", f"{joined(sorted(set(study.ranks)))}; {ranks}; seeds {joined(study.seeds)}"),
            (
                "Model",
                f"{study.loss} loss, alpha {study.alpha:g}, {study.schedule} schedule, eta0 {study.eta0:g}, "
                f"{study.dtype}, {study.partition} partition; looked at after {joined(looks(study.epochs))} epochs",
            ),
        ],
        "highlights": gangs[0].highlights(excess, "strategies") if len(gangs) == 1 else (),
        "doubts": [mixed] if len({row["schedule"] for row in rows}) > 1 else [],
        "data": [
            data_table(
                rows,
                "features",
                "non-zero",
                "commonest label",
                note="commonest label: test accuracy of always predicting it.",
            )
        ],
        "claims": [claim for gang in gangs for claim in _claims(gang, excess)],
        "source": (
            "The claims are those of this library; the methods and their sources are listed in its documentation. "
            "Seconds of simulated ranks are those of a model of the network and of a core; models, objectives and "
            "bytes are real."
        ),
        "figures": [
            figure
            for gang, tail in zip(gangs, tails, strict=True)
            for figure in (front_figure(gang, excess, f"pareto{tail}"), _curves(gang, excess, tail))
        ],
        "tables": [strategy_table(gang, excess=excess) for gang in gangs],
    }


def _curves(gang: StrategyGang, excess: float, tail: str) -> Figure:
    """Return objective against seconds, a panel for each family; `tail` ends the name of the figure."""
    target, last = gang.target(excess), gang.sequential.median("objective")
    values = [at.median for cell in gang.cells for at in cell.along("objective")]
    low, high = min([last, *values]), min(max([target, *values]), _HIGHEST * last)
    room = 0.05 * (high - low)
    y, panels = Axis("training objective", low=low - room, high=high + room), []
    for family in (name for name in FAMILIES if any(cell.family == name for cell in gang.cells)):
        own = [cell for cell in gang.cells if cell.family == family]
        marks: list[Mark] = [curve_line(gang.sequential, "seconds", colour=TEXT, marker="", dash="dotted", ranges=())]
        marks += [curve_line(cell, "seconds", number, size=5.5, ranges=()) for number, cell in enumerate(own)]
        panels.append(Panel(family, Axis("time", "log", "s"), y, [*marks, Level(target, "target", ORANGE)]))
    caption = (
        "Training objective of the model that training returns after so many epochs, one panel per family. Medians "
        "over seeds. Where a curve ends earlier, its epochs cost less. Curves that begin higher are cut off."
    )
    return Figure(f"loss_seconds{tail}", f"Objective against seconds: {gang.name}", caption, panels, share="xy")


#: The study. It includes the run of one rank always, the baseline of the others.
STUDY: Final = Study(
    "strategies",
    "How should ranks talk?",
    (),
    options={
        "data": options.data([DataSource("ijcnn1")], demo=(DataSource("webspam-like", 4_000, 4_000),)),
        # Strategies by name, as estimators take them as ``sync``; None is all of them.
        "strategies": Option(None),
        "ranks": Option((2, 4), "Numbers of ranks, as 2,4.", least=2, demo=(16,)),
        "seeds": options.seeds(),
        "epochs": options.epochs(6),
        "network": options.network(demo="10GbE"),
        "stragglers": Option(
            "none", "Simulated ranks only: none, exponential, slow-rank, heavy-tail.", panel="Where ranks run",
            check=stragglers_for,
        ),
        "alpha": options.alpha(1e-4),
        "loss": options.loss("hinge"),
        # Keep the default to compare all strategies at equal rates.
        "schedule": Option(
            "constant", "constant, or another one for strategies that are not asynchronous.", panel="The model",
            choices=tuple(SCHEDULES),
        ),
        "eta0": Option(0.1, "The constant rate.", panel="The model", above=0, demo=0.5),
        "partition": options.partition("shuffled"),
        "dtype": options.dtype(),
        "target_excess": Option(
            0.02, "The target: objective above the sequential run's, as 0.02.", flags=("--target",),
            panel="The model", least=0, demo=0.5,
        ),
    },
    grids=[
        Grid(
            lambda s: {
                "ranks": sorted({1, *s.ranks}), "dataset": s.data, "seed": s.seeds,
                "strategy": [SEQUENTIAL, *chosen(s)],
            },
            _measure,
            ("network", "stragglers", "epochs", "alpha", "loss", "partition", "dtype"),
            where=lambda run: (run.ranks == 1) == (run.strategy == SEQUENTIAL),
            derive=_decides,
            workers=lambda run: run.ranks if run.study.network is None else 0,
        )
    ],
    report=_report,
    examples=(
        "dsgd study strategies --demo --out demo/",
        "dsgd study strategies -d ijcnn1 -s local -s 64 -s easgd -s sgp --ranks 16 --simulated --network 1GbE "
        "--out study/",
        "dsgd study strategies -d ijcnn1 -s diloco:every=512,outer_rate=0.7 -s my.module:Mine:every=128 --out study/",
        "dsgd study strategies -d a9a -s local -s minibatch --compress topk:0.01 --compress qsgd --ranks 2,4 "
        "--out study/",
        "dsgd study strategies -d ijcnn1 --ranks 8 --scheduler tcp://10.0.0.5:8786 --out study/",
    ),
    columns=("strategy", "dataset"),
    check=_check,
    simulated="1GbE",
    on_cluster=True,
)  # fmt: skip
