"""Compressors of the vectors that ranks exchange: one file each.

Collectives and strategies call them. Begin with `base`, then `half`; `feedback` sends later what another leaves out.
"""

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
