"""What to cite: a publication as text and as BibTeX, and the entry of this library.

Only what is known of a publication is written: a list of authors that is not whole ends in "others", and a year or a
place that is not known is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Final

#: Title and authors of this library, those of CITATION.cff.
LIBRARY_TITLE: Final = "dsgd: parallel SGD and SVMs on Dask with a tunable model synchronisation frequency"
LIBRARY_AUTHORS: Final = "The dsgd developers"
_OTHERS: Final = "others"


@dataclass(frozen=True)
class Publication:
    """A publication.

    Parameters
    ----------
    authors : sequence of str
        Surnames in their order; the last is ``"others"`` where there are more.
    title : str
        The title.
    year : int or None, default None
        When it was published.
    arxiv : str, default ""
        Its number at arXiv.
    venue : str, default ""
        The conference.
    """

    authors: Sequence[str]
    title: str
    year: int | None = None
    arxiv: str = ""
    venue: str = ""

    def __str__(self) -> str:
        """Return it in a line: authors, title, year and number."""
        *first, last = self.authors
        joint = " et al." if last == _OTHERS else f" and {last}"
        names = ", ".join(first) + joint if first else last
        when = " ".join(filter(None, (self.venue, str(self.year or ""))))
        number = f" (arXiv {self.arxiv})" if self.arxiv else ""
        return ", ".join(filter(None, (names, self.title, when))) + number

    def bibtex(self, key: str) -> str:
        """Return its BibTeX entry.

        Parameters
        ----------
        key : str
            The key of the entry.
        """
        fields = {
            "author": " and ".join(self.authors),
            "title": f"{{{self.title}}}",  # in braces of its own: styles leave its capitals alone
            "booktitle": self.venue,
            "year": str(self.year or ""),
            "eprint": self.arxiv,
            "archiveprefix": "arXiv" if self.arxiv else "",
        }
        return _entry("inproceedings" if self.venue else "misc", key, fields)


def library_bibtex() -> str:
    """Return the BibTeX entry of this library, in the installed version."""
    fields = {
        "author": f"{{{LIBRARY_AUTHORS}}}",  # one name, not given names and a surname
        "title": f"{{{LIBRARY_TITLE}}}",
        "note": f"version {version('dsgd')}",
    }
    return _entry("misc", "dsgd", fields)


def _entry(kind: str, key: str, fields: dict[str, str]) -> str:
    lines = [f"  {name} = {{{value}}}," for name, value in fields.items() if value]
    return "\n".join([f"@{kind}{{{key},", *lines, "}"])
