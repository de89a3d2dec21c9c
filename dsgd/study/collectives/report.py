"""The report of a study of collectives."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from dsgd.errors import DsgdError
from dsgd.report import origin_doubts, ran
from dsgd.study.collectives.grid import CollectiveStudy
from dsgd.study.collectives.summary import (
    check_collective_claims,
    collective_table,
    collective_verdict,
    link_table,
    size_text,
    summarise_collectives,
)
from dsgd.study.page import Page, Picture, check_extras
from dsgd.study.rows import Row

__all__ = ["collective_page", "write_collective_report"]

_CAPTION = (
    "Median time of an all-reduce of float32 vectors, of the slowest rank: solid and marked as measured, dashed as the "
    "model predicts from a calibration in the same gang. Rings mark what auto takes."
)


def write_collective_report(study: CollectiveStudy, rows: Sequence[Row], out: str | os.PathLike[str]) -> Path:
    """Write ``report.html`` and ``figures/collectives.png`` from the rows of a study.

    Parameters
    ----------
    study : CollectiveStudy
        What was asked for.
    rows : sequence of dict
        Its finished runs.
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
    from dsgd.study.collectives.plots import draw_collectives

    gangs = summarise_collectives(rows)
    drawn = draw_collectives(gangs), draw_collectives(gangs, dark=True)
    figure = Picture("collectives", "Time by length", _CAPTION, *drawn)
    return collective_page(study, rows).write("collectives.html", [figure], rows, Path(out))


def collective_page(study: CollectiveStudy, rows: Sequence[Row]) -> Page:
    """Return what the report says.

    Parameters
    ----------
    study : CollectiveStudy
        What was asked for.
    rows : sequence of dict
        Its finished runs.
    """
    gangs = summarise_collectives(rows)
    sizes = ", ".join(size_text(size) for size in sorted(set(study.sizes)))
    return Page(
        verdict=collective_verdict(gangs),
        facts=[
            ("Command", rows[-1]["command"]),
            ("Grid", f"vectors of {sizes}; {study.repeats} repetitions, algorithms in turn"),
            *ran(rows),
        ],
        data=link_table(gangs),
        claims=check_collective_claims(gangs),
        results=[collective_table(gang) for gang in gangs],
        more=[],
        doubts=_doubts(rows),
    )


def _doubts(rows: Sequence[Row]) -> list[str]:
    found = origin_doubts(rows)
    cores, load = rows[-1]["machine"]["cores"], max(row["load_at_start"] or 0.0 for row in rows)
    if max(row["ranks"] for row in rows) > cores:
        found.append(f"There are {cores} cores: gangs of more ranks take turns, and their times are longer for it.")
    if load > 0.75 * cores:
        found.append(
            f"The machine was busy with other work when the study began (load {load:.1f} on {cores} cores): times are "
            "too long and vary."
        )
    return found
