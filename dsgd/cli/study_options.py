"""Options shared by several commands of ``dsgd study``, and how what they are given is read.

The command line calls the readers (``callback=``), and a command is called with what they return.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from dsgd.errors import InvalidParameterError


def numbers(param: typer.CallbackParam, text: str | None) -> tuple[int, ...] | None:
    """Return the whole numbers in a text such as ``1,4,16``, in the order given; None of None.

    Parameters
    ----------
    param : typer.CallbackParam
        The option it was given to, for the error.
    text : str or None
        Numbers with commas between.

    Raises
    ------
    InvalidParameterError
        Something in it is not a whole number above 0.
    """
    found = words(text)
    for word in found or ():
        if not (word.isascii() and word.isdigit() and int(word) > 0):
            raise InvalidParameterError(
                f"{param.opts[0]} {text!r}: {word!r} is not a whole number above 0; give numbers with commas, as 1,4,16"
            )
    return None if found is None else tuple(map(int, found))


def numbers_or_none(param: typer.CallbackParam, text: str | None) -> tuple[int, ...] | None:
    """Return the same, and no numbers of ``none``."""
    return () if text == "none" else numbers(param, text)


def words(text: str | None) -> tuple[str, ...] | None:
    """Return the words in a text such as ``shm,tcp``; None of None."""
    return None if text is None else tuple(word.strip() for word in text.split(","))


def first_seeds(count: int | None) -> tuple[int, ...] | None:
    """Return the seeds of so many repetitions; None of None."""
    return None if count is None else tuple(range(count))


def underscored(text: str | None) -> str | None:
    """Return a name as the library has it, with ``_`` where the command line takes ``-`` too."""
    return None if text is None else text.replace("-", "_")


def grid_option(*flags: str, **settings: Any) -> Any:
    """Return an option in the panel "The grid" of ``--help``; see `typer.Option`."""
    return typer.Option(*flags, rich_help_panel="The grid", **settings)


def place_option(*flags: str, **settings: Any) -> Any:
    """Return an option in the panel "Where ranks run" of ``--help``; see `typer.Option`."""
    return typer.Option(*flags, rich_help_panel="Where ranks run", **settings)


Out: TypeAlias = Annotated[Path, typer.Option("--out", "-o", help="Folder for rows, figures and report.")]
Force: TypeAlias = Annotated[bool, typer.Option("--force", help="Repeat runs whose rows are in the folder already.")]
Dataset: TypeAlias = Annotated[
    list[str] | None, typer.Option("--dataset", "-d", help="Dataset; repeat for several. See `dsgd datasets list`.")
]
Rows: TypeAlias = Annotated[int | None, grid_option(help="Training rows of each dataset.")]
Seeds: TypeAlias = Annotated[int | None, grid_option(min=1, help="Repetitions of each run.", callback=first_seeds)]
Scheduler: TypeAlias = Annotated[
    str | None, typer.Option(help="Use the cluster at this address; by default one is started here.")
]
# Where ranks may be simulated too.
Simulated: TypeAlias = Annotated[bool, place_option("--simulated", help="Ranks on a virtual clock.")]
OnNetwork: TypeAlias = Annotated[
    str | None, place_option(help="Simulated ranks only: 1GbE, 10GbE, 100GbE, InfiniBand, NVLink, WAN.")
]
OnScheduler: TypeAlias = Annotated[
    str | None, place_option(help="Use the cluster at this address; by default workers are started here.")
]
