"""Compressors of the vectors that ranks exchange: one file for each family.

Collectives and strategies call them. Begin with `base`, then `quantise`; `feedback` sends later what another leaves
out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsgd.lazy import loaded_on_use

if TYPE_CHECKING:
    from dsgd.compress.base import AbstractCompressor, AbstractMemory, ErrorFeedback, FeedbackMemory, Identity, NoMemory
    from dsgd.compress.layerwise import Layerwise, LayerwiseMemory
    from dsgd.compress.parse import COMPRESSOR_NAMES, parse_compressor
    from dsgd.compress.powersgd import DeMo, DeMoMemory, PowerMemory, PowerSGD
    from dsgd.compress.quantise import QSGD, Half, TernGrad
    from dsgd.compress.residual import DGC, DGCMemory, GTopK, GTopKMemory
    from dsgd.compress.signs import AdaptiveThreshold, MajorityVote, OneBit, Sign, Threshold, VoteMemory
    from dsgd.compress.sparse import AdaComp, NonZero, RandomK, ResidualMemory, StreamMemory, TopK


__all__ = [
    "COMPRESSOR_NAMES",
    "DGC",
    "QSGD",
    "AbstractCompressor",
    "AbstractMemory",
    "AdaComp",
    "AdaptiveThreshold",
    "DGCMemory",
    "DeMo",
    "DeMoMemory",
    "ErrorFeedback",
    "FeedbackMemory",
    "GTopK",
    "GTopKMemory",
    "Half",
    "Identity",
    "Layerwise",
    "LayerwiseMemory",
    "MajorityVote",
    "NoMemory",
    "NonZero",
    "OneBit",
    "PowerMemory",
    "PowerSGD",
    "RandomK",
    "ResidualMemory",
    "Sign",
    "StreamMemory",
    "TernGrad",
    "Threshold",
    "TopK",
    "VoteMemory",
    "parse_compressor",
]


__getattr__ = loaded_on_use(
    __name__,
    {
        ".base": "AbstractCompressor AbstractMemory ErrorFeedback FeedbackMemory Identity NoMemory",
        ".layerwise": "Layerwise LayerwiseMemory",
        ".parse": "COMPRESSOR_NAMES parse_compressor",
        ".powersgd": "DeMo DeMoMemory PowerMemory PowerSGD",
        ".quantise": "QSGD Half TernGrad",
        ".residual": "DGC DGCMemory GTopK GTopKMemory",
        ".signs": "AdaptiveThreshold MajorityVote OneBit Sign Threshold VoteMemory",
        ".sparse": "AdaComp NonZero RandomK ResidualMemory StreamMemory TopK",
    },
)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
