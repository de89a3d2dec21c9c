"""Products of sparse rows with a matrix, for random features of rows that are CSR."""

from __future__ import annotations

import numpy as np

from dsgd.kernels.jit import kernel
from dsgd.types import AnyArray, FloatMatrix, FloatVector


@kernel
def project_sparse(
    values: FloatVector, indices: AnyArray, indptr: AnyArray, matrix: FloatMatrix, out: FloatMatrix
) -> None:
    """Write the product of CSR rows with a matrix; a row costs its entries times the columns of the matrix.

    - `values`, shape (nnz,): entries.
    - `indices`, shape (nnz,): their columns.
    - `indptr`, shape (n_rows + 1,): row starts in both; the first need not be zero.
    - `matrix`, shape (n_features, n_columns): the matrix, C-contiguous, in the dtype of the entries.
    - `out`, shape (n_rows, n_columns): overwritten.
    """
    n_columns = np.uint64(matrix.shape[1])
    for i in range(np.uint64(out.shape[0])):
        for k in range(n_columns):
            out[i, k] = 0.0
        for j in range(np.uint64(indptr[i]), np.uint64(indptr[i + np.uint64(1)])):
            value, column = values[j], np.uint64(indices[j])
            for k in range(n_columns):
                out[i, k] += value * matrix[column, k]
