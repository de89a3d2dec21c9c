"""Compressors of the vectors that ranks exchange: one file for each family.

Collectives and strategies call them. Begin with `base`, then `quantise`; `feedback` sends later what another leaves
out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

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

_HOMES: Final = {
    "COMPRESSOR_NAMES": "dsgd.compress.parse",
    "DGC": "dsgd.compress.residual",
    "QSGD": "dsgd.compress.quantise",
    "AbstractCompressor": "dsgd.compress.base",
    "AbstractMemory": "dsgd.compress.base",
    "AdaComp": "dsgd.compress.sparse",
    "AdaptiveThreshold": "dsgd.compress.signs",
    "DGCMemory": "dsgd.compress.residual",
    "DeMo": "dsgd.compress.powersgd",
    "DeMoMemory": "dsgd.compress.powersgd",
    "ErrorFeedback": "dsgd.compress.base",
    "FeedbackMemory": "dsgd.compress.base",
    "GTopK": "dsgd.compress.residual",
    "GTopKMemory": "dsgd.compress.residual",
    "Half": "dsgd.compress.quantise",
    "Identity": "dsgd.compress.base",
    "Layerwise": "dsgd.compress.layerwise",
    "LayerwiseMemory": "dsgd.compress.layerwise",
    "MajorityVote": "dsgd.compress.signs",
    "NoMemory": "dsgd.compress.base",
    "NonZero": "dsgd.compress.sparse",
    "OneBit": "dsgd.compress.signs",
    "PowerMemory": "dsgd.compress.powersgd",
    "PowerSGD": "dsgd.compress.powersgd",
    "RandomK": "dsgd.compress.sparse",
    "ResidualMemory": "dsgd.compress.sparse",
    "Sign": "dsgd.compress.signs",
    "StreamMemory": "dsgd.compress.sparse",
    "TernGrad": "dsgd.compress.quantise",
    "Threshold": "dsgd.compress.signs",
    "TopK": "dsgd.compress.sparse",
    "VoteMemory": "dsgd.compress.signs",
    "parse_compressor": "dsgd.compress.parse",
}

__getattr__ = loaded_on_use(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
