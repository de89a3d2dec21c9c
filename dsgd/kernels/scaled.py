"""Weights as a scale times what is stored, and their average: the parts of a step that kernels of SGD share.

Problem: the L2 penalty shrinks every weight in every step, and an averaged model changes in every entry, which would
cost a pass over the model where a row has few entries.

Method: the model is ``scale * stored``, so that shrinking is one multiplication; the scale is folded back into the
weights before it underflows, and at the end of every call: between calls the parameters are the true model. The average
of the iterates is ``(auxiliary + a stored) / b``, of which a step changes the entries of its row, a and b only. It is
kept in float64: after some millions of steps a further one changes it by less than float32 can hold. The L1
penalty that every weight owes is one number; a weight pays when a row comes that has its column.

scikit-learn truncates after it has averaged and loses the correction; here the average is that of the iterates.

Cost: the entries of a row, and one more pass over them with averaging.

Source: Bottou, Stochastic Gradient Tricks, section 5.4 (the average); `dsgd.kernels.penalties` for L1.
"""

from __future__ import annotations

import numpy as np

from dsgd.kernels.jit import scalar
from dsgd.kernels.penalties import truncate
from dsgd.kernels.state import L1_RATE
from dsgd.kernels.vector import add_columns, add_row
from dsgd.types import FloatVector, IndexVector

#: Below this the scale is folded into the weights: far from underflow, and 1 / scale is far from overflow in float32.
MIN_SCALE = 1e-9
#: With averaging, earlier: ``auxiliary`` and ``a * stored`` nearly cancel when the scale has fallen since a was set.
MIN_SCALE_AVERAGING = 0.25
#: A factor below this is taken for zero: it is what rounding leaves of ``1 - alpha * (1 / alpha)``.
MIN_SHRINK = 1e-12

_ZERO = np.uint64(0)
_ONE = np.uint64(1)


@scalar
def fold(
    weights: FloatVector, auxiliary: FloatVector | None, scale: float, a: float, b: float, n_weights: np.uint64
) -> None:
    """Make stored weights and their average true: ``auxiliary = (auxiliary + a stored) / b``, ``stored *= scale``."""
    dtype = weights.dtype.type
    if auxiliary is not None and (b != 1.0 or a != 0.0):
        for j in range(n_weights):
            auxiliary[j] = (auxiliary[j] + a * weights[j]) / b
    if scale != 1.0:
        factor = dtype(scale)
        for j in range(n_weights):
            weights[j] *= factor


@scalar
def clear(
    weights: FloatVector,
    auxiliary: FloatVector | None,
    a: float,
    indices: IndexVector | None,
    first: np.uint64,
    last: np.uint64,
    n_outputs: np.uint64,
) -> None:
    """Set the weights of a sparse row's columns, or all weights where `indices` is None, to zero."""
    dtype = weights.dtype.type
    if indices is None:
        for j in range(first, last):
            if auxiliary is not None and a != 0.0:
                auxiliary[j] += a * weights[j]
            weights[j] = dtype(0)
    else:
        for j in range(first, last):
            base = np.uint64(indices[j]) * n_outputs
            for k in range(n_outputs):
                if auxiliary is not None and a != 0.0:
                    auxiliary[base + k] += a * weights[base + k]
                weights[base + k] = dtype(0)


@scalar
def wipe(
    weights: FloatVector,
    auxiliary: FloatVector | None,
    a: float,
    indices: IndexVector,
    was_wiped: bool,
    first: np.uint64,
    last: np.uint64,
    n_outputs: np.uint64,
    n_weights: np.uint64,
) -> None:
    """Set all weights to zero, before the step on a sparse row.

    The schedule of the frequency study shrinks by zero on *every* row of its first epoch. After a wipe on the row
    before, which has the entries first..last, only that row's columns differ from zero: the cost stays that of a row.
    """
    if was_wiped:
        clear(weights, auxiliary, a, indices, first, last, n_outputs)
    else:
        clear(weights, auxiliary, a, None, _ZERO, n_weights, n_outputs)


@scalar
def truncate_row(
    indices: IndexVector | None,
    first: np.uint64,
    last: np.uint64,
    weights: FloatVector,
    received: FloatVector,
    auxiliary: FloatVector,
    owed_total: float,
    scale: float,
    a: float,
    n_outputs: np.uint64,
) -> None:
    """Apply the L1 penalty still owed to the weights of the columns of a row, for every output."""
    dtype = weights.dtype.type
    width = last - first
    for k in range(n_outputs):
        for j in range(width):
            if indices is None:
                place = k * width + j
            else:
                place = np.uint64(indices[first + j]) * n_outputs + k
            stored = weights[place]
            before = scale * stored
            after = truncate(before, owed_total, received[place])
            if after != before:
                received[place] += dtype(after - before)
                weights[place] = dtype(after / scale)
                if a != 0.0:
                    auxiliary[place] -= a * (weights[place] - stored)


@scalar
def add_step(
    values: FloatVector,
    indices: IndexVector | None,
    first: np.uint64,
    last: np.uint64,
    params: FloatVector,
    auxiliary: FloatVector | None,
    base: np.uint64,
    step: float,
    a: float,
) -> None:
    """Add `step` times a row to the stored weights of an output, so that the average of the iterates stays true."""
    add_row(values, indices, first, last, params, base, step)
    if auxiliary is not None and a != 0.0:
        add_row(values, indices, first, last, auxiliary, base, -a * step)


@scalar
def add_steps(
    values: FloatVector,
    indices: IndexVector,
    first: np.uint64,
    last: np.uint64,
    params: FloatVector,
    auxiliary: FloatVector,
    steps: FloatVector,
    a: float,
) -> None:
    """Do what `add_step` does for all outputs of a sparse row."""
    add_columns(values, indices, first, last, params, steps, 1.0)
    if a != 0.0:
        add_columns(values, indices, first, last, auxiliary, steps, -a)


@scalar
def owe(
    indices: IndexVector | None,
    first: np.uint64,
    last: np.uint64,
    params: FloatVector,
    received: FloatVector,
    auxiliary: FloatVector,
    constants: FloatVector,
    owed_total: float,
    eta: float,
    scale: float,
    a: float,
    n_outputs: np.uint64,
) -> float:
    """Return the L1 penalty that each weight owes after a step, and apply it to those of a row."""
    if constants[L1_RATE] > 0.0:
        owed_total += constants[L1_RATE] * eta
        truncate_row(indices, first, last, params, received, auxiliary, owed_total, scale, a, n_outputs)
    return owed_total


@scalar
def join_average(
    params: FloatVector,
    auxiliary: FloatVector,
    n_weights: np.uint64,
    n_averaged: float,
    scale: float,
    a: float,
    b: float,
) -> tuple[float, float, float]:
    """Add the present model to the average; return the models in it, and a and b."""
    n_averaged += 1.0
    if n_averaged > 1.0:
        b *= n_averaged / (n_averaged - 1.0)
    a += b * scale / n_averaged
    for k in range(n_weights, np.uint64(params.shape[0])):
        auxiliary[k] += (params[k] - auxiliary[k]) / n_averaged
    return n_averaged, a, b
