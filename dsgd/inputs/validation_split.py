"""The rows that early stopping holds out: those of scikit-learn for the same ``random_state``."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from sklearn.model_selection import ShuffleSplit, StratifiedShuffleSplit
from sklearn.utils import _safe_indexing

from dsgd.errors import InvalidDataError
from dsgd.inputs.blocks import Block
from dsgd.inputs.frames import in_memory
from dsgd.inputs.rows import Rows, unpacked
from dsgd.inputs.simulated import holds_blocks
from dsgd.inputs.sources import is_distributed
from dsgd.types import AnyArray


def hold_out_as_sklearn(estimator: Any, block: Block, *, stratify: bool) -> AnyArray | None:
    """Return which rows are held out, bool, shape (n,).

    They are the first split of `sklearn.model_selection.StratifiedShuffleSplit`, or of `ShuffleSplit` for regression.

    - returned: None where classes are too small or too many for that split, or one row would be all: the rank draws
      its own.
    """
    X, y, weights = block
    n, fraction = X.shape[0], float(estimator.validation_fraction)
    n_held = math.ceil(fraction * n)
    if n_held >= n:
        raise InvalidDataError(
            f"Splitting {n} samples into a train set and a validation set with validation_fraction={fraction:g} leaves "
            f"{n - n_held} of them to train on. Lower validation_fraction, train on more rows, or leave "
            "early_stopping at False."
        )
    if n_held == 1 and not stratify:  # one row has no R2
        return None
    splitter = StratifiedShuffleSplit if stratify else ShuffleSplit
    try:
        _, rows = next(splitter(test_size=fraction, random_state=estimator.random_state).split(np.zeros((n, 1)), y))
    except ValueError:
        return None
    if weights is not None and not weights[rows].any():
        raise InvalidDataError(
            "The sample weights for validation set are all zero, consider using a different random state."
        )
    held_out = np.zeros(n, dtype=np.bool_)
    held_out[rows] = True
    return held_out


def split_off(estimator: Any, rows: tuple[Any, Any, Any]) -> tuple[tuple[Any, Any, Any], tuple[Any, Any, Any]]:
    """Return (X, y, sample_weight) of the rows to train on and of those to score, which stay together."""
    X, y, weights = rows
    name = f"{type(estimator).__name__}(scoring={estimator.scoring!r}, early_stopping=True)"
    if isinstance(X, Rows) and not X.uses_cluster:
        X, y, weights = unpacked(X, y, weights)
    if isinstance(X, Rows) or is_distributed(X) or holds_blocks(X) or y is None:
        raise InvalidDataError(
            f"{name} holds out rows of arrays in this process only, because one rank scores all of them. Pass "
            "validation rows of your own to fit: X_val and y_val."
        )
    n_rows = X.shape[0] if hasattr(X, "shape") else len(X)
    y = np.asarray(in_memory(y))
    if weights is not None:  # a number stands for equal ones
        weights = np.asarray(in_memory(weights))
        weights = np.full(n_rows, weights) if weights.ndim == 0 else weights
    held_out = None
    if len(y) == n_rows and (weights is None or len(weights) == n_rows):
        block = np.empty((n_rows, 0)), y, weights
        held_out = hold_out_as_sklearn(estimator, block, stratify=estimator._is_classification)
    if held_out is None:
        raise InvalidDataError(
            f"{name} cannot draw validation rows from {n_rows} rows and {len(y)} targets: there are too few, or of a "
            "class. Train on more rows, change validation_fraction, or pass X_val and y_val to fit."
        )

    def part(mask: AnyArray) -> tuple[Any, Any, Any]:
        numbers = np.flatnonzero(mask)
        return _safe_indexing(X, numbers), y[numbers], None if weights is None else weights[numbers]

    return part(~held_out), part(held_out)
