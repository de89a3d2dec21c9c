"""Options shared by several commands of ``dsgd study``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, TypeAlias

import typer

__all__ = [
    "GRID",
    "MODEL",
    "PLACE",
    "Alpha",
    "AsJson",
    "Dataset",
    "Epochs",
    "Force",
    "Loss",
    "OnNetwork",
    "OnScheduler",
    "Out",
    "Partition",
    "Ranks",
    "Rows",
    "Scheduler",
    "Seeds",
    "Simulated",
]

# The panels of --help.
GRID: Final = "The grid"
MODEL: Final = "The model"
PLACE: Final = "Where ranks run"
Out: TypeAlias = Annotated[Path, typer.Option("--out", "-o", help="Folder for rows, figures and report.")]
Force: TypeAlias = Annotated[bool, typer.Option("--force", help="Repeat runs whose rows are in the folder already.")]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
Dataset: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--dataset", "-d", help="Dataset; repeat for several. See `dsgd datasets list`."),
]
Rows: TypeAlias = Annotated[int | None, typer.Option(help="Training rows of each dataset.", rich_help_panel=GRID)]
Ranks: TypeAlias = Annotated[str | None, typer.Option(help="Numbers of ranks, as 2,4.", rich_help_panel=GRID)]
Seeds: TypeAlias = Annotated[int | None, typer.Option(min=1, help="Repetitions of each run.", rich_help_panel=GRID)]
Epochs: TypeAlias = Annotated[int | None, typer.Option(help="Passes over the rows.", rich_help_panel=GRID)]
Alpha: TypeAlias = Annotated[float | None, typer.Option(help="Weight of the L2 penalty.", rich_help_panel=MODEL)]
Loss: TypeAlias = Annotated[str | None, typer.Option(help="hinge, squared_hinge or log_loss.", rich_help_panel=MODEL)]
Partition: TypeAlias = Annotated[
    str | None, typer.Option(help="contiguous, shuffled or label-skewed.", rich_help_panel=MODEL)
]
Scheduler: TypeAlias = Annotated[
    str | None, typer.Option(help="Use the cluster at this address; by default one is started here.")
]
# Where ranks may be simulated too.
Simulated: TypeAlias = Annotated[
    bool, typer.Option("--simulated", help="Ranks on a virtual clock.", rich_help_panel=PLACE)
]
OnNetwork: TypeAlias = Annotated[
    str | None,
    typer.Option(help="Simulated ranks only: 1GbE, 10GbE, 100GbE, InfiniBand, NVLink, WAN.", rich_help_panel=PLACE),
]
OnScheduler: TypeAlias = Annotated[
    str | None,
    typer.Option(help="Use the cluster at this address; by default workers are started here.", rich_help_panel=PLACE),
]
