"""Tables of a report, and claims with their verdicts.

Tables of text for the terminal and for a page, and formatting of numbers.

A claim and what a study measured for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import IO, Any, Final

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table as RichTable
from rich.text import Text

from dsgd.printing import printable

_NUMBER: Final = re.compile(r"([+-]?\d[\d,]*\.?\d*(?:e[+-]?\d+)?)\s*(µs|us|ms|kB|MB|GB|TB|KiB|MiB|GiB)?", re.ASCII)
_UNITS: Final = {
    "": 1.0, "µs": 1e-6, "us": 1e-6, "ms": 1e-3, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
    "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30,
}  # fmt: skip
_LATEX: Final = str.maketrans(
    {sign: f"\\{sign}" for sign in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "µ": r"$\mu$"}
)
# Columns of what is printed into a file or a pipe.
_WIDTH: Final = 100


@dataclass(frozen=True)
class Table:
    """A table of text.

    Parameters
    ----------
    title : str
        What it shows.
    columns : sequence of str
        Headings, with units.
    rows : sequence of sequence of str
        Cells, one row after the other.
    note : str
        What to know when reading it.
    n_text : int
        How many of the first columns are text; the others are numbers and set to the right.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    n_text: int = 1

    @classmethod
    def of(
        cls,
        title: str,
        items: Iterable[Any],
        columns: str,
        note: str = "",
        n_text: int = 1,
        **own: Callable[[Any], str],
    ) -> Table:
        """Return a table of one row per item.

        Parameters
        ----------
        title, note, n_text
            See `Table`.
        items : iterable
            What the rows are of: mappings, objects, or what has medians (`stat`), such as the cells of a study.
        columns : str
            ``heading = name:form`` with bars between: an attribute or an entry; of items with ``stat`` a name with a
            form is the median of a column. Forms are those of `format`, templates such as ``{:g}x``, ``3`` (three
            digits), ``B`` (bytes) and ``s`` (seconds); ``name*1e3`` is a thousand times the value, and ``{0.name} of
            {0.other}`` has several. None is a dash.
        **own : callable
            What columns say whose name is one of these.
        """
        heads = [(head.strip(), name.strip()) for head, _, name in (one.partition("=") for one in columns.split("|"))]
        says = [own.get(name) or partial(_say, spec=name) for _, name in heads]
        return cls(title, [head for head, _ in heads], [[say(item) for say in says] for item in items], note, n_text)

    def to_latex(self) -> str:
        """Return the table for a paper: a ``tabular`` with the rules of the package booktabs."""
        align = "".join("l" if k < self.n_text else "r" for k in range(len(self.columns)))
        lines = [" & ".join(cell.translate(_LATEX) for cell in row) + r" \\" for row in (self.columns, *self.rows)]
        head, *body = lines
        ends = rf"\begin{{tabular}}{{{align}}}", r"\end{tabular}"
        return "\n".join([ends[0], r"\toprule", head, r"\midrule", *body, r"\bottomrule", ends[1], ""])

    def renderable(self, width: int = 0) -> RenderableType:
        """Return the table for a rich console, in parts below each other where it is wider.

        Parameters
        ----------
        width : int, default 0
            Columns of the console; by default as many as the table takes.
        """
        heads, *lines = [list(map(_plain, row)) for row in (self.columns, *self.rows)]
        # Words of a heading stand below each other where there is little room.
        cells = [[*head.split(), *(line[k] for line in lines)] for k, head in enumerate(heads)]
        sizes = [3 + max(map(cell_len, column), default=0) for column in cells]
        parts, names = [list(range(len(heads)))], list(range(min(max(1, self.n_text), len(heads) - 1)))
        is_narrow = 0 < width < sum(sizes) + 2 and len(names) < len(heads) - 1
        if is_narrow:
            # The columns that every part begins with are to tell its rows apart, if there is room for that.
            while len({tuple(line[k] for k in names) for line in lines}) < len(lines):
                rest = sizes[len(names) + 1 :]
                if not rest or sum(sizes[: len(names) + 1]) + max(rest) + 2 > width:
                    break
                names.append(len(names))
            parts = [names.copy()]
            for k in range(len(names), len(heads)):
                if len(parts[-1]) > len(names) and sum(sizes[n] for n in parts[-1]) + sizes[k] + 2 > width:
                    parts.append(names.copy())
                parts[-1].append(k)
        shown: list[RenderableType] = []
        for part in parts:
            title = None if shown else _plain(self.title) or None
            table = RichTable(title=title, title_justify="left", box=SIMPLE_HEAD)
            for k in part:
                is_text = k < self.n_text
                room = None if is_text or not is_narrow else sizes[k] - 3
                table.add_column(heads[k], justify="left" if is_text else "right", overflow="fold", width=room)
            for line in lines:
                table.add_row(*(line[k] for k in part))
            shown.append(table)
        if self.note:
            shown.append(Text("\n".join(map(printable, self.note.split("\n"))), "dim italic"))
        return Group(*shown)


def show_tables(tables: Iterable[Table], file: IO[str] | None = None) -> Console:
    """Print tables, no wider than a terminal, or in a file than 100 columns; return the console."""
    console = Console(file=file, highlight=False)
    if not console.is_terminal:
        console = Console(file=file, highlight=False, width=_WIDTH)
    for table in tables:
        console.print(table.renderable(console.width))
    return console


def _plain(text: str) -> str:
    """Return a text that rich prints as it is: names in it may look like markup."""
    return "\n".join(escape(printable(line)) for line in text.split("\n"))


def sort_value(text: str) -> float | None:
    """Return the number that a cell begins with, in seconds or bytes where it has such a unit; None if it has none."""
    found = _NUMBER.match(text)
    return None if found is None else float(found[1].replace(",", "")) * _UNITS[found[2] or ""]


def figure_text(value: float) -> str:
    """Return three significant digits, without an exponent."""
    return f"{value:.3g}" if 1e-3 <= value < 1000 else f"{value:.5f}" if value < 1e-3 else f"{value:,.0f}"


def byte_text(n_bytes: float) -> str:
    """Return bytes with three significant digits, in B, kB, MB or GB."""
    for unit in ("B", "kB", "MB"):
        if n_bytes < 1000:
            return f"{n_bytes:.0f} {unit}" if unit == "B" else f"{n_bytes:.3g} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.3g} GB"


def seconds_text(seconds: float) -> str:
    """Return seconds with three significant digits, in s, ms or µs."""
    units = (("s", 1.0), ("ms", 1e-3))
    unit, size = next(((unit, size) for unit, size in units if abs(seconds) >= size), ("µs", 1e-6))
    return f"{seconds / size:.3g} {unit}"


def span_of(values: Sequence[float], form: str) -> str:
    """Return the lowest and the highest value as text, or one where both read the same.

    Parameters
    ----------
    values : sequence of float
        At least one.
    form : str
        How to write one, as ``"{:.1f}"``.
    """
    low, high = form.format(min(values)), form.format(max(values))
    return low if low == high else f"{low} to {high}"


@dataclass(frozen=True)
class Claim:
    """One claim, held against a study.

    Parameters
    ----------
    name : str
        What is claimed.
    dataset : str
        The data it was recomputed on.
    published : str
        The published figure.
    ours : str
        The figure of this study.
    holds : bool or None
        Whether the claim holds here, that is within the published range; None if the study did not run what would
        decide it, it is undecided, or the model is trivial.
    note : str
        What to know before believing either figure.
    trivial : bool
        Whether it makes no claim: a control passes it too, or the model only predicts the commonest label.
    undecided : bool, default False
        Whether it was run, and the noise between runs is too large to tell.
    exceeds : bool, default False
        Whether it does not hold because the figure here is beyond the published range, on its better side.
    key : str, default ""
        What names the statement, among all of them.
    system : str, default ""
        Whose claim it is.
    baseline : str, default ""
        What is reached without the method.
    interval : tuple of float, optional
        The figure of this study and the ends of its 95 % interval; None where there is none.
    control : str, default ""
        What must fail the claim, with the figure and the verdict that it got.
    tuned : str, default ""
        Whether methods had the best of the same number of trials; "" where there is nothing to tune.
    seeds : int, default 0
        The seeds or repetitions behind the interval; 0 for what is computed.
    apart : str, default ""
        ``"arithmetic"`` or ``"assumption"``, where that is the verdict.
    """

    name: str
    dataset: str
    published: str
    ours: str
    holds: bool | None
    note: str
    trivial: bool = False
    undecided: bool = False
    exceeds: bool = False
    key: str = ""
    system: str = ""
    baseline: str = ""
    interval: tuple[float, float, float] | None = None
    control: str = ""
    tuned: str = ""
    seeds: int = 0
    apart: str = ""

    @property
    def verdict(self) -> str:
        """The outcome: holds, exceeds, fails, undecided, no claim, not run, arithmetic or assumption."""
        if self.apart:
            return self.apart
        if self.trivial:
            return "no claim"
        if self.holds is None:
            return "undecided" if self.undecided else "not run"
        return "holds" if self.holds else "exceeds" if self.exceeds else "fails"


def claims_table(claims: Sequence[Claim]) -> Table:
    """Return the claims, one row each.

    Parameters
    ----------
    claims : sequence of Claim
        The claims of one study.
    """
    rows = [
        (
            claim.name,
            claim.dataset,
            claim.published,
            claim.ours,
            claim.verdict,
        )
        for claim in claims
    ]
    note = "no claim: the model is no better than always predicting the commonest label."
    return Table(
        "Claims",
        ("claim", "data", "claimed", "ours", "verdict"),
        rows,
        note if any(claim.trivial for claim in claims) else "",
        n_text=5,
    )


#: How values are written, besides the forms of `format` and templates such as ``{:g}x``.
_FORMS: Final[Mapping[str, Callable[[float], str]]] = {"3": figure_text, "B": byte_text, "s": seconds_text}


def _say(item: Any, spec: str) -> str:
    """Return what a column says of an item; see `Table.of`."""
    if spec.startswith("{"):
        return spec.format(item)
    name, _, form = spec.partition(":")
    name, _, factor = name.partition("*")
    if isinstance(item, Mapping):
        value = item.get(name)
    elif hasattr(item, "stat") and form and not hasattr(type(item), name):
        value = None if (stat := item.stat(name)) is None else stat.median
    else:
        value = attrgetter(name)(item)
    if value is None:
        return "-"
    value = value * float(factor) if factor else value
    return _FORMS[form](value) if form in _FORMS else form.format(value) if "{" in form else format(value, form)
