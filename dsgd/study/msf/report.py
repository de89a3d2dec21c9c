"""The report of the study of the period."""

from __future__ import annotations

from collections.abc import Sequence

from dsgd.report import Claim, Page, span_of
from dsgd.study.frame.report import doubts, facts, joined, tally
from dsgd.study.frame.rows import Row, check_rows
from dsgd.study.msf import published, tables
from dsgd.study.msf.claims import check_claims
from dsgd.study.msf.grid import Study
from dsgd.study.msf.plots import study_figures
from dsgd.study.msf.summary import Summary, difference, summarise
from dsgd.study.published import citations

__all__ = ["study_page", "verdict"]


def study_page(study: Study, rows: Sequence[Row]) -> Page:
    """Return the report of a study from its finished runs, which may be some of them.

    Raises
    ------
    DsgdError
        There are no rows.
    """
    check_rows(rows)
    summary = summarise(rows)
    claims = check_claims(summary)
    intercept = "with" if study.fit_intercept else "no"
    return Page(
        title="How often must the ranks of a parallel SGD synchronise?",
        answer=verdict(summary, claims),
        ran=facts(
            rows,
            ("Grid", f"ranks {joined(study.all_ranks())}; every {joined(study.every)}; seeds {joined(study.seeds)}"),
            (
                "Model",
                f"{study.loss} loss, alpha {study.alpha:g}, {study.schedule} schedule, {study.epochs} epochs, "
                f"{intercept} intercept, {study.dtype}, {study.partition} partition",
            ),
        ),
        highlights=_highlights(summary, claims),
        doubts=doubts(rows, asked=study.count()),
        data=[tables.data_table(summary)],
        claims=claims,
        source=(
            f"{published.SOURCE.reference}: linear SVM on 2 to 32 MPI processes. Each claim is recomputed at the "
            "largest number of processes run here."
        ),
        figures=study_figures(summary),
        tables=[
            tables.results_table(summary, dataset, columns, title)
            for columns, title in ((tables.TIME, "Time"), (tables.WORTH, "Worth of the averaged model"))
            for dataset in summary.datasets()
        ],
        details=[tables.target_table(summary, excess=study.target_excess)],
        rows=rows,
        citations=citations([published.SOURCE]),
    )


def verdict(summary: Summary, claims: Sequence[Claim]) -> str:
    """Return the answer of the study in a sentence or two."""
    found = _against_frequent(summary)
    count = f"{tally(claims)} published claims hold here."
    unknown = sum(claim.undecided for claim in claims)
    if unknown:
        count += f" {unknown} undecided."
    if found is None:
        return f"This study did not run both every=1 and every={published.RARE} on two or more processes. {count}"
    falls, speedups, best, losses, ranks = found
    gain, best_gain, change = span_of(speedups, "{:.0f}"), span_of(best, "{:.2g}"), span_of(losses, "{:+.2f}")
    return (
        f"On {ranks} processes, synchronising every {published.RARE} samples instead of every sample cut communication "
        f"by {span_of(falls, '{:.1%}')} and made training {gain} times as fast, with test accuracy {change} points "
        f"from the sequential run. At its best period it was {best_gain} times as fast as the sequential run. {count}"
    )


def _against_frequent(summary: Summary) -> tuple[list[float], list[float], list[float], list[float], int] | None:
    """Return falls of communication, gains over every=1, best gains over the sequential run, accuracies, and ranks."""
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
        losses.append(100 * difference(rare, sequential, "test_accuracy")[0])
    return (falls, speedups, best, losses, ranks) if falls else None


def _highlights(summary: Summary, claims: Sequence[Claim]) -> list[tuple[str, str]]:
    found = _against_frequent(summary)
    count = (tally(claims), "published claims hold here")
    if found is None:
        return [count]
    falls, speedups, best, losses, _ = found
    return [
        (span_of(falls, "{:.1%}"), f"less communication at every={published.RARE} than at every=1"),
        (span_of(speedups, "{:.0f}") + "x", "as fast as synchronising every sample"),
        (span_of(best, "{:.2g}") + "x", "as fast as the sequential run, at the best period"),
        (span_of(losses, "{:+.2f}"), "points of test accuracy against the sequential run"),
        count,
    ]
