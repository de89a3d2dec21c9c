"""Sections that all reports share: what was run, caveats, machine, claims."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

from dsgd.report import Claim, Line, Table, load_doubts, origin_doubts, ran, series
from dsgd.study.frame.data import missing_runs
from dsgd.study.frame.rows import Row, Stat, cells_of

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
    return Table.of(title, first, columns, note, 2, shape=lambda row: " x ".join(map(str, row["shape"])))


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
    """Return how many of the claims hold or are exceeded, of those that could be judged, as ``3 of 4``; or ``none``."""
    judged = [claim for claim in claims if claim.holds is not None]
    return f"{sum(bool(claim.holds) or claim.exceeds for claim in judged)} of {len(judged)}" if judged else "none"


def tally_sentence(claims: Sequence[Claim], noun: str) -> str:
    """Return `tally` in a sentence."""
    found = tally(claims)
    return f"Of the {noun} none could be judged here." if found == "none" else f"{found} {noun} hold here."


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


def lines_of(
    groups: Mapping[str, Sequence[Any]],
    x: Callable[[Any], Any] | str,
    y: Callable[[Any], Any] | str,
    looks: Mapping[str, Mapping[str, Any]] | None = None,
    **style: Any,
) -> list[Line]:
    """Return a line for each group of cells that has points, by its name.

    `x` and `y` are of a cell, or an attribute of it; of the column y its median and range. None is no point. `looks`
    says how some lines differ from what `style` says of all.
    """
    of_x: Callable[[Any], Any] = attrgetter(x) if isinstance(x, str) else x
    of_y: Callable[[Any], Any] = (lambda cell: cell.stat(y)) if isinstance(y, str) else y
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
