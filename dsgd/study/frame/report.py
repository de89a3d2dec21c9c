"""Sections that all reports share: what was run, caveats, machine, claims."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Final

from dsgd.report import (
    Claim,
    Line,
    Table,
    byte_text,
    figure_text,
    load_doubts,
    origin_doubts,
    ran,
    seconds_text,
    series,
)
from dsgd.study.frame.data import missing_runs
from dsgd.study.frame.rows import Cell, Row, Stat, cells_of

_COLUMNS: Final = {
    "data": "dataset", "source": "source", "train rows": "rows:,", "test rows": "test_rows:,", "a row": "shape",
    "features": "features:,", "columns": "columns:,", "gamma": "gamma:.3g", "non-zero": "density:.1%",
    "commonest label": "majority_accuracy:.2%", "checksum": "checksum", "best possible": "bayes_accuracy:.2%",
}  # fmt: skip


def data_table(rows: Iterable[Row], *more: str, note: str = "", title: str = "Data") -> Table:
    """Return what was trained on: name, source, rows and checksum of each set, and `more` columns."""
    names = ("data", "source", "train rows", "test rows", *more, "checksum")
    columns = " | ".join(f"{name} = {_COLUMNS[name]}" for name in names)
    first = (cell.rows[0] for cell in cells_of(rows, "dataset"))
    return table(title, first, columns, note, 2, shape=lambda row: " x ".join(map(str, row["shape"])))


def facts(rows: Sequence[Row], *own: tuple[str, str]) -> list[tuple[str, str]]:
    """Return what was run and where, with the study's `own` facts, as pairs of name and text."""
    return [("Command", rows[-1]["command"]), *own, *ran(rows)]


def doubts(rows: Sequence[Row], own: Iterable[str] = (), *, asked: int = 0) -> list[str]:
    """Return what to know before believing a study: runs that are missing, and why seconds are hard to compare.

    Parameters
    ----------
    rows : sequence of dict
        Rows of one study.
    own : iterable of str, optional
        Further reasons of the study.
    asked : int, default 0
        How many runs were asked for.
    """
    # This machine's load and cores do not matter for a cluster elsewhere or a virtual clock.
    is_here = rows[-1].get("cluster", "local") == "local"
    missing = missing_runs(len(rows), asked)
    return [*([missing] if missing else []), *origin_doubts(rows), *own, *(load_doubts(rows) if is_here else ())]


def tally(claims: Sequence[Claim]) -> str:
    """Return how many of the claims hold or are exceeded, of those that could be judged, as ``3 of 4``."""
    judged = [claim for claim in claims if claim.holds is not None]
    return f"{sum(bool(claim.holds) or claim.exceeds for claim in judged)} of {len(judged)}"


def where(network: str | None) -> str:
    """Return what ranks were: worker processes, or simulated on a network."""
    return "worker processes" if network is None else f"simulated, {network}"


def gang_text(ranks: int, network: str | None) -> str:
    """Return how many ranks there were, and what they were."""
    return f"{ranks} worker processes" if network is None else f"{ranks} simulated ranks, {network}"


def joined(values: Iterable[object]) -> str:
    """Return values with commas between."""
    return ", ".join(map(str, values))


def time_text(seconds: float) -> str:
    """Return seconds from one second on, and milliseconds below."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


#: How values are written, besides the forms of `format` and templates such as ``{:g}x``.
_FORMS: Final[Mapping[str, Callable[[float], str]]] = {"3": figure_text, "B": byte_text, "s": seconds_text}


def _say(item: Any, spec: str) -> str:
    """Return what a column says of an item; see `table`."""
    if spec.startswith("{"):
        return spec.format(item)
    name, _, form = spec.partition(":")
    name, _, factor = name.partition("*")
    if isinstance(item, Mapping):
        value = item.get(name)
    elif isinstance(item, Cell) and form and not hasattr(type(item), name):
        value = None if (stat := item.stat(name)) is None else stat.median
    else:
        value = attrgetter(name)(item)
    if value is None:
        return "-"
    value = value * float(factor) if factor else value
    return _FORMS[form](value) if form in _FORMS else form.format(value) if "{" in form else format(value, form)


def table(
    title: str, items: Iterable[Any], columns: str, note: str = "", n_text: int = 1, **own: Callable[[Any], str]
) -> Table:
    """Return a table of cells, rows or records, a row for each.

    Parameters
    ----------
    title, note, n_text
        See `dsgd.report.Table`.
    items : iterable
        What it is of.
    columns : str
        ``heading = name:form`` with bars between. Of cells it is the median of a column, or without a form what all
        rows agree in; of records an attribute. Forms are those of `format`, templates, ``3`` (three digits), ``B``
        (bytes) and ``s`` (seconds); ``name*1e3`` is a thousand times the value. ``{0.name} of {0.other}`` has several.
    **own : callable
        What columns say whose name is one of these.
    """
    heads = [(head.strip(), name.strip()) for head, _, name in (one.partition("=") for one in columns.split("|"))]
    says = [own.get(name) or partial(_say, spec=name) for _, name in heads]
    return Table(title, [head for head, _ in heads], [[say(item) for say in says] for item in items], note, n_text)


def lines_of(
    groups: Mapping[str, Sequence[Any]], x: Callable[[Any], Any] | str, y: Callable[[Any], Any] | str,
    looks: Mapping[str, Mapping[str, Any]] | None = None, **style: Any,
) -> list[Line]:  # fmt: skip
    """Return a line for each group of cells that has points, by its name.

    Parameters
    ----------
    groups : mapping of str to sequence
        The cells of each line.
    x, y : callable or str
        The coordinates of a cell, or of what an attribute names; of the column y its median and range. None is no
        point.
    looks : mapping, optional
        How some lines look that do not look like the others.
    **style
        See `dsgd.report.Line`.
    """
    of_x = attrgetter(x) if isinstance(x, str) else x
    of_y = (lambda cell: cell.stat(y)) if isinstance(y, str) else y
    found = []
    for number, (name, cells) in enumerate(groups.items()):
        points = [(of_x(cell), at) for cell in cells if (at := of_y(cell)) is not None]
        if points:
            at_x, at_y = zip(*points, strict=True)
            found.append(line_of(name, at_x, at_y, number, **style | dict((looks or {}).get(name, {}))))
    return found


def line_of(label: str, x: Sequence[float], y: Sequence[float | Stat], number: int = 0, **style: Any) -> Line:
    """Return a line that looks like the one of a number; of quantities it has the medians, and their ranges."""
    colour, marker, dash = series(number)
    stats = [one for one in y if isinstance(one, Stat)]
    middle = [one.median if isinstance(one, Stat) else one for one in y]
    look = {"colour": colour, "marker": marker, "dash": dash, "ranges": [(one.low, one.high) for one in stats]}
    return Line(label, x, middle, **look | style)
