"""Compressors of the vectors that ranks exchange: one file for each family.

Collectives and strategies call them. Begin with `base`, which also has the error feedback that sends later what
another compressor leaves out, then `quantise`.
"""

from typing import TYPE_CHECKING

from dsgd.lazy import loaded_on_use

if TYPE_CHECKING:
    from dsgd.compress.base import AbstractCompressor, AbstractMemory, ErrorFeedback, Identity, NoMemory
    from dsgd.compress.parse import COMPRESSOR_NAMES, parse_compressor
    from dsgd.compress.powersgd import DeMo, Layerwise, PowerSGD
    from dsgd.compress.quantise import QSGD, AdaptiveThreshold, Half, MajorityVote, OneBit, Sign, TernGrad, Threshold
    from dsgd.compress.residual import DGC, GTopK
    from dsgd.compress.sparse import AdaComp, NonZero, RandomK, TopK


__all__ = [
    "COMPRESSOR_NAMES",
    "DGC",
    "QSGD",
    "AbstractCompressor",
    "AbstractMemory",
    "AdaComp",
    "AdaptiveThreshold",
    "DeMo",
    "ErrorFeedback",
    "GTopK",
    "Half",
    "Identity",
    "Layerwise",
    "MajorityVote",
    "NoMemory",
    "NonZero",
    "OneBit",
    "PowerSGD",
    "RandomK",
    "Sign",
    "TernGrad",
    "Threshold",
    "TopK",
    "parse_compressor",
]


__getattr__ = loaded_on_use(__name__)
