"""Visiting the rows of a rank when all threads of its process share one model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from dsgd.collectives.group import Group
from dsgd.kernels.hogwild import run_shared_rows, run_shared_softmax_rows
from dsgd.local import SGD, SGDState, Shard
from dsgd.types import FloatVector

__all__ = ["shared_walk"]


def shared_walk(
    group: Group, optimizer: SGD, params: FloatVector, shard: Shard, state: SGDState
) -> Callable[[int, int], None]:
    """Return what takes steps on the rows at the places start..stop; called by all ranks.

    Parameters
    ----------
    group : Group
        The ranks.
    optimizer : SGD
        Plain steps, without averaging.
    params : array, shape (n_params,)
        The model that all ranks share.
    shard : Shard
        The rows of this rank.
    state : SGDState
        Its counters; the step counter takes every P-th number from that of the rank on.
    """
    # A dense row has an entry in every column.
    counts = np.full(shard.n_features, float(shard.n_rows))
    if shard.indices is not None and shard.indptr is not None:
        # Rows of a thread are a view: the indices are those of all rows.
        columns = shard.indices[int(shard.indptr[0]) : int(shard.indptr[-1])]
        counts = np.bincount(columns, minlength=shard.n_features).astype(np.float64)
    message = np.append(counts, float(shard.n_rows))
    group.allreduce(message)
    frequencies = message[:-1] / max(message[-1], 1.0)
    # Nobody asks for a column that no row has.
    frequencies[frequencies == 0.0] = 1.0
    state.t += group.rank
    values, indices, indptr, targets, weights, classes, *_ = optimizer.arguments(params, shard, state)
    is_coupled = optimizer.objective.is_coupled
    return partial(
        run_shared_softmax_rows if is_coupled else run_shared_rows,
        values,
        indices,
        indptr,
        targets,
        weights,
        classes,
        params,
        frequencies,
        *((state.factors,) if is_coupled else ()),
        state.counters,
        state.constants,
        state.codes,
        state.order,
        float(group.size),
    )
