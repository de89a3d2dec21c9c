"""The columns of X: dense and centred, or sparse, with the operations and compiled loops of the solvers.

Rows of all types become float64, so that sums and certificates are. A dense table is copied in any case, since columns
must be contiguous; its columns are centred on the way if there is an intercept, which costs nothing and keeps digits.
Sparse columns are not centred. Where a solver needs columns centred by the curvatures d of the moment (the intercept is
then eliminated), it takes off ``mean_j`` times the sum.

Rows may be divided among ranks, each of which has the columns of its own: sums over rows are over those of all ranks
(`dsgd.collectives.Team`), and equal on all of them.

**The Gram matrix of a working set that grows** (`Gram`): what is there is kept, and products with new columns are
added. Cost: m new columns beside k take ``n m (k + m)`` operations of BLAS where columns are dense, and as many as
their entries meet others of the same rows where they are sparse. Making the matrix anew takes ``n (k + m)**2``. Ranks
add up ``m k + m (m + 1) / 2`` numbers, and m + 1 for the means.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp

from dsgd.collectives import Team
from dsgd.errors import InvalidDataError
from dsgd.kernels.jit import inlined, kernel
from dsgd.kernels.rows import Span
from dsgd.kernels.scaled import soft_threshold, violation
from dsgd.types import AnyArray, FloatMatrix, FloatVector, IntVector

#: Entries, their rows or None, and where each column starts and the last one ends.
ColumnArrays: TypeAlias = tuple[FloatVector, AnyArray | None, AnyArray]
#: Second derivatives of losses, means of columns, curvatures, gradient and weights of chosen ones.
ColumnModel: TypeAlias = tuple[FloatVector, FloatVector, FloatVector, FloatVector, FloatVector]
_any_order = inlined({"reassoc", "contract"})

#: Entries of the block of rows that a Gram matrix is added up from; half of a second-level cache.
_BLOCK = 1 << 16

#: Passes that are extrapolated, and what is added to the matrix of their products, as a share of its trace: shares stay
#: below some 1e6, which is what the gradient may lose of its digits until the next round computes it anew.
_DEPTH = 5
_RIDGE = 1e-12


@dataclass(frozen=True)
class Columns:
    """The columns of X: the entries of the rows that are here; `centres` were taken off those of a dense table."""

    table: Any
    centres: FloatVector
    has_intercept: bool
    team: Team

    @property
    def is_sparse(self) -> bool:
        """Whether columns are sparse."""
        return bool(sp.issparse(self.table))

    @property
    def shape(self) -> tuple[int, int]:
        """Rows that are here, and columns."""
        n, m = self.table.shape
        return (n, m) if self.is_sparse else (m, n)

    @property
    def arrays(self) -> ColumnArrays:
        """The columns as kernels take them."""
        if self.is_sparse:
            return self.table.data, self.table.indices, self.table.indptr
        n, p = self.shape
        return self.table.reshape(-1), None, np.arange(p + 1, dtype=np.int64) * n

    def scores(self, weights: FloatVector) -> FloatVector:
        """Return X w, shape (n_rows,); few columns are read if few weights are not zero."""
        chosen = np.flatnonzero(weights)
        if 4 * chosen.shape[0] < weights.shape[0]:
            out = np.zeros(self.shape[0])
            _add_columns(self.arrays, chosen, weights[chosen], out)
            return out
        return np.asarray(self.table @ weights if self.is_sparse else self.table.T @ weights)

    def products(self, duals: FloatVector) -> FloatVector:
        """Return X' theta, shape (n_features,): one message of so many numbers."""
        return self.team.add_up(self._products(duals))

    def _products(self, duals: FloatVector) -> FloatVector:
        return np.asarray(self.table.T @ duals if self.is_sparse else self.table @ duals)

    def squares(self, factors: FloatVector) -> FloatVector:
        """Return the sum of ``d_i x_ij**2``, about the mean if there is an intercept, shape (n_features,)."""
        out: FloatVector = np.empty(self.shape[1])
        _square_columns(self.arrays, factors, out)
        out = self.team.add_up(out)
        check_products(out)
        if self.has_intercept:
            means, mass = self.moments(np.arange(out.shape[0]), factors)
            out -= mass * means**2
        return np.maximum(out, 0.0)

    def means(self, chosen: IntVector, factors: FloatVector) -> FloatVector:
        """Return the means of chosen columns with weights d, or zeros without an intercept, shape (n_chosen,)."""
        return self.moments(chosen, factors)[0]

    def moments(self, chosen: IntVector, factors: FloatVector) -> tuple[FloatVector, float]:
        """Return the means of chosen columns with weights d, and the sum of d; zeros without an intercept."""
        if not self.has_intercept:
            return np.zeros(chosen.shape[0]), 0.0
        if chosen.shape[0] == self.shape[1]:
            products = self._products(factors)
        else:
            products = np.empty(chosen.shape[0])
            _multiply_columns(self.arrays, chosen, factors, products)
        sums = self.team.add_up(np.append(products, factors.sum()))
        return (np.asarray(sums[:-1] / sums[-1]) if sums[-1] else sums[:-1]), float(sums[-1])

    def pairs(self, chosen: IntVector, factors: FloatVector) -> FloatMatrix:
        """Return the sums of ``d_i x_ij x_ik`` of chosen columns, in the lower triangle."""
        n, p = self.shape
        k = chosen.shape[0]
        total, present = np.zeros((k, k)), np.flatnonzero(factors)
        is_few = 2 * present.shape[0] < n  # as of the squared hinge, most of whose rows are outside the margin
        if self.is_sparse:
            table = self.table[present] if is_few else self.table
            counted = factors[present] if is_few else factors
            multiply_pairs(table.data, table.indices, table.indptr, chosen, 0, counted, total)
        elif factors.shape[0] and (factors == factors[0]).all():
            part = self.table if k == p else self.table[chosen]
            total = factors[0] * (part @ part.T)
        else:
            roots = np.sqrt(factors)
            n = present.shape[0] if is_few else n
            step = max(256, _BLOCK // max(1, k))
            for start in range(0, n, step):
                some: Any = present[start : start + step] if is_few else slice(start, start + step)
                rows: Any = slice(None) if k == p else chosen[:, None] if is_few else chosen
                block = self.table[rows, some] * roots[some]
                total += block @ block.T
        if self.team.n_ranks > 1:
            lower = np.tri(k, k, dtype=np.bool_)
            total[lower] = self.team.add_up(total[lower])
        return total


def make_columns(X: Any, costs: FloatVector, has_intercept: bool, team: Team) -> Columns:
    """Return the columns of rows; dense ones are centred by their means, weighted by `costs`, over all ranks."""
    if sp.issparse(X):
        table: Any = X.tocsc().astype(np.float64, copy=False)
        if not table.has_canonical_format:
            table = table.copy()
            table.sum_duplicates()
        return Columns(table, np.zeros(X.shape[1]), has_intercept, team)
    table = np.empty(X.shape[::-1])
    centres = np.zeros(X.shape[1])
    if has_intercept:
        sums = team.add_up(np.append(costs.astype(X.dtype) @ X, costs.sum()))
        centres = np.asarray(sums[:-1] / sums[-1])
    if X.flags.c_contiguous:
        _transpose(X, centres, table)
    else:
        np.subtract(X.T, centres[:, None], out=table)
    return Columns(table, centres, has_intercept, team)


def check_products(products: AnyArray) -> None:
    """Raise `InvalidDataError` unless products of columns, summed over all ranks, are finite."""
    if not np.isfinite(products).all():
        raise InvalidDataError("Products of columns of X overflow: scale the features, such as with StandardScaler.")


@kernel
def _transpose(rows: FloatMatrix, centres: FloatVector, out: FloatMatrix) -> None:
    """Write rows as columns, less their centres; so many rows at a time that what is written stays in the cache."""
    n_rows, n_columns = rows.shape
    for start in range(0, n_rows, 64):
        for j in range(n_columns):
            centre = centres[j]
            for i in range(start, min(n_rows, start + 64)):
                out[j, i] = rows[i, j] - centre


# `rows` is an argument of these, so that Numba compiles only the branch that is taken; loops go over slices and from
# zero, so that it knows that no index is negative.
@_any_order
def _dot(values: FloatVector, rows: AnyArray | None, span: Span, duals: FloatVector) -> float:
    entries, total = values[span[0] : span[1]], 0.0
    if rows is None:
        for i in range(entries.shape[0]):
            total += entries[i] * duals[i]
    else:
        places = rows[span[0] : span[1]]
        for j in range(entries.shape[0]):
            total += entries[j] * duals[np.uint32(places[j])]
    return total


@_any_order
def _square(values: FloatVector, rows: AnyArray | None, span: Span, factors: FloatVector) -> float:
    entries, total = values[span[0] : span[1]], 0.0
    if rows is None:
        for i in range(entries.shape[0]):
            total += factors[i] * entries[i] * entries[i]
    else:
        places = rows[span[0] : span[1]]
        for j in range(entries.shape[0]):
            total += factors[np.uint32(places[j])] * entries[j] * entries[j]
    return total


@_any_order
def _add(values: FloatVector, rows: AnyArray | None, span: Span, weight: float, out: FloatVector) -> None:
    entries = values[span[0] : span[1]]
    if rows is None:
        for i in range(entries.shape[0]):
            out[i] += weight * entries[i]
    else:
        places = rows[span[0] : span[1]]
        for j in range(entries.shape[0]):
            out[np.uint32(places[j])] += weight * entries[j]


@_any_order
def _add_scaled(
    values: FloatVector, rows: AnyArray | None, span: Span, weight: float, factors: FloatVector, out: FloatVector
) -> None:
    entries = values[span[0] : span[1]]
    if rows is None:
        for i in range(entries.shape[0]):
            out[i] += weight * factors[i] * entries[i]
    else:
        places = rows[span[0] : span[1]]
        for j in range(entries.shape[0]):
            row = np.uint32(places[j])
            out[row] += weight * factors[row] * entries[j]


@kernel
def _multiply_columns(columns: ColumnArrays, chosen: IntVector, duals: FloatVector, out: FloatVector) -> None:
    values, rows, bounds = columns
    for k in range(chosen.shape[0]):
        out[k] = _dot(values, rows, (bounds[chosen[k]], bounds[chosen[k] + 1]), duals)


@kernel
def _add_columns(columns: ColumnArrays, chosen: IntVector, weights: FloatVector, out: FloatVector) -> None:
    values, rows, bounds = columns
    for k in range(chosen.shape[0]):
        _add(values, rows, (bounds[chosen[k]], bounds[chosen[k] + 1]), weights[k], out)


@kernel
def _square_columns(columns: ColumnArrays, factors: FloatVector, out: FloatVector) -> None:
    values, rows, bounds = columns
    for k in range(out.shape[0]):
        out[k] = _square(values, rows, (bounds[k], bounds[k + 1]), factors)


@kernel
def multiply_pairs(
    values: FloatVector,
    rows: AnyArray,
    bounds: AnyArray,
    chosen: IntVector,
    n_known: int,
    factors: FloatVector,
    out: FloatMatrix,
) -> None:
    """Write the sums of ``d_i x_ij x_ik`` of sparse columns for all j from `n_known` and k up to j."""
    ends = np.zeros(factors.shape[0] + 1, np.int64)
    for k in range(chosen.shape[0]):
        for j in range(bounds[chosen[k]], bounds[chosen[k] + 1]):
            ends[np.uint32(rows[j]) + 1] += 1
    for i in range(factors.shape[0]):
        ends[i + 1] += ends[i]
    starts = ends[:-1].copy()  # of rows; from here on they end before `ends`, which moves
    places, entries = np.empty(ends[-1], np.uint32), np.empty(ends[-1])
    for k in range(chosen.shape[0]):
        sums = out[k]
        if k >= n_known:
            sums[: k + 1] = 0.0
        for j in range(bounds[chosen[k]], bounds[chosen[k] + 1]):
            row, value = np.uint32(rows[j]), values[j]
            end = ends[row]
            places[end], entries[end] = k, value
            ends[row] = end + 1
            if k >= n_known:
                scaled = factors[row] * value
                near, known = places[starts[row] : end + 1], entries[starts[row] : end + 1]
                for m in range(near.shape[0]):
                    sums[near[m]] += scaled * known[m]


@kernel
def complete(gram: FloatMatrix, n_known: int, means: FloatVector, mass: float, constant: float) -> None:
    """Take the means off the lower triangle of all rows from `n_known`, and write the upper one, in blocks."""
    size = means.shape[0]
    for j in range(n_known, size):
        scaled, row = mass * means[j], gram[j]
        for m in range(j + 1):
            row[m] -= scaled * means[m]
        row[j] += constant
    for begin in range(n_known, size, 32):
        for start in range(0, min(size, begin + 32), 32):
            for j in range(begin, min(size, begin + 32)):
                for m in range(start, min(j, start + 32)):
                    gram[m, j] = gram[j, m]


@kernel
def _extrapolate(
    before: FloatMatrix, slopes_before: FloatMatrix, weights: FloatVector, slopes: FloatVector, l1: float
) -> None:
    """Go to the combination of the last iterates whose changes nearly cancel out, if the objective falls."""
    depth, size = before.shape
    changes = np.empty((depth, size))
    for a in range(depth):
        later = before[a + 1] if a + 1 < depth else weights
        for m in range(size):
            changes[a, m] = later[m] - before[a, m]
    table, shares, trace = np.empty((depth, depth)), np.ones(depth), 0.0
    for a in range(depth):
        for b in range(depth):
            table[a, b] = _dot(changes[a], None, (0, size), changes[b])
        trace += table[a, a]
    for a in range(depth):
        table[a, a] += _RIDGE * trace
    for a in range(depth):  # elimination, without pivots since the matrix is positive
        for b in range(a + 1, depth):
            factor = table[b, a] / table[a, a]
            shares[b] -= factor * shares[a]
            for c in range(a, depth):
                table[b, c] -= factor * table[a, c]
    for a in range(depth - 1, -1, -1):
        for b in range(a + 1, depth):
            shares[a] -= table[a, b] * shares[b]
        shares[a] /= table[a, a]
    shares /= shares.sum()
    new, new_slopes = shares[depth - 1] * weights, shares[depth - 1] * slopes
    for a in range(1, depth):
        for m in range(size):
            new[m] += shares[a - 1] * before[a, m]
            new_slopes[m] += shares[a - 1] * slopes_before[a, m]
    gain = 0.0
    for m in range(size):
        gain += 0.5 * (new[m] - weights[m]) * (new_slopes[m] + slopes[m]) + l1 * (abs(new[m]) - abs(weights[m]))
    if gain < 0.0:  # nor where it is no number
        weights[:] = new
        slopes[:] = new_slopes


@kernel
def descend_gram(
    gram: FloatMatrix, slopes: FloatVector, weights: FloatVector, l1: float, n_passes: int, goal: float
) -> float:
    """Minimise a quadratic, held as a matrix, plus ``l1 |w|`` by coordinate descent until violations are below `goal`.

    `slopes` is the gradient of the quadratic at `weights`; both are updated. Passes are extrapolated as Bertrand and
    Massias do (AISTATS 2021). Returns the largest violation of the last pass, as each weight found it.
    """
    size, worst = weights.shape[0], 0.0
    before, slopes_before = np.empty((_DEPTH, size)), np.empty((_DEPTH, size))
    for number in range(n_passes):
        if number > 0 and number % _DEPTH == 0:
            _extrapolate(before, slopes_before, weights, slopes, l1)
        before[number % _DEPTH] = weights
        slopes_before[number % _DEPTH] = slopes
        worst = 0.0
        for k in range(size):
            old, slope, curvature = weights[k], slopes[k], gram[k, k]
            excess = violation(slope, old, l1)
            if excess <= 0.0 or curvature <= 0.0:
                continue
            worst = max(worst, excess)
            new = soft_threshold(old - slope / curvature, l1 / curvature)
            change = new - old
            if change != 0.0:
                weights[k] = new
                for m in range(size):
                    slopes[m] += change * gram[k, m]
        if worst <= goal:
            break
    return worst


@kernel
def descend_columns(
    columns: ColumnArrays, chosen: IntVector, model: ColumnModel, l1: float, l2: float, n_passes: int, goal: float
) -> float:
    """Do what `descend_gram` does where the matrix would be too large: by passes over the columns.

    ``slopes`` is the gradient at the start, and is not updated. The change of the scores, weighted by `factors`, is
    kept for uncentred columns; centring takes the sum of means times changes off all of its entries at once.
    """
    (values, rows, bounds), (factors, means, curvatures, slopes, weights) = columns, model
    moved = np.zeros(factors.shape[0])
    start = weights.copy()
    mass, shift, worst = factors.sum(), 0.0, 0.0
    for _ in range(n_passes):
        worst = 0.0
        for k in range(chosen.shape[0]):
            old, curvature = weights[k], curvatures[k]
            span = bounds[chosen[k]], bounds[chosen[k] + 1]
            slope = slopes[k] + l2 * (old - start[k]) - shift * mass * means[k]
            slope += _dot(values, rows, span, moved)
            excess = violation(slope, old, l1)
            if excess <= 0.0 or curvature <= 0.0:
                continue
            worst = max(worst, excess)
            new = soft_threshold(old - slope / curvature, l1 / curvature)
            change = new - old
            if change != 0.0:
                weights[k] = new
                shift += change * means[k]
                _add_scaled(values, rows, span, change, factors, moved)
        if worst <= goal:
            break
    return worst


class Gram:
    """The sums of ``d_i x_ij x_ik`` of some columns about their means, plus a constant where j is k, in a `space`."""

    chosen: IntVector
    space: FloatMatrix

    def __init__(self, columns: Columns, factors: FloatVector, constant: float, chosen: IntVector) -> None:
        self.chosen, self.space = chosen, columns.pairs(chosen, factors)
        self._means, mass = columns.moments(chosen, factors)
        complete(self.space, 0, self._means, mass, constant)
        self._columns, self._factors, self._constant = columns, factors, constant
        #: Copies of dense columns, made when others are added.
        self._blocks: list[FloatMatrix] = []

    def part(self, chosen: IntVector) -> FloatMatrix:
        """Return the matrix of some of the columns, in their order: `space` of all as they came, a copy of others."""
        if chosen is self.chosen:
            return self.space
        order = np.argsort(self.chosen)
        places = order[np.searchsorted(self.chosen, chosen, sorter=order)]
        return self.space[np.ix_(places, places)]

    def extend(self, new: IntVector) -> None:
        """Add columns that are not there yet."""
        if not new.shape[0]:
            return
        columns, factors = self._columns, self._factors
        old, k = self.chosen, self.chosen.shape[0]
        self.chosen = np.append(old, new)
        size = self.chosen.shape[0]
        means, mass = columns.moments(new, factors)
        self._means = np.append(self._means, means)
        if size > self.space.shape[0]:
            space = np.empty((size + k, size + k))
            space[:k, :k] = self.space[:k, :k]
            self.space = space
        if columns.is_sparse:
            table = columns.table
            multiply_pairs(table.data, table.indices, table.indptr, self.chosen, k, factors, self.space)
        else:
            even = bool(factors.shape[0] and (factors == factors[0]).all())
            for part in (new,) if self._blocks else (old, new):
                block = columns.table[part]
                self._blocks.append(block if even else block * np.sqrt(factors))
            stop = 0
            for block in self._blocks:
                start, stop = stop, stop + block.shape[0]
                products = self._blocks[-1] @ block.T
                self.space[k:size, start:stop] = factors[0] * products if even else products
        if columns.team.n_ranks > 1:
            added = self.space[k:size, :size]
            lower = np.tri(size - k, size, k, dtype=np.bool_)
            added[lower] = columns.team.add_up(added[lower])
        complete(self.space, k, self._means, mass, self._constant)
