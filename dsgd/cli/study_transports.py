"""``dsgd study transports``: what copies cost between two processes, and what zero copy gains over RPC."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import typer

from dsgd.cli import study_options as options
from dsgd.cli.study import asked, follow, tell
from dsgd.cli.study_options import grid_option, numbers, words
from dsgd.cli.training_options import examples

__all__ = ["EXAMPLES", "transports"]

EXAMPLES: Final = examples(
    "dsgd study transports --demo --out demo/",
    "dsgd study transports --ways rpc,tcp,ring,registered --sizes 4,64000,16000000 --out study/",
    "dsgd study transports --models logistic,25M --repeats 9 --out study/",
)
_Ways: TypeAlias = Annotated[
    str | None, grid_option(help="Ways, as rpc,tcp,registered; a wrong name lists them.", callback=words)
]
_Sizes: TypeAlias = Annotated[str | None, grid_option(help="Bytes of messages, as 4,64000,16000000.", callback=numbers)]
_Models: TypeAlias = Annotated[str | None, grid_option(help="What is trained: logistic, cnn, 25M.", callback=words)]
_Repeats: TypeAlias = Annotated[int | None, grid_option(min=1, help="Repetitions of what is timed.")]
_Demo: TypeAlias = Annotated[
    bool, typer.Option("--demo", help="Messages of up to 16 MB, three repetitions: two minutes.")
]


def transports(
    ctx: typer.Context,
    out: options.Out,
    ways: _Ways = None,
    sizes: _Sizes = None,
    models: _Models = None,
    repeats: _Repeats = None,
    demo: _Demo = False,
    force: options.Force = False,
    as_json: options.AsJson = False,
) -> None:
    """What do copies cost between two processes? Dask, sockets, MPI and memory, timed, and their copies counted.

    Every run becomes a row in OUT/rows.jsonl. The same command resumes an interrupted study. OUT/report.html is
    self-contained. Ways that need a package which is not here are left out, and the report says so.
    """
    from dsgd.report import check_extras
    from dsgd.study import transports as api

    check_extras()  # before minutes of work, not after
    study = asked(api.demo_transport_study() if demo else api.TransportStudy(), ctx)
    runs = api.run_transport_study(study, out, force=force)
    rows = follow(runs, study.count(), ("part", "way"), out, quiet=as_json)

    page = api.transport_page(study, rows, api.missing_parts(study))
    copies = {
        f"{cell.way}, {cell.n_bytes} bytes": round(cell.copies(), 3)
        for cell in api.summarise_transports(rows)
        if cell.part == "counts"
    }
    tell(page, out, page.tables, {"copies": copies}, as_json=as_json)
