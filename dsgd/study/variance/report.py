"""The report of the study of variance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from dsgd.report import Axis, Figure, Line, Page, Panel, Table, series, span_of
from dsgd.study.frame.report import doubts, facts, joined
from dsgd.study.frame.rows import Row, check_rows
from dsgd.study.published import SOURCES, citations
from dsgd.study.variance.grid import VarianceStudy
from dsgd.study.variance.summary import (
    DrawCell,
    VarianceProblem,
    check_variance_claims,
    course_table,
    draw_table,
    summarise_draws,
    summarise_variance,
    variance_verdict,
)

__all__ = ["variance_page"]

_AGAINST: Final = {
    "passes": "Objective less its minimum against passes over the rows, those for full gradients among them.",
    "seconds": "The same against the seconds of the steps.",
}
_MEDIANS: Final = " Rates are constant; medians over seeds."
_DRAWS: Final = "Nanoseconds of a step on rows of 22 float32 numbers, shortest repetitions; the three kinds take turns."
_KINDS: Final = {"drawn_ns": "drawn by gradients", "uniform_ns": "drawn uniformly", "walk_ns": "each row once"}


def variance_page(study: VarianceStudy, rows: Sequence[Row]) -> Page:
    """Return the report of a study from its finished runs.

    Raises
    ------
    DsgdError
        There are no rows.
    """
    check_rows(rows)
    problems, draws = summarise_variance(rows), summarise_draws(rows)
    figures = [_courses(problems, along) for along in ("passes", "seconds")] if problems else []
    tables = [course_table(problems)] if problems else []
    return Page(
        title="When is less noise in steps worth its cost?",
        answer=variance_verdict(problems, draws),
        ran=facts(
            rows,
            ("Courses", f"{study.epochs} epochs at constant rates, seeds {joined(study.seeds)}, one rank"),
            ("Steps timed", f"{joined(f'{size:,}' for size in study.sizes)} rows, {study.repeats} repetitions"),
        ),
        highlights=_highlights(problems, draws),
        doubts=doubts(rows, asked=study.count()),
        data=[_problem_table(rows)],
        claims=check_variance_claims(problems, draws),
        source="; ".join(SOURCES[key].reference for key in ("srg", "saga", "svrg")) + ".",
        figures=[*figures, *([_draws(draws)] if draws else [])],
        tables=[*tables, *([draw_table(draws)] if draws else [])],
        rows=rows,
        citations=citations(SOURCES[key] for key in ("srg", "saga", "svrg")),
    )


def _highlights(problems: Sequence[VarianceProblem], draws: Sequence[DrawCell]) -> list[tuple[str, str]]:
    gains = [one for problem in problems if problem.has_outliers and (one := problem.times("SGD, drawn", "SRG"))]
    found = [(span_of(gains, "{:.2g}") + "x", "less error where outliers dominate, SRG")] if gains else []
    if draws:
        ratios = [cell.over("uniform_ns") for cell in draws]
        found.append((span_of(ratios, "{:.2f}") + "x", "a step on a drawn row, over a uniform one"))
    return found


def _problem_table(rows: Sequence[Row]) -> Table:
    first: dict[str, Row] = {}
    for row in rows:
        if row["part"] == "course":
            first.setdefault(row["dataset"], row)
    columns = {
        "problem": lambda row: row["dataset"],
        "rows are": lambda row: row["source"],
        "objective": lambda row: f"{row['loss']}, alpha {row['alpha']:g}",
        "rows": lambda row: f"{row['rows']:,}",
        "features": lambda row: f"{row['features']:,}",
        "checksum": lambda row: row["checksum"],
    }
    return Table.of("Problems", first.values(), columns, n_text=3)


def _courses(problems: Sequence[VarianceProblem], along: Literal["passes", "seconds"]) -> Figure:
    """Return the distance to the minimum along passes or seconds, a panel per problem."""
    unit: Literal["", "s"] = "s" if along == "seconds" else ""
    panels = []
    for problem in problems:
        lines = []
        for number, (method, cell) in enumerate(problem.cells.items()):
            colour, _, dash = series(number)
            at = cell.gaps()
            lines.append(Line(method, [one[along] for one in at], [one["gap"] for one in at], colour, dash=dash))
        across = Axis("passes" if along == "passes" else "time", "linear" if along == "passes" else "log", unit)
        panels.append(Panel(problem.dataset, across, Axis("objective - minimum", "log"), lines))
    name = "variance" if along == "passes" else "variance_seconds"
    return Figure(name, f"Distance to the minimum by {along}", _AGAINST[along] + _MEDIANS, panels, columns=2)


def _draws(cells: Sequence[DrawCell]) -> Figure:
    lines = []
    for number, (column, label) in enumerate(_KINDS.items()):
        colour, marker, dash = series(number)
        lows = [stat.low for cell in cells if (stat := cell.stat(column))]
        lines.append(Line(label, [float(cell.size) for cell in cells], lows, colour, marker, dash))
    panel = Panel("", Axis("rows", "log"), Axis("time of a step, ns", low=0.0), lines)
    return Figure("draws", "Cost of a draw by the number of rows", _DRAWS, [panel], columns=1)
