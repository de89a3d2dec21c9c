"""The report of the study of elimination."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dsgd.report import Claim, Page, span_of
from dsgd.study.elimination.claims import check_elimination_claims
from dsgd.study.elimination.grid import REFERENCE, EliminationStudy
from dsgd.study.elimination.plots import elimination_figures
from dsgd.study.elimination.summary import EliminationSummary, summarise_elimination
from dsgd.study.elimination.tables import elimination_data_table, elimination_table, overview_table, ranks_table
from dsgd.study.frame.report import doubts, facts, tally
from dsgd.study.frame.rows import Row, check_rows
from dsgd.study.published import SOURCES, citations

__all__ = ["elimination_page", "elimination_verdict"]


def elimination_page(study: EliminationStudy, rows: Sequence[Row], skipped: Sequence[str] = ()) -> Page:
    """Return the report of a study from its finished runs, with a caveat for each problem that was skipped.

    Raises
    ------
    DsgdError
        There are no rows.
    """
    check_rows(rows)
    summary = summarise_elimination(rows)
    claims = check_elimination_claims(summary)
    ranks = ranks_table(summary, tuple(study.simulated_ranks), study.network)
    overviews = [overview_table(summary, cache) for cache in summary.caches()]
    tables = [
        elimination_table(summary, problem, cache) for problem in summary.problems() for cache in summary.caches()
    ]
    return Page(
        title="What does sample elimination save in a kernel SVM?",
        answer=elimination_verdict(summary, claims),
        ran=facts(
            rows,
            ("Grid", _grid(study)),
            ("Solver", f"tol {study.tol:g}, kernel exp(-gamma ||x - z||²), {_threads(study)}"),
        ),
        highlights=_highlights(summary, claims),
        doubts=[*skipped, *doubts(rows, _once(rows), asked=study.count())],
        data=[elimination_data_table(summary)],
        claims=claims,
        source=(
            f"The speed-ups are those of the abstracts of {SOURCES['shrinking'].reference}, from up to thousands of "
            "MPI processes. Tables and settings behind them were not at hand. The sequential baseline here is "
            "scikit-learn's SVC."
        ),
        figures=elimination_figures(summary),
        tables=[table for table in (*overviews, ranks) if table.rows],
        details=[table for table in tables if table.rows],
        rows=rows,
        citations=citations([SOURCES["shrinking"]]),
    )


@dataclass(frozen=True)
class _Gains:
    """The savings of auto with a small cache, a figure per problem.

    Parameters
    ----------
    values, seconds : list of float
        Kernel values and time, as shares of a run without elimination.
    single : list of float
        How many times as fast as the reference.
    wrong, out : float
        Samples that came back, and samples eliminated, over all presets.
    """

    values: list[float]
    seconds: list[float]
    single: list[float]
    wrong: float
    out: float


def _gains(summary: EliminationSummary) -> _Gains:
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
    return _Gains(values, seconds, single, wrong, out)


def _highlights(summary: EliminationSummary, claims: Sequence[Claim]) -> list[tuple[str, str]]:
    """Return ranges over the problems, with a small cache."""
    gains = _gains(summary)
    found = [
        (f"{span_of(numbers, form)}x", text)
        for numbers, form, text in (
            (gains.values, "{:.2f}", "the kernel values of a run without elimination"),
            (gains.seconds, "{:.2f}", "the time of a run without elimination"),
            (gains.single, "{:.1f}", "as fast as scikit-learn's SVC"),
        )
        if numbers
    ]
    return [*found, (tally(claims), "claims hold here")]


def elimination_verdict(summary: EliminationSummary, claims: Sequence[Claim]) -> str:
    """Return the answer of the study in a sentence or two."""
    gains, count = _gains(summary), f"{tally(claims)} claims hold here."
    if not gains.values:
        return f"This study did not run both none and auto with a small cache. {count}"
    same = [claim.holds for claim in claims if claim.holds is not None and claim.name.startswith("Every preset")]
    every = "Every" if same and all(same) else "Not every"
    text = (
        f"With the small cache, elimination (auto) computed {span_of(gains.values, '{:.2f}')} times the kernel values "
        f"of a run without it, in {span_of(gains.seconds, '{:.2f}')} times the time. {every} preset ended at the same "
        f"optimum; {gains.wrong:,.0f} of {gains.out:,.0f} samples left out, over all presets, had to come back. "
    )
    if gains.single:
        text += f"Against scikit-learn's single thread auto was {span_of(gains.single, '{:.1f}')} times as fast. "
    return text + count


def _grid(study: EliminationStudy) -> str:
    return (
        f"presets {', '.join(study.all_presets())}; cache {' and '.join(study.caches)} (small: {study.cache_share:.0%} "
        f"of the kernel matrix in float32); {study.repeats} repetition{'s' * (study.repeats > 1)}"
    )


def _threads(study: EliminationStudy) -> str:
    return "all threads" if study.n_threads is None else f"{study.n_threads} thread{'s' * (study.n_threads > 1)}"


def _once(rows: Sequence[Row]) -> list[str]:
    text = "Every run was made once: seconds vary from run to run by tens of per cent, counts do not."
    return [] if max(row["repeat"] for row in rows) else [text]
