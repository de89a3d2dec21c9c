"""The report of a study of collectives."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from dsgd.report import Page
from dsgd.study.collectives.grid import CollectiveStudy
from dsgd.study.collectives.plots import collective_figure
from dsgd.study.collectives.summary import (
    check_collective_claims,
    collective_table,
    collective_verdict,
    link_table,
    size_text,
    summarise_collectives,
)
from dsgd.study.frame.report import doubts, facts, joined
from dsgd.study.frame.rows import Row, check_rows

__all__ = ["collective_page"]


def collective_page(study: CollectiveStudy, rows: Sequence[Row]) -> Page:
    """Return the report of a study from its finished runs.

    Raises
    ------
    DsgdError
        There are no rows.
    """
    check_rows(rows)
    gangs = summarise_collectives(rows)
    sizes = joined(map(size_text, sorted(set(study.sizes))))
    ratios = [ratio for gang in gangs for ratio in gang.prediction_ratios()]
    chosen = [ratio for gang in gangs for n_bytes in gang.sizes() if (ratio := gang.auto_ratio(n_bytes)) is not None]
    return Page(
        title="What does a sum over all ranks take?",
        answer=collective_verdict(gangs),
        ran=facts(rows, ("Grid", f"vectors of {sizes}; {study.repeats} repetitions, algorithms in turn")),
        highlights=[
            (f"{statistics.median(ratios):.2f}", "predicted over measured time, median"),
            *(
                [(f"{statistics.median(chosen):.2f}x", "the fastest algorithm's time with auto, median")]
                if chosen
                else []
            ),
            (f"{len(rows):,}", f"sums timed in {len(gangs)} gangs"),
        ],
        doubts=doubts(rows),
        data=[link_table(gangs)],
        claims=check_collective_claims(gangs),
        source=(
            "The claims are those of this library. Costs of the algorithms are those of Thakur, Rabenseifner and "
            "Gropp, Optimization of Collective Communication Operations in MPICH (2005), and Sanders, Speck and "
            "Träff, Two-tree algorithms for full bandwidth broadcast, reduction and scan (2009)."
        ),
        figures=[collective_figure(gangs)],
        tables=[collective_table(gang) for gang in gangs],
        rows=rows,
    )
