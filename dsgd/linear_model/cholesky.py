r"""Products with the inverse of a Hessian, also where rounding leaves it indefinite.

Problem: rounding errors are shares of the largest entries. Where columns depend on each other and are large, such as
those of times in nanoseconds, the errors are larger than what the penalty adds to the diagonal, and there is no
Cholesky factor.

Method: the matrix is scaled to a diagonal of ones, and as much is added to that as rounding may have taken, or ten
times, or a hundred. The direction is then shorter where the data say nothing; what is certified of the point that it
leads to stays true.

Source: Higham 2002 (Accuracy and Stability of Numerical Algorithms), theorem 10.7: it has a factor if the least
eigenvalue of the scaled matrix is above a multiple of its size times the unit roundoff.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from scipy.linalg.lapack import dpotrf, dpotrs

from dsgd.errors import InvalidDataError
from dsgd.linear_model.columns import check_products
from dsgd.types import AnyArray, FloatMatrix

_TRIES: Final = 8


def inverse_of(matrix: FloatMatrix) -> Callable[[AnyArray], AnyArray]:
    """Return the product with the inverse of a matrix that is positive definite but for rounding."""
    check_products(matrix)
    # LAPACK itself: what scipy does around it takes longer than a small matrix.
    factor, failed = dpotrf(matrix, clean=False)
    return _inverse_nearby(matrix) if failed else lambda vector: _solve(factor, vector)


def _solve(factor: FloatMatrix, vector: AnyArray) -> AnyArray:
    """Return the product with the inverse of a matrix that has this factor; raise `ValueError` if it is not finite."""
    found: AnyArray = dpotrs(factor, np.asarray_chkfinite(vector))[0]
    return found


def _inverse_nearby(matrix: FloatMatrix) -> Callable[[AnyArray], AnyArray]:
    scales = 1.0 / np.sqrt(np.maximum(matrix.diagonal(), np.finfo(np.float64).tiny))
    scaled, p = scales[:, None] * matrix * scales, len(scales)
    for k in range(_TRIES):
        scaled[np.diag_indices(p)] = 1.0 + 10.0**k * p * np.finfo(np.float64).eps
        factor, failed = dpotrf(scaled, clean=False)
        if not failed:
            return lambda vector: scales * _solve(factor, scales * vector)
    raise InvalidDataError("The Hessian of the objective is not positive definite: scale the features.")
