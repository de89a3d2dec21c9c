"""The report of a tuning run: recommendation, elimination of candidates, predictions."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from dsgd.report import Axis, Figure, Level, Line, Page, Panel, Table, figure_text, origin, ran, series
from dsgd.sync.contrib.fragments import kept_of
from dsgd.tuning.line import import_lines
from dsgd.tuning.result import Trial, TuningResult
from dsgd.tuning.space import Fragments

# Curves of so many candidates can be told apart.
_MOST_CURVES: Final = 6


def write_tuning_report(result: TuningResult, path: str | os.PathLike[str], command: str | None = None) -> Path:
    """Write the report into a file; return its path."""
    return tuning_page(result, command).write(path)


def tuning_page(result: TuningResult, command: str | None = None) -> Page:
    """Return the page of a tuning."""
    made = {**origin(command), "when": datetime.now(UTC).isoformat(timespec="seconds")}
    rows = [{**trial.as_row(), **made} for trial in result.table]
    known = result.calibration
    costs = "estimates: the budget was too short to measure" if known is None else str(known.path.name)
    place = [
        ("Command", made["command"]),
        ("Rows", f"{result.n_rows:,} of {result.n_all:,}, {result.validation_fraction:.0%} of them held out"),
        ("Ranks", str(result.ranks)),
        ("Budget", f"{result.budget:g} s, of which {result.seconds:.1f} s were used"),
        ("Cost model", costs),
        ("Imports", "; ".join(import_lines(result.estimator))),
        ("Estimator", result.line),
    ]
    figures = [_rungs(result), _curves(result), _predictions(result)]
    return Page(
        title="How should this model be trained here?",
        answer=result.answer,
        ran=[*place, *ran(rows)],
        highlights=_highlights(result),
        figures=[figure for figure in figures if figure is not None],
        tables=[_table(result), *_fragments(result)],
        rows=rows,
    )


def _highlights(result: TuningResult) -> list[tuple[str, str]]:
    best = result.best
    if not math.isfinite(best.seconds):
        return []
    last = [t for t in result.table if math.isfinite(t.seconds)]
    slowest = max(trial.seconds for trial in last)
    return [
        (f"{figure_text(best.seconds)} s", f"to {result.metric} {result.target:.4f}"),
        (f"{slowest / best.seconds:.3g}x", "as long takes the slowest candidate that gets there"),
        (f"{sum(t.rung > 0 for t in result.table)}", "candidates were trained"),
    ]


def _table(result: TuningResult) -> Table:
    columns: dict[str, Callable[[Trial], str]] = {
        "candidate": lambda trial: trial.candidate.label,
        "rung": lambda trial: str(trial.rung),
        "epochs": lambda trial: str(len(trial.curve)),
        "epoch, predicted ms": lambda trial: _number(1e3 * trial.candidate.predicted_s),
        "epoch, measured ms": lambda trial: _number(1e3 * trial.epoch_s),
        "to target, predicted s": lambda trial: _number(trial.predicted_s),
        "to target, measured s": lambda trial: _number(trial.seconds),
        f"best {result.metric}": lambda trial: "-" if math.isinf(trial.best_score) else f"{trial.best_score:.4f}",
        "note": lambda trial: trial.note,
    }
    note = f"The target is {result.metric} {result.target:.4f}: the best that was reached, less {result.margin:g}."
    return Table.of("Candidates", result.table, columns, note)


def _fragments(result: TuningResult) -> list[Table]:
    """Return the table of what is predicted of fragments, if there is anything."""
    if not result.fragments:
        return []
    columns: dict[str, Callable[[Fragments], str]] = {
        "period, rows": lambda one: f"{one.period:,}",
        "steps, ms": lambda one: figure_text(1e3 * one.steps_s),
        "exchange, ms": lambda one: figure_text(1e3 * one.exchange_s),
        "fragments": lambda one: str(one.strategy.fragments),
        "lost steps": lambda one: f"{1.0 - kept_of(one.strategy):.1%}",
        "predicted gain": lambda one: f"{one.gain:.2f}x",
        "tried": lambda one: "yes" if one.pays else "no: whole models get as far as soon",
    }
    note = (
        "A model in F fragments, each exchanged beside the steps of the next round, in place of a whole model that "
        "ranks wait for: by the costs of this cluster, with the number of fragments that gains most. One in 2 F of the "
        "steps is lost. Hidden fragments pay where an exchange takes more than 1 / (2 F - 1) of the steps of a period."
    )
    return [Table.of("Fragments", result.fragments, columns, note)]


def _rungs(result: TuningResult) -> Figure | None:
    """Show how far each candidate came: its rung, and its seconds to the target."""
    there = [trial for trial in result.table if trial.rung and math.isfinite(trial.seconds)]
    if not there:
        return None
    n_rungs = max(trial.rung for trial in there)
    lines = []
    for rung in range(1, n_rungs + 1):
        mine = [trial for trial in there if trial.rung == rung]
        names = [trial.candidate.label for trial in mine]
        x, y = [trial.candidate.predicted_s for trial in mine], [trial.seconds for trial in mine]
        colour, marker, _ = series(rung - 1)
        label = f"left in rung {rung}" if rung < n_rungs else "last rung"
        lines.append(Line(label, x, y, colour, marker, width=0.0, names=names))
    panel = Panel(
        "", Axis("predicted seconds of an epoch", "log", "s"), Axis("seconds to the target", "log", "s"), lines
    )
    return Figure(
        "rungs",
        "Who stayed",
        "Each point is a candidate that has reached the target. Those on the left have cheap epochs; those below need "
        "few of them for their price. A third of the candidates advances from rung to rung.",
        [panel],
    )


def _curves(result: TuningResult) -> Figure | None:
    """Show the held-out score of the best candidates over seconds of training."""
    best = [trial for trial in result.table if trial.curve][:_MOST_CURVES]
    if not best:
        return None
    lines = []
    for number, trial in enumerate(best):
        colour, marker, dash = series(number)
        x, y = [point.seconds for point in trial.curve], [point.score for point in trial.curve]
        lines.append(Line(trial.candidate.label, x, y, colour, marker if len(x) == 1 else "", dash))
    panel = Panel(
        "",
        Axis("seconds of training", "log", "s"),
        Axis(f"held-out {result.metric}"),
        [*lines, Level(result.target, "target")],
    )
    return Figure("curves", "The best ones", "The score on rows held out, after each epoch.", [panel])


def _predictions(result: TuningResult) -> Figure | None:
    """Show measured over predicted seconds of an epoch."""
    ran_ones: list[Trial] = [trial for trial in result.table if trial.curve]
    if not ran_ones:
        return None
    x, y = [trial.candidate.predicted_s for trial in ran_ones], [trial.epoch_s for trial in ran_ones]
    ends = [min(*x, *y), max(*x, *y)]
    names = [trial.candidate.label for trial in ran_ones]
    lines = [
        Line("as predicted", ends, ends, dash="dashed", width=1.2, pale=True),
        Line("a candidate", x, y, marker="circle", width=0.0, names=names),
    ]
    panel = Panel("", Axis("predicted seconds of an epoch", "log", "s"), Axis("measured", "log", "s"), lines)
    return Figure("predictions", "Predicted and measured", "Seconds of an epoch of each candidate that ran.", [panel])


def _number(value: float) -> str:
    return figure_text(value) if math.isfinite(value) else "-"
