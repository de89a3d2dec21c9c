"""``dsgd claims``: measure every published figure, and judge it on one page."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

import typer

from dsgd.cli.options import AsJson, examples
from dsgd.cli.study import show

EXAMPLES: Final = examples(
    "dsgd claims --list",
    "dsgd claims --only gtopk --out claims/",
    "dsgd claims --only diloco/bytes --only scaffold --json",
    "dsgd claims --quick --out quick/",
    "dsgd claims --out claims/",
)
_Only: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--only", help="A source, as gtopk, a claim, as gtopk/dense, or a measure; repeat for several."),
]
_Out: TypeAlias = Annotated[Path, typer.Option("--out", "-o", help="Folder for rows and the page.")]


def claims(
    only: _Only = None,
    listed: Annotated[bool, typer.Option("--list", help="Say what can be measured, and measure nothing.")] = False,
    out: _Out = Path("claims"),
    force: Annotated[bool, typer.Option("--force", help="Measure again what is in the folder already.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer seeds and trials, without the longest measures: some minutes.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Do published figures hold here? Measure those of all methods, on the simulator and on this machine.

    Every measure becomes a row in OUT/rows.jsonl; the same command resumes where it was interrupted. OUT/report.html is
    self-contained, OUT/claims.json holds every claim with its interval. All of it takes up to 25 minutes on two cores.
    """
    from dsgd.report import check_extras, show_tables
    from dsgd.study import claims as api

    statements = api.chosen(only or ())
    if listed:
        table = api.list_table(statements)
        if as_json:
            typer.echo(json.dumps([dict(zip(table.columns, row, strict=True)) for row in table.rows]))
        else:
            show_tables([table])
        return
    check_extras()  # before minutes of work, not after
    rows = _followed(partial(api.run_claims, statements, out, force=force, quick=quick), quiet=as_json)
    page = api.claims_page(rows, statements)
    path = page.save(out)
    found = {"answer": page.answer, "report": str(path), "claims": list(page.rows)}
    (out / "claims.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
    if as_json:
        typer.echo(json.dumps(found))
        return
    tables = (api.overview_table(page.claims, statements, arithmetic=apart) for apart in (True, False))
    show(page, [table for table in tables if table.rows], path)


def _followed(run: Any, *, quiet: bool) -> list[dict[str, Any]]:
    """Return the rows of all measures; a line on standard error says how far they are."""
    from rich.console import Console

    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        seen: list[str] = []

        def tell(text: str) -> None:
            head = text.partition(", ")[0]
            if not quiet and head not in seen:
                seen.append(head)
                typer.echo(f"{head} ...", err=True)

        return list(run(on_progress=tell))
    with console.status("measuring") as status:
        return list(run(on_progress=status.update))
