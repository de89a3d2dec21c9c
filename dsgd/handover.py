"""How each part of a rank's state is handed over when ranks are lost or join.

A mean over ranks is right for models, and wrong for state that is summed over ranks, equal on all of them, or dependent
on their number. Each array of a state says it where it is declared::

    residual: FloatVector = field(metadata=SUMMED)

- nothing, for a float: every rank starts from the mean of all, weighted by rows;
- `SUMMED`: the sum over ranks stays, and each rank gets its share of it, by its rows. For vectors in the unit of a sum
  over ranks, which are weighted already, such as the memory of compressors;
- `ALIKE`: all ranks have the same array, and the new ones get it to the bit. Arrays that are not floats are treated so;
- `OWN`: a new rank keeps its initial value instead of taking that of others, because the value follows from its number
  or from the number of ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field
from typing import Any, Final, Literal

from dsgd.types import AnyArray

Handover = Literal["mean", "sum", "same", "own"]
_KEY: Final = "handover"

SUMMED: Final[Mapping[str, Handover]] = {_KEY: "sum"}
ALIKE: Final[Mapping[str, Handover]] = {_KEY: "same"}
OWN: Final[Mapping[str, Handover]] = {_KEY: "own"}


def handover_of(declared: Field[Any], array: AnyArray) -> Handover:
    """Return what becomes of an array that was declared as a field of a state."""
    how: Handover = declared.metadata.get(_KEY, "mean" if array.dtype.kind == "f" else "same")
    return how
