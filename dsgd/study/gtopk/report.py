"""The report of the study of gTop-k."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from dsgd.report import Axis, Figure, Line, Page, Panel, origin, period_axis, ran, series
from dsgd.study.frame.statement import Statement
from dsgd.study.gtopk.model import (
    Scaling,
    check_gtopk_claims,
    mass_rows,
    mass_table,
    scaling_table,
)
from dsgd.study.published import citations
from dsgd.study.published.gtopk import OVER_DENSE, OVER_TOPK, SOURCE

__all__ = ["gtopk_page"]

_SUMS: Final = (("dense ring", "dense_s"), ("Top-k", "topk_s"), ("gTop-k, tree", "tree_s"), ("packed", "packed_s"))


def gtopk_page(
    curves: Sequence[Sequence[Scaling]],
    sizes: Sequence[int],
    merged: Sequence[int],
    shares: Sequence[tuple[float, float]],
    settings: str,
) -> Page:
    """Return the report of the study.

    Parameters
    ----------
    curves : sequence of sequences of Scaling
        For each model, one for each number of ranks.
    sizes : sequence of int
        The numbers of ranks, the last of which the tables are of.
    merged : sequence of int
        Numbers of ranks whose choices were merged.
    shares : sequence of tuple of float
        What each merger lost: put-back and conserving.
    settings : str
        Network and machine of the model, in words.
    """
    steps = [found[-1] for found in curves]
    claims = check_gtopk_claims(steps, sizes[-1])
    inside, inside_topk = (sum(bool(claim.holds) for claim in claims[first::2]) for first in (0, 1))
    where = origin() | {"when": datetime.now(UTC).isoformat(timespec="seconds")}
    rows = [{"key": step.model.name, "ranks": sizes[-1], **step.as_row()} for step in steps]
    rows += [{"key": f"mass-{row['ranks']}", **row} for row in mass_rows(merged, shares)]
    return Page(
        title="What do sparse sums save on a slow network?",
        answer=(
            f"On {sizes[-1]} ranks the cost of messages puts the gain of gTop-k over dense sums inside the published "
            f"range for {inside} of {len(steps)} models, and its gain over Top-k for {inside_topk}. Putting back what "
            f"the tree drops loses {shares[-1][0]:.1%} of the chosen mass on {merged[-1]} ranks; the conserving form "
            "loses none."
        ),
        ran=[("Command", where["command"]), ("Model", settings), *ran([where])],
        highlights=[
            (f"{inside} of {len(steps)}", f"models gain {_range(OVER_DENSE)} over dense sums"),
            (f"{inside_topk} of {len(steps)}", f"models gain {_range(OVER_TOPK)} over Top-k"),
            (f"{shares[-1][0]:.1%}", f"of the chosen mass is lost by put-back on {merged[-1]} ranks"),
        ],
        claims=claims,
        source=f"{SOURCE.reference}.",
        figures=[_efficiency(curves, sizes), _mass(merged, shares)],
        tables=[scaling_table(steps, sizes[-1]), mass_table(merged, shares)],
        rows=rows,
        citations=citations([SOURCE]),
    )


def _range(statement: Statement) -> str:
    return f"{statement.margin.least:g}x to {statement.margin.published:g}x"


def _efficiency(curves: Sequence[Sequence[Scaling]], sizes: Sequence[int]) -> Figure:
    panels = []
    for steps in curves:
        marks = []
        for number, (label, field) in enumerate(_SUMS):
            colour, marker, dash = series(number)
            efficiencies = [step.efficiency(getattr(step, field)) for step in steps]
            marks.append(Line(label, sizes, efficiencies, colour, marker, dash))
        title = f"{steps[0].model.name}: {1e3 * steps[0].compute_s:.0f} ms a step"
        panels.append(Panel(title, period_axis("ranks", sizes), Axis("scaling efficiency", unit="%"), marks))
    caption = "Share of a step that computes, from the cost of messages; nothing is overlapped."
    return Figure("efficiency", "Scaling efficiency", caption, panels, share="xy")


def _mass(sizes: Sequence[int], shares: Sequence[tuple[float, float]]) -> Figure:
    marks = []
    for number, label in enumerate(("put-back, as published", "conserving")):
        colour, marker, dash = series(number)
        marks.append(Line(label, sizes, [share[number] for share in shares], colour, marker, dash))
    panel = Panel("", period_axis("ranks", sizes), Axis("chosen mass lost in one sum", unit="%"), marks)
    caption = "Entries that every rank chose and that are neither applied nor kept for later, in one sum by a tree."
    return Figure("mass", "What is lost", caption, [panel])
