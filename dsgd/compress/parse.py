"""Compressors by name, for the command line and tables of studies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any, Final, Literal

from dsgd.compress.adacomp import AdaComp
from dsgd.compress.base import AbstractCompressor
from dsgd.compress.dgc import DGC
from dsgd.compress.gtopk import GTopK
from dsgd.compress.half import Half
from dsgd.compress.onebit import OneBit
from dsgd.compress.powersgd import PowerSGD
from dsgd.compress.qsgd import QSGD
from dsgd.compress.randomk import RandomK
from dsgd.compress.sign import MajorityVote, Sign
from dsgd.compress.terngrad import TernGrad
from dsgd.compress.topk import TopK
from dsgd.errors import InvalidParameterError

__all__ = ["COMPRESSOR_NAMES", "parse_compressor"]

#: What each name makes, and what the number after its colon is.
COMPRESSOR_NAMES: Final[Mapping[str, tuple[Callable[..., AbstractCompressor[Any]], Callable[[str], Any] | None]]] = (
    MappingProxyType(
        {
            "topk": (TopK, float),
            "randomk": (RandomK, float),
            "gtopk": (GTopK, float),
            "dgc": (DGC, float),
            "adacomp": (AdaComp, int),
            "qsgd": (QSGD, int),
            "terngrad": (TernGrad, None),
            "onebit": (OneBit, int),
            "sign": (Sign, None),
            "vote": (MajorityVote, None),
            "powersgd": (PowerSGD, int),
            "fp16": (Half, None),
            "bf16": (lambda: Half("bfloat16"), None),
        }
    )
)


def parse_compressor(text: str) -> AbstractCompressor[Any] | Literal["auto"]:
    """Return the compressor that a text names.

    Parameters
    ----------
    text : str
        ``auto``; a name of `COMPRESSOR_NAMES`, some with their first parameter after a colon: ``topk:0.01``; or
        ``package.module:Name`` of a compressor of your own, which is imported: an instance, or a class with defaults.

    Raises
    ------
    InvalidParameterError
        The text names no compressor, its number is out of range, or the named object cannot be imported or is none.

    Examples
    --------
    >>> parse_compressor("topk:0.05")
    TopK(density=0.05, exact=True)
    """
    if text == "auto":
        return "auto"
    name, colon, number = text.partition(":")
    if name in COMPRESSOR_NAMES:
        make, kind = COMPRESSOR_NAMES[name]
        if not colon:
            return make()
        if kind is not None:
            try:
                value = kind(number)
            except ValueError:
                value = None
            if value is not None:
                return make(value)
    elif name and number.isidentifier():
        return _imported(text)
    known = ", ".join(f"{name}:N" if kind else name for name, (_, kind) in COMPRESSOR_NAMES.items())
    raise InvalidParameterError(
        f"No compressor {text!r}; give auto, {known}, as topk:0.01, a name without a number, or package.module:Name "
        "of a compressor of your own."
    )


def _imported(text: str) -> AbstractCompressor[Any]:
    """Return the compressor, or the defaults of the class, that ``package.module:Name`` stands for."""
    module, _, name = text.partition(":")
    try:
        found = getattr(import_module(module), name)
        compressor = found() if isinstance(found, type) else found
    except (ImportError, AttributeError, TypeError) as error:
        raise InvalidParameterError(
            f"No compressor {text!r}: it cannot be imported, or not be made without parameters: {error}."
        ) from error
    if not isinstance(compressor, AbstractCompressor):
        raise InvalidParameterError(f"{text!r} is a {type(compressor).__name__}, which is not a compressor.")
    return compressor
