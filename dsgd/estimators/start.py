"""Where training begins: at zero, at given coefficients, at a fitted model, or where ``partial_fit`` has left off."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dsgd.errors import InvalidDataError
from dsgd.runtime.checkpoints.checkpoint import SavedState
from dsgd.types import AnyArray, IntVector


@dataclass(frozen=True)
class Start:
    """Where training begins: a model, what earlier calls of ``partial_fit`` have left, and what watches it.

    - `absent`, shape (n_outputs,): at how many of them each output was not there yet; None where all were.
    """

    is_first: bool = True
    is_part: bool = False
    coef: AnyArray | None = None
    intercept: AnyArray | None = None
    t: float = 1.0
    averaged: tuple[AnyArray, AnyArray] | None = None
    n_averaged: int = 0
    absent: IntVector | None = None
    left: SavedState | None = None
    validation: tuple[Any, Any, Any] | None = None
    classes: AnyArray | None = None


def initial(value: Any, shape: tuple[int, ...], name: str, dtype: str) -> AnyArray:
    """Return coefficients or intercepts to begin with, in this shape; zeros for None."""
    if value is None:
        return np.zeros(shape, dtype=dtype)
    try:
        array = np.asarray(value.toarray() if hasattr(value, "toarray") else value, dtype=dtype)
    except (TypeError, ValueError) as error:
        raise InvalidDataError(f"Provided {name} holds other things than numbers: {error}.") from error
    if array.size != int(np.prod(shape)):
        raise InvalidDataError(f"Provided {name} does not match dataset: shape {array.shape}, expected {shape}.")
    return array.reshape(shape)
