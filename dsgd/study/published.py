"""What sources publish of their methods: every statement once, with its figure, its place and its tolerance.

`published.toml` has the statements of each source and tables of published figures, `published.bib` the publications.
Whoever measures a statement, a study or `dsgd.study.claims`, makes a `dsgd.report.Claim` of it here: verdict and words
are the same wherever it is shown.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from dsgd.report import Claim, Publication
from dsgd.study.verdict import Interval, Margin

_BUSY: Final = "The machine was busy with other work, so its seconds decide nothing."
_ONCE: Final = "One run: nothing is known of the noise between runs."
_CROSSES: Final = "The interval over the runs crosses the margin."
_POINT: Final = "Computed, not measured: every run gives the same figure."


def as_times(value: float) -> str:
    """Return a factor as text, ``4.6x``."""
    return f"{value:.3g}x" if value < 1000 else f"{value:,.0f}x"


def as_percent(share: float) -> str:
    """Return a share as text, ``98.4%``."""
    return f"{share:.1%}"


def as_points(share: float) -> str:
    """Return a difference of shares as text, ``-0.31 points``."""
    return f"{100 * share:+.2f} points"


def as_number(value: float) -> str:
    """Return a number as text."""
    return f"{value:.4g}"


def _as_whole_percent(share: float) -> str:
    return f"{100 * share:.0f} %"


_FORMS: Final[Mapping[str, Callable[[float], str]]] = {
    "times": as_times, "percent": as_percent, "points": as_points, "number": as_number,
    "whole percent": _as_whole_percent,
}  # fmt: skip


@dataclass(frozen=True)
class Source:
    """A publication, and what of this library is its method."""

    key: str
    system: str
    publications: Sequence[Publication]
    implemented_by: str
    switched_on: str
    proposes: str

    @property
    def reference(self) -> str:
        """Authors, titles and years."""
        return "; ".join(map(str, self.publications)) or "The documentation of this library"

    @property
    def bibtex(self) -> list[str]:
        """Its BibTeX entries, with its key as theirs; a number follows in the second and later ones."""
        tails = ["", *(f"-{number}" for number in range(2, len(self.publications) + 1))]
        return [one.bibtex(f"{self.key}{tail}") for one, tail in zip(self.publications, tails, strict=False)]


@dataclass(frozen=True)
class Statement:
    """What a source states, and the range in which a measurement confirms it."""

    key: str
    source: Source
    text: str
    figure: str
    where: str
    margin: Margin
    form: Callable[[float], str]
    tolerance: str = ""

    def judged(
        self, data: str, found: Interval, note: str = "", *, trivial: bool = False, busy: bool = False,
        baseline: str = "",
    ) -> Claim:  # fmt: skip
        """Return the claim with the verdict of an interval."""
        verdict = "undecided" if busy and found.n else self.margin.verdict(found)
        if verdict == "undecided":
            note = f"{note} {_BUSY if busy else _ONCE if found.n == 1 else _CROSSES}".lstrip()
        elif not found.n:
            note = f"{note} {_POINT}".lstrip()
        interval = (found.estimate, found.low, found.high) if math.isfinite(found.high - found.low) else None
        return self.said(
            data, found.text(self.form), verdict, note, trivial=trivial, baseline=baseline, interval=interval
        )

    def said(
        self, data: str, ours: str, verdict: str, note: str, *, trivial: bool = False, baseline: str = "",
        interval: tuple[float, float, float] | None = None,
    ) -> Claim:  # fmt: skip
        """Return the claim with a verdict that was come to elsewhere; see `judged`."""
        is_open = trivial or verdict in ("undecided", "not run")
        return Claim(
            self.text, data, self.figure, ours, None if is_open else verdict == "holds", note, trivial,
            undecided=verdict == "undecided" and not trivial, exceeds=verdict == "exceeds" and not trivial,
            key=self.key, system=self.source.system, baseline=baseline, interval=interval,
        )  # fmt: skip

    def not_run(self, data: str, note: str) -> Claim:
        """Return the claim that nothing was measured for, with what it needs."""
        return self.said(data, "-", "not run", note)


def _read_publications(text: str) -> dict[str, Publication]:
    """Return the entries of a BibTeX file that has each field on a line of its own, by key."""
    found = {}
    for key, body in re.findall(r"^@\w+\{([^,]+),\n(.*?)^\}", text, flags=re.MULTILINE | re.DOTALL):
        fields = dict(re.findall(r"^  (\w+) = \{+(.*?)\}+,$", body, flags=re.MULTILINE))
        found[key] = Publication(
            tuple(fields["author"].split(" and ")), fields["title"], int(fields["year"]) if "year" in fields else None,
            fields.get("eprint", ""), fields.get("booktitle", ""),
        )  # fmt: skip
    return found


def _read_source(key: str, table: Mapping[str, Any], publications: Mapping[str, Publication]) -> list[Statement]:
    """Return the statements of a source."""
    own = [one for name, one in publications.items() if re.fullmatch(rf"{key}(-\d+)?", name)]
    about = {name: text for name, text in table.items() if isinstance(text, str)}
    source = Source(key=key, publications=tuple(own), **about)
    return [
        Statement(
            f"{key}/{name}", source, one["text"], one["figure"], one["where"], Margin(**one["margin"]),
            _FORMS.get(one["form"]) or one["form"].format, one.get("tolerance", ""),
        )
        for name, one in table.items()
        if isinstance(one, dict)
    ]  # fmt: skip


_HERE: Final = Path(__file__)
_TABLES: Final = tomllib.loads(_HERE.with_suffix(".toml").read_text(encoding="utf-8"))
#: Tables of published figures, by source.
FIGURES: Final[Mapping[str, Any]] = MappingProxyType(_TABLES.pop("data"))
_PUBLICATIONS: Final = _read_publications(_HERE.with_suffix(".bib").read_text(encoding="utf-8"))
#: All statements by their key, source by source.
STATEMENTS: Final[Mapping[str, Statement]] = MappingProxyType(
    {one.key: one for key, table in _TABLES.items() for one in _read_source(key, table, _PUBLICATIONS)}
)
#: All sources by their key.
SOURCES: Final[Mapping[str, Source]] = MappingProxyType({one.source.key: one.source for one in STATEMENTS.values()})


def statements(*keys: str) -> tuple[Statement, ...]:
    """Return the statements with these keys; that of a source stands for all that it states."""
    return tuple(one for key in keys for one in STATEMENTS.values() if key in (one.key, one.source.key))


def sources_of(methods: Iterable[str]) -> list[Source]:
    """Return the sources of some methods."""
    classes = {word for method in methods for word in re.findall(r"\w+", method)}
    return [source for source in SOURCES.values() if source.implemented_by.rpartition(".")[2] in classes]


def citations(sources: Iterable[Source]) -> list[str]:
    """Return the BibTeX entries of some sources, each once."""
    return list(dict.fromkeys(entry for source in sources for entry in source.bibtex))
