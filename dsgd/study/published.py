"""What sources publish of their methods, and the verdict on it: holds, exceeds, fails, undecided, or no claim.

`published.toml` has the statements of each source, every statement once with its figure, its place and its tolerance,
and tables of published figures; `published.bib` the publications. Whoever measures a statement, a study or
`dsgd.study.claims`, makes a `dsgd.report.Claim` of it here: verdict and words are the same wherever it is shown.

Problem: a figure on the right side of a margin says little if the next run may lie on the other side.

Every measured figure has a 95 % interval over the seeds or repetitions that both sides of a comparison share: Student's
t of the paired differences, or of the logarithms of the paired ratios. Few repetitions make it wide, and one run has
none. Computed figures, such as counts of bytes, are points. A resampled median would be narrower: of three runs it
covers three cases in four.

The verdict is that of the whole interval. It *holds* inside the published range, *exceeds* above it and *fails* below
it; an interval that crosses a margin is *undecided*, and so are seconds of a machine that was busy with other work.
What a control passes, which must fail, is *no claim*, as is a model that only predicts the commonest label. Identities
are *arithmetic*; what an assumption decides is an *assumption*.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import numpy as np
from scipy.special import stdtrit

from dsgd.report import Claim, Publication, is_busy
from dsgd.types import FloatVector

_SHARE: Final = 0.95


@dataclass(frozen=True)
class Interval:
    """A figure with its confidence interval."""

    estimate: float
    low: float
    high: float
    n: int = 0

    def mapped(self, change: Callable[[float], float]) -> Interval:
        """Return the figure after a monotonic change."""
        ends = sorted((change(self.low), change(self.high)))
        return Interval(change(self.estimate), ends[0], ends[1], self.n)

    def text(self, form: Callable[[float], str]) -> str:
        """Return the figure with its interval, ``4.6x (4.1x to 5.2x)``."""
        if self.n == 1 or form(self.low) == form(self.high):
            return form(self.estimate)
        return f"{form(self.estimate)} ({form(self.low)} to {form(self.high)})"


@dataclass(frozen=True)
class Margin:
    """The range of figures in which a claim holds."""

    least: float = -math.inf
    published: float = math.inf
    most: float = math.inf

    def verdict(self, found: Interval) -> str:
        """Return ``"holds"``, ``"exceeds"``, ``"fails"`` or ``"undecided"``."""
        if found.n == 1:
            return "undecided"
        if found.high < self.least or found.low > self.most:
            return "fails"
        if found.low < self.least or found.high > self.most:
            return "undecided"
        if found.low > self.published:
            return "exceeds"
        return "holds" if found.high <= self.published else "undecided"


def exact(value: float) -> Interval:
    """Return a figure that is the same in every run, such as a count."""
    return Interval(value, value, value)


def average(found: Mapping[Any, float]) -> Interval | None:
    """Return the mean of a figure over its repetitions; None if there are none."""
    return _mean(list(found.values()))


def difference(ours: Mapping[Any, float], other: Mapping[Any, float]) -> Interval | None:
    """Return a figure minus another over their common repetitions; None if they share none."""
    return _mean([ours[run] - other[run] for run in ours if run in other])


def ratio(above: Mapping[Any, float], below: Mapping[Any, float]) -> Interval | None:
    """Return the ratio of two figures over the common repetitions in which both are positive and finite."""
    pairs = [(above[run], below[run]) for run in above if run in below]
    logs = [math.log(ours / other) for ours, other in pairs if 0 < ours < math.inf and 0 < other < math.inf]
    found = _mean(logs)
    return None if found is None else found.mapped(lambda value: math.exp(min(value, 700.0)))


def largest(found: Iterable[Interval]) -> Interval:
    """Return the largest of several figures: it is above each of their lower ends, and below the highest upper end."""
    figures = list(found)
    estimate, low, high = (max(getattr(one, name) for one in figures) for name in ("estimate", "low", "high"))
    return Interval(estimate, low, high, max(one.n for one in figures))


def across(found: Sequence[Interval | None], n: int) -> Interval | None:
    """Return a figure over several problems: their mean, from the lowest lower end to the highest upper end.

    So it lies within a margin where that of each problem does. None if one of them has none; `n` seeds each.
    """
    figures = [one for one in found if one is not None]
    if len(figures) < len(found) or not figures:
        return None
    mean = float(np.mean([one.estimate for one in figures]))
    return Interval(mean, min(one.low for one in figures), max(one.high for one in figures), n)


def sampled(found: Interval | None, by_row: FloatVector) -> Interval | None:
    """Return a mean over test rows, uncertain by the repetitions, with the uncertainty of having drawn these rows."""
    if found is None:
        return None
    drawn = stdtrit(np.inf, 0.5 + _SHARE / 2) * float(np.std(by_row)) / math.sqrt(len(by_row))
    half = math.hypot(found.high - found.estimate, drawn)
    return Interval(found.estimate, found.estimate - half, found.estimate + half, found.n)


def were_busy(rows: Sequence[dict[str, Any]]) -> bool:
    """Return whether the machine was busy with other work while it made rows whose seconds count."""
    return rows[-1].get("cluster", "local") == "local" and is_busy(rows)


def _mean(values: Sequence[float]) -> Interval | None:
    n = len(values)
    if not n:
        return None
    mean = float(np.mean(values))
    if n == 1:
        return Interval(mean, -math.inf, math.inf, 1)
    half = float(stdtrit(n - 1, 0.5 + _SHARE / 2) * np.std(values, ddof=1) / math.sqrt(n))
    return Interval(mean, mean - half, mean + half, n)


_BUSY: Final = "The machine was busy with other work, so its seconds decide nothing."
_ONCE: Final = "One run: nothing is known of the noise between runs."
_CROSSES: Final = "The interval over the runs crosses the margin."
_ASSUMED: Final = "Only a part of the assumed range lies within the margin."
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


#: Verdicts that confirm a statement.
GOOD: Final = ("holds", "exceeds")


@dataclass(frozen=True)
class Control:
    """What must fail a statement, measured beside the method: its name, its figure, its verdict, and of what it is."""

    name: str
    found: Interval | None
    verdict: str
    of: str = ""

    def text(self, form: Callable[[float], str]) -> str:
        """Return the figure and the name."""
        shown = "-" if self.found is None else as_times(self.found.estimate) if self.of else form(self.found.estimate)
        return f"{self.name}: {f'{self.of} ' if self.of else ''}{shown}, {self.verdict}"


#: What figures "up to N" have in common, wherever they are published.
_UP_TO: Final = "Up to N, by one rule: at least half of N, and not more than N; of several data the largest counts."


@dataclass(frozen=True)
class Statement:
    """What a source states, and the range in which a measurement confirms it.

    Parameters
    ----------
    kind : {"", "arithmetic", "assumption"}
        Arithmetic follows from the definition and is counted apart. What rests on an assumption is measured over its
        stated range, and decided only where all of that range agrees.
    up_to : bool
        Whether it is published as "up to N".
    """

    key: str
    source: Source
    text: str
    figure: str
    where: str
    margin: Margin
    form: Callable[[float], str]
    tolerance: str = ""
    kind: str = ""
    up_to: bool = False

    def control(self, name: str, found: Interval | None) -> Control:
        """Return what must fail this statement, with the verdict of its figure."""
        return Control(name, found, self.margin.verdict(found) if found else "fails")

    def judged(
        self,
        data: str,
        found: Interval | None,
        note: str = "",
        *,
        trivial: bool = False,
        busy: bool = False,
        baseline: str = "",
        verdict: str = "",
        controls: Sequence[Control] = (),
        tuned: str = "",
    ) -> Claim:
        """Return the claim with the verdict of an interval, or a given one; of none it is not run, the note says why.

        Whatever the verdict, a control that passes makes it no claim, and one that may pass leaves it undecided.
        """
        if found is None and not verdict:
            return self.not_run(data, note)
        ours = found or Interval(math.nan, -math.inf, math.inf)
        verdict = "undecided" if busy and ours.n else verdict or self.margin.verdict(ours)
        if verdict == "undecided":
            note = f"{note} {_BUSY if busy else _ONCE if ours.n == 1 else _CROSSES}".lstrip()
        elif not ours.n and found:
            note = f"{note} {_POINT}".lstrip()
        if verdict in GOOD and self.kind == "arithmetic":
            verdict = "arithmetic"
        elif verdict == "undecided" and self.kind == "assumption" and not busy:
            verdict, note = "assumption", note.replace(_CROSSES, _ASSUMED)
        for one in controls if verdict in GOOD else ():
            if one.verdict in (*GOOD, "undecided"):
                passes = one.verdict in GOOD
                note = f"{note} Its control, {one.name}, {'passes' if passes else 'may pass'} too."
                verdict = "no claim" if passes else "undecided"
        interval = (ours.estimate, ours.low, ours.high) if math.isfinite(ours.high - ours.low) else None
        shown = "; ".join(one.text(self.form) for one in controls)
        made = self.said(
            data, ours.text(self.form) if found else "diverged", verdict, note, trivial=trivial, baseline=baseline,
            interval=interval,
        )  # fmt: skip
        return replace(made, control=shown, tuned=tuned, seeds=ours.n)

    def said(
        self,
        data: str,
        ours: str,
        verdict: str,
        note: str,
        *,
        trivial: bool = False,
        baseline: str = "",
        interval: tuple[float, float, float] | None = None,
    ) -> Claim:
        """Return the claim with a verdict that was come to elsewhere; see `judged`."""
        trivial = trivial or verdict == "no claim"
        is_open = trivial or verdict in ("undecided", "not run", "arithmetic", "assumption")
        return Claim(
            self.text,
            data,
            self.figure,
            ours,
            None if is_open else verdict == "holds",
            note,
            trivial,
            undecided=verdict == "undecided" and not trivial,
            exceeds=verdict == "exceeds" and not trivial,
            key=self.key,
            system=self.source.system,
            baseline=baseline,
            interval=interval,
            apart=verdict if verdict in ("arithmetic", "assumption") and not trivial else "",
        )

    def not_run(self, data: str, note: str) -> Claim:
        """Return the claim that nothing was measured for, with what it needs."""
        return self.said(data, "-", "not run", note)


def _read_publications(text: str) -> dict[str, Publication]:
    """Return the entries of a BibTeX file that has each field on a line of its own, by key."""
    found = {}
    for key, body in re.findall(r"^@\w+\{([^,]+),\n(.*?)^\}", text, flags=re.MULTILINE | re.DOTALL):
        fields = dict(re.findall(r"^  (\w+) = \{+(.*?)\}+,$", body, flags=re.MULTILINE))
        found[key] = Publication(
            tuple(fields["author"].split(" and ")),
            fields["title"],
            int(fields["year"]) if "year" in fields else None,
            fields.get("eprint", ""),
            fields.get("booktitle", ""),
        )
    return found


def _read_source(key: str, table: Mapping[str, Any], publications: Mapping[str, Publication]) -> list[Statement]:
    """Return the statements of a source."""
    own = [one for name, one in publications.items() if re.fullmatch(rf"{key}(-\d+)?", name)]
    about = {name: text for name, text in table.items() if isinstance(text, str)}
    source = Source(key=key, publications=tuple(own), **about)
    return [
        Statement(
            f"{key}/{name}", source, one["text"], one["figure"], one["where"],
            Margin(one["up_to"] / 2.0, one["up_to"]) if "up_to" in one else Margin(**one["margin"]),
            _FORMS.get(one["form"]) or one["form"].format,
            f"{_UP_TO if 'up_to' in one else ''} {one.get('tolerance', '')}".strip(), one.get("kind", ""),
            "up_to" in one,
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


#: Is told how far a measure is.
Say: TypeAlias = Callable[[str], None]


@dataclass(frozen=True)
class Measure:
    """What is run for some statements.

    Parameters
    ----------
    name : str
        What it is called, and the folder of its rows.
    statements : sequence of Statement
        What it decides.
    what : str
        What is run, in a sentence or two.
    run : callable
        Takes a folder for rows, in which an interrupted measure goes on, and whom to tell of its progress; returns a
        claim or more for each statement.
    needs : str, default ""
        What statements that it returns no claim for would need.
    timed : bool, default False
        Whether seconds of this machine decide; other measures have the same outcome in every run.
    quick : Measure, optional
        What stands for it where minutes are too long; by default itself.
    """

    name: str
    statements: Sequence[Statement]
    what: str
    run: Callable[[Path, Say], list[Claim]]
    needs: str = ""
    timed: bool = False
    quick: Measure | None = None

    def claims(self, out: Path, say: Say) -> list[Claim]:
        """Return the claims of all statements, in their order; those that nothing was measured for are not run."""
        found = self.run(out, say)
        claims = []
        for statement in self.statements:
            own = [claim for claim in found if claim.key == statement.key]
            claims += own or [statement.not_run("-", self.needs)]
        return claims
