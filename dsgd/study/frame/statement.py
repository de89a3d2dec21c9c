"""A statement: what a source says of its method, and how a measurement is held against it.

A published figure is written down once, in a `Statement` of `dsgd.study.published`. Whoever measures it, a study or
`dsgd.study.claims`, makes a `dsgd.report.Claim` of it here: verdict and words are the same wherever it is shown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from dsgd.report import Claim, Publication
from dsgd.study.frame.verdict import Interval, Margin

__all__ = ["Source", "Statement", "as_number", "as_percent", "as_points", "as_times"]

_BUSY: Final = "The machine was busy with other work, so its seconds decide nothing."
_ONCE: Final = "One run: nothing is known of the noise between runs."
_CROSSES: Final = "The interval over the runs crosses the margin."
_POINT: Final = "Computed, not measured: every run gives the same figure."


@dataclass(frozen=True)
class Source:
    """A publication, and what of this library is its method.

    Parameters
    ----------
    key : str
        What ``dsgd claims --only`` calls it.
    system : str
        The name of the method or system.
    publications : sequence of Publication
        Where it is published; empty for this library.
    implemented_by : str
        The class, as the documentation names it.
    switched_on : str
        The argument that switches it on, as Python.
    proposes : str
        What it proposes, in a sentence.
    """

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
    """What a source states, and the range in which a measurement confirms it.

    Parameters
    ----------
    key : str
        ``SOURCE/NAME``, with the key of its source.
    source : Source
        Who says it.
    text : str
        What is said.
    figure : str
        The figure, as published.
    where : str
        The place in the source: abstract, section, table, or the data behind a figure.
    margin : Margin
        The range in which it holds.
    form : callable
        Writes a figure.
    tolerance : str, default ""
        Why the range is that one, where it is not the published figure itself.
    """

    key: str
    source: Source
    text: str
    figure: str
    where: str
    margin: Margin
    form: Callable[[float], str]
    tolerance: str = ""

    def judged(
        self,
        data: str,
        found: Interval,
        note: str = "",
        *,
        trivial: bool = False,
        busy: bool = False,
        baseline: str = "",
    ) -> Claim:
        """Return the claim with the verdict of an interval.

        Parameters
        ----------
        data : str
            What it was measured on.
        found : Interval
            What was measured.
        note : str, default ""
            What to know before believing either figure.
        trivial : bool, default False
            Whether the model is no better than always predicting the commonest label.
        busy : bool, default False
            Whether seconds were measured on a busy machine.
        baseline : str, default ""
            What needs no method at all reaches.
        """
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
        """Return the claim with a verdict that was come to elsewhere; see `judged`.

        Parameters
        ----------
        data, ours, note : str
            What it was measured on, what was measured, and what to know of it.
        verdict : {"holds", "exceeds", "fails", "undecided", "not run"}
            The verdict.
        trivial, baseline
            See `judged`.
        interval : tuple of float, optional
            The figure and its 95 % interval.
        """
        is_open = trivial or verdict in ("undecided", "not run")
        return Claim(
            self.text, data, self.figure, ours, None if is_open else verdict == "holds", note, trivial,
            undecided=verdict == "undecided" and not trivial, exceeds=verdict == "exceeds" and not trivial,
            key=self.key, system=self.source.system, baseline=baseline, interval=interval,
        )  # fmt: skip

    def not_run(self, data: str, note: str) -> Claim:
        """Return the claim that nothing was measured for, with what it needs."""
        return self.said(data, "-", "not run", note)


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
