"""Compressors of the vectors that ranks exchange: one file each.

Collectives and strategies call them. Begin with `base`, then `half`; `feedback` sends later what another leaves out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dsgd.lazy import loaded_on_use

if TYPE_CHECKING:
    from dsgd.compress.adacomp import AdaComp, ResidualMemory
    from dsgd.compress.base import AbstractCompressor, AbstractMemory, NoMemory
    from dsgd.compress.demo import DeMo, DeMoMemory
    from dsgd.compress.dgc import DGC, DGCMemory
    from dsgd.compress.feedback import ErrorFeedback, FeedbackMemory
    from dsgd.compress.gtopk import GTopK, GTopKMemory
    from dsgd.compress.half import Half
    from dsgd.compress.identity import Identity
    from dsgd.compress.layerwise import Layerwise, LayerwiseMemory
    from dsgd.compress.nonzero import NonZero
    from dsgd.compress.onebit import OneBit
    from dsgd.compress.parse import COMPRESSOR_NAMES, parse_compressor
    from dsgd.compress.powersgd import PowerMemory, PowerSGD
    from dsgd.compress.qsgd import QSGD
    from dsgd.compress.randomk import RandomK, StreamMemory
    from dsgd.compress.sign import MajorityVote, Sign, VoteMemory
    from dsgd.compress.terngrad import TernGrad
    from dsgd.compress.topk import TopK
    from dsgd.compress.two_valued import AdaptiveThreshold, Threshold

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
    "DGC": "dsgd.compress.dgc",
    "QSGD": "dsgd.compress.qsgd",
    "AbstractCompressor": "dsgd.compress.base",
    "AbstractMemory": "dsgd.compress.base",
    "AdaComp": "dsgd.compress.adacomp",
    "AdaptiveThreshold": "dsgd.compress.two_valued",
    "DGCMemory": "dsgd.compress.dgc",
    "DeMo": "dsgd.compress.demo",
    "DeMoMemory": "dsgd.compress.demo",
    "ErrorFeedback": "dsgd.compress.feedback",
    "FeedbackMemory": "dsgd.compress.feedback",
    "GTopK": "dsgd.compress.gtopk",
    "GTopKMemory": "dsgd.compress.gtopk",
    "Half": "dsgd.compress.half",
    "Identity": "dsgd.compress.identity",
    "Layerwise": "dsgd.compress.layerwise",
    "LayerwiseMemory": "dsgd.compress.layerwise",
    "MajorityVote": "dsgd.compress.sign",
    "NoMemory": "dsgd.compress.base",
    "NonZero": "dsgd.compress.nonzero",
    "OneBit": "dsgd.compress.onebit",
    "PowerMemory": "dsgd.compress.powersgd",
    "PowerSGD": "dsgd.compress.powersgd",
    "RandomK": "dsgd.compress.randomk",
    "ResidualMemory": "dsgd.compress.adacomp",
    "Sign": "dsgd.compress.sign",
    "StreamMemory": "dsgd.compress.randomk",
    "TernGrad": "dsgd.compress.terngrad",
    "Threshold": "dsgd.compress.two_valued",
    "TopK": "dsgd.compress.topk",
    "VoteMemory": "dsgd.compress.sign",
    "parse_compressor": "dsgd.compress.parse",
}

__getattr__ = loaded_on_use(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
