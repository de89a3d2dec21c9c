"""The squared distance between two models, with the same bits on every machine.

Ranks decide by these numbers and must agree. Sums of numpy and of BLAS are taken in an order that depends on the width
of a core's vectors, so two machines may round them differently; this loop has one order.
"""

from __future__ import annotations

import numpy as np

from dsgd.kernels.jit import kernel
from dsgd.types import FloatVector


@kernel
def squared_distances(vector: FloatVector, other: FloatVector) -> tuple[float, float]:
    """Return the squared distances of `vector` from `other`, and from zero.

    - `vector`, `other`, shape (n,): of one dtype.
    """
    apart, length = 0.0, 0.0
    for j in range(np.uint64(vector.shape[0])):
        value = np.float64(vector[j])
        difference = value - np.float64(other[j])
        apart += difference * difference
        length += value * value
    return apart, length
