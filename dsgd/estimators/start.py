"""Where training begins: at zero, at given coefficients, at a fitted model, or where ``partial_fit`` has left off."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dsgd.errors import InvalidDataError
from dsgd.runtime.checkpoints.checkpoint import SavedState
from dsgd.types import AnyArray, IntVector

__all__ = ["Start", "initial"]


@dataclass(frozen=True)
class Start:
    """Where training begins: a model, what earlier calls of ``partial_fit`` have left, and what watches it.

    Parameters
    ----------
    is_first : bool
        Whether there is no earlier call.
    is_part : bool
        Whether this is one: then there is one epoch.
    coef, intercept : array or None
        The model; None is zero.
    t : float
        The step counter.
    averaged : tuple of array or None
        The averaged model.
    n_averaged : int
        Steps of a rank that it is the mean of.
    absent : array of int, shape (n_outputs,), or None
        At how many of them each output was not there yet; None where all were.
    left : SavedState or None
        The state of the ranks.
    validation : tuple or None
        Validation rows, (X_val, y_val, sample_weight_val), that are not among those to train on.
    classes : array or None
        The labels that the outputs of the model are for, sorted; None where there is no model from before, or no label.
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
    """Return coefficients or intercepts to begin with, in this shape; zeros for None.

    Raises
    ------
    InvalidDataError
        There are not as many, or they are no numbers.
    """
    if value is None:
        return np.zeros(shape, dtype=dtype)
    try:
        array = np.asarray(value.toarray() if hasattr(value, "toarray") else value, dtype=dtype)
    except (TypeError, ValueError) as error:
        raise InvalidDataError(f"Provided {name} holds other things than numbers: {error}.") from error
    if array.size != int(np.prod(shape)):
        raise InvalidDataError(f"Provided {name} does not match dataset: shape {array.shape}, expected {shape}.")
    return array.reshape(shape)
