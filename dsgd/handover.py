"""How each part of a rank's state is handed over when ranks are lost or join.

Problem: a mean over ranks is right for models, and wrong for what is summed over ranks (a mean of residuals would lose
part of them or send them twice), for what all of them have alike, and for what belongs to the number of ranks.

Each array of a state says it where it is declared::

    residual: FloatVector = field(metadata=SUMMED)

- nothing, for a float: every rank starts from the mean of all, weighted by rows;
- `SUMMED`: what all have together stays, and each rank gets its share of it, by its rows. For what is in the unit of a
  sum over ranks: vectors that came with their weights already, as those that compressors keep;
- `ALIKE`: all ranks have the same array, and so will the new ones, to the bit. So is whatever is no float;
- `OWN`: what the rank begins with is right, and what others had is not: what follows from its number or from how many
  there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field
from typing import Any, Final, Literal

from dsgd.types import AnyArray

__all__ = ["ALIKE", "OWN", "SUMMED", "Handover", "handover_of"]

Handover = Literal["mean", "sum", "same", "own"]
_KEY: Final = "handover"

SUMMED: Final[Mapping[str, Handover]] = {_KEY: "sum"}
ALIKE: Final[Mapping[str, Handover]] = {_KEY: "same"}
OWN: Final[Mapping[str, Handover]] = {_KEY: "own"}


def handover_of(declared: Field[Any], array: AnyArray) -> Handover:
    """Return what becomes of an array that was declared as a field of a state."""
    how: Handover = declared.metadata.get(_KEY, "mean" if array.dtype.kind == "f" else "same")
    return how
