"""A measure: what is run for some statements, and the claims that come of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from dsgd.report import Claim
from dsgd.study.published import Statement

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
    """

    name: str
    statements: Sequence[Statement]
    what: str
    run: Callable[[Path, Say], list[Claim]]
    needs: str = ""
    timed: bool = False

    def claims(self, out: Path, say: Say) -> list[Claim]:
        """Return the claims of all statements, in their order; those that nothing was measured for are not run."""
        found = self.run(out, say)
        claims = []
        for statement in self.statements:
            own = [claim for claim in found if claim.key == statement.key]
            claims += own or [statement.not_run("-", self.needs)]
        return claims
