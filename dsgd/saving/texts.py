"""Texts that name parts of training: a file may name those of this package, and no other code.

Parameters such as ``sync`` may be texts, which a fit resolves; ``package.module:Name`` is imported, and so is the entry
point of an installed package. A file from elsewhere must not choose what is imported, in a grid of candidates either.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from dsgd.errors import InvalidParameterError

#: Parameters that are or may become texts of `dsgd.named`.
_OF_PARTS: Final = frozenset({"compressor", "features", "optimizer", "sampling", "sync", "topology"})


def foreign_part(name: Any, value: Any) -> str | None:
    """Return a text in a value that names a part which is not of this package; None if there is none."""
    if not isinstance(name, str):
        return None
    parameter = name.rpartition("__")[2].removeprefix("param_")
    if parameter not in _OF_PARTS:
        return None
    return next((text for text in _texts(value) if not _is_own(parameter, text)), None)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _texts(name)
            yield from _texts(item)
    elif isinstance(value, np.ndarray):
        if value.dtype.kind in "OUT":
            yield from _texts(np.ma.getdata(value).ravel().tolist())
    elif isinstance(value, (list, tuple, frozenset)):
        for item in value:
            yield from _texts(item)


def _is_own(parameter: str, text: str) -> bool:
    """Return whether a text names a part of this package, or none at all."""
    if parameter not in ("sync", "optimizer"):
        return ":" not in text
    from dsgd.named import installed, part_of  # seldom needed: an SVM would load all strategies for it

    if parameter == "sync":
        from dsgd.sync.names import STRATEGY_KIND as KIND
    else:
        from dsgd.local.rules import OPTIMIZER_KIND as KIND
    if ":" not in text:
        return text in KIND.names or text not in installed(KIND.group)
    try:
        return part_of(replace(KIND, loads=False), text, text) is not None
    except InvalidParameterError:
        return False
