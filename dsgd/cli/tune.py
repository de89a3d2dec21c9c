"""``dsgd tune``: find the synchronisation and step size that reach a target soonest."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer

from dsgd.cli import options as options
from dsgd.cli.files import is_svmlight, read_rows, rows_or_dataset, tables_with_target
from dsgd.cli.fit import encoding, make_estimator
from dsgd.cli.options import COMPRESS_HELP, SYNC_HELP, connected, examples, parse_compress, parse_sync, place_option
from dsgd.errors import InvalidParameterError

if TYPE_CHECKING:
    from dsgd.tuning import TuningResult


EXAMPLES: Final = examples(
    "dsgd tune --dataset a9a --workers 2",
    "dsgd tune --data train.svm --loss log_loss --scheduler tcp://10.0.0.5:8786 --budget 120 --report tuning.html",
    "dsgd tune --data 'clicks/*.parquet' --target clicked --loss log_loss --workers 2",
    "dsgd tune --data train.svm -s local -s minibatch -s easgd --compress auto --compress topk:0.01 --json",
)
_SHOWN: Final = 8

_search_option: Final[Any] = partial(typer.Option, rich_help_panel="The search")
_Files: TypeAlias = Annotated[list[str] | None, options.DATA]
_Dataset: TypeAlias = Annotated[str | None, typer.Option(help="A dataset by name, instead: see dsgd datasets list.")]
_Budget: TypeAlias = Annotated[float, _search_option(help="Seconds until the answer, all included.")]
_Margin: TypeAlias = Annotated[float, _search_option(help="The target is the best score reached minus this.")]
_Strategy: TypeAlias = Annotated[
    list[str] | None,
    _search_option(
        "--strategy",
        "-s",
        help=f"Strategies to try; repeat for several: {SYNC_HELP}. Periods and batches are searched; local and "
        "minibatch by default.",
    ),
]
_Compress: TypeAlias = Annotated[
    list[str] | None,
    _search_option(help=f"Compressors to try; repeat for several: {COMPRESS_HELP}. Whole vectors are always tried."),
]
_Seed: TypeAlias = Annotated[int, _search_option(help="Seed of rows held out, and of their order.")]
_Transport: TypeAlias = Annotated[str, place_option(help="Transport between ranks on a cluster, as in dsgd fit.")]
_Report: TypeAlias = Annotated[
    Path | None, typer.Option("--report", "-r", help="Write a report, one HTML page, to this file.")
]
_Quiet: TypeAlias = Annotated[bool, typer.Option("--quiet", "-q", help="Print the line to paste and nothing else.")]


def tune(
    data: _Files = None,
    more: options.More = None,
    dataset: _Dataset = None,
    target: options.Target = None,
    read: options.Read = None,
    task: options.Task = "auto",
    loss: options.Loss = None,
    penalty: options.Penalty = "l2",
    alpha: options.Alpha = 1e-4,
    categorical: options.Categorical = "auto",
    budget: _Budget = 60.0,
    margin: _Margin = 0.003,
    strategy: _Strategy = None,
    compress: _Compress = None,
    seed: _Seed = 0,
    workers: options.Workers = 0,
    scheduler: options.Scheduler = None,
    jobs: options.Jobs = -1,
    transport: _Transport = "auto",
    report: _Report = None,
    as_json: options.AsJson = False,
    quiet: _Quiet = False,
) -> None:
    """Find the period, strategy and step size that train a model fastest here, and print them; takes a minute.

    The cluster is measured the first time, which tells what an epoch of each candidate takes; the others run for real
    by successive halving, scored on rows held out. What is printed can be pasted.
    """
    from dsgd import Gang
    from dsgd.tuning import tune as search

    paths = [*(data or []), *(more or [])]
    X, y = rows_or_dataset("dsgd tune", paths, dataset, reads=False)
    tables = tables_with_target(paths, target, read)
    if report is not None:
        _check_report(report)
    parameters: dict[str, Any] = {
        "penalty": None if penalty == "none" else penalty,
        "alpha": alpha,
        "n_jobs": None if workers or scheduler else jobs,
        **encoding(tables, categorical),
    }
    with connected(workers, scheduler) as client:
        estimator = make_estimator(task, loss, {**parameters, "client": Gang(client, transport=transport)})
        if tables is not None:
            X, y = tables, target
        elif paths and client is not None and is_svmlight(paths[0]):
            X, y = paths, None
        elif paths:
            X, y = read_rows(paths)
        with _shown(wanted=not (quiet or as_json)) as say:
            result = search(
                estimator, X, y, budget=budget, margin=margin, random_state=seed, on_progress=say,
                strategies=[parse_sync(text, "--strategy") for text in strategy or ("local", "minibatch")],
                compressors=None if compress is None else [None, *map(parse_compress, compress)],
            )  # fmt: skip
    if report is not None:
        from dsgd.tuning.result import write_tuning_report

        write_tuning_report(result, report)
    if as_json:
        typer.echo(json.dumps(result.as_mapping()))
    elif quiet:
        typer.echo(result.line)
    else:
        _show(result, report)


def _check_report(path: Path) -> None:
    """Find out that a report cannot be written before a minute of work, not after."""
    from dsgd.report import check_extras

    check_extras()
    if path.is_dir():
        raise InvalidParameterError(f"--report {path} is a folder: name a file, such as {path / 'tuning.html'}")


@contextmanager
def _shown(*, wanted: bool) -> Iterator[Callable[[str], None] | None]:
    """Give what shows a line of progress: a live one on a terminal, lines elsewhere."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    if not wanted:
        yield None
        return
    if not console.is_terminal:
        yield lambda text: console.print(text, markup=False, soft_wrap=True)
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("placing rows", total=None)
        yield lambda text: progress.update(task, description=text)


def _show(result: TuningResult, report: Path | None) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(highlight=False)
    table = Table(box=None, pad_edge=False)
    for name in ("candidate", "rung", "epoch, predicted", "measured", "to target", result.metric):
        table.add_column(name, justify="left" if name == "candidate" else "right")
    rows: list[Mapping[str, Any]] = [trial.as_row() for trial in result.table]
    for row in rows[:_SHOWN]:
        cells = [_seconds(row[name]) for name in ("predicted_epoch_s", "measured_epoch_s", "measured_s")]
        score = "-" if row["best_score"] is None else f"{row['best_score']:.4f}"
        table.add_row(escape(row["candidate"]), str(row["rung"]), *cells, score)
    console.print(table)
    if len(rows) > _SHOWN:
        console.print(f"and {len(rows) - _SHOWN} more")
    console.print(f"\n{result.answer}", markup=False, soft_wrap=True)
    console.print(f"{result.seconds:.1f} s of {result.budget:g} s were used. To paste:\n", markup=False)
    console.print(result.code, markup=False, soft_wrap=True)
    if report is not None:
        console.print(f"\nreport written to {report}", markup=False, soft_wrap=True)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g} s" if value >= 1.0 else f"{1e3 * value:.3g} ms"
