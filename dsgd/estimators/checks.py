"""Rows in the memory of this process, checked for an estimator before they are packed.

Problem: scikit-learn's checks read all values once more, only to see that they are finite.

Method: rows that are shuffled are read for their hashes anyway, and that pass finds values that are not finite, too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import issparse
from sklearn.utils import check_X_y

from dsgd.estimators.start import Start
from dsgd.inputs.blocks import Block, HashedBlock, nbytes_of
from dsgd.inputs.frames import in_memory, validated
from dsgd.inputs.rows import LocalRows, Rows
from dsgd.inputs.weights import check_any_weight, check_sample_weight
from dsgd.runtime.pools import count_cores
from dsgd.stages import stage

__all__ = ["check_all", "check_rows", "rows_here"]


def rows_here(estimator: Any, X: Any, y: Any, sample_weight: Any, start: Start, *, is_read: bool) -> LocalRows:
    """Return rows of this process, checked; what will be read for its hashes need not be read before."""
    if isinstance(X, Rows):
        rows = X.local()
        X.show(estimator, first=start.is_first)
        return rows
    # Those of tables have columns to be named.
    is_read = is_read and (isinstance(X, np.ndarray) or issparse(X))
    with stage("check") as it:
        rows = LocalRows(check_rows(estimator, X, y, sample_weight, start, finite=not is_read), is_finite=not is_read)
        it.nbytes = 0 if is_read else nbytes_of(rows.block[0])
    return rows


def check_rows(estimator: Any, X: Any, y: Any, sample_weight: Any, start: Start, *, finite: bool = True) -> Block:
    """Validate arrays of this process; return (X, y, sample_weight). Without `finite` values of X are not read."""
    options: dict[str, Any] = {
        "accept_sparse": "csr",
        "dtype": [np.float64, np.float32],
        "order": "C",
        "y_numeric": not estimator._is_classification,
    }
    if estimator.encoder_ is not None:  # it has seen the columns, and has no numbers that are not finite
        X, y = check_X_y(X, y, ensure_all_finite=False, **options)
    else:
        X, y = validated(estimator, X, y, ensure_all_finite=finite, reset=start.is_first, **options)
    return X, y, check_sample_weight(in_memory(sample_weight), X)


def check_all(estimator: Any, X: Any, y: Any, sample_weight: Any, start: Start) -> Block:
    """Validate arrays of this process that go to other ranks; return (X, y, sample_weight), hashed if they can be.

    What is shuffled is dealt by its hashes, and the pass that makes them finds values that are not finite, too.
    """
    rows = rows_here(estimator, X, y, sample_weight, start, is_read=estimator.shuffle)
    check_any_weight(rows.block[2])
    if not estimator.shuffle:
        return rows.block
    rows.read(count_cores(), type(estimator).__name__)
    known = rows.known()
    return rows.block if known is None else HashedBlock(rows.block, known.prints)
