"""The columns of a linear SVM: transposed rows, and compiled loops over them.

A column is ``values[first:last]`` with the numbers of its rows in `rows`, or None for a dense column. The last column
holds the constant of the intercept and is not stored. Values keep the type they have in the rows; everything that is
added up is float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from dsgd.kernels.jit import kernel
from dsgd.kernels.order import draw
from dsgd.kernels.scaled import soft_threshold, violation
from dsgd.svm.linear_solver.kernels import RowArrays, column_of
from dsgd.svm.linear_solver.rows import LinearRows
from dsgd.types import AnyArray, FloatMatrix, FloatVector, IndexVector, IntVector, PointerVector

#: Entries, their rows or None, where each column starts and the last one ends, and the constant.
ColumnArrays: TypeAlias = tuple[FloatVector, IndexVector | None, PointerVector, float]

_ONE = np.uint64(1)
_TWO = np.uint64(2)
_HALF_WORD = np.uint64(32)
#: Numbers in the dense block of rows that a Gram matrix is added up from.
_BLOCK = 1 << 22


@dataclass(frozen=True)
class LinearColumns:
    """Columns with one more that holds a constant."""

    values: FloatVector
    rows: IndexVector | None
    bounds: PointerVector
    n_rows: int
    bias: float

    @property
    def width(self) -> int:
        """Columns with the constant."""
        return int(self.bounds.shape[0])

    @property
    def arrays(self) -> ColumnArrays:
        """The columns as kernels take them."""
        return self.values, self.rows, self.bounds, self.bias

    def sizes(self) -> FloatVector:
        """Return how many entries each column has, the constant's included, shape (n_features + 1,)."""
        return np.append(np.diff(self.bounds.astype(np.float64)), float(self.n_rows))

    def squares(self, chosen: AnyArray, factors: FloatVector) -> FloatVector:
        """Return the sum of ``factors[i] x_ij**2`` for the chosen columns, shape (n_chosen,)."""
        out = np.empty(chosen.shape[0])
        _square_columns(self.arrays, chosen, factors, out)
        return out

    def combine(self, factors: FloatVector) -> FloatVector:
        """Return the sum of ``factors[j]`` times column j, shape (n_rows,); columns of factor zero are not read."""
        out = np.full(self.n_rows, self.bias * factors[-1])
        _add_columns(self.arrays, factors, out)
        return out

    def gram(self, chosen: AnyArray, members: IntVector, factors: FloatVector) -> FloatMatrix:
        """Return the sum over the rows in `members` of ``factors[i] x_ij x_ik`` for the chosen columns."""
        width = chosen.shape[0]
        total = np.zeros((width, width))
        cursors = self.bounds[np.minimum(chosen, self.width - 2)].copy() if self.width > 1 else self.bounds[:0]
        roots = np.sqrt(factors)
        per_block = max(64, _BLOCK // max(1, width))
        for start in range(0, members.shape[0], per_block):
            part = members[start : start + per_block]
            lookup = np.full(int(part[-1] - part[0]) + 1, -1, np.int32)
            lookup[part - part[0]] = np.arange(part.shape[0])
            block = np.zeros((width, part.shape[0]), self.values.dtype)
            factors = roots[start : start + per_block]
            _densify_columns(self.arrays, chosen, cursors, lookup, np.uint64(part[0]), factors, block)
            total += block @ block.T
        return total


def make_columns(rows: LinearRows) -> LinearColumns:
    """Transpose rows."""
    n_features = rows.n_features
    if rows.indices is None:
        bounds = np.arange(n_features + 1, dtype=np.uint64) * np.uint64(rows.n_rows)
        table = np.empty((n_features, rows.n_rows), rows.values.dtype)
        _transpose_dense(rows.arrays, table)
        return LinearColumns(table.ravel(), None, bounds, rows.n_rows, rows.bias)
    counts = np.zeros(n_features + 1, np.uint64)
    _count_columns(rows.arrays, counts)
    bounds = np.cumsum(counts, dtype=np.uint64)
    values, numbers = np.empty(int(bounds[-1]), rows.values.dtype), np.empty(int(bounds[-1]), np.uint32)
    _transpose_sparse(rows.arrays, bounds.copy(), values, numbers)
    return LinearColumns(values, numbers, bounds, rows.n_rows, rows.bias)


@kernel
def _transpose_dense(rows: RowArrays, out: FloatMatrix) -> None:
    values, _, first, _, _ = rows
    block = np.uint64(64)  # rows at a time, so that the lines of `out` being written stay in the cache
    n_rows, n_columns = np.uint64(first.shape[0]), np.uint64(out.shape[0])
    for start in range(np.uint64(0), n_rows, block):
        for j in range(n_columns):
            for i in range(start, min(n_rows, start + block)):
                out[j, i] = values[first[i] + j]


@kernel
def _count_columns(rows: RowArrays, out: PointerVector) -> None:
    _, indices, first, last, _ = rows
    for i in range(np.uint64(first.shape[0])):
        for j in range(first[i], last[i]):
            out[column_of(indices, j, j) + _ONE] += _ONE


@kernel
def _transpose_sparse(rows: RowArrays, cursors: PointerVector, out_values: FloatVector, out_rows: IndexVector) -> None:
    values, indices, first, last, _ = rows
    for i in range(np.uint64(first.shape[0])):
        for j in range(first[i], last[i]):
            column = column_of(indices, j, j)
            place = cursors[column]
            out_values[place] = values[j]
            out_rows[place] = np.uint32(i)
            cursors[column] = place + _ONE


@kernel
def _square_columns(columns: ColumnArrays, chosen: AnyArray, factors: FloatVector, out: FloatVector) -> None:
    values, rows, bounds, bias = columns
    end = np.uint64(bounds.shape[0]) - _ONE
    for k in range(np.uint64(chosen.shape[0])):
        column = np.uint64(chosen[k])
        total = 0.0
        if column == end:
            for i in range(np.uint64(factors.shape[0])):
                total += factors[i] * bias * bias
        else:
            begin = bounds[column]
            for j in range(bounds[column + _ONE] - begin):
                value = np.float64(values[begin + j])
                row = column_of(rows, j, begin + j)
                total += factors[row] * value * value
        out[k] = total


@kernel
def _add_columns(columns: ColumnArrays, factors: FloatVector, out: FloatVector) -> None:
    values, rows, bounds, _ = columns
    for column in range(np.uint64(bounds.shape[0]) - _ONE):
        factor = factors[column]
        if factor != 0.0:
            begin = bounds[column]
            for j in range(bounds[column + _ONE] - begin):
                row = column_of(rows, j, begin + j)
                out[row] += factor * values[begin + j]


@kernel
def _densify_columns(
    columns: ColumnArrays,
    chosen: AnyArray,
    cursors: PointerVector,
    lookup: AnyArray,
    start: np.uint64,
    factors: FloatVector,
    out: FloatMatrix,
) -> None:
    """Write the chosen columns, times the factor of each row, into the rows of `out`, which holds zeros.

    ``lookup[i - start]`` is the place of row i in `out`, or -1; a column continues at its cursor, which moves.
    """
    values, rows, bounds, bias = columns
    end = np.uint64(bounds.shape[0]) - _ONE
    span = np.uint64(lookup.shape[0])
    for k in range(np.uint64(chosen.shape[0])):
        column = np.uint64(chosen[k])
        if column == end:
            for place in range(np.uint64(factors.shape[0])):
                out[k, place] = factors[place] * bias
            continue
        begin, j, stop = bounds[column], cursors[k], bounds[column + _ONE]
        if rows is None:
            j, stop = begin + start, begin + start + span
        while j < stop:
            row = column_of(rows, j - begin, j)
            if row >= start + span:
                break
            place = lookup[row - start] if row >= start else -1
            if place >= 0:
                out[k, place] = factors[place] * values[j]
            j += _ONE
        cursors[k] = j


@kernel
def model_pass(
    columns: ColumnArrays,
    chosen: AnyArray,
    order: AnyArray,
    n_order: np.uint64,
    threshold: float,
    gradients: FloatVector,
    curvatures: FloatVector,
    penalties: FloatVector,
    points: FloatVector,
    pairs: FloatVector,
    key: np.uint64,
) -> tuple[np.uint64, float]:
    """Visit weights once in random order and minimise the quadratic model plus the penalty over each.

    `gradients`, `curvatures`, `penalties` and `points` (the weights, updated) belong to the chosen columns; the first
    `n_order` places in `order` are visited. ``pairs[2 i]`` is the change of the score of row i, updated, and
    ``pairs[2 i + 1]`` the curvature of its loss. A weight of zero that its penalty holds there by more than `threshold`
    is left out. Returns how many places stay, and the largest violation of optimality.
    """
    values, rows, bounds, bias = columns
    end = np.uint64(bounds.shape[0]) - _ONE
    n_rows = np.uint64(pairs.shape[0]) // _TWO
    for place in range(n_order):
        other = place + (((draw(key, place) >> _HALF_WORD) * (n_order - place)) >> _HALF_WORD)
        order[place], order[other] = order[other], order[place]
    worst = 0.0
    position = np.uint64(0)
    while position < n_order:
        k = np.uint64(order[position])
        column = np.uint64(chosen[k])
        slope = 0.0
        begin = np.uint64(0)
        length = n_rows
        if column == end:
            for i in range(n_rows):
                slope += pairs[_TWO * i] * pairs[_TWO * i + _ONE]
            slope *= bias
        else:
            begin = bounds[column]
            length = bounds[column + _ONE] - begin
            for j in range(length):
                row = _TWO * column_of(rows, j, begin + j)
                slope += values[begin + j] * (pairs[row] * pairs[row + _ONE])
        slope += gradients[k]
        old, penalty, curvature = points[k], penalties[k], curvatures[k]
        excess = violation(slope, old, penalty)
        if old == 0.0 and -excess > threshold:
            n_order -= _ONE
            order[position], order[n_order] = order[n_order], order[position]
            continue
        position += _ONE
        if excess <= 0.0:
            continue
        worst = max(worst, excess)
        new = soft_threshold(old - slope / curvature, penalty / curvature)
        change = new - old
        if change != 0.0:
            points[k] = new
            if column == end:
                for i in range(n_rows):
                    pairs[_TWO * i] += change * bias
            else:
                for j in range(length):
                    row = _TWO * column_of(rows, j, begin + j)
                    pairs[row] += change * values[begin + j]
    return n_order, worst


@kernel
def gram_pass(
    gram: FloatMatrix,
    slopes: FloatVector,
    penalties: FloatVector,
    points: FloatVector,
    n_passes: np.uint64,
    goal: float,
) -> float:
    """Visit all weights of a quadratic model that is held as a matrix, until the largest violation is at most `goal`.

    `slopes` is the gradient of the model at `points`; both are updated. Returns the largest violation of the last pass.
    """
    worst = np.inf
    for _ in range(n_passes):
        worst = 0.0
        for k in range(np.uint64(points.shape[0])):
            old, penalty, slope, curvature = points[k], penalties[k], slopes[k], gram[k, k]
            excess = violation(slope, old, penalty)
            if excess <= 0.0:
                continue
            worst = max(worst, excess)
            new = soft_threshold(old - slope / curvature, penalty / curvature)
            change = new - old
            if change != 0.0:
                points[k] = new
                for m in range(np.uint64(points.shape[0])):
                    slopes[m] += change * gram[k, m]
        if worst <= goal:
            break
    return worst
