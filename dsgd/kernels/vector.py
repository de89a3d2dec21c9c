"""Operations on vectors and single rows, and asking for memory ahead.

Asking for memory ahead of its use.

Dot product and update of one row: the two loops that take nearly all the time of training.

A row is ``values[first:last]``; ``indices`` says its columns, or is None for a dense row. Numba prunes the branch on
None when it compiles, so one source gives the dense and the sparse machine code. Column numbers are unsigned: a signed
index costs a test for wrap-around on every access, which halves the speed.

`fastmath` is ``reassoc`` and ``contract`` only: a sum may be taken in any order and a product fused into it, which is
what SIMD needs; infinities and NaN keep their meaning.

Tried and left out: loops written as LLVM vectors with halving tails (5 % on rows of 22, a page of code); four scalar
sums instead of LLVM's gathers for the sparse product (twice as slow), the sparse update unrolled by four (slower), and
the product of the next row taken ahead of the step and mended by the product of the two rows (10 % on rows of 22).

The squared distance between two models, with the same bits on every machine.

Ranks decide by these numbers and must agree. Sums of numpy and of BLAS are taken in an order that depends on the width
of a core's vectors, so two machines may round them differently; this loop has one order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from dsgd.kernels.jit import inlined, kernel, scalar
from dsgd.types import AnyArray, FloatVector, IndexVector, PointerVector


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


@scalar
def row_bounds(
    index: IndexVector, indptr: PointerVector | None, place: np.uint64, n_features: np.uint64
) -> tuple[np.uint64, np.uint64]:
    """Return where the row of a place starts and ends in the entries of all rows."""
    row = np.uint64(index[place])
    if indptr is None:
        return row * n_features, (row + _ONE) * n_features
    return indptr[row], indptr[row + _ONE]


@scalar
def ask_ahead(
    values: FloatVector,
    indices: IndexVector | None,
    indptr: PointerVector | None,
    index: IndexVector,
    place: np.uint64,
    n_features: np.uint64,
) -> None:
    """Ask for the row of a place some steps ahead: rows lie anywhere in memory."""
    end = np.uint64(index.shape[0]) - _ONE
    if indptr is not None:
        prefetch(indptr, np.uint64(index[min(end, place + _TWICE)]))
    first, last = row_bounds(index, indptr, min(end, place + _AHEAD), n_features)
    # What comes behind these lines the processor fetches by itself; a short row may end in one line more than it fills.
    step = np.uint64(_LINE_BYTES // values.itemsize)
    last = min(last, first + _LINES * step)
    for j in range(first, last, step):
        prefetch(values, j)
        if indices is not None:
            prefetch(indices, j)
    prefetch(values, last - _ONE)
    if indices is not None:
        prefetch(indices, last - _ONE)


@_any_order
def row_dot(
    values: FloatVector,
    indices: IndexVector | None,
    first: np.uint64,
    last: np.uint64,
    weights: FloatVector,
    base: np.uint64,
) -> np.floating[Any]:
    """Return the inner product of a row with the weights from `base` on.

    - `values`, shape (nnz,): entries of all rows.
    - `indices`, shape (nnz,): their columns; None for dense rows.
    - `first`, `last`: where the row starts and ends in `values`.
    - `weights`: weights; column j of this output is ``weights[base + j]``.
    - `base`: start of the output's weights.
    - returned: the inner product, in the precision of `values`.
    """
    total = values.dtype.type(0)
    if indices is None:
        for j in range(last - first):
            total += values[first + j] * weights[base + j]
    else:
        for j in range(first, last):
            total += values[j] * weights[base + np.uint64(indices[j])]
    return total


@_any_order
def add_row(
    values: FloatVector,
    indices: IndexVector | None,
    first: np.uint64,
    last: np.uint64,
    weights: FloatVector,
    base: np.uint64,
    factor: float,
) -> None:
    """Add `factor` times a row to the weights from `base` on; arguments as in `row_dot`."""
    step = values.dtype.type(factor)
    if indices is None:
        for j in range(last - first):
            weights[base + j] += step * values[first + j]
    else:
        for j in range(first, last):
            weights[base + np.uint64(indices[j])] += step * values[j]


@_any_order
def score_columns(
    values: FloatVector,
    indices: IndexVector,
    first: np.uint64,
    last: np.uint64,
    weights: FloatVector,
    scores: FloatVector,
) -> None:
    """Write into `scores` the inner products of a sparse row with all outputs, weights (n_features, n_outputs)."""
    n_outputs = np.uint64(scores.shape[0])
    for k in range(n_outputs):
        scores[k] = 0.0
    for j in range(first, last):
        base = np.uint64(indices[j]) * n_outputs
        for k in range(n_outputs):
            scores[k] += values[j] * weights[base + k]


@_any_order
def add_columns(
    values: FloatVector,
    indices: IndexVector,
    first: np.uint64,
    last: np.uint64,
    weights: FloatVector,
    factors: FloatVector,
    common: float,
) -> None:
    """Add to every output `common` times its factor times a sparse row, weights laid out (n_features, n_outputs)."""
    n_outputs = np.uint64(factors.shape[0])
    for j in range(first, last):
        base = np.uint64(indices[j]) * n_outputs
        value = values[j] * values.dtype.type(common)
        for k in range(n_outputs):
            weights[base + k] += value * factors[k]


@_any_order
def row_square(values: FloatVector, first: np.uint64, last: np.uint64) -> np.floating[Any]:
    """Return the squared length of a row; arguments as in `row_dot`."""
    total = values.dtype.type(0)
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
