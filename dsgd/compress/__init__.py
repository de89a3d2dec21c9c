"""Compressors of the vectors that ranks exchange: one file for each family.

Collectives and strategies call them. Begin with `base`, then `quantise`; `feedback` sends later what another leaves
out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dsgd.lazy import loaded_on_use

if TYPE_CHECKING:
    from dsgd.compress.base import AbstractCompressor, AbstractMemory, NoMemory
    from dsgd.compress.demo import DeMo, DeMoMemory
    from dsgd.compress.feedback import ErrorFeedback, FeedbackMemory
    from dsgd.compress.identity import Identity
    from dsgd.compress.layerwise import Layerwise, LayerwiseMemory
    from dsgd.compress.parse import COMPRESSOR_NAMES, parse_compressor
    from dsgd.compress.powersgd import PowerMemory, PowerSGD
    from dsgd.compress.quantise import QSGD, Half, TernGrad
    from dsgd.compress.residual import DGC, DGCMemory, GTopK, GTopKMemory
    from dsgd.compress.signs import AdaptiveThreshold, MajorityVote, OneBit, Sign, Threshold, VoteMemory
    from dsgd.compress.sparsify import AdaComp, NonZero, RandomK, ResidualMemory, StreamMemory, TopK

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
    "AdaComp": "dsgd.compress.sparsify",
    "AdaptiveThreshold": "dsgd.compress.signs",
    "DGCMemory": "dsgd.compress.residual",
    "DeMo": "dsgd.compress.demo",
    "DeMoMemory": "dsgd.compress.demo",
    "ErrorFeedback": "dsgd.compress.feedback",
    "FeedbackMemory": "dsgd.compress.feedback",
    "GTopK": "dsgd.compress.residual",
    "GTopKMemory": "dsgd.compress.residual",
    "Half": "dsgd.compress.quantise",
    "Identity": "dsgd.compress.identity",
    "Layerwise": "dsgd.compress.layerwise",
    "LayerwiseMemory": "dsgd.compress.layerwise",
    "MajorityVote": "dsgd.compress.signs",
    "NoMemory": "dsgd.compress.base",
    "NonZero": "dsgd.compress.sparsify",
    "OneBit": "dsgd.compress.signs",
    "PowerMemory": "dsgd.compress.powersgd",
    "PowerSGD": "dsgd.compress.powersgd",
    "RandomK": "dsgd.compress.sparsify",
    "ResidualMemory": "dsgd.compress.sparsify",
    "Sign": "dsgd.compress.signs",
    "StreamMemory": "dsgd.compress.sparsify",
    "TernGrad": "dsgd.compress.quantise",
    "Threshold": "dsgd.compress.signs",
    "TopK": "dsgd.compress.sparsify",
    "VoteMemory": "dsgd.compress.signs",
    "parse_compressor": "dsgd.compress.parse",
}

__getattr__ = loaded_on_use(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
