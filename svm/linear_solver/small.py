"""Newton's method on few columns: all steps of a process in compiled calls.

The method is that of `dsgd.svm.linear_solver.newton`, with the Cholesky factor of the whole matrix in place of
conjugate gradients. If a matrix has none, since rows are badly scaled, the general way is taken.
"""

from __future__ import annotations

import numpy as np

from dsgd.collectives import Team
from dsgd.kernels.jit import inlined, leaf_kernel
from dsgd.svm.linear_solver.kernels import (
    DualTerms,
    RowArrays,
    add_rows,
    best_dual,
    column_of,
    line_derivatives,
    score_rows,
)
from dsgd.svm.linear_solver.problem import LinearProblem, LinearRows, LinearSolution, conclude, relative_gap
from dsgd.types import FloatMatrix, FloatVector, IntVector

#: A step ends where the derivative along it has fallen to this share: the next one has another direction anyway.
STEP_ACCURACY = 1e-3
#: The smoothed problem is solved until half its squared gradient is this share of the gap.
INNER_SHARE = 0.1
#: Factor of the ridge from one centre to the next.
RIDGE_DECAY = 0.2

#: Up to so many entries and columns all steps of a process are compiled calls, of one thread: with more columns a
#: matrix product takes less time than the loops there, with more entries several threads.
SMALL_ENTRIES, SMALL_WIDTH = 1 << 25, 64
#: Steps of such a call, and entries that it reads, after which rounding is taken off and an interrupt is seen.
_SLICE_STEPS, _SLICE_ENTRIES = 50, 1 << 27
#: Rows that its matrix is added up from at a time.
_BLOCK = 64


def first_ridge(problem: LinearProblem, scores: FloatVector, team: Team) -> FloatVector:
    """Return the ridge of a loss with a kink that its smoothing begins with."""
    distance, n_targets = team.totals(float(np.sum(np.abs(problem.targets - scores))), problem.rows.n_rows)
    limit = np.maximum(problem.high, -problem.low)
    return np.asarray((distance / max(n_targets, 1.0) or 1.0) / np.where(limit > 0.0, limit, 1.0))


def is_small(rows: LinearRows) -> bool:
    """Return whether all steps on the rows are compiled calls."""
    return rows.n_entries <= SMALL_ENTRIES and rows.width <= SMALL_WIDTH


def solve_small(
    problem: LinearProblem, tol: float, max_iter: int, team: Team, start: LinearSolution | None
) -> LinearSolution | None:
    """Solve by Newton's method in compiled calls; None if a matrix has no factor: the general way needs none."""
    rows, is_smooth = problem.rows, problem.is_smooth
    of_rows, of_columns = np.zeros((7, rows.n_rows)), np.zeros((5, rows.width))
    ridge, centre, best_beta, beta, scores = of_rows[:5]
    weights, best, combined = of_columns[:3]
    if start is not None:
        weights[:] = start.weights
        scores[:] = rows.scores(weights, team)
        centre[:] = 0.0 if is_smooth else start.duals
    ridge[:] = problem.ridge if is_smooth else first_ridge(problem, scores, team)
    interior = np.empty(rows.n_rows, np.int64)
    matrix, block = np.empty((rows.width, rows.width)), np.empty((rows.width, _BLOCK))
    state, slice_steps = np.array([0.0, np.inf, -np.inf]), 1 + min(_SLICE_STEPS, _SLICE_ENTRIES // (1 + rows.n_entries))
    given = rows.arrays, problem.terms, is_smooth, tol
    while True:
        before = int(state[0])
        most = min(max_iter, before + slice_steps)
        has_ended = _take_steps(*given, most, state, of_rows, of_columns, matrix, block, interior)
        team.report(float(state[1]), float(state[2]))
        n_iter = int(state[0])
        if has_ended and not relative_gap(float(state[1]), float(state[2])) <= tol:
            return None
        if has_ended or n_iter >= max_iter:
            found = conclude(problem, best, best_beta, team, tol, n_iter, "newton")
            if found.converged or n_iter in (before, max_iter):
                return found
            state[1:] = np.inf, -np.inf  # what seemed the best was rounding
        scores[:], combined[:] = rows.scores(weights, team), rows.combine(beta, team)  # many changes have left theirs


_any_order = inlined({"reassoc", "contract"})
_ONE = np.uint64(1)
_line_derivatives = _any_order(line_derivatives.py_func)


@_any_order
def _place_and_measure(
    scores: FloatVector,
    terms: DualTerms,
    ridge: FloatVector,
    centre: FloatVector,
    beta: FloatVector,
    change: FloatVector,
) -> tuple[float, float]:
    """Do what `place_duals` does for the smoothed losses; return the sums of losses and dual terms of `measure`."""
    targets, low, high, own, epsilon = terms
    loss, dual = 0.0, 0.0
    for i in range(np.uint64(targets.shape[0])):
        slack = targets[i] - scores[i]
        best = best_dual(slack, epsilon, low[i], high[i], own[i], 0.0)
        loss += best * slack - epsilon * abs(best) - 0.5 * own[i] * best * best
        b = best_dual(slack, epsilon, low[i], high[i], ridge[i], centre[i])
        dual += targets[i] * b - epsilon * abs(b) - 0.5 * own[i] * b * b
        change[i] = b - beta[i]
        beta[i] = b
    return loss, dual


@_any_order
def _newton_direction(
    rows: RowArrays,
    terms: DualTerms,
    beta: FloatVector,
    interior: IntVector,
    block: FloatMatrix,
    matrix: FloatMatrix,
    direction: FloatVector,
) -> bool:
    """Divide the direction by ``I + sum x_i x_i' / r_i`` over the interior rows; False if that has no factor."""
    values, indices, first, last, bias = rows
    _, low, high, ridge, _ = terms
    width, size, n = np.uint64(block.shape[0]), np.uint64(block.shape[1]), np.uint64(0)
    for i in range(np.uint64(beta.shape[0])):
        interior[n] = i
        n += np.uint64((beta[i] != 0.0) & (low[i] < beta[i]) & (beta[i] < high[i]))
    for j in range(width):
        for k in range(j + _ONE):
            matrix[j, k] = 1.0 if j == k else 0.0
    for start in range(np.uint64(0), n, size):
        n_here = size if size < n - start else n - start
        padded = (n_here + np.uint64(7)) // np.uint64(8) * np.uint64(8)
        for j in range(width):
            for place in range(padded):
                block[j, place] = 0.0
        for place in range(n_here):
            row = np.uint64(interior[start + place])
            root, begin = np.sqrt(1.0 / ridge[row]), first[row]
            for j in range(last[row] - begin):
                block[column_of(indices, j, begin + j), place] = root * values[begin + j]
            block[width - _ONE, place] = root * bias
        for j in range(width):
            for k in range(j + _ONE):
                total = 0.0
                for place in range(padded):
                    total += block[j, place] * block[k, place]
                matrix[j, k] += total
    for i in range(width):
        for j in range(i + _ONE):
            total = matrix[i, j]
            for k in range(j):
                total -= matrix[i, k] * matrix[j, k]
            matrix[i, j] = total / matrix[j, j] if j < i else np.sqrt(total)
        if not 0.0 < matrix[i, i] < np.inf:
            return False
        for j in range(i):
            direction[i] -= matrix[i, j] * direction[j]
        direction[i] /= matrix[i, i]
    for k in range(width):
        at = width - _ONE - k
        direction[at] /= matrix[at, at]
        for j in range(at):
            direction[j] -= direction[at] * matrix[at, j]
    return True


@leaf_kernel
def _take_steps(
    rows: RowArrays,
    terms: DualTerms,
    is_smooth: bool,
    tol: float,
    most_steps: int,
    state: FloatVector,
    of_rows: FloatMatrix,
    of_columns: FloatMatrix,
    matrix: FloatMatrix,
    block: FloatMatrix,
    interior: IntVector,
) -> bool:
    """Take steps of `solve_newton`, with a factor of the whole matrix; return whether they end here."""
    ridge, centre, best_beta, beta = of_rows[0], of_rows[1], of_rows[2], of_rows[3]
    scores, change, along = of_rows[4], of_rows[5], of_rows[6]
    weights, best, combined = of_columns[0], of_columns[1], of_columns[2]
    gradient, direction = of_columns[3], of_columns[4]
    smoothed = (terms[0], terms[1], terms[2], ridge, terms[4])
    width, has_moved = weights.shape[0], False
    while True:
        loss, dual = _place_and_measure(scores, terms, ridge, centre, beta, change)
        add_rows(rows, change, combined)
        size, error = 0.0, 0.0
        for j in range(width):
            gradient[j] = weights[j] - combined[j]
            size += weights[j] * weights[j]
            dual -= 0.5 * combined[j] * combined[j]
            error += 0.5 * gradient[j] * gradient[j]
        primal = loss + 0.5 * size
        if primal < state[1]:
            state[1] = primal
            for j in range(width):
                best[j] = weights[j]
        if dual > state[2]:
            state[2] = dual
            for i in range(beta.shape[0]):
                best_beta[i] = beta[i]
        gap = state[1] - state[2]
        if state[1] <= 0.0 or gap / state[1] <= tol:
            return True
        if state[0] >= most_steps:
            return False
        if not is_smooth and not has_moved and error <= INNER_SHARE * gap:
            for i in range(beta.shape[0]):
                centre[i], ridge[i] = beta[i], RIDGE_DECAY * ridge[i]
            has_moved = True
            continue
        state[0] += 1.0
        has_moved = False
        for j in range(width):
            direction[j] = -gradient[j]
        if not _newton_direction(rows, smoothed, beta, interior, block, matrix, direction):
            return True
        score_rows(rows, direction, along)
        linear, square, first = 0.0, 0.0, 0.0
        for j in range(width):
            linear += weights[j] * direction[j]
            square += direction[j] * direction[j]
            first -= gradient[j] * direction[j]
        low, high, step = 0.0, np.inf, 1.0
        for _ in range(60):
            slope, curvature = _line_derivatives(step, scores, along, smoothed, centre)
            slope, curvature = slope + linear + step * square, curvature + square
            if abs(slope) <= STEP_ACCURACY * first or curvature == 0.0:
                break
            if slope < 0.0:
                low = step
            else:
                high = step
            guess = step - slope / curvature
            if not low < guess < high:
                guess = 0.5 * (low + high) if high < np.inf else 2.0 * step
            if guess == step:
                break
            step = guess
        for j in range(width):
            weights[j] += step * direction[j]
        for i in range(scores.shape[0]):
            scores[i] += step * along[i]
