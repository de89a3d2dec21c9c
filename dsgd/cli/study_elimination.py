"""``dsgd study elimination``: measure what sample elimination saves a kernel SVM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer

from dsgd.cli import study_options as options
from dsgd.cli.study import changed, follow, on_ranks, parse_numbers, parse_words, tell
from dsgd.cli.study_options import GRID

if TYPE_CHECKING:
    from dsgd.study.elimination import EliminationStudy, EliminationSummary

__all__ = ["EXAMPLES", "elimination", "make_elimination_study"]

EXAMPLES: Final = """\
Examples:

  dsgd study elimination --demo --out demo/

  dsgd study elimination --problem a9a --problem clean --repeats 5 --out study/

  dsgd study elimination --problem covtype --rows 10000 --presets multi,auto --cache small --out study/
"""
_MACHINE: Final = "The machine"
_Problem: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--problem", "-p", help="Problem; repeat for several. All by default; a wrong name lists them."),
]
_Presets: TypeAlias = Annotated[
    str | None, typer.Option(help="Values of elimination, as multi,auto.", rich_help_panel=GRID)
]
_CacheShare: TypeAlias = Annotated[
    float | None,
    typer.Option(help="The small cache, as a share of the kernel matrix.", rich_help_panel=GRID),
]
_Ranks: TypeAlias = Annotated[
    str | None,
    typer.Option(help="Worker processes of the distributed runs, as 1,2; none for none.", rich_help_panel=GRID),
]
_Simulated: TypeAlias = Annotated[
    str | None,
    typer.Option(help="Ranks whose times are computed from counts, as 4,8; none for none.", rich_help_panel=GRID),
]
_Threads: TypeAlias = Annotated[
    int | None,
    typer.Option(min=1, help="Threads of the runs in this process; all by default.", rich_help_panel=_MACHINE),
]
_Cost: TypeAlias = Annotated[
    float | None,
    typer.Option("--cost", "-C", help="C; each problem has its own by default.", rich_help_panel=_MACHINE),
]
_Demo: TypeAlias = Annotated[
    bool, typer.Option("--demo", help="All problems, small enough for two cores and two minutes.")
]


def elimination(
    out: options.Out,
    problem: _Problem = None,
    presets: _Presets = None,
    cache: Annotated[str | None, typer.Option(help="small, fits or small,fits.", rich_help_panel=GRID)] = None,
    cache_share: _CacheShare = None,
    ranks: _Ranks = None,
    simulated: _Simulated = None,
    rows: Annotated[int | None, typer.Option(help="Rows of each problem.", rich_help_panel=GRID)] = None,
    repeats: Annotated[int | None, typer.Option(help="Times that each run is made.", rich_help_panel=GRID)] = None,
    threads: _Threads = None,
    cost: _Cost = None,
    tol: Annotated[float | None, typer.Option(help="The gap to reach.", rich_help_panel=_MACHINE)] = None,
    reference: Annotated[bool, typer.Option(help="Run scikit-learn's SVC too.", rich_help_panel=GRID)] = True,
    demo: _Demo = False,
    force: options.Force = False,
    as_json: options.AsJson = False,
) -> None:
    """What does leaving samples out save? Run every preset of elimination and recompute what has been claimed of it.

    Every run becomes one row in OUT/rows.jsonl as soon as it is finished. The same command resumes an interrupted
    study. Real sets that are not on this machine are left out with a line that says so. OUT/report.html is
    self-contained.
    """
    from dsgd.study import check_extras
    from dsgd.study.elimination import find_problems, run_elimination_study

    check_extras()  # before minutes of work, not after
    given = {
        "presets": parse_words(presets),
        "caches": parse_words(cache),
        "cache_share": cache_share,
        "ranks": () if ranks == "none" else parse_numbers("--ranks", ranks),
        "simulated_ranks": () if simulated == "none" else parse_numbers("--simulated", simulated),
        "repeats": repeats,
        "n_threads": threads,
        "tol": tol,
        "with_reference": reference,
    }
    study, data, skipped = find_problems(make_elimination_study(problem or (), rows, cost, given, demo=demo))
    for line in () if as_json else skipped:
        typer.echo(line, err=True)

    def describe(row: dict[str, Any]) -> str:
        return row["problem"] if row["ranks"] is None else f"{row['problem']} {on_ranks(row)}"

    runs = run_elimination_study(study, data, out, force=force)
    _report(study, follow(runs, study.count(), describe, out, quiet=as_json), out, skipped, as_json=as_json)


def make_elimination_study(
    problems: Sequence[str], rows: int | None, cost: float | None, given: dict[str, Any], *, demo: bool
) -> EliminationStudy:
    """Return the study that the options describe.

    Parameters
    ----------
    problems : sequence of str
        Names of problems; the preset's own if empty.
    rows : int or None
        Rows of each.
    cost : float or None
        C of each.
    given : dict
        Fields of `EliminationStudy`; those that are None keep the value of the preset.
    demo : bool
        Whether the preset is the demo, and not the defaults.

    Raises
    ------
    InvalidParameterError
        A value is outside its domain.
    """
    from dsgd.study.elimination import EliminationStudy, demo_elimination_study, find_problem

    study = demo_elimination_study() if demo else EliminationStudy()
    own = {found.name: found for found in study.problems}
    chosen = [own.get(name) or find_problem(name) for name in problems] or list(study.problems)
    if rows is not None:
        chosen = [replace(found, rows=rows) for found in chosen]
    if cost is not None:
        chosen = [replace(found, C=cost) for found in chosen]
    return changed(study, {"problems": tuple(chosen), **given})


def _report(
    study: EliminationStudy, rows: list[dict[str, Any]], out: Path, skipped: Sequence[str], *, as_json: bool
) -> None:
    """Write the report; print what it says."""
    from dsgd.study.elimination import (
        elimination_page,
        elimination_table,
        overview_table,
        ranks_table,
        summarise_elimination,
    )

    summary = summarise_elimination(rows)
    tables = []
    for cache in summary.caches():
        tables.append(overview_table(summary, cache))
        tables += [
            elimination_table(summary, name, cache) for name in summary.problems() if len(summary.problems()) == 1
        ]
    tables.append(ranks_table(summary, tuple(study.simulated_ranks), study.network))
    facts = {"skipped": list(skipped), "cells": _cells(summary)}
    shown = [table for table in tables if table.rows]
    tell(elimination_page(study, rows, skipped), out, shown, facts, as_json=as_json)


def _cells(summary: EliminationSummary) -> list[dict[str, Any]]:
    names = ("seconds", "kernel_evaluations", "n_iter", "n_eliminated", "n_returned", "n_reconstructions", "gap")
    return [
        {
            "problem": cell.problem,
            "method": cell.method,
            "cache": cell.cache,
            "solver": cell.solver,
            "ranks": cell.ranks,
            "repeats": len(cell.rows),
            **{name: stat.median if (stat := cell.stat(name)) else None for name in names},
        }
        for cell in summary.cells
    ]
