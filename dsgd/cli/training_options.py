"""Options shared by the commands that train a model."""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias

import typer


def model_option(*flags: str, **settings: Any) -> Any:
    """Return an option in the panel "The objective" of ``--help``; see `typer.Option`."""
    return typer.Option(*flags, rich_help_panel="The objective", **settings)


def place_option(*flags: str, **settings: Any) -> Any:
    """Return an option in the panel "Where it runs" of ``--help``; see `typer.Option`."""
    return typer.Option(*flags, rich_help_panel="Where it runs", **settings)


#: The option that names training files; one command must have them, another takes the name of a set instead.
DATA: Final = typer.Option(
    "--data",
    "-d",
    help="Training files: svmlight (plain, .gz, .bz2), .npz (X, y), or with --target .parquet, .csv, .arrow.",
)
More: TypeAlias = Annotated[list[str] | None, typer.Argument(metavar="FILES", help="Further training files.")]
Target: TypeAlias = Annotated[
    str | None, typer.Option("--target", "-t", help="Column with the targets, of Parquet, CSV and Arrow files.")
]
Read: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        help="How tables are read: sep=';', na_values=?, dtype=zip:str, encoding=latin-1, drop_missing_target. May be "
        "repeated."
    ),
]
Categorical: TypeAlias = Annotated[
    str,
    model_option(help="What becomes of columns of strings in tables: onehot, hash, or auto: hash if there are many."),
]
Task: TypeAlias = Annotated[str, typer.Option(help="auto, classification or regression; auto follows from the loss.")]
Loss: TypeAlias = Annotated[str | None, model_option(help="Loss: hinge, log_loss, softmax, squared_error, ...")]
Penalty: TypeAlias = Annotated[str, model_option(help="l2, l1, elasticnet or none.")]
Alpha: TypeAlias = Annotated[float, model_option(help="Weight of the penalty.")]
Workers: TypeAlias = Annotated[int, place_option(min=0, help="Start this many worker processes.")]
Scheduler: TypeAlias = Annotated[str | None, place_option(help="Use the cluster at this address.")]
Jobs: TypeAlias = Annotated[int, place_option(help="Threads, when it runs in this process; -1 takes all.")]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]


def examples(*commands: str) -> str:
    """Return what stands at the end of a command's help: a paragraph for each example."""
    return "\n\n".join(["Examples:", *(f"  {command}" for command in commands)])
