"""``dsgd study collectives``: measure the time of sums over all ranks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from dsgd.cli import study_options as options
from dsgd.cli.study import changed, follow, parse_numbers, parse_words, tell

if TYPE_CHECKING:
    from dsgd.study.collectives import CollectiveStudy

__all__ = ["EXAMPLES", "collectives"]

EXAMPLES: Final = """\
Examples:

  dsgd study collectives --demo --out demo/

  dsgd study collectives --wires shm,tcp --ranks 2,4 --sizes 8,4096,65536,1048576 --repeats 50 --out study/

  dsgd study collectives --wires tcp --ranks 16 --scheduler tcp://10.0.0.5:8786 --out study/
"""


def collectives(
    out: options.Out,
    wires: Annotated[str | None, typer.Option(help="inproc (threads), shm, spin and tcp, as shm,tcp.")] = None,
    ranks: Annotated[str | None, typer.Option(help="Numbers of ranks, as 2,4,8.")] = None,
    sizes: Annotated[str | None, typer.Option(help="Bytes of the vectors, as 8,4096,1048576.")] = None,
    algorithms: Annotated[
        str | None, typer.Option(help="Algorithms, as ring,rabenseifner; a wrong name lists them.")
    ] = None,
    repeats: Annotated[int | None, typer.Option(help="Times that each sum is made.")] = None,
    scheduler: options.Scheduler = None,
    demo: Annotated[bool, typer.Option("--demo", help="Threads and processes, small enough for a minute.")] = False,
    force: options.Force = False,
    as_json: options.AsJson = False,
) -> None:
    """How long does a sum over all ranks take? Time every algorithm, and compare with the cost model.

    In every gang alpha, beta and gamma are measured first, and the times of all sums predicted from them. Every sum
    becomes a row in OUT/rows.jsonl. The same command resumes an interrupted study. OUT/report.html is self-contained.
    """
    from dsgd.study import check_extras
    from dsgd.study.collectives import CollectiveStudy, demo_collective_study, run_collective_study

    check_extras()  # before minutes of work, not after
    given = {
        "wires": parse_words(wires),
        "ranks": parse_numbers("--ranks", ranks),
        "sizes": parse_numbers("--sizes", sizes),
        "algorithms": parse_words(algorithms),
        "repeats": repeats,
    }
    preset = demo_collective_study() if demo else CollectiveStudy()
    study = changed(preset, given)

    def describe(row: dict[str, Any]) -> str:
        return f"{row['wire']} on {row['ranks']} ranks"

    runs = run_collective_study(study, out, scheduler=scheduler, force=force)
    _report(study, follow(runs, study.count(), describe, out, quiet=as_json), out, as_json=as_json)


def _report(study: CollectiveStudy, rows: list[dict[str, Any]], out: Path, *, as_json: bool) -> None:
    """Write the report; print what it says."""
    from dsgd.study.collectives import collective_page, collective_table, link_table, summarise_collectives

    gangs = summarise_collectives(rows)
    tables = [link_table(gangs), *map(collective_table, gangs)]
    tell(collective_page(study, rows), out, tables, {}, as_json=as_json)
