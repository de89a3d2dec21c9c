"""Compiled loops of the linear solvers: products, passes of coordinate descent, certificates.

A row is ``values[first:last]`` with its columns in ``indices``, or None for a dense row, and one more column that holds
`bias`, the constant of the penalised intercept (zero without one). So weights have one entry more than there are
columns. Values may be float32; everything that is added up is float64.

Every loss here has the dual terms ``y b - epsilon |b| - ridge b**2 / 2`` with ``low <= b <= high``, and ``w`` is the
sum of ``b_i x_i``; see `dsgd.svm.linear_solver.problem`.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from dsgd.kernels.jit import kernel, part, scalar
from dsgd.kernels.order import GOLDEN, draw
from dsgd.kernels.rows import Span, prefetch
from dsgd.types import AnyArray, FloatMatrix, FloatVector, IndexVector, IntVector, PointerVector

#: Entries, their columns or None, where each row starts and ends in them, and the constant.
RowArrays: TypeAlias = tuple[FloatVector, IndexVector | None, PointerVector, PointerVector, float]
#: Targets, the ends of the intervals, ridges, and epsilon.
DualTerms: TypeAlias = tuple[FloatVector, FloatVector, FloatVector, FloatVector, float]

# Sums may be taken in any order and products fused into them, which SIMD needs; infinities and NaN keep their meaning.
_any_order = part(fastmath={"reassoc", "contract"})

#: Passes in a row end when the largest violation has fallen to this share of what it was in the first of them.
REACH = 0.1

# Unsigned: with signed indices Numba checks at every access whether they count from the end.
_ONE = np.uint64(1)
_HALF_WORD = np.uint64(32)
#: Numbers per row in a line of `cd_passes`, and how many visits ahead lines and entries are prefetched.
_LINE = np.uint64(8)
_FAR = np.uint64(12)
#: Entries of a row to prefetch, one per cache line: the processor prefetches the rest by itself.
_FETCHED = np.uint64(128)
_STEP = np.uint64(16)
_NEAR = np.uint64(5)


@_any_order
def _dot(
    values: FloatVector, indices: IndexVector | None, span: Span, bias: float, weights: FloatVector
) -> np.floating[Any]:
    (first, last), total = span, np.float64(0.0)
    if indices is None:
        for j in range(last - first):
            total += values[first + j] * weights[j]
    else:
        for j in range(first, last):
            total += values[j] * weights[np.uint64(indices[j])]
    score: np.floating[Any] = total + bias * weights[np.uint64(weights.shape[0]) - _ONE]
    return score


@_any_order
def _add(
    values: FloatVector, indices: IndexVector | None, span: Span, bias: float, weights: FloatVector, factor: float
) -> None:
    first, last = span
    if indices is None:
        for j in range(last - first):
            weights[j] += factor * values[first + j]
    else:
        for j in range(first, last):
            weights[np.uint64(indices[j])] += factor * values[j]
    weights[np.uint64(weights.shape[0]) - _ONE] += factor * bias


@scalar
def column_of(indices: IndexVector | None, place: np.uint64, entry: np.uint64) -> np.uint64:
    """Return the column of an entry: the stored one or, in a dense row, the place in the row."""
    return place if indices is None else np.uint64(indices[entry])


@scalar
def best_dual(slack: float, epsilon: float, low: float, high: float, ridge: float, centre: float) -> float:
    """Return the b in [low, high] that maximises ``b slack - epsilon |b| - ridge (b - centre)**2 / 2``."""
    # Without a branch: which case a row is in cannot be predicted, and a wrong guess takes longer than all the rest.
    point = slack + ridge * centre
    beyond = (point - epsilon if point > epsilon else 0.0) + (point + epsilon if point < -epsilon else 0.0)
    best = beyond / ridge if beyond != 0.0 else 0.0
    best = best if best > low else low
    return best if best < high else high


@kernel
def cd_passes(
    values: FloatVector,
    indices: IndexVector | None,
    bias: float,
    epsilon: float,
    lines: FloatVector,
    weights: FloatVector,
    active: AnyArray,
    state: FloatVector,
    key: np.uint64,
) -> None:
    """Make passes until as many visits were made as may be, or the largest violation is at most a reach.

    A pass visits the active rows once in random order, minimises over the dual variable of each, and eliminates rows: a
    row whose variable is at a bound or at zero and whose derivative points outwards by more than the threshold, the
    largest violation of the pass before. `active` holds row numbers (uint32); those that are active are permuted,
    eliminated ones move to the end. `weights` and the variables in `lines` are updated in place.

    `lines` has eight numbers per row: target, low, high, ridge, squared norm, variable, and where the row starts and
    ends in `values`. In one cache line, and prefetched some visits ahead like the entries of the row, they cost one
    miss instead of eight, which would be most of the time of a visit of a short row.

    `state` has the active rows, the threshold, the reach, passes and visits so far, all updated, the most visits, and
    whether rows are eliminated. A reach below zero is set to `REACH` times the largest violation of the first pass.
    """
    n_active, worst, reach, passes = np.uint64(state[0]), state[1], state[2], np.uint64(0)
    while True:
        state[4] += n_active
        passes += _ONE
        limit, seed = worst if state[6] > 0.0 else np.inf, key + passes * GOLDEN
        for place in range(n_active):
            other = place + (((draw(seed, place) >> _HALF_WORD) * (n_active - place)) >> _HALF_WORD)
            active[place], active[other] = active[other], active[place]
        worst = 0.0
        position = np.uint64(0)
        while position < n_active:
            if position + _FAR < n_active:
                prefetch(lines, np.uint64(active[position + _FAR]) * _LINE)
            if position + _NEAR < n_active:
                ahead = np.uint64(active[position + _NEAR]) * _LINE
                begin, end = np.uint64(lines[ahead + np.uint64(6)]), np.uint64(lines[ahead + np.uint64(7)])
                for entry in range(begin, min(end, begin + _FETCHED), _STEP):
                    prefetch(values, entry)
                if indices is not None:
                    prefetch(indices, begin)
                    prefetch(indices, begin + np.uint64(16))
            row = np.uint64(active[position])
            line = lines[row * _LINE : (row + _ONE) * _LINE]
            low, high, ridge, old = line[1], line[2], line[3], line[5]
            first, last = np.uint64(line[6]), np.uint64(line[7])
            slope = _dot(values, indices, (first, last), bias, weights) - line[0] + ridge * old
            up, down = slope + epsilon, slope - epsilon
            if old == 0.0:
                violation = max(-up if high > 0.0 else 0.0, down if low < 0.0 else 0.0)
                outwards = min(up if high > 0.0 else np.inf, -down if low < 0.0 else np.inf)
            elif old >= high:
                violation, outwards = up, -up
            elif old <= low:
                violation, outwards = -down, down
            else:
                violation, outwards = abs(up if old > 0.0 else down), -1.0
            if outwards > limit:
                n_active -= _ONE
                # The last active row takes this place and is visited next; eliminated ones are kept behind.
                active[position] = active[n_active]
                active[n_active] = np.uint32(row)
                continue
            worst = max(worst, violation)
            position += _ONE
            if violation > 0.0:
                curvature = line[4] + ridge
                new = best_dual(curvature * old - slope, epsilon, low, high, curvature, 0.0)
                if new != old:
                    line[5] = new
                    _add(values, indices, (first, last), bias, weights, new - old)
        if reach < 0.0:
            reach = REACH * worst
        if state[4] >= state[5] or n_active == 0 or worst <= reach:
            break
    state[0], state[1], state[2], state[3] = n_active, worst, reach, state[3] + passes


@kernel
def measure(
    scores: FloatVector, terms: DualTerms, beta: FloatVector, threshold: float, active: AnyArray
) -> tuple[float, float, np.uint64]:
    """Return the sum of losses at `scores`, the sum of the dual terms at `beta`, and the number of rows to keep active.

    A row is put into `active` unless its variable is at a bound or at zero and points outwards by more than
    `threshold`: the test of `cd_passes`, over all rows.
    """
    targets, low, high, ridge, epsilon = terms
    loss, dual = 0.0, 0.0
    kept = np.uint64(0)
    for i in range(np.uint64(targets.shape[0])):
        slack = targets[i] - scores[i]
        best = best_dual(slack, epsilon, low[i], high[i], ridge[i], 0.0)
        if best != 0.0:
            loss += best * slack - epsilon * abs(best) - 0.5 * ridge[i] * best * best
        b = beta[i]
        dual += targets[i] * b - epsilon * abs(b) - 0.5 * ridge[i] * b * b
        slope = ridge[i] * b - slack
        outwards = -1.0
        if b == 0.0:
            outwards = min(slope + epsilon if high[i] > 0.0 else np.inf, epsilon - slope if low[i] < 0.0 else np.inf)
        elif b >= high[i]:
            outwards = -slope - epsilon
        elif b <= low[i]:
            outwards = slope - epsilon
        if outwards <= threshold:
            active[kept] = np.uint32(i)
            kept += _ONE
    return loss, dual, kept


@kernel
def score_rows(rows: RowArrays, weights: FloatVector, out: FloatVector) -> None:
    """Write the inner product of every row with the weights, shape (n_features + 1,), into `out`."""
    values, indices, first, last, bias = rows
    for i in range(np.uint64(out.shape[0])):
        out[i] = _dot(values, indices, (first[i], last[i]), bias, weights)


@kernel
def add_rows(rows: RowArrays, factors: FloatVector, out: FloatVector) -> None:
    """Add every row times its factor to `out`, shape (n_features + 1,); rows of factor zero are not read."""
    values, indices, first, last, bias = rows
    for i in range(np.uint64(factors.shape[0])):
        if factors[i] != 0.0:
            _add(values, indices, (first[i], last[i]), bias, out, factors[i])


@kernel
def hessian_rows(rows: RowArrays, factors: FloatVector, weights: FloatVector, out: FloatVector) -> None:
    """Add to `out` the sum of ``factor_i (x_i . weights) x_i``: every row is read once."""
    values, indices, first, last, bias = rows
    for i in range(np.uint64(factors.shape[0])):
        product = factors[i] * _dot(values, indices, (first[i], last[i]), bias, weights)
        _add(values, indices, (first[i], last[i]), bias, out, product)


@kernel
def copy_rows(rows: RowArrays, starts: PointerVector, values: FloatVector, indices: IndexVector | None) -> None:
    """Copy every row, and its columns unless it is dense, to where `starts` says, shape (n_rows + 1,)."""
    old, columns, first, last, _ = rows
    for i in range(np.uint64(first.shape[0])):
        begin, target = first[i], starts[i]
        for j in range(last[i] - begin):
            values[target + j] = old[begin + j]
            if columns is not None and indices is not None:
                indices[target + j] = columns[begin + j]


@kernel
def square_norms(rows: RowArrays, out: FloatVector) -> None:
    """Write the squared norm of every row, its constant included, into `out`."""
    values, _, first, last, bias = rows
    for i in range(np.uint64(out.shape[0])):
        total = bias * bias
        for j in range(first[i], last[i]):
            value = np.float64(values[j])
            total += value * value
        out[i] = total


@kernel
def square_columns(rows: RowArrays, factors: FloatVector, out: FloatVector) -> None:
    """Add to `out`, shape (n_features + 1,), the sum over rows of ``factor_i x_i**2``, column by column."""
    values, indices, first, last, bias = rows
    for i in range(np.uint64(factors.shape[0])):
        begin = first[i]
        for j in range(last[i] - begin):
            value = np.float64(values[begin + j])
            column = column_of(indices, j, begin + j)
            out[column] += factors[i] * value * value
        out[np.uint64(out.shape[0]) - _ONE] += factors[i] * bias * bias


@kernel
def compress(X: FloatMatrix, starts: PointerVector, values: FloatVector, indices: IndexVector) -> None:
    """Write the entries of dense rows that are not zero, and their columns; row i begins at starts[i]."""
    for i in range(np.uint64(X.shape[0])):
        place = starts[i]
        for j in range(np.uint64(X.shape[1])):
            if X[i, j] != 0.0:
                values[place], indices[place] = X[i, j], j
                place += _ONE


@kernel
def densify(rows: RowArrays, factors: FloatVector, out: FloatMatrix) -> None:
    """Write every row times its factor, as a dense row with its constant, into `out`, which holds zeros."""
    values, indices, first, last, bias = rows
    for i in range(np.uint64(factors.shape[0])):
        begin = first[i]
        for j in range(last[i] - begin):
            column = column_of(indices, j, begin + j)
            out[i, column] = factors[i] * values[begin + j]
        out[i, np.uint64(out.shape[1]) - _ONE] = factors[i] * bias


@kernel
def place_duals(
    scores: FloatVector,
    terms: DualTerms,
    centre: FloatVector,
    beta: FloatVector,
    change: FloatVector,
    interior: IntVector,
) -> tuple[float, int]:
    """Set `beta` to the dual variables that belong to `scores`, and `change` to what that adds to them.

    Returns the sum of the smoothed losses and how many rows are interior: neither at a bound nor at zero, so that they
    have curvature; their numbers are in `interior`.
    """
    targets, low, high, ridge, epsilon = terms
    loss = 0.0
    kept = 0
    for i in range(np.uint64(targets.shape[0])):
        slack = targets[i] - scores[i]
        b = best_dual(slack, epsilon, low[i], high[i], ridge[i], centre[i])
        change[i] = b - beta[i]
        beta[i] = b
        loss += b * slack - epsilon * abs(b) - 0.5 * ridge[i] * (b - centre[i]) ** 2
        if b != 0.0 and low[i] < b < high[i]:
            interior[kept] = i
            kept += 1
    return loss, kept


@kernel
def line_derivatives(
    step: float, scores: FloatVector, direction: FloatVector, terms: DualTerms, centre: FloatVector
) -> tuple[float, float]:
    """Return the first and second derivative in `step` of the smoothed losses at ``scores + step * direction``."""
    targets, low, high, ridge, epsilon = terms
    slope, curvature = 0.0, 0.0
    for i in range(np.uint64(targets.shape[0])):
        slack = targets[i] - scores[i] - step * direction[i]
        b = best_dual(slack, epsilon, low[i], high[i], ridge[i], centre[i])
        slope -= b * direction[i]
        bend = direction[i] * direction[i] / ridge[i]
        curvature += bend if (b != 0.0) & (low[i] < b) & (b < high[i]) else 0.0
    return slope, curvature


@kernel
def same_rows(rows: RowArrays, left: IntVector, right: IntVector, out: AnyArray) -> None:
    """Write into `out` (bool) for every pair whether rows ``left[k]`` and ``right[k]`` have the same entries."""
    values, indices, first, last, _ = rows
    for k in range(np.uint64(left.shape[0])):
        a, b = first[np.uint64(left[k])], first[np.uint64(right[k])]
        length = last[np.uint64(left[k])] - a
        same = length == last[np.uint64(right[k])] - b
        if same:
            for j in range(length):
                if values[a + j] != values[b + j] or column_of(indices, j, a + j) != column_of(indices, j, b + j):
                    same = False
        out[k] = same
