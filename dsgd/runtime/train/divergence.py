"""Whether training ended above the objective that it began at.

Problem: steps that are too long for the rows raise the loss without bound, or leave it where slopes are clipped. The
stopping rule only sees epochs that no longer improve.

Method: the mean loss of the last epoch, which is known, is compared with that of the first and with that of a model of
zeros, which needs no rows, only targets. Where it is above one of them, rank 0 evaluates the objective of the first and
of the last model on rows from everywhere in its own.

A classifier may be right although its scores are far too large, and where the features say nothing of the classes its
objective stays above the one of zeros after the first steps of the default schedule, which are long. Neither has
converged. Of no use is only one that is right no more often than by the largest class, and whose loss does not fall.

Cost: a look at some targets of a rank. Of a fit that seems to diverge two more over some rows, and no message.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dsgd.kernels.losses import PERCEPTRON
from dsgd.local import SGD, Objective, SGDState, Shard
from dsgd.runtime.train.job import Divergence
from dsgd.runtime.train.run import Run
from dsgd.types import FloatVector

# A classifier of noise ends a little above its start as often as a little below, and after few epochs of long steps.
_CLEARLY = 1.1
_N_EPOCHS = 5
# By how many rows a model is judged, and by how many of very many columns.
_MOST_ROWS, _LEAST_ROWS, _MOST_ENTRIES = 8192, 512, 2**20


def divergence_of(run: Run, params: FloatVector) -> Divergence | None:
    """Return by what the objective has risen in training; None if it has not, and on other ranks than 0."""
    job, shard, history = run.job, run.data.shard, run.at.history
    optimizer: Any = job.optimizer
    state: Any = run.at.optimizer
    if run.rank.number or not history or not isinstance(shard, Shard):
        return None
    if not isinstance(optimizer, SGD) or not isinstance(state, SGDState):
        return None
    # The perceptron's loss of a model of zeros is zero, its least.
    if job.leaves is not None or not shard.n_rows or optimizer.objective.row.code == PERCEPTRON:
        return None
    entries = shard.entries(0, shard.n_rows) / shard.n_rows
    some = shard.sample(int(max(_LEAST_ROWS, min(_MOST_ROWS, _MOST_ENTRIES / max(1.0, entries)))))
    last = history[-1].train_loss
    if last <= min(history[0].train_loss, _loss_of_zeros(optimizer.objective, some.targets)):
        return None
    first, found = (optimizer.evaluate(model, some, state) for model in (job.initial, params))
    begin = first.mean_loss + _penalty(optimizer.objective, job.initial)
    end = found.mean_loss + _penalty(optimizer.objective, params)
    if end <= begin:
        return None
    is_useless = job.scoring != "accuracy" or (
        len(history) >= _N_EPOCHS
        and end > _CLEARLY * begin
        and last > 0.5 * history[0].train_loss
        and found.accuracy <= _share_of_largest(shard)
    )
    return Divergence(begin, end, is_useless)


def _share_of_largest(shard: Shard) -> float:
    """Return the share of the largest class by weight."""
    _, codes = np.unique(shard.targets, return_inverse=True)
    totals = np.bincount(codes, shard.weights)
    return float(totals.max() / totals.sum())


def _loss_of_zeros(objective: Objective, targets: FloatVector) -> float:
    """Return the mean loss of a row under a model of zeros; infinite if that is unknown."""
    loss, n = objective.row, objective.n_outputs
    if objective.is_coupled:
        return float(np.log(n))
    if n == 1:
        return float(np.mean(loss.at_zero(targets.astype(np.float64), objective.epsilon)))
    signs = loss.at_zero(np.array([1.0, -1.0]), objective.epsilon)
    return float(signs[0] + (n - 1) * signs[1])


def _penalty(objective: Objective, params: FloatVector) -> float:
    weights, share = params[: -objective.n_outputs].astype(np.float64), objective.l1_share
    norms = (1.0 - share) / 2.0 * float(np.sum(weights**2)) + share * float(np.abs(weights).sum())
    return objective.strength * norms
