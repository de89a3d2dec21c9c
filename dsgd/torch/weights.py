"""Weights of rows in the loss of a torch module.

Problem: the weighted mean of all rows is sum w_i l_i / sum w_i, and a step sees one batch of one rank.

Method: weights are divided by their mean over all rows of all ranks, and the loss of a batch of n rows is
sum w_i l_i / n. Its expectation over batches is the weighted mean; of a batch with all rows, on however many ranks, it
is the weighted mean itself, so that whole numbers do what repeated rows do, and zeros what absent rows do. A batch
whose rows all weigh nothing is a step of zero, and not 0/0. Weights of one go the way of no weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dsgd.errors import InvalidDataError
from dsgd.inputs.blocks import BlockSummary
from dsgd.inputs.frames import in_memory
from dsgd.inputs.rows import check_sample_weight
from dsgd.types import AnyArray


def checked_weights(sample_weight: Any, X: Any) -> AnyArray | None:
    """Return checked weights in float64, whatever numbers the rows are made of."""
    return check_sample_weight(in_memory(sample_weight), np.empty((len(X), 0)))


def mean_weight(summaries: Sequence[BlockSummary]) -> float | None:
    """Return the mean weight of the rows of all blocks; None if no block has weights."""
    if all(summary.weight is None for summary in summaries):
        return None
    total = sum(summary.rows if summary.weight is None else summary.weight for summary in summaries)
    if not total:
        raise InvalidDataError("Sample weights must contain at least one non-zero number.")
    return total / sum(summary.rows for summary in summaries)
