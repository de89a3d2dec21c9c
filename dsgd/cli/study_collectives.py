"""``dsgd study collectives``: measure the time of sums over all ranks."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import typer

from dsgd.cli import study_options as options
from dsgd.cli.study import asked, follow, tell
from dsgd.cli.study_options import numbers, words
from dsgd.cli.training_options import examples

__all__ = ["EXAMPLES", "collectives"]

EXAMPLES: Final = examples(
    "dsgd study collectives --demo --out demo/",
    "dsgd study collectives --wires shm,tcp --ranks 2,4 --sizes 8,4096,65536,1048576 --repeats 50 --out study/",
    "dsgd study collectives --wires tcp --ranks 16 --scheduler tcp://10.0.0.5:8786 --out study/",
)
_Wires: TypeAlias = Annotated[
    str | None, typer.Option(help="inproc (threads), shm, spin and tcp, as shm,tcp.", callback=words)
]
_Ranks: TypeAlias = Annotated[str | None, typer.Option(help="Numbers of ranks, as 2,4,8.", callback=numbers)]
_Sizes: TypeAlias = Annotated[
    str | None, typer.Option(help="Bytes of the vectors, as 8,4096,1048576.", callback=numbers)
]
_Algorithms: TypeAlias = Annotated[
    str | None, typer.Option(help="Algorithms, as ring,rabenseifner; a wrong name lists them.", callback=words)
]
_Demo: TypeAlias = Annotated[bool, typer.Option("--demo", help="Threads and processes, small enough for a minute.")]


def collectives(
    ctx: typer.Context,
    out: options.Out,
    wires: _Wires = None,
    ranks: _Ranks = None,
    sizes: _Sizes = None,
    algorithms: _Algorithms = None,
    repeats: Annotated[int | None, typer.Option(help="Times that each sum is made.")] = None,
    scheduler: options.Scheduler = None,
    demo: _Demo = False,
    force: options.Force = False,
    as_json: options.AsJson = False,
) -> None:
    """How long does a sum over all ranks take? Time every algorithm, and compare with the cost model.

    In every gang alpha, beta and gamma are measured first, and the times of all sums predicted from them. Every sum
    becomes a row in OUT/rows.jsonl. The same command resumes an interrupted study. OUT/report.html is self-contained.
    """
    from dsgd.report import check_extras
    from dsgd.study import collectives as api

    check_extras()  # before minutes of work, not after
    study = asked(api.demo_collective_study() if demo else api.CollectiveStudy(), ctx)
    runs = api.run_collective_study(study, out, scheduler=scheduler, force=force)
    rows = follow(runs, study.count(), ("wire",), out, quiet=as_json)

    gangs = api.summarise_collectives(rows)
    # Of the large parts, the trees alone take seconds.
    parts = api.measure_parts(sizes=(3, 4, 5)) if demo else api.measure_parts()
    tables = [api.link_table(gangs), *map(api.collective_table, gangs), api.parts_table(parts)]
    tell(api.collective_page(study, rows, parts), out, tables, {}, as_json=as_json)
