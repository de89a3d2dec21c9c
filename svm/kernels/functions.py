"""Kernel functions and blocks of their values.

**exp, for rbf.** Where a processor has no 512-bit vectors, numpy computes exp in float64 one number at a time, which
takes longer than the product of two rows.

x = k ln 2 + r, r being at most ½ ln 2 on either side of zero; e^r by its Taylor polynomial, 2^k by writing k
into the bits of the exponent. k comes from adding a number so large that only integers are left behind, whose low bits
are then k. There is no branch and no table, so a compiler makes vectors of it.

It is accurate to within 0.7 units in the last place. Below the smallest normal number the result is zero; NaN stays
NaN. A positive exponent, which only rounding makes of −γ‖x − z‖², counts as zero: no value of the kernel is above one.

Source: Cody and Waite 1980 (the split of ln 2).

**Tiles of dense rows: product, exp, sum and store in one compiled call.** A tile of 256 by 256 values of rows with 20
columns takes a tenth of a millisecond, of which the calls of numpy in it hold the interpreter lock for ten
microseconds. That is little on one thread. Two threads wait for each other there, and the one that waits goes to sleep
and is woken again: they took a sixth more processor time than one.

So there is one call for each tile. The product in it is that of BLAS, which numba calls in
scipy's library: sums of products are those of ``numpy.dot``, in the same order. A loop of our own over registers would
have to use vectors of 512 bits to be as fast there, which LLVM does not choose by itself.

**Blocks: one matrix product and one elementwise pass.** With rbf the product yields the exponent itself. Row x is
stored as (√(2γ) x, −γ‖x‖², 1); the product of a left row with the last two entries swapped and a right row is 2γ x'z −
γ‖x‖² − γ‖z‖² = −γ‖x − z‖². Dense rows are centred first, which changes no distance and keeps rounding small. CSR rows
are multiplied with a densified block of left rows, the cost of a value being the nonzeros of its right row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import scipy.linalg.cython_blas  # noqa: F401  loaded before the threads of all BLAS libraries are limited
import scipy.sparse as sp
from numba import types
from numba.extending import intrinsic

from dsgd.errors import InvalidDataError
from dsgd.kernels.jit import kernel as compiled
from dsgd.kernels.jit import part as compiled_part
from dsgd.svm.kernels.rows import Rows, centre_rows, gather_csr, is_plain, sum_columns, sum_squares
from dsgd.types import AnyArray, FloatMatrix, FloatVector, IntVector

# Products may be fused with sums; the order of operations is what the split of ln 2 lives on.
_fused = compiled_part(fastmath={"contract"})


@intrinsic
def _bits(typing_context: Any, number: Any) -> Any:
    """Return the bits of a float as an integer of its size."""
    integer = {types.float64: types.int64, types.float32: types.int32}[number]
    return integer(number), _recast


@intrinsic
def _float(typing_context: Any, word: Any) -> Any:
    """Return the float that an integer has the bits of."""
    number = {types.int64: types.float64, types.int32: types.float32}[word]
    return number(word), _recast


def _recast(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    return builder.bitcast(arguments[0], context.get_value_type(signature.return_type))


_D, _S = np.float64, np.float32

# 1 / ln 2; what leaves only integers behind; ln 2 as a number of few bits, whose products with k are exact, and a rest.
_BY_LN2: Final = _D(1.0 / math.log(2.0))
_INTEGERS: Final = _D(1.5 * 2.0**52)
_LN2_HIGH, _LN2_LOW = _D(0.6931471803691238), _D(1.9082149292705877e-10)
_LEAST: Final = _D(-708.0)
_BY_LN2_S, _INTEGERS_S = _S(1.0 / math.log(2.0)), _S(1.5 * 2.0**23)
_LN2_HIGH_S, _LN2_LOW_S = _S(0.693359375), _S(-2.12194440e-4)
_LEAST_S, _ZERO_S, _ONE_S = _S(-87.0), _S(0.0), _S(1.0)
_C2, _C3, _C4, _C5, _C6, _C7, _C8, _C9, _C10, _C11, _C12, _C13 = (_D(1.0 / math.factorial(k)) for k in range(2, 14))
_S2, _S3, _S4, _S5, _S6, _S7 = (_S(1.0 / math.factorial(k)) for k in range(2, 8))


@_fused
def _exp(x: float) -> float:
    # Written so that NaN, for which every comparison fails, goes through.
    y = _LEAST if x < _LEAST else (0.0 if x > 0.0 else x)
    shifted = y * _BY_LN2 + _INTEGERS
    k = shifted - _INTEGERS
    r = (y - k * _LN2_HIGH) - k * _LN2_LOW
    p = (((((_C13 * r + _C12) * r + _C11) * r + _C10) * r + _C9) * r + _C8) * r + _C7
    p = ((((((p * r + _C6) * r + _C5) * r + _C4) * r + _C3) * r + _C2) * r + 1.0) * r + 1.0
    return 0.0 if x < _LEAST else p * _float((_bits(shifted) + 1023) << 52)


@_fused
def _exp_single(x: np.float32) -> np.float32:
    y = _LEAST_S if x < _LEAST_S else (_ZERO_S if x > _ZERO_S else x)
    shifted = y * _BY_LN2_S + _INTEGERS_S
    k = shifted - _INTEGERS_S
    r = (y - k * _LN2_HIGH_S) - k * _LN2_LOW_S
    p = ((((((_S7 * r + _S6) * r + _S5) * r + _S4) * r + _S3) * r + _S2) * r + _ONE_S) * r + _ONE_S
    return _ZERO_S if x < _LEAST_S else p * _float(np.int32((_bits(shifted) + np.int32(127)) << np.int32(23)))


@compiled
def exp_double(values: FloatVector) -> None:
    """Replace each float64 by its exp."""
    for i in range(len(values)):
        values[i] = _exp(values[i])


@compiled
def exp_single(values: AnyArray) -> None:
    """Replace each float32 by its exp."""
    for i in range(len(values)):
        values[i] = _exp_single(values[i])


def exponentials(values: AnyArray) -> None:
    """Replace exponents that are not positive, but for rounding, by their exp."""
    if not values.flags.c_contiguous:
        raise ValueError("exponentials(values) needs a contiguous array: one in any other order would be copied.")
    if values.dtype == np.float32:
        exp_single(values.reshape(-1))
    else:
        exp_double(values.reshape(-1))


def fits(*arrays: AnyArray) -> bool:
    """Return whether arrays are of one type, contiguous and writable; for others Numba would compile once more."""
    dtype = arrays[0].dtype
    return all(a.dtype == dtype and a.flags.c_contiguous and a.flags.writeable for a in arrays)


def is_single(dtype: Any) -> bool | None:
    """Return what kernels take as `single`: None for float64, true for float32, of which each has code of its own."""
    return True if np.dtype(dtype) == np.float32 else None


@compiled
def tile_values(left, right, out, is_rbf, single):  # type: ignore[no-untyped-def]
    """Set out, shape (q, n), to the products of left and right rows, or to their exp."""
    np.dot(left, right.T, out)
    if is_rbf:
        if single is None:
            exp_double(out.reshape(out.size))
        else:
            exp_single(out.reshape(out.size))


@compiled
def tile_sums(left, right, coefs, tile, out, is_rbf, single):  # type: ignore[no-untyped-def]
    """Set out[k] to the sum over left rows of their values with right row k times coefs, shape (q,) or (q, m)."""
    values = tile[: len(left)]
    tile_values(left, right, values, is_rbf, single)
    np.dot(values.T, coefs, out)


@compiled
def sum_tile(left, right, coefs, tile, out, is_rbf):  # type: ignore[no-untyped-def]
    """Set tile to values in float64, and out[c, i] to the sum over right rows k of coefs[c, k] tile[i, k]."""
    tile_values(left, right, tile, is_rbf, None)
    out[:] = np.dot(coefs, tile.T)


@compiled
def sum_tiles(left, right, coefs, slabs, bounds, number, sums, height, is_rbf):  # type: ignore[no-untyped-def]
    """Do as `sum_tile` for consecutive slabs of right rows, of which the first is `number`.

    Slab t has columns bounds[t] to bounds[t + 1]; in `slabs` they lie one after another, each a matrix with all left
    rows, and sums has the shape (n_slabs, c, n_left). Left rows are taken `height` at a time, so that their values are
    summed while they are in the second-level cache.
    """
    m, origin = len(left), bounds[number]
    while bounds[number] < origin + len(right):
        first, last = bounds[number], bounds[number + 1]
        tile, some = slabs[m * first : m * last].reshape(m, last - first), np.ascontiguousarray(coefs[:, first:last])
        for a in range(0, m, height):
            b = min(m, a + height)
            part, found = right[first - origin : last - origin], sums[number, :, a:b]
            sum_tile(left[a:b], part, some, tile[a:b], found, is_rbf)
        number += 1


@compiled
def add_parts(left, right, coefs, bounds, columns, tile, sums, out, is_rbf, single):  # type: ignore[no-untyped-def]
    """Add to out[:, columns[t]] what `tile_sums` sets `sums` to of part t of left rows, bounds[t] to bounds[t + 1]."""
    for t in range(len(bounds) - 1):
        first, last = bounds[t], bounds[t + 1]
        tile_sums(left[first:last], right, coefs[first:last], tile, sums, is_rbf, single)
        found = sums.reshape(len(right), columns.shape[1])
        for k in range(len(right)):
            for c in range(columns.shape[1]):
                out[k, columns[t, c]] += found[k, c]


@compiled
def add_tile(left, right, coefs, tile, u, flat, stride, slots, start, is_rbf, single):  # type: ignore[no-untyped-def]
    """Set tile to values, add coefs times tile to u, and store the first rows in the cache, from column start on."""
    tile_values(left, right, tile, is_rbf, single)
    sums, width = np.dot(coefs, tile), np.uint64(tile.shape[1])
    for k in range(width):
        u[k] += sums[k]
    for s in range(np.uint64(len(slots))):
        target, row = np.uint64(slots[s] * stride + start), tile[s]
        for k in range(width):
            flat[target + k] = row[k]


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

    - `shift`, shape (d,): taken off dense rows; the same for both sides.
    - `sparse`: whether rows are kept as CSR.
    """
    if kernel.function is not None:
        plain = X if index is None else X[index]
        return Rows(plain.shape[0], plain=plain)
    n, d = X.shape[0] if index is None else len(index), X.shape[1]
    is_rbf = kernel.name == "rbf"
    if sparse:
        csr = X if sp.issparse(X) and X.format == "csr" else sp.csr_matrix(X)
        parts = (csr.data, csr.indices, csr.indptr)
        parts = parts if index is None else gather_csr(parts, index)
        squares = np.zeros(n)
        if is_rbf:
            sum_squares(parts[0], parts[2], squares)
            squares *= -kernel.gamma
        values = (parts[0] * (np.sqrt(2.0 * kernel.gamma) if is_rbf else 1.0)).astype(dtype, copy=False)
        return Rows(n, sparse=(values, parts[1], parts[2]), n_columns=d, offsets=squares.astype(dtype))
    if not is_rbf and shift is None and index is None and not sp.issparse(X):
        return Rows(n, dense=np.ascontiguousarray(X, dtype=dtype))
    out = np.empty((n, d + 2 if is_rbf else d), dtype=dtype)
    shift = np.zeros(d) if is_rbf and shift is None else shift
    for begin, part in _chunks(X, index):
        rows = as_dense(part)
        target = out[begin : begin + len(rows)]
        if is_rbf:
            centre_rows(rows if is_plain(rows) else np.array(rows, np.float64), shift, kernel.gamma, target)
        else:
            target[:] = rows if shift is None else rows - shift  # float64
    return Rows(n, dense=out)


_TILE = 16
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)

#: Left rows that are densified together, and of how many bytes each: 512 rows take 32 megabytes. Wider ones are given
#: the columns only that are there, and go in smaller parts.
_MOST_LEFT, _FEWEST_LEFT = 512, 16
_WIDEST_BYTES = 2**16


@dataclass(frozen=True)
class Left:
    """Left rows in the form that products want.

    - `rows`: dense rows, shape (q, d), or what sparse ones have besides their entries.
    - `columns`, shape (m, q): sparse rows, densified by columns.
    - `table`, shape (size, 2): which columns those are, by hashing (`make_table`), if they are not all.
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
    """Return (start, stop, part) of the left rows; sparse rows come in parts whose densified form stays small."""
    if rows.sparse is not None and rows.offsets is not None:
        parts, begin = [], 0
        while begin < rows.n:
            parts.append(_densified_part(rows, *rows.sparse, begin))
            begin = parts[-1][1]
        return parts
    if rows.dense is not None and kernel.name == "rbf":
        swapped = rows.dense.copy()
        swapped[:, -2], swapped[:, -1] = rows.dense[:, -1], rows.dense[:, -2]
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


def tile_rows(kernel: Kernel, left: Left, right: Rows, out: AnyArray) -> tuple[AnyArray, AnyArray] | None:
    """Return left and right rows for compiled tiles, as in `row_values`; None where they are not of that kind."""
    if left.rows.dense is None or right.dense is None or kernel.name not in {"rbf", "linear"}:
        return None
    return (left.rows.dense, right.dense) if fits(out, left.rows.dense, right.dense) else None


def row_values(kernel: Kernel, left: Left, right: Rows, out: AnyArray) -> None:
    """Set `out`, shape (q, right.n), to the values of left rows with right rows."""
    tiled = tile_rows(kernel, left, right, out)
    if tiled is not None:
        tile_values(*tiled, out, kernel.name == "rbf", is_single(out.dtype))
        return
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
