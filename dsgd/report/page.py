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
from dsgd.report.figures import Figure
from dsgd.report.provenance import library_bibtex
from dsgd.report.tables import Claim, Table, sort_value

_EXTRAS: Final = ("jinja2", "matplotlib")
_TEMPLATES: Final = Path(__file__).parent / "templates"


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
            jinja2 or matplotlib is not installed.
        """
        return self._render(None)

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write the page into a file, whose folder is made if it is not there; return its path.

        Parameters
        ----------
        path : str or path-like
            The file, as ``study/report.html``.

        Raises
        ------
        DsgdError
            jinja2 or matplotlib is not installed.
        """
        path, text = Path(path), self.render()
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
            jinja2 or matplotlib is not installed.
        """
        folder = Path(out) / "figures"
        folder.mkdir(parents=True, exist_ok=True)
        path = Path(out) / "report.html"
        path.write_text(self._render(folder), encoding="utf-8")
        return path

    def _render(self, folder: Path | None) -> str:
        """Return the page; write a picture of every figure into the folder, if there is one."""
        check_extras()
        import jinja2

        from dsgd.report.png import canvas, picture, vectors

        drawings = []
        for figure in self.figures:
            drawn = canvas(figure)
            drawings.append(vectors(drawn, figure))
            if folder is not None:
                drawn.set_layout_engine("none")  # it has been laid out
                (folder / f"{figure.name}.png").write_bytes(picture(drawn))
        environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(_TEMPLATES),
            autoescape=True,
            trim_blocks=True,
            lstrip_blocks=True,
            undefined=jinja2.StrictUndefined,
        )
        environment.filters |= {"script": _script, "sort_value": sort_value}
        citations = "\n\n".join([*self.citations, library_bibtex()])
        return environment.get_template("page.html").render(page=self, citations=citations, drawings=drawings)


def _script(value: Any) -> Any:
    """Return a value as JSON that may stand in a script element."""
    import markupsafe  # comes with jinja2

    return markupsafe.Markup(json.dumps(value, separators=(",", ":")).replace("<", "\\u003c"))
