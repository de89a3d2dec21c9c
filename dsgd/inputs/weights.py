"""Checks of sample weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from dsgd.errors import InvalidDataError
from dsgd.types import AnyArray


def check_sample_weight(sample_weight: Any, X: Any) -> AnyArray | None:
    """Check the weights of rows."""
    if sample_weight is None:
        return None
    weights = np.asarray(sample_weight, dtype=X.dtype)
    if weights.ndim == 0:
        weights = np.full(X.shape[0], weights)
    if weights.ndim != 1:
        raise InvalidDataError(f"Sample weights must be 1D array or scalar, got {weights.ndim}D array.")
    if weights.shape[0] != X.shape[0]:
        raise InvalidDataError(f"sample_weight.shape == {weights.shape}, expected ({X.shape[0]},)!")
    if not np.isfinite(weights).all():
        raise InvalidDataError("Input sample_weight contains NaN or infinity.")
    if (weights < 0).any():
        raise InvalidDataError("Negative values in data passed to `sample_weight`.")
    return weights


def check_any_weight(weights: AnyArray | None) -> None:
    """Raise `InvalidDataError` where all rows have the weight zero."""
    if weights is not None and not weights.any():
        raise InvalidDataError("Sample weights must contain at least one non-zero number.")
