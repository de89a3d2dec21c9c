"""What is published of messages without copies."""

from __future__ import annotations

from typing import Final

from dsgd.report import Publication
from dsgd.study.frame.statement import Source, Statement, as_percent, as_times
from dsgd.study.frame.verdict import Margin

__all__ = ["OVER_GENERAL", "OVER_TUNED", "SOURCE"]

#: The publication.
SOURCE: Final = Source(
    "zerocopy",
    "Zero-copy tensors",
    (
        Publication(
            ("Xue", "Miao", "Chen", "Wu", "Zhang", "Zhou"),
            "Fast distributed deep learning over RDMA",
            2019,
            venue="EuroSys",
            arxiv="1805.08430",
        ),
    ),
    "dsgd.SGDClassifier",
    'SGDClassifier(transport="shm", client=client)',
    "Tensors are written or read where the other process has them, and not passed through the buffers of an RPC.",
)

_BEST: Final = "The model with the largest gain counts."

#: Statements.
OVER_GENERAL: Final = Statement(
    "zerocopy/general",
    SOURCE,
    "Training is up to 25 times as fast as over a general RPC",
    "up to 25x",
    "abstract",
    Margin(25.0),
    as_times,
    f"The general RPC is that of Dask's workers, and zero copy are registered slots. {_BEST}",
)
OVER_TUNED: Final = Statement(
    "zerocopy/tuned",
    SOURCE,
    "Training is up to 169 % faster than over an RPC that is tuned for the medium",
    "up to 169%",
    "abstract",
    Margin(1.69),
    as_percent,
    f"The medium is memory here, and what is tuned for it a ring that copies in and out. {_BEST}",
)
