"""Values and tables as commands print them."""

from __future__ import annotations

import sys
from typing import Any

import typer

from dsgd.printing import printable


def as_text(value: Any) -> str:
    """Return a value as a reader wants it."""
    if isinstance(value, bool | None):
        return {True: "yes", False: "no", None: "-"}[value]
    if isinstance(value, int):
        return f"{value:,}"
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
