"""``dsgd study elimination``: measure what sample elimination saves a kernel SVM."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Final, TypeAlias

import typer

from dsgd.cli import study_options as options
from dsgd.cli.study import asked, follow, tell
from dsgd.cli.study_options import grid_option, numbers_or_none, words
from dsgd.cli.training_options import examples

__all__ = ["EXAMPLES", "elimination"]

EXAMPLES: Final = examples(
    "dsgd study elimination --demo --out demo/",
    "dsgd study elimination --problem a9a --problem clean --repeats 5 --out study/",
    "dsgd study elimination --problem covtype --rows 10000 --presets multi,auto --cache small --out study/",
)
_machine_option: Final[Any] = partial(typer.Option, rich_help_panel="The machine")
_Problem: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--problem", "-p", help="Problem; repeat for several. All by default; a wrong name lists them."),
]
_Presets: TypeAlias = Annotated[str | None, grid_option(help="Values of elimination, as multi,auto.", callback=words)]
_Caches: TypeAlias = Annotated[str | None, grid_option("--cache", help="small, fits or small,fits.", callback=words)]
_CacheShare: TypeAlias = Annotated[float | None, grid_option(help="The small cache, as a share of the kernel matrix.")]
_Ranks: TypeAlias = Annotated[
    str | None,
    grid_option(help="Worker processes of the distributed runs, as 1,2; none for none.", callback=numbers_or_none),
]
_Simulated: TypeAlias = Annotated[
    str | None,
    grid_option(
        "--simulated",
        help="Ranks whose times are computed from counts, as 4,8; none for none.",
        callback=numbers_or_none,
    ),
]
_Threads: TypeAlias = Annotated[
    int | None, _machine_option("--threads", min=1, help="Threads of the runs in this process; all by default.")
]
_Cost: TypeAlias = Annotated[
    float | None, _machine_option("--cost", "-C", help="C; each problem has its own by default.")
]
_Reference: TypeAlias = Annotated[bool, grid_option("--reference/--no-reference", help="Run scikit-learn's SVC too.")]
_Demo: TypeAlias = Annotated[
    bool, typer.Option("--demo", help="All problems, small enough for two cores and two minutes.")
]


def elimination(
    ctx: typer.Context,
    out: options.Out,
    problem: _Problem = None,
    presets: _Presets = None,
    caches: _Caches = None,
    cache_share: _CacheShare = None,
    ranks: _Ranks = None,
    simulated_ranks: _Simulated = None,
    rows: Annotated[int | None, grid_option(help="Rows of each problem.")] = None,
    repeats: Annotated[int | None, grid_option(help="Repetitions of each run.")] = None,
    n_threads: _Threads = None,
    cost: _Cost = None,
    tol: Annotated[float | None, _machine_option(help="Tolerance of the gap.")] = None,
    with_reference: _Reference = True,
    demo: _Demo = False,
    force: options.Force = False,
    as_json: options.AsJson = False,
) -> None:
    """What does sample elimination save? Run every preset and evaluate the claims about it.

    Every run becomes one row in OUT/rows.jsonl as soon as it is finished. The same command resumes an interrupted
    study. Real sets that are not on this machine are skipped with a message. OUT/report.html is
    self-contained.
    """
    from dsgd.report import check_extras
    from dsgd.study import elimination as api
    from dsgd.study.frame.rows import picked

    check_extras()  # before minutes of work, not after
    preset = api.demo_elimination_study() if demo else api.EliminationStudy()
    own = {found.name: found for found in preset.problems}
    problems = [own.get(name) or api.find_problem(name) for name in problem or own]
    changes: dict[str, Any] = {name: value for name, value in (("rows", rows), ("C", cost)) if value is not None}
    wanted = asked(preset, ctx, problems=tuple(replace(found, **changes) for found in problems))
    study, data, skipped = api.find_problems(wanted, None if force else out)
    for line in () if as_json else skipped:
        typer.echo(line, err=True)
    runs = api.run_elimination_study(study, data, out, force=force)
    found = follow(runs, study.count(), ("problem",), out, quiet=as_json)

    summary = api.summarise_elimination(found)
    tables = []
    for cache in summary.caches():
        tables.append(api.overview_table(summary, cache))
        if len(summary.problems()) == 1:
            tables.append(api.elimination_table(summary, summary.problems()[0], cache))
    tables.append(api.ranks_table(summary, tuple(study.simulated_ranks), study.network))
    names = ("seconds", "kernel_evaluations", "n_iter", "n_eliminated", "n_returned", "n_reconstructions", "gap")
    keys = ("problem", "method", "cache", "solver", "ranks")
    cells = [{**picked(cell, *keys), "repeats": len(cell.rows), **cell.medians(*names)} for cell in summary.cells]
    page = api.elimination_page(study, found, skipped)
    shown = [table for table in tables if table.rows]
    tell(page, out, shown, {"skipped": skipped, "cells": cells}, as_json=as_json)
