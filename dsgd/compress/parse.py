"""Compressors by name, for the command line and tables of studies.

A package of its own makes its compressors known by names of their own, with entry points of the group
``dsgd.compressors``; see `dsgd.sync.resolve`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, Literal

from dsgd.compress.base import AbstractCompressor
from dsgd.compress.powersgd import DeMo, PowerSGD
from dsgd.compress.quantise import QSGD, AdaptiveThreshold, Half, MajorityVote, OneBit, Sign, TernGrad, Threshold
from dsgd.compress.residual import DGC, GTopK
from dsgd.compress.sparse import AdaComp, RandomK, TopK
from dsgd.errors import InvalidParameterError
from dsgd.named import Kind, part_of

#: What each name makes.
COMPRESSOR_NAMES: Final[Mapping[str, Callable[..., AbstractCompressor[Any]]]] = MappingProxyType(
    {
        "topk": TopK,
        "randomk": RandomK,
        "gtopk": GTopK,
        "dgc": DGC,
        "demo": DeMo,
        "adacomp": AdaComp,
        "threshold": Threshold,
        "adaptive-threshold": AdaptiveThreshold,
        "qsgd": QSGD,
        "terngrad": TernGrad,
        "onebit": OneBit,
        "sign": Sign,
        "vote": MajorityVote,
        "powersgd": PowerSGD,
        "fp16": Half,
        "bf16": lambda: Half("bfloat16"),
    }
)
#: Compressors, as texts name them.
COMPRESSORS: Final = Kind("compressor", AbstractCompressor, "dsgd.compress", COMPRESSOR_NAMES, "dsgd.compressors")


def parse_compressor(text: str) -> AbstractCompressor[Any] | Literal["auto"]:
    """Return the compressor that a text names.

    Parameters
    ----------
    text : str
        ``auto``; a name of `COMPRESSOR_NAMES` or of an entry point; or ``package.module:Name`` of a compressor of your
        own, which is imported: an instance, or a class. Parameters stand behind one more colon, the first with or
        without its name: ``topk:0.01``, ``dgc:density=0.01,momentum=0.5``.

    Raises
    ------
    InvalidParameterError
        The text names no compressor, or none that can be imported; or it has no such parameter, or its value is out of
        range.

    Examples
    --------
    >>> parse_compressor("topk:0.05")
    TopK(density=0.05, exact=True)
    """
    if text == "auto":
        return "auto"
    found: AbstractCompressor[Any] | None = part_of(COMPRESSORS, text, f"compressor {text!r}")
    if found is None:
        raise InvalidParameterError(
            f"No compressor {text!r}; give auto, {', '.join(COMPRESSORS.all_names())}, some of them with parameters "
            "(topk:0.01, dgc:density=0.01,momentum=0.5), or package.module:Name of a compressor of your own."
        )
    return found
