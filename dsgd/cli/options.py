"""Options that several commands have, and how they print.

Options shared by the commands that train a model.

The cluster of a command: worker processes that it starts, an existing cluster, or none.

Values and tables as commands print them.

Strategies and compressors on the command line; `dsgd.named` reads their names and parameters.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from dsgd.errors import DsgdError, InvalidParameterError
from dsgd.printing import printable

if TYPE_CHECKING:
    from distributed import Client


def option(kind: Any, *flags: str, panel: str | None = None, default: Any = None, **settings: Any) -> inspect.Parameter:
    """Return an option of a command, for `with_options`; one whose default is ``...`` must be given."""
    annotation = Annotated[kind, typer.Option(*flags, rich_help_panel=panel, **settings)]
    return inspect.Parameter(
        "option",
        inspect.Parameter.KEYWORD_ONLY,
        annotation=annotation,
        default=inspect.Parameter.empty if default is ... else default,
    )


def with_options(options: Mapping[str, inspect.Parameter]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives the function of a command options by name."""

    def made(function: Callable[..., None]) -> Callable[..., None]:
        given = [one.replace(name=name) for name, one in options.items()]
        function.__signature__ = inspect.Signature(given)  # type: ignore[attr-defined]
        function.__annotations__ = {one.name: one.annotation for one in given}
        return function

    return made


OBJECTIVE, PLACE = "The objective", "Where it runs"
_DATA: Final[Mapping[str, Any]] = {
    "help": "Training files: svmlight (plain, .gz, .bz2), .npz (X, y), or with --target .parquet, .csv, .arrow."
}
#: Training files: one command must have them, another takes the name of a set instead.
DATA: Final = option(list[str], "--data", "-d", default=..., **_DATA)
DATA_OR_SET: Final = option(list[str] | None, "--data", "-d", **_DATA)
DATASET: Final = option(str | None, help="A dataset by name, instead: see dsgd datasets list.")
MORE: Final = inspect.Parameter(
    "more", inspect.Parameter.KEYWORD_ONLY, default=None,
    annotation=Annotated[list[str] | None, typer.Argument(metavar="FILES", help="Further training files.")],
)  # fmt: skip
TARGET: Final = option(str | None, "--target", "-t", help="Column with the targets, of Parquet, CSV and Arrow files.")
READ: Final = option(
    list[str] | None,
    help="How tables are read: sep=';', na_values=?, dtype=zip:str, encoding=latin-1, drop_missing_target. May be "
    "repeated.",
)
CATEGORICAL: Final = option(
    str, panel=OBJECTIVE, default="auto",
    help="What becomes of columns of strings in tables: onehot, hash, or auto: hash if there are many.",
)  # fmt: skip
TASK: Final = option(str, default="auto", help="auto, classification or regression; auto follows from the loss.")
_LOSS: Final = "Loss: hinge, log_loss, softmax, squared_error, ..."
LOSS: Final = option(str | None, panel=OBJECTIVE, help=_LOSS)
PLAIN_LOSS: Final = option(str | None, help=_LOSS)
PENALTY: Final = option(str, panel=OBJECTIVE, default="l2", help="l2, l1, elasticnet or none.")
ALPHA: Final = option(float, panel=OBJECTIVE, default=1e-4, help="Weight of the penalty.")
WORKERS: Final = option(int, panel=PLACE, default=0, min=0, help="Start this many worker processes.")
SCHEDULER: Final = option(str | None, panel=PLACE, help="Use the cluster at this address.")
JSON: Final = option(bool, "--json", default=False, help="Print one JSON object instead of tables.")
Read = Annotated[
    list[str] | None,
    typer.Option(
        help="How tables are read: sep=';', na_values=?, dtype=zip:str, encoding=latin-1, drop_missing_target. May be "
        "repeated."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]


def jobs(default: int) -> inspect.Parameter:
    """Return the option of the threads."""
    text = "Threads, when it runs in this process; -1 takes all."
    return option(int, panel=PLACE, default=default, help=text)


def examples(*commands: str) -> str:
    """Return what stands at the end of a command's help: a paragraph for each example."""
    return "\n\n".join(["Examples:", *(f"  {command}" for command in commands)])


@contextmanager
def connected(workers: int, scheduler: str | None) -> Iterator[Client | None]:
    """Give a client of a scheduler, or of `workers` processes with one thread each; None if neither is asked for."""
    if workers and scheduler:
        raise InvalidParameterError(
            f"--workers {workers} starts a cluster and --scheduler {scheduler} uses one that runs: leave one out"
        )
    if scheduler:
        from dsgd.runtime import connect_client

        with connect_client(scheduler) as client:
            yield client
    elif workers:
        from dsgd.runtime import client_for

        with client_for(n_workers=workers) as client:
            yield client
    else:
        yield None


def tracked(items: Sequence[Any], text: str, *, quiet: bool = False) -> Iterable[Any]:
    """Return items whose number a bar on standard error shows as they are taken, if that is a terminal."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    return track(items, text, console=console, transient=True, disable=quiet or not console.is_terminal)


@contextmanager
def telling(*, quiet: bool) -> Iterator[Callable[[str], None]]:
    """Give what shows a line of progress on standard error: a live one on a terminal, lines elsewhere."""
    from rich.console import Console
    from rich.markup import escape

    console = Console(stderr=True, highlight=False)
    if quiet:
        yield lambda text: None
    elif console.is_terminal:
        with console.status("") as status:
            yield lambda text: status.update(escape(text))
    else:
        yield lambda text: console.print(text, markup=False, soft_wrap=True)


def print_facts(facts: Mapping[str, Any]) -> None:
    """Print names and values, one a line."""
    width = max(16, *map(len, facts))
    for name, value in facts.items():
        typer.echo(f"{name:<{width}} {printable(as_text(value))}")


def as_text(value: Any) -> str:
    """Return a value as a reader wants it."""
    if isinstance(value, bool | None):
        return {True: "yes", False: "no", None: "-"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict):
        return "; ".join(f"{name}: {as_text(entry)}" for name, entry in value.items()) or "-"
    if isinstance(value, list | tuple):
        return ", ".join(map(as_text, value)) or "-"
    return str(value) or "-"


def print_table(columns: tuple[str, ...], rows: list[list[str]], numbers: range) -> None:
    """Print a table: drawn on a terminal, else one line of tab-separated fields per row."""
    rows = [[printable(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        for row in [list(columns), *rows]:
            typer.echo("\t".join(row))
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index in numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row))
    Console().print(table)


#: What options say of the texts that `parse_sync` and `parse_compress` take.
SYNC_HELP: Final = (
    "every N rows of each rank (256), a strategy (auto, epoch, one-shot, easgd, ...), or one with parameters: "
    "minibatch:64, anytime:0.05, diloco:every=512,outer_rate=0.7, or package.module:Name:every=128 of your own; a "
    "wrong name or parameter lists those that there are"
)
COMPRESS_HELP: Final = (
    "auto (lossless), or a compressor with or without parameters: topk:0.01, qsgd:7, "
    "dgc:density=0.01,momentum=0.5, onebit, fp16, or package.module:Name of your own; a wrong name lists them"
)
OPTIMIZER_HELP: Final = (
    "none (plain steps), momentum, adagrad, adam, lars, gd (a step a round), saga or svrg, with or without parameters: "
    "momentum:0.95, svrg:every=2"
)
SAMPLING_HELP: Final = "uniform (each once an epoch) or importance, by their last gradients; importance:0.2"
FEATURES_HELP: Final = (
    "none (the columns as they are), or random features of a kernel, so many of each row: rff:2000,gamma=0.1, "
    "rff:500,kernel=laplacian, rff:2000,orthogonal=true,random_state=7"
)


def parse_sync(text: str, option: str = "--sync") -> Any:
    """Return what estimators take as ``sync``; modules of the current folder are found, errors begin with `option`."""
    from dsgd.sync import STRATEGIES, resolve

    if text in STRATEGIES:
        return text
    if text.isdigit() and int(text) > 0:
        return int(text)
    _look_here(text)
    try:
        return resolve(text)
    except InvalidParameterError as error:
        if ":" in text:
            raise InvalidParameterError(f"{option} {text!r}: {_without(f'sync={text!r}', error)}") from error
        raise InvalidParameterError(
            f"{option} {text!r}: give a number of samples (256), one of {', '.join(STRATEGIES)}, any of them with "
            "parameters (minibatch:64, anytime:0.05, diloco:every=512,outer_rate=0.7), or package.module:Name of a "
            "strategy of your own"
        ) from error


def parse_compress(text: str, option: str = "--compress") -> Any:
    """Return the compressor that a text names; modules of the current folder are found too."""
    from dsgd.compress import parse_compressor

    _look_here(text)
    try:
        return parse_compressor(text)
    except InvalidParameterError as error:
        raise InvalidParameterError(f"{option} {text!r}: {_without(f'compressor {text!r}', error)}") from error


def compressing(sync: Any, text: str) -> Any:
    """Return a strategy with the compressor that a text names; what a biased one leaves out is sent later."""
    from dsgd.compress import ErrorFeedback
    from dsgd.sync import resolve

    strategy: Any = resolve(sync)
    compressor = parse_compress(text)
    if not _has(strategy, "compressor"):
        raise InvalidParameterError(f"--compress {text!r}: {type(strategy).__name__} takes no compressor.")
    if strategy.exchanges == "gradient" and compressor != "auto" and compressor.needs_feedback:
        compressor = ErrorFeedback(compressor)
    return replace(strategy, compressor=compressor)


def stepping(optimizer: str, sampling: str, features: str = "none") -> dict[str, Any]:
    """Return how an estimator steps, and on what: parameters by name, None where a text leaves the default."""
    from dsgd.kernel_approximation import parse_features
    from dsgd.local.rules import parse_optimizer, parse_sampling

    return {
        "optimizer": parse_optimizer(optimizer),
        "sampling": parse_sampling(sampling),
        "features": parse_features(features),
    }


def variants(names: Sequence[str], compress: Sequence[str] = (), every: Sequence[int] = ()) -> dict[str, Any]:
    """Return strategies by what they are called: each with the periods, and bare and with the compressors, it takes."""
    from dsgd.sync import resolve

    chosen = {name: parse_sync(name, "--strategy") for name in names}
    if every:
        # A number is a period already.
        periodic = {name for name, one in chosen.items() if isinstance(one, int) or _has(resolve(one), "every")}
        if not periodic:
            raise InvalidParameterError(f"--every {every[0]}: none of {', '.join(chosen)} has a period of rows.")
        chosen = {
            f"{name} every {n}" if n else name: _every(one, n) if n else one
            for name, one in chosen.items()
            for n in (every if name in periodic and not isinstance(one, int) else (None,))
        }
    bare = dict(chosen)
    for text in compress:
        refusals = []
        for name, one in bare.items():
            try:
                chosen[f"{name} + {text}"] = compressing(one, text)
            except DsgdError as error:  # the compressor is unknown, or does not go with what this strategy says
                refusals.append(error)
        if len(refusals) == len(bare):
            raise refusals[0]
    return chosen


def _every(sync: Any, n: int) -> Any:
    from dsgd.sync import resolve

    strategy: Any = resolve(sync)
    return replace(strategy, every=n)


def _has(part: Any, name: str) -> bool:
    return name in {field.name for field in fields(part)}


def _look_here(text: str) -> None:
    """Find modules of the current folder, where a text names one."""
    here = str(Path.cwd())
    if ":" in text and here not in sys.path:
        sys.path.insert(0, here)


def _without(where: str, error: InvalidParameterError) -> str:
    """Return an error without what it begins with, if it begins so."""
    return str(error).removeprefix(where).lstrip(": ")
