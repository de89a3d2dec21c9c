"""Visiting the rows of a rank when all threads of its process share one model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np

from dsgd.collectives.group import Group
from dsgd.kernels.hogwild import run_shared_rows, run_shared_softmax_rows
from dsgd.local import SGD, SGDState, Shard
from dsgd.types import FloatVector

_ROWS_AT_A_TIME: Final = 65_536


def shared_walk(
    group: Group, optimizer: SGD, params: FloatVector, shard: Shard, state: SGDState
) -> Callable[[int, int], None]:
    """Return what takes steps on the rows at the places start..stop; called by all ranks."""
    # A dense row has an entry in every column.
    counts = np.full(shard.n_features, float(shard.n_rows)) if not shard.is_sparse else _column_counts(shard)
    message = np.append(counts, float(shard.n_rows))
    group.allreduce(message)
    frequencies = message[:-1] / max(message[-1], 1.0)
    # Nobody asks for a column that no row has.
    frequencies[frequencies == 0.0] = 1.0
    state.t += group.rank
    values, indices, indptr, index, targets, weights, classes, *_ = optimizer.arguments(params, shard, state)
    is_coupled = optimizer.objective.is_coupled
    return partial(
        run_shared_softmax_rows if is_coupled else run_shared_rows,
        values,
        indices,
        indptr,
        index,
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


def _column_counts(shard: Shard) -> FloatVector:
    """Return how many of the sparse rows have an entry in each column."""
    counts = np.zeros(shard.n_features)
    for start in range(0, shard.n_rows, _ROWS_AT_A_TIME):
        part = shard.packed(start, min(shard.n_rows, start + _ROWS_AT_A_TIME))
        assert part.indices is not None
        counts += np.bincount(part.indices, minlength=shard.n_features)
    return counts
