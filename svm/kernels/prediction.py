"""Decision values in float64, a small block of kernel values at a time.

Problem: f(x) = Σ β_j k(x, z_j) of support vectors z_j has terms of both signs, so rounding errors of kernel values are
multiplied by ``Σ |β_j|`` and compared with the margin. If features are large and the kernel grows with them, the errors
of float32 exceed the width of the margin. With rbf they rarely matter, but no bound guarantees that: the errors of n
products times ``Σ |β_j| k(x, z_j)`` exceed a hundredth of the margin on usual sets, to save a third of the time.

A linear kernel needs no kernel values: its f is one product with w = Σ β_j z_j.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp

from dsgd.svm.kernels.functions import Kernel, centre, prefers_sparse, prepare
from dsgd.svm.kernels.rows import Rows
from dsgd.svm.kernels.sums import Sums
from dsgd.svm.kernels.threads import Pool
from dsgd.types import FloatMatrix

_SLAB_BYTES = 2**22
_SPARSE_ROWS = 8192
#: Weights of a sparse machine are multiplied as a dense matrix up to this size.
_DENSE_BYTES = 2**26


def linear_sums(X: Any, coef: Any) -> FloatMatrix:
    """Return X coef' in float64, shape (n, m), a slab of rows at a time.

    - `X`, shape (n, d): rows, float32 or float64.
    - `coef`, shape (m, d): weights, float64.
    """
    if sp.issparse(coef) and 8 * coef.shape[0] * coef.shape[1] <= _DENSE_BYTES:
        coef = coef.toarray()
    out = np.empty((X.shape[0], coef.shape[0]))
    step = _SPARSE_ROWS if sp.issparse(X) else max(16, _SLAB_BYTES // (8 * max(1, X.shape[1])))
    for start in range(0, X.shape[0], step):
        found = X[start : start + step].astype(np.float64, copy=False) @ coef.T
        out[start : start + step] = found.toarray() if sp.issparse(found) else found
    return out


def kernel_sums(
    kernel: Kernel,
    vectors: Any,
    coefs: FloatMatrix,
    groups: Sequence[tuple[int, Any]],
    X: Any,
    n_out: int,
    pool: Pool,
) -> FloatMatrix:
    """Return Σ_j k(x_i, z_j) coefs[j], shape (n, n_out), without ever holding that kernel matrix.

    - `kernel`: the kernel, not ``precomputed``.
    - `vectors`, shape (n_SV, d): support vectors.
    - `coefs`, shape (n_SV, m): their coefficients.
    - `groups`: where each group of support vectors ends, and the m of the `n_out` columns its sums go to.
    - `X`, shape (n, d): rows.
    """
    out = np.zeros((X.shape[0], n_out))
    is_sparse = kernel.function is None and prefers_sparse(vectors)
    shift = None if is_sparse or not len(coefs) else centre(kernel, vectors)

    def ready(rows: Any, start: int, stop: int) -> Rows:
        return prepare(kernel, rows[start:stop], np.float64, shift=shift, sparse=is_sparse)

    Sums(kernel, np.float64, pool).add_weighted(partial(ready, vectors), coefs, partial(ready, X), out, groups)
    return out
