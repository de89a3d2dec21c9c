"""``dsgd study``: options, progress and output that its commands share."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dsgd.errors import InvalidParameterError

if TYPE_CHECKING:
    from dsgd.report import Page, Table
    from dsgd.study import DataSource, StudyRun


def sized(sources: Sequence[DataSource], rows: int | None) -> tuple[DataSource, ...]:
    """Return data sets with so many training rows each, and as many to test on as they have; None changes nothing."""
    return tuple(sources if rows is None else (replace(source, rows=rows, test_rows=None) for source in sources))


def check_place(*, simulated: bool, scheduler: str | None, **of_simulated: str | None) -> None:
    """Refuse options of simulated ranks where they are real, and of real ones where they are simulated.

    Parameters
    ----------
    simulated : bool
        Whether ranks are simulated.
    scheduler : str or None
        What ``--scheduler`` was given.
    **of_simulated
        What options of simulated ranks were given, by name.

    Raises
    ------
    InvalidParameterError
        One was given that does not belong there.
    """
    for name, value in of_simulated.items():
        if value is not None and not simulated:
            raise InvalidParameterError(
                f"--{name} {value!r} applies to simulated ranks: add --simulated, or leave it out"
            )
    if scheduler is not None and simulated:
        raise InvalidParameterError(
            f"--scheduler {scheduler!r} applies to real workers, but ranks are simulated: leave one of the two out"
        )


def tell(page: Page, out: Path, tables: Sequence[Table], facts: dict[str, Any], *, as_json: bool) -> None:
    """Write a report with its pictures, and print what it says.

    Parameters
    ----------
    page : Page
        The report.
    out : pathlib.Path
        The folder.
    tables : sequence of Table
        What is printed for people, before the claims.
    facts : dict
        What is printed for programs, beside the claims.
    as_json : bool
        Whether to print for programs: one JSON object.
    """
    path = page.save(out)
    if as_json:
        known = {
            "report": str(path),
            "rows": str(out / "rows.jsonl"),
            "doubts": list(page.doubts),
            "claims": [asdict(claim) | {"verdict": claim.verdict} for claim in page.claims],
        }
        typer.echo(json.dumps(known | facts))
        return
    from dsgd.report import claims_table

    show(page, [*tables, *([claims_table(page.claims)] if page.claims else [])], path)


def show(page: Page, tables: Sequence[Table], path: Path) -> None:
    """Print what a report says, and where it is, for people.

    Parameters
    ----------
    page : Page
        The report.
    tables : sequence of Table
        What of it is printed.
    path : pathlib.Path
        Where it was written.
    """
    from dsgd.report import show_tables

    console = show_tables(tables)
    console.print(page.answer, markup=False)
    for doubt in page.doubts:
        console.print(f"Note: {doubt}", markup=False)
    typer.echo(f"\nreport: {path}")


def follow(
    runs: Iterator[StudyRun], total: int, columns: Sequence[str], out: Path, *, quiet: bool
) -> list[dict[str, Any]]:
    """Go through the runs of a study with a progress bar; return their rows.

    Parameters
    ----------
    runs : iterator of StudyRun
        The runs, each done when the iterator reaches it.
    total : int
        How many there will be.
    columns : sequence of str
        Columns of a row that the bar shows, besides the number of ranks.
    out : pathlib.Path
        The folder, for the messages of an interrupted or resumed study.
    quiet : bool
        Print nothing.

    Returns
    -------
    list of dict
        The rows.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    parts = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(*parts, console=console, transient=True, disable=quiet or not console.is_terminal)
    rows: list[dict[str, Any]] = []
    n_resumed, seen = 0, ""
    try:
        with bar:
            task = bar.add_task("loading data", total=total)
            for run in runs:
                rows.append(run.row)
                n_resumed += run.resumed
                text = _described(run.row, columns)
                bar.update(task, advance=1, description=text)
                if text != seen and not (quiet or console.is_terminal or run.resumed):
                    typer.echo(f"{text} ...", err=True)
                seen = text
    except KeyboardInterrupt:
        typer.echo(f"{len(rows)} of {total} runs are saved; run the same command to resume.", err=True)
        raise
    from dsgd.study.frame.data import missing_runs

    missing = missing_runs(len(rows), total)
    if missing and not quiet:
        typer.echo(missing, err=True)
    if n_resumed and not quiet:
        typer.echo(f"{n_resumed} of {len(rows)} runs were in {out} already; --force runs them again.", err=True)
    return rows


def _described(row: dict[str, Any], columns: Sequence[str]) -> str:
    ranks = row.get("ranks")
    text = ", ".join(str(row[name]) for name in columns if name in row)
    return text if ranks is None else f"{text} on {ranks} rank{'s' * (ranks > 1)}"
