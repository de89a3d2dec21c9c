"""The penalties: a table of constants, scaled weights, and the truncation that gives L1 its exact zeros, with its dual.

A step on penalty ``alpha ((1 - r) ||w||^2 / 2 + r ||w||_1)`` has two parts. The L2 part multiplies every weight by
``max(0, 1 - (1 - r) eta alpha)`` before the gradient is added; kernels keep the product in one number and fold it into
the weights later. The L1 part is the cumulative penalty of Tsuruoka, Tsujii and Ananiadou (ACL 2009, section 3.2), as
in scikit-learn: u is the penalty that every weight could have received so far, q_j what weight j did receive, and a
weight is moved towards zero by what is still owed, never across it, when its feature is seen.

**Weights as a scale times what is stored**, and their average: the parts of a step that kernels of SGD share. The L2
penalty shrinks every weight in every step, and an averaged model changes in every entry, which would cost a pass over
the model where a row has few entries. So the model is ``scale * stored``: shrinking is one multiplication; the scale is
folded back into the weights before it underflows, and at the end of every call: between calls the parameters are the
true model. The average of the iterates is ``(auxiliary + a stored) / b``, of which a step changes the entries of its
row, a and b only. It is kept in float64: after some millions of steps a further one changes it by less than float32 can
hold. The L1 penalty that every weight owes is one number; a weight pays when a row comes that has its column.

scikit-learn truncates after it has averaged and loses the correction; here the average is that of the iterates.

Cost: the entries of a row, and one more pass over them with averaging.

Source: Bottou, Stochastic Gradient Tricks, section 5.4 (the average).

**The model before its L1 penalty**, which ranks may average, and the conversion to and from the model. With the
cumulative penalty, a weight is at every moment the sum z of its steps without penalty, moved towards zero by u, the
penalty due so far, but never across zero::

    w = sign(z) max(0, |z| - u),  z = w - q

where q is the penalty that the weight has received. This is lazy dual averaging: z is the dual model, w the primal one.
z does not depend on when a weight last paid; so it is known of weights whose features a rank has not seen as well.

Source: Tsuruoka, Tsujii and Ananiadou 2009, section 3.2 (the penalty); Xiao 2010 (dual averaging). That the two are one
is ours: both sides of each case of the truncation give the line above.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from dsgd.kernels.jit import kernel, part, scalar
from dsgd.kernels.rows import Span, Sparse, add_columns, add_row
from dsgd.kernels.state import L1_TOTAL, Beside
from dsgd.types import FloatVector

_any_order = part(fastmath={"reassoc", "contract"})


@dataclass(frozen=True)
class Penalty:
    """A row of the table of penalties.

    - `l1_share`: share of L1 in the penalty; None when the objective's `l1_ratio` says it.
    """

    name: str | None
    l1_share: float | None
    is_on: bool
    source: str


PENALTIES: Mapping[str | None, Penalty] = MappingProxyType(
    {
        row.name: row
        for row in (
            Penalty(None, 0.0, False, ""),
            Penalty("none", 0.0, False, ""),
            Penalty("l2", 0.0, True, "Shalev-Shwartz et al. 2007"),
            Penalty("l1", 1.0, True, "Tsuruoka et al. 2009"),
            Penalty("elasticnet", None, True, "Zou and Hastie 2005; Tsuruoka et al. 2009"),
        )
    }
)


@scalar
def soft_threshold(aim: float, width: float) -> float:
    """Return the minimum over z of ``(z - aim)^2 / 2 + width |z|``: `aim` moved towards zero, never across it."""
    return max(abs(aim) - width, 0.0) * (1.0 if aim > 0.0 else -1.0)


@scalar
def violation(slope: float, weight: float, penalty: float) -> float:
    """Return by how much a weight with an L1 penalty violates optimality; negative if the penalty holds it at zero."""
    return abs(slope) - penalty if weight == 0.0 else abs(slope + (penalty if weight > 0.0 else -penalty))


@scalar
def truncate(weight: float, owed_total: float, received: float) -> float:
    """Return a weight after the L1 penalty it still owes.

    - `owed_total`: u, the penalty any weight could have received.
    - `received`: q, the signed penalty this weight has received.
    - returned: ``max(0, z - (u + q))`` if z > 0, ``min(0, z + (u - q))`` if z < 0, else z.
    """
    if weight > 0.0:
        return max(0.0, weight - (owed_total + received))
    if weight < 0.0:
        return min(0.0, weight + (owed_total - received))
    return weight


@_any_order
def _norms(weights: FloatVector, base: np.uint64, n: np.uint64) -> tuple[float, float]:
    """Return the sum of the squares and that of the absolute values of n weights from `base` on."""
    squares, absolutes = 0.0, 0.0
    for j in range(n):
        weight = float(weights[base + j])
        squares += weight * weight
        absolutes += abs(weight)
    return squares, absolutes


@kernel
def add_penalties(
    sums: FloatVector, params: FloatVector, n_features: int, l1_share: float, factor: float, *, by_column: bool
) -> None:
    """Add to the sum of each output `factor` times ``(1 - r) ||w||^2 / 2 + r ||w||_1`` of its weights."""
    n_outputs, n = np.uint64(sums.shape[0]), np.uint64(n_features)
    if by_column and n_outputs > np.uint64(1):
        for j in range(n):
            for k in range(n_outputs):
                weight = float(params[j * n_outputs + k])
                sums[k] += factor * ((1.0 - l1_share) / 2.0 * weight * weight + l1_share * abs(weight))
        return
    for k in range(n_outputs):
        squares, absolutes = _norms(params, k * n, n)
        sums[k] += factor * ((1.0 - l1_share) / 2.0 * squares + l1_share * absolutes)


#: Below this the scale is folded into the weights: far from underflow, and 1 / scale is far from overflow in float32.
MIN_SCALE = 1e-9

#: With averaging, earlier: ``auxiliary`` and ``a * stored`` nearly cancel when the scale has fallen since a was set.
MIN_SCALE_AVERAGING = 0.25

#: A factor below this is taken for zero: it is what rounding leaves of ``1 - alpha * (1 / alpha)``.
MIN_SHRINK = 1e-12
_ZERO = np.uint64(0)
_ONE = np.uint64(1)


@scalar
def fold(weights: FloatVector, beside: Beside | None, scale: float, a: float, b: float, n_weights: np.uint64) -> None:
    """Make stored weights and their average true: ``auxiliary = (auxiliary + a stored) / b``, ``stored *= scale``."""
    dtype = weights.dtype.type
    if beside is not None and (b != 1.0 or a != 0.0):
        auxiliary = beside[0]
        for j in range(n_weights):
            auxiliary[j] = (auxiliary[j] + a * weights[j]) / b
    if scale != 1.0:
        factor = dtype(scale)
        for j in range(n_weights):
            weights[j] *= factor


@scalar
def clear(
    weights: FloatVector, beside: Beside | None, a: float, sparse: Sparse | None, span: Span, n_outputs: np.uint64
) -> None:
    """Set the weights of a sparse row's columns, or all weights of a span where `sparse` is None, to zero."""
    dtype = weights.dtype.type
    if sparse is None:
        for j in range(span[0], span[1]):
            if beside is not None and a != 0.0:
                beside[0][j] += a * weights[j]
            weights[j] = dtype(0)
    else:
        for j in range(span[0], span[1]):
            base = np.uint64(sparse[0][j]) * n_outputs
            for k in range(n_outputs):
                if beside is not None and a != 0.0:
                    beside[0][base + k] += a * weights[base + k]
                weights[base + k] = dtype(0)


@scalar
def wipe(
    weights: FloatVector, beside: Beside | None, a: float, sparse: Sparse, last: tuple[bool, Span], n_outputs: np.uint64
) -> None:
    """Set all weights to zero before a sparse row; if it was so at the `last` row only its columns differ."""
    if last[0]:
        clear(weights, beside, a, sparse, last[1], n_outputs)
    else:
        n_weights = np.uint64(weights.shape[0]) - n_outputs
        clear(weights, beside, a, None, (_ZERO, n_weights), n_outputs)


@scalar
def add_step(
    values: FloatVector,
    sparse: Sparse | None,
    span: Span,
    params: FloatVector,
    beside: Beside | None,
    base: np.uint64,
    step: float,
    a: float,
) -> None:
    """Add `step` times a row to the stored weights of an output, so that the average of the iterates stays true."""
    add_row(values, sparse, span, params, base, step)
    if beside is not None and a != 0.0:
        add_row(values, sparse, span, beside[0], base, -a * step)


@scalar
def add_steps(values: FloatVector, sparse: Sparse, span: Span, params: FloatVector, beside: Beside, a: float) -> None:
    """Do what `add_step` does for all outputs of a sparse row, whose steps are in the scratch."""
    add_columns(values, sparse, span, params, beside[2], 1.0)
    if a != 0.0:
        add_columns(values, sparse, span, beside[0], beside[2], -a)


@scalar
def truncate_row(
    sparse: Sparse | None, span: Span, weights: FloatVector, beside: Beside, owed_total: float, scale: float, a: float
) -> None:
    """Apply the L1 penalty still owed to the weights of the columns of a row, for every output."""
    auxiliary, received, factors = beside
    (first, last), n_outputs, dtype = span, np.uint64(factors.shape[0]), weights.dtype.type
    width = last - first
    for k in range(n_outputs):
        for j in range(width):
            if sparse is None:
                place = k * width + j
            else:
                place = np.uint64(sparse[0][first + j]) * n_outputs + k
            stored = weights[place]
            before = scale * stored
            after = truncate(before, owed_total, received[place])
            if after != before:
                received[place] += dtype(after - before)
                weights[place] = dtype(after / scale)
                if a != 0.0:
                    auxiliary[place] -= a * (weights[place] - stored)


@scalar
def join_average(
    params: FloatVector, beside: Beside, n_weights: np.uint64, scale: float, average: tuple[float, float, float]
) -> tuple[float, float, float]:
    """Add the present model to the average; return the models in it, and a and b."""
    n_averaged, a, b = average
    n_averaged += 1.0
    if n_averaged > 1.0:
        b *= n_averaged / (n_averaged - 1.0)
    a += b * scale / n_averaged
    for k in range(n_weights, np.uint64(params.shape[0])):
        beside[0][k] += (params[k] - beside[0][k]) / n_averaged
    return n_averaged, a, b


@scalar
def penalty_received(beside: Beside | None) -> FloatVector | None:
    """Return the L1 penalty that weights have received, if it is counted."""
    return None if beside is None else beside[1]


@kernel
def to_dual(vector: FloatVector, received: FloatVector | None, counters: FloatVector) -> None:
    """Replace a model by its dual.

    `vector`, shape (n_params + 1,), is the model and a place for u; afterwards z for every weight, the intercepts, u.
    `received` is q, None without a penalty.
    """
    if received is None:
        return
    for j in range(np.uint64(received.shape[0])):
        vector[j] -= received[j]
    vector[-1] = vector.dtype.type(counters[L1_TOTAL])


@kernel
def to_primal(vector: FloatVector, received: FloatVector | None, counters: FloatVector) -> None:
    """Replace the dual of a model by the model; every weight has then paid all that is due.

    A second `to_dual` gives the same dual to the bit: w - z is exact, whichever of z and u is the larger part.
    """
    if received is None:
        return
    owed = float(vector[-1])
    counters[L1_TOTAL] = owed
    for j in range(np.uint64(received.shape[0])):
        z = vector[j]
        weight = vector.dtype.type(truncate(z, owed, 0.0))
        received[j] = weight - z
        vector[j] = weight
