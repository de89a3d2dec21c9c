"""The report of a study of elimination."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from dsgd.errors import DsgdError
from dsgd.report import Claim, origin_doubts, ran, span_of
from dsgd.study.elimination.claims import check_elimination_claims
from dsgd.study.elimination.grid import REFERENCE, EliminationStudy
from dsgd.study.elimination.summary import EliminationSummary, summarise_elimination
from dsgd.study.elimination.tables import elimination_data_table, elimination_table, overview_table, ranks_table
from dsgd.study.page import Page, Picture, check_extras
from dsgd.study.rows import Row

__all__ = ["elimination_page", "elimination_verdict", "write_elimination_report"]


def write_elimination_report(
    study: EliminationStudy, rows: Sequence[Row], out: str | os.PathLike[str], skipped: Sequence[str] = ()
) -> Path:
    """Write ``report.html`` and ``figures/*.png`` from the rows of a study.

    Parameters
    ----------
    study : EliminationStudy
        What was asked for.
    rows : sequence of dict
        Its finished runs; a study that was stopped early gives a report of what is there.
    out : str or path-like
        The folder.
    skipped : sequence of str, optional
        What was left out, a line each.

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
    from dsgd.study.elimination import plots

    summary = summarise_elimination(rows)
    pictures = []
    for spec in plots.FIGURES:
        light = plots.draw_elimination(spec, summary)
        dark = plots.draw_elimination(spec, summary, dark=True)
        if light is not None and dark is not None:
            pictures.append(Picture(spec.name, spec.title, spec.caption, light, dark))
    return elimination_page(study, rows, summary, skipped).write("elimination.html", pictures, rows, Path(out))


def elimination_page(
    study: EliminationStudy, rows: Sequence[Row], summary: EliminationSummary, skipped: Sequence[str] = ()
) -> Page:
    """Return what the report says.

    Parameters
    ----------
    study : EliminationStudy
        What was asked for.
    rows : sequence of dict
        Its finished runs.
    summary : EliminationSummary
        The same, put together.
    skipped : sequence of str, optional
        What was left out, a line each.
    """
    claims = check_elimination_claims(summary)
    ranks = ranks_table(summary, tuple(study.simulated_ranks), study.network)
    overviews = [overview_table(summary, cache) for cache in summary.caches()]
    tables = [
        elimination_table(summary, problem, cache) for problem in summary.problems() for cache in summary.caches()
    ]
    return Page(
        verdict=elimination_verdict(summary, claims),
        facts=[
            ("Command", rows[-1]["command"]),
            ("Grid", _grid(study)),
            ("Solver", f"tol {study.tol:g}, kernel exp(-gamma ||x - z||²), {_threads(study)}"),
            *ran(rows),
        ],
        data=elimination_data_table(summary),
        claims=claims,
        results=[table for table in (*overviews, ranks) if table.rows],
        more=[table for table in tables if table.rows],
        doubts=[*skipped, *_doubts(rows)],
    )


def elimination_verdict(summary: EliminationSummary, claims: Sequence[Claim]) -> str:
    """Return the answer of the study in a sentence or two.

    Parameters
    ----------
    summary : EliminationSummary
        The study.
    claims : sequence of Claim
        Its claims.
    """
    values, seconds, single, wrong, out = [], [], [], 0.0, 0.0
    for problem in summary.problems():
        base, auto = summary.cell(problem, "none", "small"), summary.cell(problem, "auto", "small")
        reference = summary.cell(problem, REFERENCE, "small")
        if base is None or auto is None:
            continue
        less, faster = auto.ratio(base, "kernel_evaluations"), auto.ratio(base, "seconds")
        if less is not None and faster is not None:
            values.append(less.median)
            seconds.append(faster.median)
        if reference is not None and (times := reference.ratio(auto, "seconds")) is not None:
            single.append(times.median)
        for cell in summary.presets(problem, "small"):
            wrong += cell.median("n_returned")
            out += cell.median("n_eliminated")
    judged = [claim for claim in claims if claim.holds is not None]
    count = f"{sum(bool(claim.holds) for claim in judged)} of {len(judged)} claims hold here."
    if not values:
        return f"This study did not run both none and auto with a small cache. {count}"
    same = [claim for claim in judged if claim.name.startswith("Every preset")]
    if same and all(claim.holds for claim in same):
        same_text = "Every preset ended at the same optimum"
    else:
        same_text = "Not every preset ended at the same optimum"
    text = (
        f"With a cache of a tenth of the kernel matrix, elimination (auto) computed {span_of(values, '{:.2f}')} times "
        f"the kernel values of a run without it, in {span_of(seconds, '{:.2f}')} times the time. {same_text}; "
        f"{wrong:,.0f} of {out:,.0f} samples left out, over all presets, had to come back. "
    )
    if single:
        text += f"Against scikit-learn's single thread auto was {span_of(single, '{:.1f}')} times as fast. "
    return text + count


def _grid(study: EliminationStudy) -> str:
    return (
        f"presets {', '.join(study.all_presets())}; cache {' and '.join(study.caches)} (small: {study.cache_share:.0%} "
        f"of the kernel matrix in float32); {study.repeats} repetition{'s' * (study.repeats > 1)}"
    )


def _threads(study: EliminationStudy) -> str:
    return "all threads" if study.n_threads is None else f"{study.n_threads} thread{'s' * (study.n_threads > 1)}"


def _doubts(rows: Sequence[Row]) -> list[str]:
    found = origin_doubts(rows)
    cores, load = rows[-1]["machine"]["cores"], max(row["load_at_start"] or 0.0 for row in rows)
    if max(row["repeat"] for row in rows) == 0:
        found.append("Every run was made once: seconds vary from run to run by tens of per cent, counts do not.")
    if load > 0.75 * cores:
        found.append(
            f"The machine was busy with other work when the study began (load {load:.1f} on {cores} cores): seconds "
            "are too long and vary. Counts do not depend on it."
        )
    return found
