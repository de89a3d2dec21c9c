"""The kernel functions with their constants, and preparation of rows for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from dsgd.svm.kernels.rows import Rows, centre_rows, gather_csr, is_plain, sum_columns, sum_squares
from dsgd.types import AnyArray, FloatVector, IntVector

#: Kernels by name; a callable k(A, B) -> (n_a, n_b) is the sixth kind.
KERNELS = ("linear", "rbf", "poly", "sigmoid", "precomputed")

#: Rows are far from the origin if the square of their mean is so many times the largest square after centring.
_FAR = 100.0
#: Standard deviations that are such a share of the mean are rounding.
_SAME = 1e-14
_CHUNK_BYTES = 2**19


@dataclass(frozen=True)
class Kernel:
    """A kernel function with its constants.

    - `name`: x'z, exp(−γ‖x−z‖²), (γ x'z + c)^degree, tanh(γ x'z + c), a given matrix, or `function`.
    - `function`: ``function(A, B)`` returns the values of all pairs, shape (n_a, n_b).
    - `shift`, shape (d,): subtracted from dense rows. Rbf distances do not change; None takes the mean of the given
      rows. Inner products with a linear kernel do change, for duals in which they are as good (`survey`).
    - `largest_square`: largest squared norm of a training row, less the shift, if known: bounds the rounding
      errors.
    """

    name: str
    gamma: float = 1.0
    coef0: float = 0.0
    degree: float = 3.0
    function: Callable[[Any, Any], Any] | None = None
    shift: FloatVector | None = field(default=None, compare=False, repr=False)
    largest_square: float = field(default=np.inf, compare=False, repr=False)


def scale_gamma(
    gamma: str | float, X: Any, weights: FloatVector | None = None, *, index: IntVector | None = None
) -> float:
    """Return the number behind ``gamma``: "scale" is 1/(d Var X), "auto" is 1/d.

    Rows count by their weights in Var X, so a row of weight two is the same as two rows; scikit-learn ignores weights
    here.

    - `gamma`: the parameter of the estimator.
    - `X`, shape (n, d): rows.
    - `weights`, shape (m,): weights of these rows.
    - `index`, shape (m,): the rows to use, in this order; None takes all.
    """
    if not isinstance(gamma, str):
        return float(gamma)
    n, d = X.shape
    if gamma == "auto":
        return 1.0 / int(d)
    order = np.arange(n) if index is None else index
    share = np.full(len(order), 1.0 / (len(order) * d)) if weights is None else weights / (weights.sum() * d)
    mean = float(share @ row_sums(X, None)[order])
    variance = float(share @ row_sums(X, mean)[order])
    return width_of(d, mean, variance)


def width_of(d: int, mean: float, variance: float) -> float:
    """Return what "scale" says of d features; 1 if they are all the same number, whose mean may be off by rounding."""
    return 1.0 / (d * variance) if variance > (_SAME * mean) * (_SAME * mean) else 1.0


def row_sums(X: Any, mean: float | None) -> FloatVector:
    """Return the sums of rows, or of their squared distances from `mean`, float64, shape (n,)."""
    if sp.issparse(X):
        values = X.data.astype(np.float64)
        if mean is not None:
            values = (values - mean) ** 2 - mean * mean  # an entry of zero counts mean² as well
        sums = sp.csr_matrix((values, X.indices, X.indptr), shape=X.shape).sum(axis=1)
        return np.asarray(sums, dtype=np.float64).ravel() + (0.0 if mean is None else X.shape[1] * mean * mean)
    out = np.empty(len(X))
    for begin, part in _chunks(X):
        if mean is None:
            np.sum(part, axis=1, dtype=np.float64, out=out[begin : begin + len(part)])
        else:
            away = part - np.float64(mean)
            np.einsum("ij,ij->i", away, away, out=out[begin : begin + len(part)])
    return out


def _chunks(X: Any, index: IntVector | None = None) -> Iterator[tuple[int, Any]]:
    """Yield where a chunk of the rows starts and the chunk, small enough to stay in the second-level cache."""
    n = X.shape[0] if index is None else len(index)
    step = max(16, _CHUNK_BYTES // max(1, 8 * X.shape[1]))
    for begin in range(0, n, step):
        yield begin, X[begin : begin + step] if index is None else X[index[begin : begin + step]]


def as_dense(rows: Any) -> AnyArray:
    """Return rows as an array."""
    return np.asarray(rows.toarray() if sp.issparse(rows) else rows)


def centre(kernel: Kernel, X: Any, index: IntVector | None = None) -> FloatVector | None:
    """Return what to take off rows that are multiplied as dense ones.

    It is the kernel's shift, or with rbf the mean of these rows; with it CSR rows give the values of the same dense
    ones, to the last bit.
    """
    if kernel.shift is not None or kernel.name != "rbf":
        return kernel.shift
    return _mean(X, index)


def _mean(X: Any, index: IntVector | None) -> FloatVector:
    total = np.zeros(X.shape[1])
    for _, part in _chunks(X, index):
        rows = as_dense(part)
        if is_plain(rows):
            sum_columns(rows, total)
        else:
            total += rows.sum(axis=0, dtype=np.float64)
    return total / max(1, X.shape[0] if index is None else len(index))


def survey(kernel: Kernel, X: Any, index: IntVector, *, sparse: bool | None = None, balanced: bool = False) -> Kernel:
    """Return the kernel with what all problems on these rows need to know: their mean, and how long they are.

    Where coefficients sum to zero, Σ β_j (x_j − m)'(x_i − m) is Σ β_j x_j'x_i less one number for all i: the dual is
    the same. Of rows far from the origin the latter leaves few digits, so a linear kernel takes the former.

    - `X`, shape (n, d): rows.
    - `index`, shape (m,): which of them are meant.
    - `sparse`: whether rows are multiplied as CSR; None asks `prefers_sparse`.
    - `balanced`: whether the coefficients of all problems sum to zero.
    """
    sparse = prefers_sparse(X) if sparse is None else sparse
    if balanced and kernel.name == "linear" and kernel.shift is None and not sparse:
        moved = survey(replace(kernel, shift=_mean(X, index)), X, index, sparse=sparse)
        if is_far(moved):
            return moved
    if sp.issparse(X) and (sparse or (kernel.name != "rbf" and kernel.shift is None)):
        squares = np.asarray(X.multiply(X).sum(axis=1), dtype=np.float64).ravel()[index]
        return replace(kernel, largest_square=float(squares.max(initial=0.0)))
    shift, largest = centre(kernel, X, index), 0.0
    for _, part in _chunks(X, index):
        rows = as_dense(part)
        away = rows if shift is None else rows - shift
        largest = max(largest, float(np.einsum("ij,ij->i", away, away, dtype=np.float64).max(initial=0.0)))
    return replace(kernel, shift=shift, largest_square=largest)


def is_far(kernel: Kernel) -> bool:
    """Return whether rows are so far from the origin that their inner products would lose digits."""
    with np.errstate(over="ignore"):
        return kernel.shift is not None and bool(kernel.shift @ kernel.shift > _FAR * kernel.largest_square)


def prefers_sparse(X: Any) -> bool:
    """Return whether products of CSR rows cost less than dense ones, by multiply-adds per value."""
    if not sp.issparse(X):
        return False
    return is_sparse_cheaper(X.shape[0], X.shape[1], X.nnz)


def is_sparse_cheaper(n: int, d: int, nnz: int) -> bool:
    """Return whether n rows with `nnz` entries of d each are better multiplied as CSR."""
    return bool(d / 16 > nnz / max(n, 1) / 8 + 2)


def prepare(
    kernel: Kernel,
    X: Any,
    dtype: Any,
    *,
    shift: FloatVector | None = None,
    sparse: bool,
    index: IntVector | None = None,
) -> Rows:
    """Return rows ready for `block_values`.

    - `kernel`: the kernel, not ``precomputed``.
    - `X`, shape (n, d): rows.
    - `dtype`: float32 or float64, the type of products.
    - `shift`, shape (d,): taken off dense rows; the same for both sides.
    - `sparse`: whether rows are kept as CSR.
    - `index`, shape (m,): which rows are taken, in which order; None takes all.
    """
    if kernel.function is not None:
        plain = X if index is None else X[index]
        return Rows(plain.shape[0], plain=plain)
    n, d = X.shape[0] if index is None else len(index), X.shape[1]
    scale = np.sqrt(2.0 * kernel.gamma) if kernel.name == "rbf" else 1.0
    if sparse:
        csr = X if sp.issparse(X) and X.format == "csr" else sp.csr_matrix(X)
        parts = (csr.data, csr.indices, csr.indptr)
        parts = parts if index is None else gather_csr(parts, index)
        squares = np.zeros(n)
        if kernel.name == "rbf":
            sum_squares(parts[0], parts[2], squares)
            squares *= -kernel.gamma
        values = (parts[0] * scale).astype(dtype, copy=False)
        return Rows(n, sparse=(values, parts[1], parts[2]), n_columns=d, offsets=squares.astype(dtype))
    if kernel.name != "rbf" and shift is None and index is None and not sp.issparse(X):
        return Rows(n, dense=np.ascontiguousarray(X, dtype=dtype))
    out = np.empty((n, d + 2 if kernel.name == "rbf" else d), dtype=dtype)
    for begin, part in _chunks(X, index):
        rows = as_dense(part)
        target = out[begin : begin + len(rows)]
        if kernel.name == "rbf" and shift is not None and is_plain(rows):
            away = np.empty(rows.shape)
            centre_rows(rows, shift, scale, away, target)
            rows = away
        else:
            if shift is not None:
                rows = rows - shift  # float64
            if kernel.name != "rbf":
                target[:] = rows
                continue
            rows = np.asarray(rows, dtype=np.float64)
            np.multiply(rows, scale, out=target[:, :d], casting="same_kind")
        target[:, d] = -kernel.gamma * np.einsum("ij,ij->i", rows, rows)
        target[:, d + 1] = 1.0
    return Rows(n, dense=out)
