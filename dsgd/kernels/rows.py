"""Operations on vectors, on single rows and on many, and asking for memory ahead of its use.

The dot product and the update of a row take nearly all the time of training. A row is a span of the values; ``sparse``
has its columns, or is None for a dense row. Numba prunes branches on arguments that are None when it compiles, so one
source gives the dense and the sparse machine code. Column numbers are unsigned: a signed index costs a test for
wrap-around on every access, which halves the speed. `fastmath` is ``reassoc`` and ``contract`` only: a sum may be taken
in any order and a product fused into it, which is what SIMD needs; infinities and NaN keep their meaning.

Tried and left out: loops written as LLVM vectors with halving tails (5 % on rows of 22, a page of code); four scalar
sums instead of LLVM's gathers for the sparse product (twice as slow), the sparse update unrolled by four (slower), and
the product of the next row taken ahead of the step and mended by the product of the two rows (10 % on rows of 22).

Squared distances of models have the same bits on every machine, since ranks decide by them: sums of numpy and of BLAS
are taken in an order that depends on the width of a core's vectors, this loop has one order.

A store to memory first reads the overwritten line into the caches. Rows that are wide, and together larger than any
cache, are written past the caches instead: a copy of 320 MB takes a quarter less time, page faults included.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from dsgd.kernels.atomics import barrier
from dsgd.kernels.jit import inlined, kernel, scalar
from dsgd.kernels.order import GOLDEN, mix64
from dsgd.types import AnyArray, FloatMatrix, FloatVector, IndexVector, PointerVector


@intrinsic
def _prefetch(context: Any, array: Any, place: Any) -> Any:
    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = target.make_array(signature.args[0])(target, builder, arguments[0]).data
        pointer = builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(8).as_pointer())
        word = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, word, word, word])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [pointer, word(0), word(3), word(1)])
        return target.get_dummy_value()

    return types.void(array, types.uint64), generate


@scalar
def prefetch(array: AnyArray, place: int) -> None:
    """Ask for the cache line of entry `place` of a vector, without waiting for it."""
    _prefetch(array, place)


_ONE = np.uint64(1)

# Rows are asked for so many steps ahead, and so many lines of each; row starts twice as far ahead.
_AHEAD, _TWICE, _LINES, _LINE_BYTES = np.uint64(16), np.uint64(32), np.uint64(16), 64
_any_order = inlined({"reassoc", "contract"})

#: Columns of the entries of sparse rows, and where rows begin.
Sparse: TypeAlias = tuple[IndexVector, PointerVector]

#: Where a row begins in the entries of all rows, and where it ends.
Span: TypeAlias = tuple[np.uint64, np.uint64]

#: Entries of all rows; of each place its row, target and weight; the weights of positive and negative classes.
RowArrays: TypeAlias = tuple[FloatVector, IndexVector, FloatVector, FloatVector, FloatMatrix]


@scalar
def row_bounds(index: IndexVector, sparse: Sparse | None, place: np.uint64, n_features: np.uint64) -> Span:
    """Return where the row of a place starts and ends in the entries of all rows."""
    row = np.uint64(index[place])
    if sparse is None:
        return row * n_features, (row + _ONE) * n_features
    return sparse[1][row], sparse[1][row + _ONE]


@scalar
def ask_ahead(
    values: FloatVector, sparse: Sparse | None, index: IndexVector, place: np.uint64, n_features: np.uint64
) -> None:
    """Ask for the row of a place some steps ahead: rows lie anywhere in memory."""
    end = np.uint64(index.shape[0]) - _ONE
    if sparse is not None:
        prefetch(sparse[1], np.uint64(index[min(end, place + _TWICE)]))
    first, last = row_bounds(index, sparse, min(end, place + _AHEAD), n_features)
    # What comes behind these lines the processor fetches by itself; a short row may end in one line more than it fills.
    step = np.uint64(_LINE_BYTES // values.itemsize)
    last = min(last, first + _LINES * step)
    for j in range(first, last, step):
        prefetch(values, j)
        if sparse is not None:
            prefetch(sparse[0], j)
    prefetch(values, last - _ONE)
    if sparse is not None:
        prefetch(sparse[0], last - _ONE)


@_any_order
def row_dot(
    values: FloatVector, sparse: Sparse | None, span: Span, weights: FloatVector, base: np.uint64
) -> np.floating[Any]:
    """Return the inner product of a row with the weights from `base` on.

    A row is the `span` of values, dense where `sparse` is None; column j of this output is ``weights[base + j]``.
    """
    (first, last), total = span, values.dtype.type(0)
    if sparse is None:
        for j in range(last - first):
            total += values[first + j] * weights[base + j]
    else:
        indices = sparse[0]
        for j in range(first, last):
            total += values[j] * weights[base + np.uint64(indices[j])]
    return total


@_any_order
def add_row(
    values: FloatVector, sparse: Sparse | None, span: Span, weights: FloatVector, base: np.uint64, factor: float
) -> None:
    """Add `factor` times a row to the weights from `base` on; arguments as in `row_dot`."""
    (first, last), step = span, values.dtype.type(factor)
    if sparse is None:
        for j in range(last - first):
            weights[base + j] += step * values[first + j]
    else:
        indices = sparse[0]
        for j in range(first, last):
            weights[base + np.uint64(indices[j])] += step * values[j]


@_any_order
def score_columns(values: FloatVector, sparse: Sparse, span: Span, weights: FloatVector, scores: FloatVector) -> None:
    """Write into `scores` the inner products of a sparse row with all outputs, weights (n_features, n_outputs)."""
    indices, n_outputs = sparse[0], np.uint64(scores.shape[0])
    for k in range(n_outputs):
        scores[k] = 0.0
    for j in range(span[0], span[1]):
        base = np.uint64(indices[j]) * n_outputs
        for k in range(n_outputs):
            scores[k] += values[j] * weights[base + k]


@_any_order
def add_columns(
    values: FloatVector, sparse: Sparse, span: Span, weights: FloatVector, factors: FloatVector, common: float
) -> None:
    """Add to every output `common` times its factor times a sparse row, weights laid out (n_features, n_outputs)."""
    indices, n_outputs = sparse[0], np.uint64(factors.shape[0])
    for j in range(span[0], span[1]):
        base = np.uint64(indices[j]) * n_outputs
        value = values[j] * values.dtype.type(common)
        for k in range(n_outputs):
            weights[base + k] += value * factors[k]


@_any_order
def row_square(values: FloatVector, span: Span) -> np.floating[Any]:
    """Return the squared length of a row; arguments as in `row_dot`."""
    (first, last), total = span, values.dtype.type(0)
    for j in range(last - first):
        total += values[first + j] * values[first + j]
    return total


@kernel
def all_finite(vector: FloatVector) -> bool:
    """Return whether every entry of `vector`, shape (n,), is finite."""
    guard = 0.0
    for j in range(np.uint64(vector.shape[0])):
        guard += vector[j] * 0.0
    return guard == 0.0


@kernel
def squared_distances(vector: FloatVector, other: FloatVector) -> tuple[float, float]:
    """Return the squared distances of `vector` from `other`, and from zero."""
    apart, length = 0.0, 0.0
    for j in range(np.uint64(vector.shape[0])):
        value = np.float64(vector[j])
        difference = value - np.float64(other[j])
        apart += difference * difference
        length += value * value
    return apart, length


_ZERO = np.uint64(0)

# Column numbers and values enter a word through different odd multipliers, so that pairs of them do not collide.
_VALUE = np.uint64(0xD6E8FEB86659FD93)

# Entries that are hashed in one loop, of rows with so many columns at most.
_TOGETHER, _NARROW = 4096, 64

# Rows from anywhere are asked for so many visits ahead.
_AHEAD, _LINE_BYTES = np.uint64(16), 64


@kernel
def _add_narrow(words: AnyArray, columns: AnyArray, hashes: AnyArray, out: AnyArray) -> None:
    """Add the fingerprints of rows with few columns to `out`, the entries of many rows in one loop."""
    n_rows = np.uint64(out.shape[0])
    n_features = np.uint64(words.shape[0]) // n_rows
    n_together = np.uint64(columns.shape[0]) // n_features
    # Shifted left until the sign has left the word, zeros of both signs are zero and nothing else is.
    no_sign = np.uint64(65 - 8 * words.itemsize)
    for first in range(_ZERO, n_rows, n_together):
        last = n_rows if n_rows - first < n_together else first + n_together
        for k in range((last - first) * n_features):
            word = np.uint64(words[first * n_features + k])
            hashed = mix64(columns[k] + word * _VALUE)
            hashes[k] = hashed if word << no_sign != _ZERO else _ZERO
        for i in range(first, last):
            total = _ZERO
            for j in range(n_features):
                total += hashes[(i - first) * n_features + j]
            out[i] += total


@kernel
def _add_wide(bits: AnyArray, out: AnyArray) -> None:
    """Add the fingerprints of rows with many columns to `out`."""
    n_features = np.uint64(bits.shape[1])
    no_sign = np.uint64(65 - 8 * bits.itemsize)
    for i in range(np.uint64(bits.shape[0])):
        total = _ZERO
        for j in range(n_features):
            word = np.uint64(bits[i, j])
            hashed = mix64((j + _ONE) * GOLDEN + word * _VALUE)
            total += hashed if word << no_sign != _ZERO else _ZERO
        out[i] += total


def fingerprint_dense(bits: AnyArray, out: AnyArray) -> None:
    """Add to `out` the fingerprint of every row: the wrap-around sum of a hash of (column, value) over its nonzeros.

    Zeros of both signs are left out, so that a dense row and its sparse form agree.
    """
    n_rows, n_features = bits.shape
    if bits.size == 0:
        return
    if n_features > _NARROW:
        _add_wide(bits, out)
        return
    columns = np.tile(np.arange(1, n_features + 1, dtype=np.uint64) * GOLDEN, min(_TOGETHER // n_features, n_rows))
    _add_narrow(bits.reshape(-1), columns, np.empty_like(columns), out)


@kernel
def fingerprint_sparse(bits: AnyArray, indices: AnyArray, indptr: AnyArray, out: AnyArray) -> None:
    """Add to `out` the fingerprint of every row; as `fingerprint_dense`."""
    no_sign = np.uint64(65 - 8 * bits.itemsize)
    for i in range(np.uint64(out.shape[0])):
        total = _ZERO
        for j in range(indptr[i], indptr[i + _ONE]):
            word = np.uint64(bits[j])
            hashed = mix64((np.uint64(indices[j]) + _ONE) * GOLDEN + word * _VALUE)
            total += hashed if word << no_sign != _ZERO else _ZERO
        out[i] += total


@kernel
def has_canonical_rows(indices: AnyArray, indptr: AnyArray, n_columns: int) -> bool:
    """Return whether rows ascend, and the columns in each of them, none twice and all below `n_columns`.

    That takes half the time of scipy's check, which does not look at the number of columns.
    """
    nnz, n_descents = indptr[indptr.shape[0] - 1], 0
    if nnz > np.uint64(indices.shape[0]):
        return False
    for j in range(_ONE, nnz):
        n_descents += indices[j] <= indices[j - _ONE]
    # Only from one row to the next columns need not ascend.
    before = _ZERO
    for i in range(np.uint64(indptr.shape[0])):
        start = indptr[i]
        if start < before or start > nnz:
            return False
        # The last column of a row is its largest.
        if before < start and indices[start - _ONE] >= n_columns:
            return False
        if before < start < nnz:
            n_descents -= indices[start] <= indices[start - _ONE]
        before = start
    return bool(n_descents == 0)


@kernel
def count_entries(indptr: AnyArray, source: AnyArray) -> int:
    """Return how many entries the sparse rows `source` have, those that occur twice counted twice."""
    total = _ZERO
    for v in range(np.uint64(source.shape[0])):
        row = np.uint64(source[v])
        total += indptr[row + _ONE] - indptr[row]
    return int(total)


@kernel
def place_dense(block: FloatMatrix, source: AnyArray, place: AnyArray, out: FloatMatrix) -> None:
    """Copy row ``source[v]`` of `block` to row ``place[v]`` of `out`, for every visit v."""
    n_visits, n_features = np.uint64(source.shape[0]), np.uint64(block.shape[1])
    step, values = np.uint64(_LINE_BYTES // block.itemsize), block.reshape(-1)
    for v in range(n_visits):
        if v + _AHEAD < n_visits:
            ahead = np.uint64(source[v + _AHEAD]) * n_features
            for j in range(ahead, ahead + n_features, step):
                prefetch(values, j)
            prefetch(values, ahead + n_features - _ONE)
        row = np.uint64(source[v])
        target = np.uint64(place[v])
        for j in range(n_features):
            out[target, j] = block[row, j]


@intrinsic
def _write_past_caches(context: Any, array: Any, row: Any, column: Any, word: Any) -> Any:
    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = signature.args[0]
        matrix = target.make_array(kind)(target, builder, arguments[0])
        pointer = cgutils.get_item_pointer(target, builder, kind, matrix, arguments[1:3])
        written = builder.store(arguments[3], pointer)
        written.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)]))
        return target.get_dummy_value()

    return types.void(array, row, column, word), generate


@kernel
def place_wide(block: AnyArray, source: AnyArray, place: AnyArray, out: AnyArray) -> None:
    """Copy row ``source[v]`` of `block` to row ``place[v]`` of `out`, for every visit v, past the caches."""
    n_words = np.uint64(block.shape[1])
    for v in range(np.uint64(source.shape[0])):
        row = np.uint64(source[v])
        target = np.uint64(place[v])
        for j in range(n_words):
            _write_past_caches(out, target, j, block[row, j])
    # Such stores are not ordered: they must be visible before another thread is told that the rows are there.
    barrier()


#: Values, columns and row starts of sparse rows.
Entries: TypeAlias = tuple[FloatVector, AnyArray, AnyArray]


@kernel
def place_sparse(entries: Entries, source: AnyArray, place: AnyArray, out: Entries) -> None:
    """Copy sparse row ``source[v]`` to row ``place[v]`` of the output, whose row starts are already right."""
    (values, indices, indptr), (out_values, out_indices, out_indptr) = entries, out
    for v in range(np.uint64(source.shape[0])):
        row = np.uint64(source[v])
        first = indptr[row]
        target = out_indptr[np.uint64(place[v])]
        for j in range(indptr[row + _ONE] - first):
            out_values[target + j] = values[first + j]
            out_indices[target + j] = indices[first + j]


@kernel
def take_entries(entries: AnyArray, indptr: AnyArray, source: AnyArray, starts: AnyArray, out: AnyArray) -> None:
    """Copy what one array of a CSR matrix holds of row ``source[v]`` to ``out[starts[v]:]``, for every v."""
    for v in range(np.uint64(source.shape[0])):
        row, target = np.uint64(source[v]), np.uint64(starts[v])
        first = np.uint64(indptr[row])
        for j in range(np.uint64(indptr[row + _ONE]) - first):
            out[target + j] = entries[first + j]


@kernel
def project_sparse(
    values: FloatVector, indices: AnyArray, indptr: AnyArray, matrix: FloatMatrix, out: FloatMatrix
) -> None:
    """Write the product of CSR rows with a C-contiguous matrix; a row costs its entries times the columns."""
    n_columns = np.uint64(matrix.shape[1])
    for i in range(np.uint64(out.shape[0])):
        for k in range(n_columns):
            out[i, k] = 0.0
        for j in range(np.uint64(indptr[i]), np.uint64(indptr[i + np.uint64(1)])):
            value, column = values[j], np.uint64(indices[j])
            for k in range(n_columns):
                out[i, k] += value * matrix[column, k]
