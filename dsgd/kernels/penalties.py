"""The penalties: a table of constants, and the truncation that gives L1 its exact zeros.

A step on penalty ``alpha ((1 - r) ||w||^2 / 2 + r ||w||_1)`` has two parts. The L2 part multiplies every weight by
``max(0, 1 - (1 - r) eta alpha)`` before the gradient is added; kernels keep the product in one number and fold it into
the weights later. The L1 part is the cumulative penalty of Tsuruoka, Tsujii and Ananiadou (ACL 2009, section 3.2), as
in scikit-learn: u is the penalty that every weight could have received so far, q_j what weight j did receive, and a
weight is moved towards zero by what is still owed, never across it, when its feature is seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from dsgd.kernels.jit import kernel, part, scalar
from dsgd.types import FloatVector

_any_order = part(fastmath={"reassoc", "contract"})


@dataclass(frozen=True)
class Penalty:
    """A row of the table of penalties.

    - `name`: name, as in scikit-learn.
    - `l1_share`: share of L1 in the penalty; None when the objective's `l1_ratio` says it.
    - `is_on`: whether there is a penalty at all.
    - `source`: where the update comes from.
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
    """Return the minimum over z of ``(z - aim)^2 / 2 + width |z|``: the proximal map of L1.

    - `aim`: where the minimum would be without the penalty.
    - `width`: the penalty over the curvature, not negative.
    - returned: ``aim`` moved towards zero by `width`, never across it.
    """
    return max(abs(aim) - width, 0.0) * (1.0 if aim > 0.0 else -1.0)


@scalar
def violation(slope: float, weight: float, penalty: float) -> float:
    """Return by how much a weight with an L1 penalty violates optimality; negative if the penalty holds it at zero.

    - `slope`: the derivative of what is penalised.
    - `penalty`: the weight of the penalty.
    """
    return abs(slope) - penalty if weight == 0.0 else abs(slope + (penalty if weight > 0.0 else -penalty))


@scalar
def truncate(weight: float, owed_total: float, received: float) -> float:
    """Return a weight after the L1 penalty it still owes.

    - `weight`: the weight z, in true units (scale applied).
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
    """Add to the sum of each output `factor` times ``(1 - r) ||w||^2 / 2 + r ||w||_1`` of its weights.

    - `sums`, shape (n_outputs,): updated in place.
    - `params`, shape (n_params,): a model; its intercepts count for nothing.
    - `by_column`: whether weights are (n_features, n_outputs), and not (n_outputs, n_features).
    """
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
