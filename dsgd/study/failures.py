"""The study of failures: how much of the machines' time goes into training that counts, when they stop now and then.

Simulated machines fail at given rates, under every policy and strategy. With ``raise`` a fit ends at its first failure,
and somebody starts it again from the beginning. Daly's model of the same stands alongside: if one of all machines fails
every M seconds, ranks train for tau seconds between two copies of C seconds each, and need R seconds to go on, then the
share ``tau / (M exp(R / M) (exp((tau + C) / M) - 1))`` of the time counts. Where ranks shrink, the mean share of
machines that are left is a factor; where they are elastic, that of machines which are gone for a while.

Source: Young 1974 (the best interval is ``sqrt(2 C M)``) and Daly 2006 (the share).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Any, Final

from dsgd.errors import WorkerLostError
from dsgd.report import Axis, Figure, Line, Panel, Table, seconds_text, series
from dsgd.sim import Compute, Failures, SimulatedCluster
from dsgd.sim.network import network_for
from dsgd.study.frame import options
from dsgd.study.frame.data import DataSource, classifier
from dsgd.study.frame.report import data_table, joined
from dsgd.study.frame.rows import Cell, Row, Run, cells_of
from dsgd.study.frame.study import Batch, Grid, Option, Study
from dsgd.sync import resolve

__all__ = ["STUDY"]

_POLICIES: Final = ("raise", "restart", "shrink", "elastic")
_EPOCHS: Final = 60


def _measure(batch: Batch, runs: Sequence[Run]) -> Iterator[Row]:
    described = batch.data.describe()
    for run in runs:
        # What is started again by hand has no copies, and as many machines.
        every_s = math.inf if run.policy == "raise" else run.every
        policy: Any = "restart" if run.policy == "raise" else run.policy
        failures = Failures(run.rate, (), run.restart, every_s, run.copy, run.back)
        row_s = run.seconds * run.ranks / (_EPOCHS * len(batch.data.y))
        compute = Compute(0.0, row_s, 0.0, 0.0, 0.0, "as slow as asked for")
        cluster = SimulatedCluster(run.ranks, run.network, compute, "none", run.seed, failures, policy)
        model = classifier(run, max_iter=_EPOCHS, sync=resolve(run.strategy), client=cluster)
        try:
            model.fit(batch.data.X, batch.data.y)
        except WorkerLostError:
            yield described | {"goodput": 0.0}  # nobody is left, or no attempt gets on
            continue
        yield described | {
            "goodput": float(model.fit_report_["goodput"]),
            "fit_s": model.ledger_.elapsed_s,
            "n_failures": sum(event["kind"] == "lost" for event in model.fit_report_["recoveries"]),
            "test_accuracy": float(model.score(batch.data.X_test, batch.data.y_test)),
        }


def expected(row: Any) -> float:
    """Return the goodput of a simulated fit in theory, of what has its columns as attributes."""
    mean_s = 3600.0 / (row.rate * row.ranks)
    every_s, epoch_s = row.every, row.seconds / _EPOCHS
    if resolve(row.strategy).talks == "by mailbox":
        every_s = epoch_s * math.ceil(every_s / epoch_s)  # these copy at the ends of epochs alone
    train_s = row.seconds if row.policy == "raise" else min(every_s, row.seconds)
    stop_s = 0.0 if train_s == row.seconds else row.copy
    # Where a machine comes back, ranks go on twice.
    n_pauses = 2 if row.policy == "elastic" else 1
    share: float = train_s / mean_s * math.exp(-(n_pauses * row.restart + train_s + stop_s) / mean_s)
    share /= -math.expm1(-(train_s + stop_s) / mean_s)
    if row.policy == "elastic":
        away: float = row.rate / 3600.0 * row.back
        return share / (1.0 + away)
    if row.policy != "shrink":
        return share
    n_lost = row.rate / 3600.0 * row.seconds / share
    left: float = -math.expm1(-n_lost) / n_lost
    return share * left


def _goodput(cell: Cell) -> float:
    """Return the share that counts of the time of all repetitions together."""
    return float(statistics.harmonic_mean([row["goodput"] for row in cell.rows]))


def _name(cell: Cell) -> str:
    """Return what was done about failures."""
    return f"{cell.policy}, a copy every {cell.every:g} s" if cell.policy == "restart" else cell.policy


def _report(study: Study, rows: Sequence[Row]) -> dict[str, Any]:
    cells = cells_of(rows, "dataset", "ranks", "strategy", "policy", "every", "rate")
    worst = max(cell.rate for cell in cells)
    best = max((cell for cell in cells if cell.rate == worst), key=_goodput)
    settings = (
        f"{best.seconds:g} s of training without failures, {best.copy:g} s for a copy, {best.restart:g} s to go on; "
        f"seeds {joined(study.seeds)}"
    )
    return {
        "answer": (
            f"If each of {best.ranks} machines fails {worst:g} times an hour, at best {_goodput(best):.0%} of the time "
            f"counts: {best.strategy}, {_name(best)}."
        ),
        "ran": [("Fits", settings)],
        "data": [data_table(rows, "features", "non-zero")],
        "tables": [_table(cells)],
        "figures": [_figure(rows)],
        "source": "Young 1974 and Daly 2006: the model that simulated fits are compared with.",
    }


def _table(cells: Sequence[Cell]) -> Table:
    columns = (
        "strategy = strategy | policy = policy | ranks = ranks | failures an hour = rate:g | failures = n_failures:g | "
        "goodput = goodput | Daly = daly | Young = young | accuracy = test_accuracy:.1%"
    )
    note = (
        "Failures an hour: of each machine. Goodput: of all seeds together; 0 % where a fit never ended. Daly: what "
        "the model expects. Young: the best interval between copies."
    )
    return Table.of(
        "Goodput", cells, columns, note, 2,
        policy=_name, goodput=lambda cell: f"{_goodput(cell):.1%}", daly=lambda cell: f"{expected(cell):.1%}",
        young=lambda cell: seconds_text(math.sqrt(2.0 * cell.copy * 3600.0 / (cell.rate * cell.ranks))),
    )  # fmt: skip


def _figure(rows: Sequence[Row]) -> Figure:
    panels = []
    for group in cells_of(rows, "strategy", "ranks"):
        marks: list[Line] = []
        for number, line in enumerate(cells_of(group.rows, "policy", "every")):
            points = sorted(cells_of(line.rows, "rate"), key=lambda cell: cell.rate)
            rates, (colour, marker, _) = [point.rate for point in points], series(number)
            marks += [
                Line("", rates, [expected(point) for point in points], colour, dash="dashed", pale=True),
                Line(_name(line), rates, [_goodput(point) for point in points], colour, marker),
            ]
        title = f"{group.strategy}, {group.ranks} machines"
        panels.append(Panel(title, Axis("failures of a machine an hour", "log"), Axis("goodput", unit="%"), marks))
    text = "Share of the time of all machines that went into training that counts. Dashed: Daly's model."
    return Figure("failures", "Goodput against failures", text, panels, share="y")


#: The study.
STUDY: Final = Study(
    "failures",
    "What do machines that fail cost?",
    (),
    options={
        "data": options.data([DataSource("webspam-like", 1_600, 800)]),
        "strategies": Option(
            ("local:every=25", "asgd:batch=25"), "Strategies, as dsgd fit takes them; repeat for several.",
            flags=("--strategy", "-s"), check=resolve, demo=("local:every=25",),
        ),
        "ranks": Option((8,), "Machines, as 8,64.", least=1),
        "rates": Option(
            (0.1, 0.3, 1.0, 3.0), "Failures of a machine an hour, as 0.1,3.", above=0, demo=(0.3, 3.0)
        ),
        "policies": Option(_POLICIES, f"What ranks do: {', '.join(_POLICIES)}.", words=True, choices=_POLICIES),
        "every": Option((30.0, 120.0), "Seconds from one copy of the state to the next, where ranks restart; else "
                        "the first of them.", above=0),
        "seconds": Option(3600.0, "How long a fit takes without failures.", above=0),
        "restart": Option(20.0, "Seconds from a failure until ranks go on.", least=0),
        "back": Option(300.0, "Seconds from a failure until the machine is back, where ranks are elastic.", least=0),
        "copy": Option(1.0, "Seconds that ranks stop for a copy.", least=0),
        "network": Option("InfiniBand", "Network of the machines.", check=network_for),
        "seeds": options.seeds(demo=(0,)),
        "alpha": options.alpha(1e-4),
        "loss": options.loss("log_loss"),
    },
    grids=[
        Grid(
            lambda s: {
                "dataset": s.data, "ranks": s.ranks, "strategy": s.strategies, "policy": s.policies, "every": s.every,
                "rate": s.rates, "seed": s.seeds,
            },
            _measure,
            ("alpha", "loss", "seconds", "restart", "back", "copy", "network"),
            # Only restarts are compared at several intervals.
            where=lambda run: run.policy == "restart" or run.every == run.study.every[0],
        )
    ],
    report=_report,
    about="Machines are simulated: their seconds are virtual, and failures with the same seed are the same.",
    examples=(
        "dsgd study failures --demo --out demo/",
        "dsgd study failures --ranks 64 --rates 0.01,0.1 --seconds 86400 --copy 30 --every 300,3600 --out study/",
    ),
    columns=("strategy", "policy", "rate"),
)  # fmt: skip
