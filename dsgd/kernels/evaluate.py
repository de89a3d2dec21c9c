"""Sums over rows that measure a model: loss, correct predictions, squared error."""

from __future__ import annotations

import numpy as np

from dsgd.kernels.jit import kernel, scalar
from dsgd.kernels.losses import POISSON, TWEEDIE, least_loss, loss_and_slope
from dsgd.kernels.vector import ask_ahead, row_bounds, row_dot, score_columns
from dsgd.types import FloatMatrix, FloatVector, IndexVector, PointerVector

_ONE = np.uint64(1)


@kernel
def evaluate_rows(
    values: FloatVector,
    indices: IndexVector | None,
    indptr: PointerVector | None,
    index: IndexVector,
    targets: FloatVector,
    row_weights: FloatVector,
    class_weights: FloatMatrix,
    params: FloatVector,
    scores: FloatVector,
    sums: FloatVector,
    loss_code: int,
    epsilon: float,
    n_features: int,
    start: int,
    stop: int,
) -> None:
    """Add to `sums` what rows start..stop contribute.

    - `values`, `indices`, `indptr`, `index`, `targets`, `row_weights`, `class_weights`, `params`: as in
      `dsgd.kernels.sgd.run_rows`.
    - `scores`, shape (n_outputs,): scratch.
    - `sums`, shape (7,): loss (times row and class weight), row weight, rows, weight of the rows classified
      correctly, squared error, target and squared target (each times row weight). Of a loss with a log link there
      is half the deviance in place of the squared error, and minus the least loss in place of the squared target.
    """
    width = np.uint64(n_features)
    n_outputs = np.uint64(scores.shape[0])
    n_weights = n_outputs * width
    has_log_link = POISSON <= loss_code <= TWEEDIE
    for i in range(np.uint64(start), np.uint64(stop)):
        ask_ahead(values, indices, indptr, index, i, width)
        first, last = row_bounds(index, indptr, i, width)
        target = float(targets[i])
        weight = float(row_weights[i])
        if indices is not None and n_outputs > _ONE:
            score_columns(values, indices, first, last, params, scores)
        best = -np.inf
        winner = np.uint64(0)
        for k in range(n_outputs):
            if indices is None or n_outputs == _ONE:
                p = float(row_dot(values, indices, first, last, params, k * width)) + params[n_weights + k]
            else:
                p = float(scores[k]) + params[n_weights + k]
            y = target
            if n_outputs > _ONE:
                y = 1.0 if target == k else -1.0
            if p > best:
                best = p
                winner = np.uint64(k)
            loss, _ = loss_and_slope(loss_code, y, p, epsilon)
            sums[0] += loss * weight * class_weights[0 if y > 0.0 else 1, k]
        # One output predicts the positive class where its score is above zero, several the first of the largest score.
        if n_outputs > _ONE:
            is_hit = winner == target
        else:
            is_hit = (best > 0.0) == (target > 0.0)
        if is_hit:
            sums[3] += weight
        sums[1] += weight
        sums[2] += 1.0
        sums[5] += weight * target
        if has_log_link:
            _add_deviance(target, best, weight, loss_code, epsilon, sums)
        else:
            sums[4] += weight * (best - target) ** 2
            sums[6] += weight * target * target


@kernel
def add_deviances(
    targets: FloatVector, scores: FloatVector, weights: FloatVector, loss_code: int, epsilon: float, sums: FloatVector
) -> None:
    """Add to `sums` what `evaluate_rows` adds for a loss with a log link, but loss and correct predictions.

    - `targets`, `scores`, `weights`, shape (n,): targets, predicted logarithms of means, and weights of rows.
    """
    for i in range(np.uint64(targets.shape[0])):
        sums[1] += weights[i]
        sums[2] += 1.0
        sums[5] += weights[i] * targets[i]
        _add_deviance(targets[i], scores[i], weights[i], loss_code, epsilon, sums)


@scalar
def _add_deviance(target: float, p: float, weight: float, loss_code: int, epsilon: float, sums: FloatVector) -> None:
    """Add half the deviance of a row, and minus its least loss."""
    loss, _ = loss_and_slope(loss_code, target, p, epsilon)
    least = least_loss(loss_code, target, epsilon)
    sums[4] += weight * (loss - least)
    sums[6] -= weight * least
