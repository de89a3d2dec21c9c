"""The study of failures: how much of the machines' time goes into training that counts, when they stop now and then.

Simulated machines fail at given rates, under every policy and strategy. With ``raise`` a fit ends at its first failure,
and somebody starts it again from the beginning. Daly's model of the same stands alongside: if one of all machines fails
every M seconds, ranks train for tau seconds between two copies of C seconds each, and need R seconds to go on, then the
share ``tau / (M exp(R / M) (exp((tau + C) / M) - 1))`` of the time counts. Where ranks shrink, the mean share of
machines that are left is a factor.

On request, worker processes of this machine are killed at moments drawn the same way. Their goodput is the time of a
fit without failures over that of the same fit with them. Its simulated twin fails at the moments at which workers were
killed and needs the measured seconds to go on.

Source: Young 1974 (the best interval is ``sqrt(2 C M)``) and Daly 2006 (the share).
"""

from __future__ import annotations

import logging
import math
import os
import signal
import statistics
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, Final

from dsgd.errors import WorkerLostError
from dsgd.estimators import SGDClassifier
from dsgd.report import Axis, Figure, Line, Panel, Table, load_doubts, seconds_text, series, span_of
from dsgd.runtime import Restart
from dsgd.runtime.deployment import Gang
from dsgd.sim import Compute, Failures, SimulatedCluster
from dsgd.sim.network import network_for
from dsgd.study.frame import options
from dsgd.study.frame.data import DataSource, classifier
from dsgd.study.frame.report import joined
from dsgd.study.frame.rows import Cell, Row, Run, cells_of
from dsgd.study.frame.study import Batch, Grid, Option, Study
from dsgd.sync import resolve

__all__ = ["STUDY"]

_SIMULATED, _WORKERS = "simulated", "workers"
_POLICIES: Final = ("raise", "restart", "shrink")
# Epochs of a simulated fit, and of one that says how many take a second on workers.
_EPOCHS: Final = 60
_SOME: Final = 2_000
# Seconds from one copy to the next on workers, and failures that a fit survives.
_COPIES_S: Final = 0.5
_AT_MOST: Final = 1_000
_KILLED: Final = "Workers that are killed"


# -- measuring -----------------------------------------------------------------------------------------------------


def _simulated(batch: Batch, runs: Sequence[Run]) -> Iterator[Row]:
    described = batch.data.describe()
    for run in runs:
        # What is begun anew by hand has no copies.
        every_s = math.inf if run.policy == "raise" else run.every
        failures = Failures(run.rate, (), run.restart, every_s, run.copy)
        model = _simulate(batch, run, run.seconds, failures, "shrink" if run.policy == "shrink" else "restart")
        yield described | {"goodput": 0.0, "n_failures": None} | ({} if model is None else _told(batch, model))


def _simulate(batch: Batch, run: Run, seconds: float, failures: Failures, policy: Any) -> SGDClassifier | None:
    """Return the model of a fit that takes so many seconds without failures; None where it never ends."""
    compute = Compute(0.0, seconds * run.ranks / (_EPOCHS * len(batch.data.y)), 0.0, 0.0, 0.0, "as slow as asked for")
    cluster = SimulatedCluster(run.ranks, run.study.network, compute, "none", run.seed, failures, policy)
    model = classifier(run, max_iter=_EPOCHS, sync=resolve(run.strategy), client=cluster)
    try:
        model.fit(batch.data.X, batch.data.y)
    except WorkerLostError:
        return None
    return model


def _told(batch: Batch, model: SGDClassifier) -> Row:
    return {
        "goodput": float(model.fit_report_["goodput"]),
        "fit_s": model.ledger_.elapsed_s,
        "n_failures": len(model.fit_report_["recoveries"]),
        "test_accuracy": float(model.score(batch.data.X_test, batch.data.y_test)),
    }


def _on_workers(batch: Batch, runs: Sequence[Run]) -> Iterator[Row]:
    described, epochs = batch.data.describe(), _SOME
    for _ in range(2):  # the first fit loads kernels
        some_s = _timed(batch, runs[0], _SOME)[1]
    epochs = max(1, round(_SOME * runs[0].kill_seconds / some_s))
    for run in runs:
        plain_s = _timed(batch, run, epochs)[1]
        killer = _Killer(batch, run)
        logging.disable(logging.ERROR)  # Dask says of each worker that it was lost
        try:
            with warnings.catch_warnings(action="ignore", category=RuntimeWarning), killer:  # each failure is told
                model, fit_s = _timed(batch, run, epochs, killer.callback)
        finally:
            logging.disable(logging.NOTSET)
        trace, restart_s = killer.record()
        failures = Failures(trace=trace, restart_s=restart_s, every_s=_COPIES_S)
        twin = _simulate(batch, run, plain_s, failures, "restart")
        yield described | {
            "goodput": plain_s / fit_s,
            "twin": None if twin is None else twin.fit_report_["goodput"],
            "fit_s": fit_s,
            "plain_s": plain_s,
            "n_failures": len(trace),
            "restart_s": restart_s,
            "test_accuracy": float(model.score(batch.data.X_test, batch.data.y_test)),
        }


def _timed(batch: Batch, run: Run, epochs: int, *callbacks: Any) -> tuple[SGDClassifier, float]:
    """Return a model that workers trained, and how long that took."""
    assert batch.client is not None  # the grid asks for workers
    batch.client.wait_for_workers(run.ranks)
    gang = Gang(client=batch.client, on_failure=Restart(at_most=_AT_MOST))
    model = classifier(run, max_iter=epochs, sync=resolve(run.strategy), n_jobs=run.ranks, client=gang)
    model.set_callbacks(*callbacks)
    begin = time.perf_counter()
    model.fit(batch.data.X, batch.data.y)
    return model, time.perf_counter() - begin


class _Killer:
    """Kills workers at the moments that are drawn while ranks train, and notes when; a context manager."""

    def __init__(self, batch: Batch, run: Run) -> None:
        assert batch.client is not None
        self._workers, self._run = batch.client.cluster.workers, run
        self._killed, self._going, self._epoch = list[tuple[float, int]](), list[float](), 0
        self._over, self._thread = threading.Event(), threading.Thread(target=self._kill, daemon=True)
        self.callback = SimpleNamespace(on_begin=lambda _: None, on_event=self._hear, on_end=lambda *_: None)

    def __enter__(self) -> None:
        self._begin = time.perf_counter()
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def record(self) -> tuple[list[tuple[float, int]], float]:
        """Return each failure that ranks went on after, with second and rank, and how long that took on average."""
        pauses = [on - at for (at, _), on in zip(self._killed, self._going[1:], strict=False)]
        return self._killed[: len(pauses)], statistics.fmean(pauses or [0.0])

    def _hear(self, _: Any, event: Any) -> None:
        """Note that ranks have begun, or gone on: from a copy, or from the beginning where there was none."""
        epoch = getattr(event, "epoch", self._epoch)
        is_on = getattr(event, "phase", "") == "resumed" or epoch < self._epoch or not self._going
        if is_on and len(self._going) == len(self._killed):
            self._going.append(time.perf_counter() - self._begin)
        self._epoch = epoch

    def _kill(self) -> None:
        failures, at = Failures(self._run.rate), 0.0
        while True:
            at, rank = failures.first(self._run.seed, range(self._run.ranks), at)
            if self._over.wait(max(0.0, self._begin + at - time.perf_counter())):
                return
            # A worker that has yet to come back cannot be lost.
            if len(self._going) > len(self._killed):
                os.kill(list(self._workers.values())[rank].pid, signal.SIGKILL)
                self._killed.append((time.perf_counter() - self._begin, rank))


# -- reading rows --------------------------------------------------------------------------------------------------


def expected(row: Any) -> float:
    """Return the goodput of a simulated fit in theory, of what has its columns as attributes."""
    mean_s = 3600.0 / (row.rate * row.ranks)
    every_s, epoch_s = row.every, row.seconds / _EPOCHS
    if resolve(row.strategy).talks == "by mailbox":
        every_s = epoch_s * math.ceil(every_s / epoch_s)  # these copy at the ends of epochs alone
    train_s = row.seconds if row.policy == "raise" else min(every_s, row.seconds)
    stop_s = 0.0 if train_s == row.seconds else row.copy
    share: float = train_s / mean_s * math.exp(-(row.restart + train_s + stop_s) / mean_s)
    share /= -math.expm1(-(train_s + stop_s) / mean_s)
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
    cells = cells_of(rows, "place", "ranks", "strategy", "policy", "every", "rate")
    simulated = [cell for cell in cells if cell.place == _SIMULATED]
    real = [cell for cell in cells if cell.place == _WORKERS]
    answer = []
    if simulated:
        worst = max(cell.rate for cell in simulated)
        best = max((cell for cell in simulated if cell.rate == worst), key=_goodput)
        answer.append(
            f"If each of {best.ranks} machines fails {worst:g} times an hour, at best {_goodput(best):.0%} of the time "
            f"counts: {best.strategy}, {_name(best)}."
        )
    off = [100.0 * (row["twin"] / row["goodput"] - 1.0) for cell in real for row in cell.rows if row["twin"]]
    if off:
        n_killed = sum(row["n_failures"] for cell in real for row in cell.rows)
        answer.append(
            f"Workers were killed {n_killed} times in {len(off)} fits; simulated twins differ in goodput by "
            f"{span_of(off, '{:+.1f}')} %, in the median by {statistics.median(off):+.1f} %."
        )
    return {
        "answer": " ".join(answer),
        "ran": [("Failures", f"of each machine an hour {joined(study.rates)}; seeds {joined(study.seeds)}")],
        "tables": [make(own) for make, own in ((_simulated_table, simulated), (_real_table, real)) if own],
        "figures": [_figure(simulated)] if simulated else [],
        "doubts": load_doubts([row for cell in real for row in cell.rows]) if real else [],
        "source": "Young 1974 and Daly 2006: the model that simulated fits are compared with.",
        "facts": {"off_percent": off},
    }


def _simulated_table(cells: Sequence[Cell]) -> Table:
    columns = (
        "strategy = strategy | policy = policy | ranks = ranks | failures an hour = rate:g | failures = n_failures:g | "
        "goodput = goodput | Daly = daly | Young = young | accuracy = test_accuracy:.1%"
    )
    note = (
        f"Of {cells[0].seconds:g} s of training without failures; a copy takes {cells[0].copy:g} s, to go on "
        f"{cells[0].restart:g} s. Failures an hour: of each machine. Goodput: of all seeds together; 0 % where a "
        "hundred attempts got no further. Daly: what the model expects. Young: the best interval between copies."
    )
    return Table.of(
        "Goodput of simulated machines", cells, columns, note, 2,
        policy=_name, goodput=lambda cell: f"{_goodput(cell):.1%}", daly=lambda cell: f"{expected(cell):.1%}",
        young=lambda cell: seconds_text(math.sqrt(2.0 * cell.copy * 3600.0 / (cell.rate * cell.ranks))),
    )  # fmt: skip


def _real_table(cells: Sequence[Cell]) -> Table:
    columns = (
        "strategy = strategy | workers = ranks | kills an hour = rate:g | failures = n_failures:g | "
        "goodput = goodput | twin = twin:.1% | seconds = fit_s:.2f | plain = plain_s:.2f | until on = restart_s:.2f"
    )
    note = (
        "Kills an hour: of each worker. Twin: goodput of simulated machines that fail at the same moments. Plain: "
        "seconds of a fit without failures. Until on: mean seconds from a kill until ranks train. Medians over seeds."
    )
    goodput = "Goodput of workers that are killed"
    return Table.of(goodput, cells, columns, note, goodput=lambda cell: f"{_goodput(cell):.1%}")


def _figure(cells: Sequence[Cell]) -> Figure:
    panels = []
    for group in cells_of([row for cell in cells for row in cell.rows], "strategy", "ranks"):
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


def _grid(place: str) -> Grid:
    is_real = place == _WORKERS
    return Grid(
        lambda s: {
            "dataset": s.data,
            "place": [place] if place in s.places else [],
            "ranks": s.workers if is_real else s.ranks,
            "strategy": s.strategies[:1] if is_real else s.strategies,
            "policy": ["restart"] if is_real else s.policies,
            "every": [_COPIES_S] if is_real else s.every,
            "rate": s.kills if is_real else s.rates,
            "seed": s.seeds[:3] if is_real else s.seeds,
        },
        _on_workers if is_real else _simulated,
        ("alpha", "loss", "kill_seconds") if is_real else ("alpha", "loss", "seconds", "restart", "copy", "network"),
        # Only a restart is compared at several intervals.
        where=lambda run: run.policy == "restart" or run.every == run.study.every[0],
        together=("dataset", "ranks", "strategy"),
        workers=(lambda run: run.ranks) if is_real else None,
    )


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
        "ranks": Option((8,), "Simulated machines, as 8,64.", least=1),
        "rates": Option((0.1, 0.3, 1.0, 3.0), "Failures of a machine an hour, as 0.1,3.", above=0, demo=(0.3, 3.0)),
        "policies": Option(_POLICIES, f"What ranks do: {', '.join(_POLICIES)}.", words=True, choices=_POLICIES),
        "every": Option((30.0, 120.0), "Seconds from one copy of the state to the next, where ranks restart.", least=0),
        "seconds": Option(3600.0, "How long a fit takes without failures.", above=0),
        "restart": Option(20.0, "Seconds from a failure until ranks go on.", least=0),
        "copy": Option(1.0, "Seconds that ranks stop for a copy.", least=0),
        "network": Option("InfiniBand", "Network of simulated machines.", check=network_for),
        "places": Option(
            (_SIMULATED,), "Where ranks are: simulated, workers; both with a comma between.", words=True,
            flags=("--place",), choices=(_SIMULATED, _WORKERS),
        ),
        "workers": Option((2,), "Workers of this machine.", least=2, panel=_KILLED),
        "kills": Option((120.0, 240.0, 480.0), "Kills of a worker an hour.", above=0, panel=_KILLED),
        "kill_seconds": Option(10.0, "How long their fit takes if none is killed.", above=0, panel=_KILLED),
        "seeds": options.seeds(demo=(0,)),
        "alpha": options.alpha(1e-4),
        "loss": options.loss("log_loss"),
    },
    grids=[_grid(_SIMULATED), _grid(_WORKERS)],
    report=_report,
    about="Workers, if you ask for them, are processes of this machine that the study starts and kills.",
    examples=(
        "dsgd study failures --out study/",
        "dsgd study failures --ranks 64 --rates 0.01,0.1 --seconds 86400 --copy 30 --every 300,3600 --out study/",
        "dsgd study failures --place simulated,workers --out study/",
    ),
    columns=("place", "strategy", "policy", "rate"),
)  # fmt: skip
