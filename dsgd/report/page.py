"""The page of a report: one self-contained HTML file."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from dsgd.errors import DsgdError
from dsgd.report.citation import library_bibtex
from dsgd.report.claims import Claim
from dsgd.report.figures import Figure
from dsgd.report.tables import Table, sort_value
from dsgd.report.theme import BLUE, GREEN, GREY, GRID, GROUND, MUTED, ORANGE, PURPLE, SKY, TEXT, VERMILION, Colour

__all__ = ["Page", "check_extras"]

_EXTRAS: Final = ("bokeh", "jinja2", "matplotlib")
_TEMPLATES: Final = Path(__file__).parent / "templates"
_PALETTE: Final = (GROUND, TEXT, MUTED, GRID, BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, GREY)


def check_extras(what: str = "the report", *names: str) -> None:
    """Raise if what figures and reports need is not installed.

    Parameters
    ----------
    what : str, default "the report"
        What needs it, for the error.
    *names : str
        The packages; all that reports need by default.

    Raises
    ------
    DsgdError
        Names what is missing and how to get it.
    """
    missing = [name for name in names or _EXTRAS if find_spec(name) is None]
    if missing:
        raise DsgdError(f"{what} needs {' and '.join(missing)}: run `pip install 'dsgd[study]'`")


@dataclass(frozen=True)
class Page:
    """What a report says.

    Parameters
    ----------
    title : str
        The question that was asked.
    answer : str
        The answer; its first sentence is set large.
    ran : sequence of (str, str)
        What was run, with what and where: names and texts. See `dsgd.report.ran`.
    highlights : sequence of (str, str), optional
        Two to four figures that stand out: the figure, and what it is.
    doubts : sequence of str, optional
        Reasons why the figures are hard to compare, a sentence each.
    overview : Table, optional
        What the page opens with.
    data : sequence of Table, optional
        The data sets.
    claims : sequence of Claim, optional
        Published claims, and whether they hold here.
    source : str, optional
        Whose claims they are.
    folded : bool, default False
        Whether the notes of claims are folded: of many claims, so that they can be read as a table.
    figures : sequence of Figure, optional
        The figures.
    tables : sequence of Table, optional
        Tables that are open.
    details : sequence of Table, optional
        Tables that are folded.
    rows : sequence of dict, optional
        All rows; the page offers them for download.
    citations : sequence of str, optional
        BibTeX entries of the methods; that of this library comes after them.
    """

    title: str
    answer: str
    ran: Sequence[tuple[str, str]] = ()
    highlights: Sequence[tuple[str, str]] = ()
    doubts: Sequence[str] = ()
    overview: Table | None = None
    data: Sequence[Table] = ()
    claims: Sequence[Claim] = ()
    source: str = ""
    folded: bool = False
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    details: Sequence[Table] = ()
    rows: Sequence[dict[str, Any]] = ()
    citations: Sequence[str] = ()

    def render(self) -> str:
        """Return the page as HTML.

        Raises
        ------
        DsgdError
            bokeh or jinja2 is not installed.
        """
        check_extras()
        import jinja2

        from dsgd.report.interactive import drawing, library

        environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(_TEMPLATES), autoescape=True, trim_blocks=True, lstrip_blocks=True,
            undefined=jinja2.StrictUndefined,
        )  # fmt: skip
        environment.filters |= {"script": _script, "sort_value": sort_value}
        return environment.get_template("page.html").render(
            page=self,
            citations="\n\n".join([*self.citations, library_bibtex()]),
            drawings=[drawing(figure) for figure in self.figures],
            library=library() if self.figures else "",
            colours={colour.light: colour.dark for colour in self._colours()},
        )

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write the page into a file, whose folder is made if it is not there; return its path.

        Parameters
        ----------
        path : str or path-like
            The file, as ``study/report.html``.

        Raises
        ------
        DsgdError
            bokeh or jinja2 is not installed.
        """
        path = Path(path)
        text = self.render()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def save(self, out: str | os.PathLike[str]) -> Path:
        """Write ``report.html`` and a picture of every figure, ``figures/*.png``; return the path of the report.

        Parameters
        ----------
        out : str or path-like
            The folder.

        Raises
        ------
        DsgdError
            bokeh, jinja2 or matplotlib is not installed.
        """
        check_extras()
        from dsgd.report.png import drawn_beside

        with drawn_beside(self.figures, Path(out) / "figures"):
            return self.write(Path(out) / "report.html")

    def _colours(self) -> list[Colour]:
        """Return all colours that are on the page."""
        marks = [mark for figure in self.figures for panel in figure.panels for mark in panel.marks]
        return list(dict.fromkeys([*_PALETTE, *(mark.colour for mark in marks if hasattr(mark, "colour"))]))


def _script(value: Any) -> Any:
    """Return a value as JSON that may stand in a script element."""
    import markupsafe  # comes with jinja2

    return markupsafe.Markup(json.dumps(value, separators=(",", ":")).replace("<", "\\u003c"))
