"""A claim and what a study measured for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dsgd.report.tables import Table


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
        Whether the model is no better than always predicting the commonest label: it makes no claim.
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

    @property
    def verdict(self) -> str:
        """The outcome in a word or two: holds, exceeds, fails, undecided, no claim, not run."""
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
        "Claims", ("claim", "data", "claimed", "ours", "verdict"), rows,
        note if any(claim.trivial for claim in claims) else "", n_text=5,
    )  # fmt: skip
