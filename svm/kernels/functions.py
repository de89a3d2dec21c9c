"""Kernels and blocks of kernel values: K(left rows, right rows) by one matrix product and one scalar sweep.

With rbf the product yields the exponent itself. Row x is stored as (√(2γ) x, −γ‖x‖², 1); the product of a left row with
the last two entries swapped and a right row is 2γ x'z − γ‖x‖² − γ‖z‖² = −γ‖x − z‖². Dense rows are centred before,
which leaves every distance as it is and keeps rounding small. CSR rows are multiplied with a densified block of left
rows, the cost of a value being the nonzeros of its right row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from dsgd.errors import InvalidDataError
from dsgd.kernels.jit import kernel as compiled
from dsgd.svm.kernels.exponential import exponentials
from dsgd.types import AnyArray, FloatMatrix, FloatVector, IntVector

__all__ = [
    "KERNELS",
    "Kernel",
    "Left",
    "Rows",
    "as_dense",
    "block_values",
    "cast_rows",
    "centre",
    "concatenate_rows",
    "is_far",
    "is_sparse_cheaper",
    "left_bytes",
    "left_form",
    "prefers_sparse",
    "prepare",
    "row_sums",
    "row_values",
    "scale_gamma",
    "span",
    "survey",
    "take_rows",
    "width_of",
]

#: Kernels by name; a callable k(A, B) -> (n_a, n_b) is the sixth kind.
KERNELS = ("linear", "rbf", "poly", "sigmoid", "precomputed")

_TILE = 16
#: Rows are far from the origin if the square of their mean is so many times the largest of what is left of them.
_FAR = 100.0
#: Standard deviations that are such a share of the mean are rounding.
_SAME = 1e-14
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
#: Left rows that are densified together, and of how many bytes each: 512 rows take 32 megabytes. Wider ones are given
#: the columns only that are there, and go in smaller parts.
_MOST_LEFT, _FEWEST_LEFT = 512, 16
_WIDEST_BYTES = 2**16
_CHUNK_BYTES = 2**19


@dataclass(frozen=True)
class Kernel:
    """A kernel function with its constants.

    Parameters
    ----------
    name : {"linear", "rbf", "poly", "sigmoid", "precomputed", "callable"}
        x'z, exp(−γ‖x−z‖²), (γ x'z + c)^degree, tanh(γ x'z + c), a given matrix, or `function`.
    gamma, coef0, degree : float
        γ, c and the degree.
    function : callable or None
        ``function(A, B)`` returns the values of all pairs, shape (n_a, n_b).
    shift : array, shape (d,), or None
        Taken off dense rows. Rbf distances are left as they are; None takes the mean of the rows at hand. Inner
        products with a linear kernel are other ones, which is for duals where they are as good (`survey`).
    largest_square : float
        Largest squared norm of a training row, less the shift, where it is known: says how far rounding goes.
    """

    name: str
    gamma: float = 1.0
    coef0: float = 0.0
    degree: float = 3.0
    function: Callable[[Any, Any], Any] | None = None
    shift: FloatVector | None = field(default=None, compare=False, repr=False)
    largest_square: float = field(default=np.inf, compare=False, repr=False)


@dataclass(frozen=True)
class Rows:
    """Rows made ready for products; exactly one of the representations is set.

    Parameters
    ----------
    n : int
        Rows.
    dense : array, shape (n, d) or (n, d + 2), or None
        Dense rows; with rbf, scaled and augmented.
    sparse : CSR arrays (values, indices, indptr) or None
        Sparse rows; with rbf, scaled.
    n_columns : int
        Columns of sparse rows.
    offsets : array, shape (n,), or None
        −γ‖x‖² of sparse rows with rbf, else zeros.
    plain : array or sparse matrix or None
        Rows for a callable, or the given kernel matrix.
    ids : array, shape (n,), or None
        Which rows of the given kernel matrix these are.
    """

    n: int
    dense: FloatMatrix | None = None
    sparse: tuple[AnyArray, AnyArray, AnyArray] | None = None
    n_columns: int = 0
    offsets: FloatVector | None = None
    plain: Any = None
    ids: AnyArray | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of what was made for these rows, without what belongs to the caller."""
        parts = [self.dense, self.offsets, self.ids, *(self.sparse or ())]
        return sum(int(part.nbytes) for part in parts if part is not None)


def span(rows: Rows, start: int, stop: int) -> Rows:
    """Return rows start..stop, as views where they are held."""
    n = stop - start
    if rows.dense is not None:
        return Rows(n, dense=rows.dense[start:stop])
    if rows.sparse is not None and rows.offsets is not None:
        values, indices, indptr = rows.sparse
        parts = (values, indices, indptr[start : stop + 1])
        return Rows(n, sparse=parts, n_columns=rows.n_columns, offsets=rows.offsets[start:stop])
    if rows.ids is not None:
        return Rows(n, plain=rows.plain, ids=rows.ids[start:stop])
    return Rows(n, plain=rows.plain[start:stop])


def cast_rows(rows: Rows, dtype: Any) -> Rows:
    """Return rows that were made ready in float64 as they are made ready in another type, to the last bit."""
    if rows.dense is not None:
        return replace(rows, dense=rows.dense.astype(dtype, copy=False))
    if rows.sparse is not None and rows.offsets is not None:
        values, indices, indptr = rows.sparse
        parts = (values.astype(dtype, copy=False), indices, indptr)
        return replace(rows, sparse=parts, offsets=rows.offsets.astype(dtype, copy=False))
    return rows


def scale_gamma(
    gamma: str | float, X: Any, weights: FloatVector | None = None, *, index: IntVector | None = None
) -> float:
    """Return the number behind ``gamma``: "scale" is 1/(d Var X), "auto" is 1/d.

    Rows count by their weights in Var X, so a row of weight two is the same as two rows; scikit-learn ignores weights
    here.

    Parameters
    ----------
    gamma : {"scale", "auto"} or float
        What was asked for.
    X : array or CSR matrix, shape (n, d)
        Rows.
    weights : array, shape (m,), or None
        Weights of the rows taken.
    index : int64 array, shape (m,), or None
        Which rows are taken, in which order; None takes all.
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
    return 1.0 / (d * variance) if variance > (_SAME * mean) ** 2 else 1.0


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
        total += as_dense(part).sum(axis=0, dtype=np.float64)
    return total / max(1, X.shape[0] if index is None else len(index))


def survey(kernel: Kernel, X: Any, index: IntVector, *, sparse: bool | None = None, balanced: bool = False) -> Kernel:
    """Return the kernel with what all problems on these rows need to know: their mean, and how long they are.

    Where coefficients sum to zero, Σ β_j (x_j − m)'(x_i − m) is Σ β_j x_j'x_i less one number for all i: the dual is
    the same. Of rows far from the origin the latter leaves few digits, so a linear kernel takes the former.

    Parameters
    ----------
    kernel : Kernel
        The kernel.
    X : array or CSR matrix, shape (n, d)
        Rows.
    index : int64 array, shape (m,)
        Which of them are meant.
    sparse : bool or None, default None
        Whether rows are multiplied as CSR; None asks `prefers_sparse`.
    balanced : bool, default False
        Whether the coefficients of all problems sum to zero.
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
    """Return whether what is taken off the rows would cost their inner products digits."""
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

    Parameters
    ----------
    kernel : Kernel
        The kernel, not ``precomputed``.
    X : array or CSR matrix, shape (n, d)
        Rows.
    dtype : dtype
        float32 or float64, the type of products.
    shift : array, shape (d,), or None
        Taken off dense rows; the same for both sides.
    sparse : bool
        Whether rows are kept as CSR.
    index : int64 array, shape (m,), or None
        Which rows are taken, in which order; None takes all.
    """
    if kernel.function is not None:
        plain = X if index is None else X[index]
        return Rows(plain.shape[0], plain=plain)
    n, d = X.shape[0] if index is None else len(index), X.shape[1]
    scale = np.sqrt(2.0 * kernel.gamma) if kernel.name == "rbf" else 1.0
    if sparse:
        csr = X if sp.issparse(X) and X.format == "csr" else sp.csr_matrix(X)
        parts = (csr.data, csr.indices, csr.indptr)
        parts = parts if index is None else _gather(parts, index)
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


@compiled
def gather_rows(values, indices, indptr, index, out_values, out_indices, out_indptr):  # type: ignore[no-untyped-def]
    """Copy rows of a CSR matrix to where `out_indptr` says."""
    for k in range(len(index)):
        source, target = indptr[index[k]], out_indptr[k]
        for p in range(out_indptr[k + 1] - target):
            out_values[target + p] = values[source + p]
            out_indices[target + p] = indices[source + p]


@compiled
def sum_squares(values, indptr, out):  # type: ignore[no-untyped-def]
    """Set out[i] to the sum of squares of row i of a CSR matrix, in float64."""
    for i in range(len(out)):
        total = 0.0
        for p in range(indptr[i], indptr[i + 1]):
            total += np.float64(values[p]) * np.float64(values[p])
        out[i] = total


def _gather(csr: tuple[AnyArray, AnyArray, AnyArray], index: AnyArray) -> tuple[AnyArray, AnyArray, AnyArray]:
    """Return some rows of a CSR matrix; scipy takes as long for 256 of them as their products do."""
    values, indices, indptr = csr
    ends = np.zeros(len(index) + 1, dtype=indptr.dtype)
    np.cumsum(indptr[index + 1] - indptr[index], out=ends[1:])
    size = int(ends[-1])
    out = np.empty(size, dtype=values.dtype), np.empty(size, dtype=indices.dtype), ends
    gather_rows(values, indices, indptr, index, *out)
    return out


def take_rows(rows: Rows, index: AnyArray) -> Rows:
    """Return a copy of some prepared rows."""
    n = len(index)
    if rows.dense is not None:
        return Rows(n, dense=rows.dense[index])
    if rows.sparse is not None and rows.offsets is not None:
        parts = _gather(rows.sparse, index)
        return Rows(n, sparse=parts, n_columns=rows.n_columns, offsets=rows.offsets[index])
    if rows.ids is not None:
        return Rows(n, plain=rows.plain, ids=rows.ids[index])
    return Rows(n, plain=rows.plain[index])


def concatenate_rows(rows: Rows, more: Rows) -> Rows:
    """Return rows of two kinds alike, one after the other."""
    n = rows.n + more.n
    if rows.dense is not None and more.dense is not None:
        return Rows(n, dense=np.concatenate([rows.dense, more.dense]))
    if rows.sparse is not None and more.sparse is not None and rows.offsets is not None and more.offsets is not None:
        values, indices, indptr = (np.concatenate([a, b]) for a, b in zip(rows.sparse, more.sparse, strict=True))
        indptr = np.concatenate([rows.sparse[2], more.sparse[2][1:] + rows.sparse[2][-1]])
        offsets = np.concatenate([rows.offsets, more.offsets])
        return Rows(n, sparse=(values, indices, indptr), n_columns=rows.n_columns, offsets=offsets)
    if rows.ids is not None and more.ids is not None:
        return Rows(n, plain=rows.plain, ids=np.concatenate([rows.ids, more.ids]))
    if sp.issparse(rows.plain):
        return Rows(n, plain=sp.vstack([rows.plain, more.plain], format="csr"))
    return Rows(n, plain=np.concatenate([rows.plain, more.plain]))


@compiled
def sparse_products(values, indices, indptr, left, left_offsets, offsets, out, start, stop, scratch):  # type: ignore[no-untyped-def]
    """Set out[:, start:stop] = left' X[start:stop]' + offsets; left is (d, q), X is CSR, scratch is (16, q)."""
    q = left.shape[1]
    for first in range(start, stop, 16):
        size = min(16, stop - first)
        for r in range(size):
            row = scratch[r]
            for k in range(q):
                row[k] = left_offsets[k] + offsets[first + r]
            p, end = indptr[first + r], indptr[first + r + 1]
            while p + 1 < end:
                a, b = values[p], values[p + 1]
                one, two = left[indices[p]], left[indices[p + 1]]
                for k in range(q):
                    row[k] += a * one[k] + b * two[k]
                p += 2
            if p < end:
                a, one = values[p], left[indices[p]]
                for k in range(q):
                    row[k] += a * one[k]
        for k in range(q):
            for r in range(size):
                out[k, first + r] = scratch[r, k]


@compiled
def fill_table(columns, table):  # type: ignore[no-untyped-def]
    """Put each column and its place into a table of a power of two, by open addressing."""
    mask = np.uint64(len(table) - 1)
    for place in range(len(columns)):
        slot = (np.uint64(columns[place]) * _GOLDEN >> np.uint64(32)) & mask
        while table[slot, 0] >= 0:
            slot = (slot + np.uint64(1)) & mask
        table[slot, 0], table[slot, 1] = columns[place], place


@compiled
def narrow_rows(values, indices, indptr, table, out_values, out_indices, out_indptr):  # type: ignore[no-untyped-def]
    """Keep the entries whose columns are in a table, under their places."""
    mask, count = np.uint64(len(table) - 1), np.uint64(0)
    for i in range(np.uint64(len(indptr) - 1)):
        for p in range(np.uint64(indptr[i]), np.uint64(indptr[i + np.uint64(1)])):
            column = indices[p]
            slot = (np.uint64(column) * _GOLDEN >> np.uint64(32)) & mask
            while table[slot, 0] >= 0 and table[slot, 0] != column:
                slot = (slot + np.uint64(1)) & mask
            if table[slot, 0] >= 0:
                out_values[count], out_indices[count] = values[p], table[slot, 1]
                count += np.uint64(1)
        out_indptr[i + np.uint64(1)] = count


def make_table(columns: AnyArray) -> AnyArray:
    """Return a table of some columns, each once, and their places, shape (size, 2)."""
    table = np.full((2 ** max(4, int(2 * len(columns)).bit_length()), 2), -1, dtype=columns.dtype)
    fill_table(columns, table)
    return table


def narrow(csr: tuple[AnyArray, AnyArray, AnyArray], table: AnyArray) -> tuple[AnyArray, AnyArray, AnyArray]:
    """Return CSR rows less the entries whose columns are not in a table; columns are numbered by it."""
    values, indices, indptr = csr
    size = int(indptr[-1] - indptr[0])
    out = np.empty(size, dtype=values.dtype), np.empty(size, dtype=indices.dtype), np.zeros_like(indptr)
    narrow_rows(values, indices, indptr, table, *out)
    return out


def _finish(kernel: Kernel, out: AnyArray) -> None:
    """Turn products into kernel values, in place."""
    if kernel.name == "rbf":
        exponentials(out)
    elif kernel.name in {"poly", "sigmoid"}:
        np.multiply(out, out.dtype.type(kernel.gamma), out=out)
        np.add(out, out.dtype.type(kernel.coef0), out=out)
        if kernel.name == "sigmoid":
            np.tanh(out, out=out)
        elif kernel.degree == 3:
            np.multiply(out, out * out, out=out)
        elif kernel.degree == 2:
            np.multiply(out, out, out=out)
        else:
            np.power(out, out.dtype.type(kernel.degree), out=out)


@dataclass(frozen=True)
class Left:
    """Left rows in the form that products want.

    Parameters
    ----------
    rows : Rows
        Dense rows, shape (q, d), or what sparse ones have besides their entries.
    columns : array, shape (m, q), or None
        Sparse rows, densified by columns.
    table : array, shape (size, 2), or None
        Which columns those are, by hashing (`make_table`), if they are not all.
    """

    rows: Rows
    columns: AnyArray | None = None
    table: AnyArray | None = None


def left_bytes(rows: Rows) -> int:
    """Return the bytes that a row takes as a left one."""
    if rows.sparse is not None:
        return min(rows.n_columns * int(rows.sparse[0].itemsize), _WIDEST_BYTES)
    if rows.ids is not None:
        return 8
    held = rows.dense if rows.dense is not None else rows.plain
    return 8 * int(held.shape[1])


def left_form(kernel: Kernel, rows: Rows) -> list[tuple[int, int, Left]]:
    """Return (start, stop, part) of the left rows; sparse rows come in parts whose densified form stays small.

    Of wide rows a part has the columns only that its rows have, and so few rows that there are not many.
    """
    if rows.sparse is not None and rows.offsets is not None:
        parts, begin = [], 0
        while begin < rows.n:
            parts.append(_densified_part(rows, *rows.sparse, begin))
            begin = parts[-1][1]
        return parts
    if rows.dense is not None and kernel.name == "rbf":
        swapped = rows.dense.copy()
        swapped[:, [-2, -1]] = swapped[:, [-1, -2]]
        return [(0, rows.n, Left(Rows(rows.n, dense=swapped)))]
    return [(0, rows.n, Left(rows))]


def _densified_part(
    rows: Rows, values: AnyArray, indices: AnyArray, indptr: AnyArray, begin: int
) -> tuple[int, int, Left]:
    """Return where a part of sparse left rows begins and ends, and the part."""
    end = min(rows.n, begin + _MOST_LEFT)
    places, n_columns, table = indices[indptr[begin] : indptr[end]], rows.n_columns, None
    if n_columns * values.itemsize > _WIDEST_BYTES:
        while True:
            present, places = np.unique(indices[indptr[begin] : indptr[end]], return_inverse=True)
            if len(present) * values.itemsize <= _WIDEST_BYTES or end - begin <= _FEWEST_LEFT:
                break
            end = begin + (end - begin) // 2
        n_columns, table = len(present), make_table(present)
    full = np.zeros((n_columns, end - begin), dtype=values.dtype)
    of = np.repeat(np.arange(end - begin), np.diff(indptr[begin : end + 1]))
    full[places, of] = values[indptr[begin] : indptr[end]]
    offsets = None if rows.offsets is None else rows.offsets[begin:end]
    return begin, end, Left(Rows(end - begin, offsets=offsets), full, table)


def row_values(kernel: Kernel, left: Left, right: Rows, out: AnyArray) -> None:
    """Set `out` to the values of left rows with right rows.

    Parameters
    ----------
    kernel : Kernel
        The kernel.
    left : Left
        One part of `left_form`.
    right : Rows
        Right rows.
    out : array, shape (q, right.n)
        Where values go, float32 or float64.

    Raises
    ------
    InvalidDataError
        A callable kernel returned another shape.
    """
    if left.rows.ids is not None and right.ids is not None:
        out[:] = left.rows.plain[np.ix_(left.rows.ids, right.ids)]
        return
    if kernel.function is not None:
        values = kernel.function(left.rows.plain, right.plain)
        values = np.asarray(values.toarray() if sp.issparse(values) else values)
        if values.shape != out.shape:
            raise InvalidDataError(
                f"kernel(A, B) must return shape {out.shape}, one value per pair of rows. Got shape {values.shape}."
            )
        out[:] = values
        return
    if left.columns is not None and right.sparse is not None:
        scratch = np.empty((_TILE, left.columns.shape[1]), dtype=out.dtype)
        entries = right.sparse if left.table is None else narrow(right.sparse, left.table)
        sparse_products(*entries, left.columns, left.rows.offsets, right.offsets, out, 0, right.n, scratch)
    elif left.rows.dense is not None and right.dense is not None:
        np.matmul(left.rows.dense, right.dense.T, out=out)
    # Values that overflow are refused where a solution is made, once and with all that is to be said of them.
    with np.errstate(over="ignore", invalid="ignore"):
        _finish(kernel, out)


def block_values(kernel: Kernel, left: Rows, right: Rows, dtype: Any, out: AnyArray | None = None) -> FloatMatrix:
    """Return the matrix of values of all pairs, shape (left.n, right.n), in `out` if given."""
    if out is None:
        out = np.empty((left.n, right.n), dtype=dtype)
    for begin, end, part in left_form(kernel, left):
        row_values(kernel, part, right, out[begin:end])
    return out
