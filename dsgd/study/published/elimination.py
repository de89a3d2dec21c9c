"""What is published of sample elimination for SVMs.

Only the abstracts were available, so that neither tables nor tolerances could be compared: the shapes of the claims are
checked, not their numbers.
"""

from __future__ import annotations

from typing import Final

from dsgd.report import Publication
from dsgd.study.frame.statement import Source, Statement
from dsgd.study.frame.verdict import Margin

__all__ = ["MANY_PROCESSES", "OVER_SEQUENTIAL", "SAVED", "SAVED_ON_RANKS", "SOURCE", "as_whole_percent"]


def as_whole_percent(share: float) -> str:
    """Return a share as text, ``31 %``."""
    return f"{100 * share:.0f} %"


#: The publications.
SOURCE: Final = Source(
    "shrinking",
    "Adaptive shrinking",
    (
        Publication(
            ("Narasimhan", "Vishnu", "Holder", "Hoisie"),
            "Fast support vector machines using parallel adaptive shrinking on distributed systems",
            arxiv="1406.5161",
        ),
        Publication(
            ("Vishnu", "Narasimhan", "Holder", "Kerbyson", "Hoisie"),
            "Fast and accurate support vector machines on large scale systems",
            2015,
            venue="IEEE Cluster",
        ),
    ),
    "dsgd.svm.SVC",
    'SVC(elimination="multi", client=client)',
    "Samples that will not become support vectors are left out of the solver's work, and checked again at the end.",
)

#: Statements.
OVER_SEQUENTIAL: Final = Statement(
    "shrinking/sequential",
    SOURCE,
    "Up to 26x faster than the sequential baseline",
    "26x (many nodes)",
    "abstract",
    Margin(26.0),
    "{:.1f}x".format,
)
SAVED: Final = Statement(
    "shrinking/saved",
    SOURCE,
    "30-60 % less time than the parallel baseline without elimination",
    "30-60 %, some sets",
    "abstract",
    Margin(0.3, 0.6),
    as_whole_percent,
)
SAVED_ON_RANKS: Final = Statement(
    "shrinking/saved-on-ranks",
    SOURCE,
    "The same on several ranks",
    "30-60 %",
    "abstract",
    Margin(0.3, 0.6),
    as_whole_percent,
)
MANY_PROCESSES: Final = Statement(
    "shrinking/processes",
    SOURCE,
    "The published algorithm scales to 4,096 processes: these are faster than half as many",
    "up to 4,096 processes",
    "abstract",
    Margin(1.1),
    "{:.2f}x".format,
    "Of the time on 2,048 processes; a tenth less is taken for a gain.",
)
