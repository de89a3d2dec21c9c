"""The rows that early stopping holds out: those of scikit-learn for the same ``random_state``."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from sklearn.model_selection import ShuffleSplit, StratifiedShuffleSplit

from dsgd.errors import InvalidDataError
from dsgd.inputs.blocks import Block
from dsgd.types import AnyArray

__all__ = ["hold_out_as_sklearn"]


def hold_out_as_sklearn(estimator: Any, block: Block, *, stratify: bool) -> AnyArray | None:
    """Return which rows are held out, bool, shape (n,).

    They are the first split of `sklearn.model_selection.StratifiedShuffleSplit`, or of `ShuffleSplit` for regression.

    Parameters
    ----------
    estimator : AbstractSGD
        Gives ``validation_fraction`` and ``random_state``.
    block : tuple
        (X, y, sample_weight).
    stratify : bool
        Whether each class gives its share.

    Returns
    -------
    array or None
        None where classes are too small or too many for that split, or one row would be all: the rank draws its own.

    Raises
    ------
    InvalidDataError
        Nothing would be left to train on, or no weight to validate with.
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
