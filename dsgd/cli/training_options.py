"""Options shared by the commands that train a model."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import typer

__all__ = [
    "DATA",
    "MODEL",
    "PLACE",
    "Alpha",
    "AsJson",
    "Jobs",
    "Loss",
    "More",
    "Penalty",
    "Scheduler",
    "Task",
    "Workers",
]

# The panels of --help.
MODEL: Final = "The objective"
PLACE: Final = "Where it runs"
#: The option that names training files; one command must have them, another takes the name of a set instead.
DATA: Final = typer.Option(
    "--data", "-d", help="Training files, one or more: svmlight (plain, .gz, .bz2) or .npz (X, y)."
)
More: TypeAlias = Annotated[list[str] | None, typer.Argument(metavar="FILES", help="Further training files.")]
Task: TypeAlias = Annotated[str, typer.Option(help="auto, classification or regression; auto follows from the loss.")]
Loss: TypeAlias = Annotated[
    str | None, typer.Option(help="Loss: hinge, log_loss, squared_error, ...", rich_help_panel=MODEL)
]
Penalty: TypeAlias = Annotated[str, typer.Option(help="l2, l1, elasticnet or none.", rich_help_panel=MODEL)]
Alpha: TypeAlias = Annotated[float, typer.Option(help="Weight of the penalty.", rich_help_panel=MODEL)]
Workers: TypeAlias = Annotated[
    int, typer.Option(min=0, help="Start this many worker processes.", rich_help_panel=PLACE)
]
Scheduler: TypeAlias = Annotated[
    str | None, typer.Option(help="Use the cluster at this address.", rich_help_panel=PLACE)
]
Jobs: TypeAlias = Annotated[
    int, typer.Option(help="Threads, when it runs in this process; -1 takes all.", rich_help_panel=PLACE)
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
