"""The report of a study of neural networks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dsgd.report import Page, origin_doubts
from dsgd.study.dnn.figures import curves_figure, pareto_figure
from dsgd.study.dnn.grid import DnnStudy
from dsgd.study.dnn.summary import check_dnn_claims, dnn_answer, dnn_data_table, dnn_table, summarise_dnn
from dsgd.study.frame.report import facts, joined, where

__all__ = ["dnn_doubts", "dnn_page"]


def dnn_page(study: DnnStudy, rows: Sequence[dict[str, Any]]) -> Page:
    """Return the report of a study from its finished runs, at least one."""
    gangs = summarise_dnn(rows)
    figures = [pareto_figure(gangs)] if gangs else []
    # Of one look a curve is one point, which the first figure has already.
    if gangs and len(study.looks) > 1:
        figures.append(curves_figure(gangs))
    return Page(
        title="How should the ranks of a neural network talk?",
        answer=dnn_answer(gangs),
        ran=facts(
            rows,
            ("Ranks", f"{joined(study.ranks)}; {where(study.network)}"),
            (
                "Training",
                f"{study.batch} rows of a rank in a step, rate {study.lr:g}, momentum {study.momentum:g}; looked at "
                f"after {joined(study.looks)} epochs; seeds {joined(study.seeds)}",
            ),
        ),
        doubts=dnn_doubts(study, rows),
        data=[dnn_data_table(rows)],
        claims=check_dnn_claims(gangs),
        source="What this library promises.",
        figures=figures,
        tables=[dnn_table(gang) for gang in gangs],
        rows=rows,
    )


def dnn_doubts(study: DnnStudy, rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return what makes figures of a study hard to compare."""
    found = list(origin_doubts(rows))
    if study.network is not None:
        found.append(
            "Seconds are those of a virtual clock, whose cost of work is an estimate: bytes and models are real."
        )
        return found
    cores = rows[-1]["machine"]["cores"]
    if max(row["ranks"] for row in rows) > cores:
        found.append(f"There are {cores} cores: gangs of more ranks take turns, and their times are longer for it.")
    return found
