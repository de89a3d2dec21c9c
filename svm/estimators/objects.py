"""Rows that are not vectors, such as texts or matrices, for kernel functions.

Blocks of rows are for arrays. Of objects a kernel may want to see the whole set, and comparing them costs more than a
matrix of their values holds; so the values of all pairs are computed once, and the machine is that of a given matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp

from dsgd.errors import InvalidDataError
from dsgd.inputs import is_distributed
from dsgd.types import AnyArray, FloatMatrix


def as_objects(X: Any) -> Any:
    """Return the rows that a callable kernel is given, as an array of objects if that is what they are, else X itself.

    Objects are the elements of a list, or of an array or series of one dimension, that are neither rows of numbers nor
    blocks. Texts are objects here: a callable kernel takes no list of files. So are matrices, and arrays of more
    dimensions, that one array holds: it stays as it is.
    """
    if hasattr(X, "ndim"):
        return np.asarray(X, dtype=object) if X.ndim == 1 and not is_distributed(X) else X
    if not isinstance(X, (list, tuple)) or not len(X):
        return X
    if not all(isinstance(row, str) for row in X):
        if is_distributed(X):
            return X
        try:
            together = np.asarray(X)
            if together.ndim > 1:
                return X if together.ndim == 2 else together
        except ValueError:  # of unequal lengths: objects
            pass
    rows = np.empty(len(X), dtype=object)
    rows[:] = X
    return rows


def are_objects(X: Any) -> bool:
    """Return whether X is what `as_objects` makes of objects."""
    return isinstance(X, np.ndarray) and (X.ndim > 2 or (X.ndim == 1 and X.dtype == object))


def compare(function: Callable[[Any, Any], Any], rows: AnyArray, others: AnyArray) -> FloatMatrix:
    """Return the kernel values of all pairs, shape (n, m)."""
    values = function(*(list(some) if some.ndim == 1 else some for some in (rows, others)))
    values = np.asarray(values.toarray() if sp.issparse(values) else values, dtype=np.float64)
    if values.shape != (len(rows), len(others)):
        raise InvalidDataError(
            f"kernel(A, B) must return shape {(len(rows), len(others))}, one value per pair of rows. "
            f"Got shape {values.shape}."
        )
    return values
