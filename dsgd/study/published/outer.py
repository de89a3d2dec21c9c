"""What is published of outer steps that hide their exchanges, or wait for a quorum alone."""

from __future__ import annotations

from typing import Final

from dsgd.report import Publication
from dsgd.study.frame.statement import Source, Statement, as_times
from dsgd.study.frame.verdict import Margin

__all__ = [
    "EAGER_HIDDEN",
    "EAGER_OBJECTIVE",
    "QUORUM_GOODPUT",
    "QUORUM_OBJECTIVE",
    "STREAMING_BYTES",
    "STREAMING_OBJECTIVE",
    "STREAMING_PEAK",
    "STREAMING_TIME",
]

_AS_LOW: Final = "A training objective within 5 % counts as equal."
_STREAMING: Final = Source(
    "streaming",
    "Streaming DiLoCo",
    (
        Publication(
            ("Douillard", "Donchev", "Rush", "others"),
            "Streaming DiLoCo with overlapping communication: towards a distributed free lunch",
            2025,
            arxiv="2501.18512",
        ),
    ),
    "dsgd.sync.StreamingDiLoCo",
    "sync=StreamingDiLoCo(every=512, fragments=4)",
    "The model is cut into fragments, each of which has its outer step at its own time, beside the local steps.",
)
_EAGER: Final = Source(
    "eager",
    "Eager DiLoCo",
    (
        Publication(
            ("Kale", "Douillard", "Donchev"),
            "Eager updates for overlapped communication and computation in DiLoCo",
            2025,
            arxiv="2502.12996",
        ),
    ),
    "dsgd.sync.EagerDiLoCo",
    "sync=EagerDiLoCo(every=500)",
    "The outer step takes the own change of this round and those of the others from the round before.",
)
_QUORUM: Final = Source(
    "decoupled",
    "Decoupled DiLoCo",
    (
        Publication(
            ("Douillard", "others"),
            "Decoupled DiLoCo: resilient, distributed AI training at scale",
            2026,
            venue="Google DeepMind",
        ),
    ),
    "dsgd.sync.DecoupledDiLoCo",
    "sync=DecoupledDiLoCo(every=500)",
    "Outer steps wait for the changes of a quorum of learners, so that one that is away holds up no other.",
)

#: Statements.
STREAMING_BYTES: Final = Statement(
    "streaming/bytes",
    _STREAMING,
    "An exchange of four bits every 100 steps takes two orders of magnitude less bandwidth than one a step",
    "100x",
    "abstract",
    Margin(100.0),
    as_times,
    "More is better: the figure has no upper end.",
)
STREAMING_PEAK: Final = Statement(
    "streaming/peak",
    _STREAMING,
    "In F fragments the longest exchange is an F-th of that of DiLoCo",
    "F times, here 4x",
    "abstract, without a figure",
    Margin(0.95 * 4, most=1.05 * 4),
    as_times,
    "A twentieth, for the headers of messages.",
)
STREAMING_TIME: Final = Statement(
    "streaming/time",
    _STREAMING,
    "Steps that go on during exchanges save time over DiLoCo",
    "less wall-clock time",
    "abstract, without a figure",
    Margin(1.0),
    as_times,
)
STREAMING_OBJECTIVE: Final = Statement(
    "streaming/objective",
    _STREAMING,
    "The loss is similar to that of an exchange a step",
    "similar quality",
    "abstract",
    Margin(most=1.05),
    as_times,
    _AS_LOW,
)
EAGER_HIDDEN: Final = Statement(
    "eager/hidden",
    _EAGER,
    "The outer step overlaps fully with the local ones: a round takes no longer than these",
    "fully overlapped",
    "abstract",
    Margin(most=1.05),
    as_times,
    "A twentieth more, for what is computed in an outer step.",
)
EAGER_OBJECTIVE: Final = Statement(
    "eager/objective",
    _EAGER,
    "The loss is that of DiLoCo",
    "competitive with DiLoCo",
    "abstract",
    Margin(most=1.05),
    as_times,
    _AS_LOW,
)
QUORUM_GOODPUT: Final = Statement(
    "decoupled/goodput",
    _QUORUM,
    "Where machines fail, 8 learners spend 88 % of the time on training, and 58 % if all wait for all",
    "88 % beside 58 %, 1.5x",
    "simulation of 1.2 million chips",
    Margin(1.0),
    as_times,
    "How often machines fail decides the figure; more than 1x confirms the order.",
)
QUORUM_OBJECTIVE: Final = Statement(
    "decoupled/objective",
    _QUORUM,
    "The loss is that of DiLoCo after as many rows",
    "promise of this library",
    "page of the source",
    Margin(most=1.05),
    as_times,
    _AS_LOW,
)
