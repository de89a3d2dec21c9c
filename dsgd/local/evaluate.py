"""Loss and score of a model on the rows of a rank, as sums that ranks can add up."""

from __future__ import annotations

import numpy as np

from dsgd.kernels.evaluate import evaluate_rows
from dsgd.kernels.softmax import evaluate_softmax_rows
from dsgd.local.base import Evaluation
from dsgd.local.objective import Objective
from dsgd.local.shard import Residency, Shard
from dsgd.types import FloatVector


def evaluate(
    params: FloatVector, shard: Shard, objective: Objective, start: int = 0, stop: int | None = None
) -> Evaluation:
    """Evaluate a model on rows of a shard."""
    sums, values = np.zeros(7), shard.values.reshape(-1)
    stop = shard.n_rows if stop is None else stop
    residency = None if shard.mapping is None else Residency(shard, start)
    # Sums continue across cuts, so that cuts change no bit of them.
    step = max(1, stop - start if residency is None else residency.stride)
    for low in range(start, stop, step):
        high = min(stop, low + step)
        given = (
            values,
            shard.indices,
            shard.indptr,
            shard.index,
            shard.targets,
            shard.weights,
            objective.class_weights(),
            params,
            np.zeros(objective.n_outputs, shard.dtype),
            sums,
        )
        if objective.is_coupled:
            evaluate_softmax_rows(*given, shard.n_features, low, high)
        else:
            evaluate_rows(*given, objective.row.code, float(objective.epsilon), shard.n_features, low, high)
        if residency is not None:
            residency.at(high)
    return Evaluation.from_vector(sums)
