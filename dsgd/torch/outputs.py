"""Outputs of a module for rows, and their loss and score."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from dsgd.errors import InvalidParameterError
from dsgd.torch.rows import ROWS_PER_LOOK, TensorRows
from dsgd.types import FloatVector


def predictions(module: nn.Module, rows: TensorRows, device: torch.device) -> Iterator[tuple[Any, Any]]:
    """Yield (output, target) of batch after batch, the module as it is when it predicts."""
    module.eval()
    with torch.no_grad():
        for start in range(0, rows.n_rows, ROWS_PER_LOOK):
            inputs, targets = rows.batch(None, start, min(start + ROWS_PER_LOOK, rows.n_rows))
            yield first_output(module(inputs.to(device))), targets.to(device)


def first_output(made: Any) -> Any:
    """Return the output of a module; of several, the first."""
    return made[0] if isinstance(made, tuple) else made


def in_shape_of(output: Any, target: Any) -> Any:
    """Return targets in the shape of outputs, where both have one number per row."""
    if target.is_floating_point() and target.shape != output.shape and target.numel() == output.numel():
        return target.reshape(output.shape)
    return target


def mean_loss(criterion: nn.Module, output: Any, target: Any, weights: Any) -> Any:
    """Return the mean over rows of their losses, each times its weight."""
    target = in_shape_of(output, target)
    if weights is None:
        return criterion(output, target)
    losses: Any = criterion
    losses.reduction = "none"
    try:
        found = criterion(output, target)
    finally:
        losses.reduction = "mean"
    if found.ndim == 0 or len(found) != len(weights):
        raise InvalidParameterError(
            f"sample_weight: criterion={criterion!r} returns shape {tuple(found.shape)} for {len(weights)} rows with "
            "reduction='none', not a loss for each row."
        )
    return (found.reshape(len(weights), -1).mean(dim=1) * weights.to(found.device)).mean()


def score_sums(output: Any, target: Any, loss: float, weights: Any = None, *, is_classification: bool) -> FloatVector:
    """Return what a batch adds to an `Evaluation`, given the mean of its weighted losses; shape (7,)."""
    if weights is not None:
        return _weighted_score_sums(output, target, loss, weights, is_classification=is_classification)
    n = len(target)
    if is_classification:
        right = float(_is_right(output, target).sum())
        return np.array([loss * n, n, n, right, 0.0, 0.0, 0.0])
    truth, error = target.double(), in_shape_of(output, target).double() - output.double()
    sums = [float(values.sum()) for values in (error.square(), truth, truth.square())]
    return np.array([loss * n, n, n, 0.0, *sums])


def _weighted_score_sums(
    output: Any, target: Any, loss: float, weights: Any, *, is_classification: bool
) -> FloatVector:
    n, shares = len(target), weights.to(output.device).double()
    total = float(shares.sum())
    if is_classification:
        return np.array([loss * n, total, total, float((_is_right(output, target) * shares).sum()), 0.0, 0.0, 0.0])
    truth, error = target.double(), in_shape_of(output, target).double() - output.double()
    sums = [
        float((values.reshape(n, -1).sum(dim=1) * shares).sum()) for values in (error.square(), truth, truth.square())
    ]
    return np.array([loss * n, total, total, 0.0, *sums])


def _is_right(output: Any, target: Any) -> Any:
    found = output.argmax(dim=1) if output.ndim > 1 and output.shape[1] > 1 else output.reshape(-1) > 0
    return found == target.reshape(-1)
