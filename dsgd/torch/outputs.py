"""Outputs of a module for rows, and their loss and score."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from dsgd.torch.rows import ROWS_PER_LOOK, TensorRows
from dsgd.types import FloatVector

__all__ = ["first_output", "in_shape_of", "predictions", "score_sums"]


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


def score_sums(output: Any, target: Any, loss: float, *, is_classification: bool) -> FloatVector:
    """Return what a batch adds to an `Evaluation`, given the mean of its losses; shape (7,)."""
    n = len(target)
    if is_classification:
        found = output.argmax(dim=1) if output.ndim > 1 and output.shape[1] > 1 else output.reshape(-1) > 0
        right = float((found == target.reshape(-1)).sum())
        return np.array([loss * n, n, n, right, 0.0, 0.0, 0.0])
    truth, error = target.double(), in_shape_of(output, target).double() - output.double()
    sums = [float(values.sum()) for values in (error.square(), truth, truth.square())]
    return np.array([loss * n, n, n, 0.0, *sums])
