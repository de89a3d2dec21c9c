"""Rows in the memory of this process, checked for an estimator before they are trained on."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import issparse
from sklearn.utils import check_X_y

from dsgd.comm.memory.cores import count_cores
from dsgd.estimators.start import Start
from dsgd.inputs.blocks import Block, nbytes_of
from dsgd.inputs.frames import in_memory, validated
from dsgd.inputs.rows import LocalRows, Rows, check_any_weight, check_sample_weight
from dsgd.stages import stage


def rows_here(estimator: Any, X: Any, y: Any, sample_weight: Any, start: Start) -> LocalRows:
    """Return rows of this process, checked but for values that are not finite: `LocalRows.check` reads them."""
    if isinstance(X, Rows):
        rows = X.local()
        X.show(estimator, first=start.is_first)
        return rows
    # Those of tables have columns to be named.
    finite = not (isinstance(X, np.ndarray) or issparse(X))
    with stage("check") as it:
        block = check_rows(estimator, X, y, sample_weight, start, finite=finite)
        it.nbytes = nbytes_of(block[0]) if finite else 0
    return LocalRows(block, is_finite=finite or estimator.encoder_ is not None)


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
    """Validate arrays of this process that go to other ranks; return (X, y, sample_weight)."""
    rows = rows_here(estimator, X, y, sample_weight, start)
    check_any_weight(rows.block[2])
    rows.check(count_cores(), type(estimator).__name__)
    return rows.block
