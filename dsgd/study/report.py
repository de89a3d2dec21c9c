"""The report of the study of synchronisation: its page, and its figures as files beside it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dsgd.errors import DsgdError
from dsgd.report import Claim, origin_doubts, ran, span_of
from dsgd.study import published, tables
from dsgd.study.claims import check_claims
from dsgd.study.grid import Study
from dsgd.study.page import Page, Picture, check_extras
from dsgd.study.rows import Row
from dsgd.study.summary import Summary, summarise

__all__ = ["doubts", "page", "verdict", "write_report"]


def write_report(study: Study, rows: Sequence[Row], out: str | os.PathLike[str]) -> Path:
    """Write ``report.html``, ``figures/*.png`` and ``msf.png`` from the rows of a study.

    Parameters
    ----------
    study : Study
        What was asked for.
    rows : sequence of dict
        Its finished runs; a study that was stopped early gives a report of what is there.
    out : str or path-like
        The folder.

    Returns
    -------
    pathlib.Path
        The report.

    Raises
    ------
    DsgdError
        There are no rows, or matplotlib or jinja2 is not installed.
    """
    check_extras()
    if not rows:
        raise DsgdError("the study has no finished run yet, so there is nothing to report: run it first")
    from dsgd.study import plots

    out = Path(out)
    summary = summarise(rows)
    figures = [
        Picture(spec.name, spec.title, spec.caption, plots.draw(spec, summary), plots.draw(spec, summary, dark=True))
        for spec in (plots.FIGURES if any(summary.parallel(name) for name in summary.datasets()) else ())
    ]
    path = page(study, rows, summary).write("msf.html", figures, rows, out)
    if figures:
        first = next((name for name in summary.datasets() if published.family(name) == "ijcnn1"), summary.datasets()[0])
        (out / "msf.png").write_bytes(plots.hero(summary, first))
    return path


def page(study: Study, rows: Sequence[Row], summary: Summary) -> Page:
    """Return what the report says.

    Parameters
    ----------
    study : Study
        What was asked for.
    rows : sequence of dict
        Its finished runs.
    summary : Summary
        The same, put together.
    """
    claims = check_claims(summary)
    return Page(
        verdict=verdict(summary, claims),
        claims=claims,
        data=tables.data_table(summary),
        results=[
            tables.results_table(summary, dataset, columns, title)
            for columns, title in ((tables.TIME, "Time"), (tables.WORTH, "Worth of the averaged model"))
            for dataset in summary.datasets()
        ],
        more=[tables.target_table(summary, excess=study.target_excess)],
        facts=_facts(study, rows),
        doubts=doubts(rows),
    )


def verdict(summary: Summary, claims: Sequence[Claim]) -> str:
    """Return the answer of the study in a sentence or two.

    Parameters
    ----------
    summary : Summary
        The study.
    claims : sequence of Claim
        Its claims.
    """
    falls, speedups, best, losses, ranks = [], [], [], [], 0
    for dataset in summary.datasets():
        cells = {cell.every: cell for cell in summary.parallel(dataset)}
        sequential = summary.sequential(dataset)
        if 1 not in cells or published.RARE not in cells or sequential is None:
            continue
        first, rare = cells[1], cells[published.RARE]
        ranks = rare.ranks
        falls.append(1 - rare.median("communication_s") / first.median("communication_s"))
        speedups.append(first.median("train_s") / rare.median("train_s"))
        best.append(sequential.median("train_s") / min(cell.median("train_s") for cell in cells.values()))
        losses.append(100 * (rare.median("test_accuracy") - sequential.median("test_accuracy")))
    judged = [claim for claim in claims if claim.holds is not None]
    count = f"{sum(bool(claim.holds) for claim in judged)} of {len(judged)} published claims hold here."
    if not falls:
        return f"This study did not run both every=1 and every={published.RARE} on two or more processes. {count}"
    gain, best_gain, change = span_of(speedups, "{:.0f}"), span_of(best, "{:.2g}"), span_of(losses, "{:+.2f}")
    return (
        f"On {ranks} processes, synchronising every {published.RARE} samples instead of every sample cut communication "
        f"by {span_of(falls, '{:.1%}')} and made training {gain} times as fast, with test accuracy {change} points "
        f"from the sequential run. At its best period it was {best_gain} times as fast as the sequential run. {count}"
    )


def _facts(study: Study, rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Return what was run, where, as pairs of name and text."""
    return [
        ("Command", rows[-1]["command"]),
        ("Grid", f"ranks {_join(study.all_ranks())}; every {_join(study.every)}; seeds {_join(study.seeds)}"),
        (
            "Model",
            f"{study.loss} loss, alpha {study.alpha:g}, {study.schedule} schedule, {study.epochs} epochs, "
            f"{'with' if study.fit_intercept else 'no'} intercept, {study.dtype}, {study.partition} partition",
        ),
        *ran(rows),
    ]


def doubts(rows: Sequence[Row]) -> list[str]:
    """Return what makes the seconds of a study hard to compare with each other or with another study's.

    Parameters
    ----------
    rows : sequence of dict
        Rows of one study.
    """
    found = origin_doubts(rows)
    if rows[-1]["cluster"] != "local":
        return found
    most, cores = max(row["ranks"] for row in rows), rows[-1]["machine"]["cores"]
    if most > cores:
        found.append(f"{most} processes ran on {cores} cores: waiting includes waiting for a core.")
    load = max(row["load_at_start"] or 0.0 for row in rows)
    if load > 0.75 * cores:
        found.append(
            f"The machine was busy with other work when the study began (load {load:.1f} on {cores} cores). A rank "
            "that loses its core keeps its peers waiting: waiting times are too long, at large periods most of all."
        )
    return found


def _join(values: Sequence[Any]) -> str:
    return ", ".join(str(value) for value in values)
