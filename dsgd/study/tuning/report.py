"""The report of the study of automatic periods."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from dsgd.errors import DsgdError
from dsgd.report import Axis, Figure, Level, Line, Page, Panel, period_axis, series
from dsgd.study.frame.report import doubts, facts, joined
from dsgd.study.frame.rows import Row
from dsgd.study.published import citations, sources_of
from dsgd.study.tuning.grid import AUTO, TuningStudy
from dsgd.study.tuning.summary import (
    TuningSet,
    check_tuning_claims,
    regret_table,
    summarise_tuning,
    sweep_table,
    tuning_verdict,
)

__all__ = ["tuning_page"]

_TIMES: Final = (
    "Seconds until the training objective is that of one rank after some epochs, for every fixed period (medians over "
    "seeds), and what each rule takes to the same target. Periods that were hopelessly slow are left out."
)
_PERIODS: Final = 'The period that sync="auto" had, from the start of training on; one line per seed.'


def tuning_page(study: TuningStudy, rows: Sequence[Row]) -> Page:
    """Return the report of a study from its finished runs.

    Raises
    ------
    DsgdError
        No period has been run to its end.
    """
    sets = summarise_tuning(rows)
    if not sets:
        raise DsgdError("the study has no finished period yet, so there is nothing to report: run it first")
    ranks = "worker processes" if study.network is None else f"simulated ranks on {study.network}"
    return Page(
        title="Which period does training choose, and how good is it?",
        answer=tuning_verdict(sets),
        ran=facts(
            rows,
            ("Ranks", f"{study.ranks} {ranks}; seeds {joined(study.seeds)}"),
            (
                "Model",
                f"{study.loss} loss, alpha {study.alpha:g}, {study.dtype}; target: the objective of one rank after "
                f"{study.target_epochs} epochs with the same seed; curves end after {study.epochs}",
            ),
        ),
        doubts=doubts(rows, asked=study.count()),
        claims=check_tuning_claims(sets),
        figures=[
            Figure("tuning_seconds", "Seconds to the target", _TIMES, [_times(one) for one in sets]),
            Figure("tuning_periods", "Periods chosen", _PERIODS, [_periods(one) for one in sets]),
        ],
        tables=[regret_table(sets)],
        details=[sweep_table(one) for one in sets],
        rows=list(rows),
        citations=citations(sources_of(row["sync"] for row in rows)),
    )


def _times(one: TuningSet) -> Panel:
    """Return seconds to the target over the period, with the rules as levels."""
    cells = [cell for cell in one.sweep if math.isfinite(cell.seconds)]
    periods = [cell.every or 1 for cell in cells]
    marks: list[Line | Level] = [Line("fixed period", periods, [cell.seconds for cell in cells], marker="circle")]
    for number, cell in enumerate(one.rules, start=1):
        if math.isfinite(cell.seconds):
            colour, _, dash = series(number)
            marks.append(Level(cell.seconds, cell.policy, colour, "solid" if cell.policy == AUTO else dash))
    return Panel(one.dataset, period_axis("period, rows", periods), Axis("time to target", "log", unit="s"), marks)


def _periods(one: TuningSet) -> Panel:
    """Return the period that was chosen over time, for every seed."""
    cell = one.rule(AUTO)
    lines = []
    for number, row in enumerate([] if cell is None else cell.rows):
        # Drawn to the end of the run: its seconds are medians, its periods those of one fit.
        end = max(row["curve"][-1]["seconds"], row["periods"][-1]["seconds"])
        steps = [*((record["seconds"], record["period"]) for record in row["periods"]), (end, None)]
        x = [seconds for seconds, _ in steps]
        y = [period for _, period in steps[:-1]]
        lines.append(Line(f"seed {row['seed']}", x, [*y, y[-1]], series(number)[0], steps=True))
    return Panel(one.dataset, Axis("time", unit="s"), Axis("period, rows", "log"), lines)
