"""``dsgd study``: reproduce published studies."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from dsgd.errors import InvalidParameterError

if TYPE_CHECKING:
    from dsgd.report import Page, Table
    from dsgd.study import Study, StudyRun, Summary

__all__ = ["app", "follow", "make_study", "parse_numbers", "tell"]

app = typer.Typer(no_args_is_help=True)

_EXAMPLES: Final = """\
Examples:

  dsgd study msf --demo --out demo/

  dsgd study msf --dataset ijcnn1 --ranks 1,2 --every 1,4,16,64,256,1024,4096 --out study/

  dsgd study msf --dataset a9a --dataset w8a --ranks 1,2,4,8 --seeds 5 --scheduler tcp://10.0.0.5:8786 --out study/
"""
_GRID: Final = "The grid"
_MODEL: Final = "The model"


@app.callback()
def _study() -> None:
    """Reproduce published studies."""


@app.command("msf", epilog=_EXAMPLES)
def msf(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for rows, figures and report.")],
    dataset: Annotated[
        list[str] | None,
        typer.Option("--dataset", "-d", help="Dataset; repeat for several. See `dsgd datasets list`."),
    ] = None,
    ranks: Annotated[str | None, typer.Option(help="Worker processes, as 1,2,4.", rich_help_panel=_GRID)] = None,
    every: Annotated[
        str | None, typer.Option(help="Samples between two synchronisations, as 1,16,256.", rich_help_panel=_GRID)
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Repetitions of each run.", rich_help_panel=_GRID)] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the rows.", rich_help_panel=_GRID)] = None,
    rows: Annotated[int | None, typer.Option(help="Training rows of each dataset.", rich_help_panel=_GRID)] = None,
    alpha: Annotated[float | None, typer.Option(help="Weight of the L2 penalty.", rich_help_panel=_MODEL)] = None,
    loss: Annotated[str | None, typer.Option(help="hinge, squared_hinge or log_loss.", rich_help_panel=_MODEL)] = None,
    schedule: Annotated[
        str | None,
        typer.Option(help="optimal, pegasos, or per-epoch as in the published study.", rich_help_panel=_MODEL),
    ] = None,
    partition: Annotated[
        str | None, typer.Option(help="contiguous, shuffled or label-skewed.", rich_help_panel=_MODEL)
    ] = None,
    intercept: Annotated[
        bool | None, typer.Option(help="Learn an intercept; the published study has none.", rich_help_panel=_MODEL)
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="float32 or float64.", rich_help_panel=_MODEL)] = None,
    target: Annotated[
        float | None,
        typer.Option(help="Time to target: loss above the sequential run's, as 0.02.", rich_help_panel=_MODEL),
    ] = None,
    scheduler: Annotated[
        str | None, typer.Option(help="Use the cluster at this address; by default one is started here.")
    ] = None,
    demo: Annotated[
        bool, typer.Option("--demo", help="The three sets of the paper, small enough for two cores and four minutes.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Run again what the folder has rows of.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """How often must ranks synchronise? Sweep the period and recompute the claims of arXiv 1905.01219.

    Every run is trained on real worker processes and becomes one row in OUT/rows.jsonl as soon as it is finished: a
    study that was stopped goes on where it was when the same command is given again. OUT/report.html needs no network.
    """
    from dsgd.study import check_extras

    check_extras()  # before minutes of work, not after
    given = {
        "ranks": parse_numbers("--ranks", ranks),
        "every": parse_numbers("--every", every),
        "seeds": None if seeds is None else tuple(range(seeds)),
        "epochs": epochs,
        "alpha": alpha,
        "loss": loss,
        "schedule": None if schedule is None else schedule.replace("-", "_"),
        "partition": partition,
        "fit_intercept": intercept,
        "dtype": dtype,
        "target_excess": target,
    }
    study = make_study(dataset or (), rows, given, demo=demo)
    found = _run(study, out, scheduler=scheduler, force=force, quiet=as_json)
    _report(study, found, out, as_json=as_json)


def parse_numbers(option: str, text: str | None) -> tuple[int, ...] | None:
    """Return the whole numbers in a text such as ``1,4,16``.

    Parameters
    ----------
    option : str
        The option it was given to, for the error.
    text : str or None
        Numbers with commas between; None gives None.

    Returns
    -------
    tuple of int or None
        In the order given.

    Raises
    ------
    InvalidParameterError
        Something in it is not a whole number above 0.
    """
    if text is None:
        return None
    words = [word.strip() for word in text.split(",")]
    for word in words:
        if not (word.isascii() and word.isdigit() and int(word) > 0):
            raise InvalidParameterError(
                f"{option} {text!r}: {word!r} is not a whole number above 0; give numbers with commas, as 1,4,16"
            )
    return tuple(int(word) for word in words)


def make_study(datasets: Sequence[str], rows: int | None, given: dict[str, Any], *, demo: bool) -> Study:
    """Return the study that the options describe.

    Parameters
    ----------
    datasets : sequence of str
        Names of datasets; the preset's own if empty.
    rows : int or None
        Training rows of each.
    given : dict
        Fields of `Study`; those that are None keep the value of the preset.
    demo : bool
        Whether the preset is the demo, and not the defaults.

    Raises
    ------
    InvalidParameterError
        A value is outside its domain.
    """
    from dsgd.study import DataSource, Study, demo_study

    study = demo_study() if demo else Study()
    data = [DataSource(name) for name in datasets] or study.data
    if rows is not None:
        data = [replace(source, rows=rows, test_rows=None) for source in data]
    return replace(study, data=tuple(data), **{name: value for name, value in given.items() if value is not None})


def _run(study: Study, out: Path, *, scheduler: str | None, force: bool, quiet: bool) -> list[dict[str, Any]]:
    """Run the study with a progress bar; return its rows."""
    from dsgd.study import run_study

    def describe(row: dict[str, Any]) -> str:
        return f"{row['dataset']} on {row['ranks']} rank{'s' * (row['ranks'] > 1)}"

    return follow(run_study(study, out, scheduler=scheduler, force=force), study.count(), describe, out, quiet=quiet)


def _report(study: Study, rows: list[dict[str, Any]], out: Path, *, as_json: bool) -> None:
    """Write the report; print what it says."""
    from dsgd.study import results_table, study_page, summarise

    summary = summarise(rows)
    tables = [results_table(summary, dataset) for dataset in summary.datasets()]
    tell(study_page(study, rows), out, tables, {"cells": _cells(summary)}, as_json=as_json)


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
            "n_runs": len(page.rows),
            "claims": [asdict(claim) | {"verdict": claim.verdict} for claim in page.claims],
        }
        typer.echo(json.dumps(known | facts))
        return
    from rich.console import Console

    from dsgd.report import claims_table

    # Into a file or a pipe tables are written as wide as they are, not folded to 80 columns.
    console = Console(width=None if sys.stdout.isatty() else 170)
    for table in (*tables, *([claims_table(page.claims)] if page.claims else [])):
        console.print(table.renderable())
    console.print(page.answer)
    for doubt in page.doubts:
        console.print(f"Note: {doubt}")
    typer.echo(f"\nreport: {path}")


def follow(
    runs: Iterator[StudyRun], total: int, describe: Callable[[dict[str, Any]], str], out: Path, *, quiet: bool
) -> list[dict[str, Any]]:
    """Go through the runs of a study with a progress bar; return their rows.

    Parameters
    ----------
    runs : iterator of StudyRun
        The runs, made as they are asked for.
    total : int
        How many there will be.
    describe : callable
        What the bar says while runs like this row are made.
    out : pathlib.Path
        The folder, for what is said when the study is interrupted or resumed.
    quiet : bool
        Say nothing.

    Returns
    -------
    list of dict
        The rows.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal)
    rows: list[dict[str, Any]] = []
    n_resumed, seen = 0, ""
    try:
        with bar:
            task = bar.add_task("loading data", total=total)
            for run in runs:
                rows.append(run.row)
                n_resumed += run.resumed
                text = describe(run.row)
                bar.update(task, advance=1, description=text)
                if text != seen and not (quiet or console.is_terminal or run.resumed):
                    typer.echo(f"{text} ...", err=True)
                seen = text
    except KeyboardInterrupt:
        typer.echo(f"{len(rows)} of {total} runs are kept; give the same command to go on.", err=True)
        raise
    if n_resumed and not quiet:
        typer.echo(f"{n_resumed} of {len(rows)} runs were in {out} already; --force runs them again.", err=True)
    return rows


def _cells(summary: Summary) -> list[dict[str, Any]]:
    names = ("train_s", "communication_s", "test_accuracy", "balanced_accuracy", "majority_accuracy", "objective")
    return [
        {
            "dataset": cell.dataset,
            "ranks": cell.ranks,
            "every": cell.every,
            "seeds": len(cell.rows),
            **{name: stat.median if (stat := cell.stat(name)) else None for name in names},
        }
        for cell in summary.cells
    ]
