"""The page of a study: one HTML file that needs nothing but itself, the same for all studies."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from dsgd.errors import DsgdError
from dsgd.report import Claim, Table
from dsgd.study.rows import Row

__all__ = ["Page", "Picture", "check_extras"]

_EXTRAS: Final = ("matplotlib", "jinja2")
_TEMPLATES: Final = Path(__file__).parent / "templates"


def check_extras() -> None:
    """Raise if what the figures and the report need is not installed.

    Raises
    ------
    DsgdError
        Names what is missing and how to get it.
    """
    missing = [name for name in _EXTRAS if find_spec(name) is None]
    if missing:
        raise DsgdError(f"the study's report needs {' and '.join(missing)}: run `pip install 'dsgd[study]'`")


@dataclass(frozen=True)
class Picture:
    """A figure of the page.

    Parameters
    ----------
    name : str
        Name of its file, without the ending.
    title : str
        Heading.
    caption : str
        How to read it.
    light, dark : bytes
        The PNG on a light and on a dark ground.
    """

    name: str
    title: str
    caption: str
    light: bytes
    dark: bytes


@dataclass(frozen=True)
class Page:
    """What a report says.

    Parameters
    ----------
    verdict : str
        The answer of the study in a sentence or two.
    facts : sequence of (str, str)
        What was run, where: names and texts.
    data : Table
        What it was run on.
    claims : sequence of Claim
        What was claimed, and whether it holds here.
    results : sequence of Table
        Tables that are open.
    more : sequence of Table
        Tables that are folded.
    doubts : sequence of str
        What makes the seconds hard to compare.
    """

    verdict: str
    facts: Sequence[tuple[str, str]]
    data: Table
    claims: Sequence[Claim]
    results: Sequence[Table]
    more: Sequence[Table]
    doubts: Sequence[str]

    def render(self, template: str, pictures: Sequence[Picture], rows: Sequence[Row]) -> str:
        """Return the page as HTML.

        Parameters
        ----------
        template : str
            Name of the template, which says what the study asks and whose claims it checks.
        pictures : sequence of Picture
            The figures.
        rows : sequence of dict
            All rows; the page offers them for download.
        """
        import jinja2

        environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(_TEMPLATES), autoescape=True, trim_blocks=True, lstrip_blocks=True,
            undefined=jinja2.StrictUndefined,
        )  # fmt: skip
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        figures = [
            {
                "name": picture.name,
                "title": picture.title,
                "caption": picture.caption,
                "light": _data(picture.light),
                "dark": _data(picture.dark),
            }
            for picture in pictures
        ]
        return environment.get_template(template).render(
            verdict=self.verdict,
            facts=self.facts,
            data=self.data,
            claims=self.claims,
            figures=figures,
            results=self.results,
            more=self.more,
            warnings=self.doubts,
            rows_address=_data(lines.encode(), "application/x-ndjson"),
            n_rows=len(rows),
        )

    def write(self, template: str, pictures: Sequence[Picture], rows: Sequence[Row], out: Path) -> Path:
        """Write ``report.html`` and ``figures/*.png`` into a folder and return the path of the report.

        Parameters
        ----------
        template : str
            Name of the template.
        pictures : sequence of Picture
            The figures.
        rows : sequence of dict
            All rows.
        out : pathlib.Path
            The folder.
        """
        folder = out / "figures"
        folder.mkdir(parents=True, exist_ok=True)
        for picture in pictures:
            (folder / f"{picture.name}.png").write_bytes(picture.light)
        path = out / "report.html"
        path.write_text(self.render(template, pictures, rows), encoding="utf-8")
        return path


def _data(content: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
