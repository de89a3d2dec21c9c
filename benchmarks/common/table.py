"""The tables that benchmarks print."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

# Where no terminal says how wide it is, lines are as wide as they need to be.
WIDTH = 240


@contextmanager
def table(title: str, *columns: str) -> Iterator[Callable[..., None]]:
    """Print a table: on a terminal a line as soon as it is there, in a file all in the end.

    Parameters
    ----------
    title : str
        What stands above it.
    *columns : str
        Heads; what follows a colon is the format of its numbers, as in ``"seconds:.2f"``.

    Yields
    ------
    callable
        Takes the cells of a line. Text stays as it is, and None is an empty cell.
    """
    # A child process may run under an interpreter that has no rich; it prints no tables.
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

    heads, formats = zip(*((column + ":").split(":")[:2] for column in columns), strict=True)
    shown = Table(box=SIMPLE_HEAD, highlight=False)
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=WIDTH)
    for number, head in enumerate(heads):
        shown.add_column(head, justify="right" if formats[number] else "left", overflow="fold")

    def cell(value: Any, form: str) -> str:
        if value is None:
            return ""
        return value if isinstance(value, str) else format(value, form)

    # A title of the table itself would be broken where the table is narrower.
    console.print(f"\n{title}", markup=False, soft_wrap=True)
    with Live(shown, console=console, auto_refresh=False) as live:

        def line(*cells: Any) -> None:
            for column, value in zip(shown.columns, cells, strict=True):
                if not (value is None or isinstance(value, str)):
                    column.justify = "right"
            shown.add_row(*(cell(value, form) for value, form in zip(cells, formats, strict=True)))
            live.refresh()

        yield line
    if not console.is_terminal:
        console.line()
