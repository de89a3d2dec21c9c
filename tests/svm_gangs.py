"""Kernel machines fitted on ranks that are threads of the tests."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp

from dsgd.runtime import run_on_threads
from dsgd.svm.distributed.kernel import RowPacker, fit_on_rank


def blocks_between(ends: Sequence[int], *values: Any) -> list[Any]:
    """Return the blocks of rows between neighbouring ends, each with the number of its first row."""
    return [(*(None if v is None else v[a:b] for v in values), a) for a, b in pairwise(ends)]


def blocks_of(X: Any, y: Any, weights: Any, n_ranks: int) -> list[list[Any]]:
    """Return the blocks of each rank: every n-th, so that ranks hold no stretch of rows."""
    blocks = blocks_between(np.linspace(0, X.shape[0], 3 * n_ranks + 1).astype(int).tolist(), X, y, weights)
    return [blocks[number::n_ranks] for number in range(n_ranks)]


def fit_on_ranks(
    model: Any, X: Any, blocks: Sequence[Sequence[Any]], classes: Any = None, program: Any = fit_on_rank
) -> Any:
    """Fit a model on a rank for each list of blocks of the rows; return the gang's ledger."""
    model._check_parameters()
    if classes is not None:
        model._check_probability()
        model.classes_ = model._check_classes(classes)
    model.n_features_in_ = X.shape[1]
    packer = RowPacker(classes, X.shape[1], str(X.dtype), sparse=sp.issparse(X))
    data = [packer(part, number) for number, part in enumerate(blocks)]
    gang = run_on_threads(program, data, (model,), timeout_s=30.0)
    model.__dict__.update(gang.value)
    return gang.ledger
