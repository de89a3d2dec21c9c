r"""Newton's method on the rows that have curvature, with an outer proximal loop for losses that have a kink.

Problem: `dsgd.svm.linear_solver.problem`. Each loss is smoothed around dual variables c (the centre) with a ridge r_i,

.. math:: \phi_i(f) = \max_{l_i \le b \le h_i} b\,(y_i - f) - \epsilon |b| - \tfrac12 r_i (b - c_i)^2,

whose derivative is -b_i(f), and whose second derivative is 1 / r_i where b_i(f) is interior (neither at a bound nor at
zero) and 0 elsewhere. A Newton step solves

.. math:: \Big(I + \sum_{i\,\mathrm{interior}} \tfrac1{r_i} x_i x_i'\Big)\, p = -\Big(w - \sum_i b_i x_i\Big)

by conjugate gradients, preconditioned by the Cholesky factor of the same matrix made from a sample of the interior rows
(of all of them, if they are few: then one iteration solves), or by its diagonal if there are many columns. The
step length is near the minimum along p. So a step reads all rows once, for ``X p``, and otherwise only the rows whose
variable is interior or has changed: the rest is eliminated by the mathematics. Interior rows that many iterations will
read are copied next to each other, half of all entries at most.

Rows may be divided among the ranks of a gang (docs/linear-svm.rst says what is sent); rank 0 says how long the
preconditioned residual is (and, with a factor, what it is), so that all ranks take the same decisions on any mix of
machines.

A squared loss is its own smoothing, with c = 0 and r_i = rho_i; there the duality gap is half the squared gradient.
For hinge and epsilon-insensitive losses this is the proximal method of multipliers: the smoothed problem is solved to
an accuracy that follows the gap, the centre moves to its dual variables, and the ridge shrinks. The variables are
always in their intervals, so every step yields a certificate of the loss itself.

Rows of few columns in one process have all their steps in compiled calls (`_take_steps`): the same method, with the
Cholesky factor of the whole matrix in place of conjugate gradients. If a matrix has none, since rows are badly scaled,
the general way is taken.

It is not the method of `dsgd.linear_model.newton`, whose systems it solves: there every row has curvature and the
intercept is eliminated; here most rows have none, and are not read, and the dual variables carry the proximal method.

Source: Keerthi and DeCoste, JMLR 2005 (squared hinge); Rockafellar, Math. Oper. Res. 1976 (proximal multipliers); Li,
Sun and Toh, SIAM J. Optim. 2018 (their semismooth Newton form). Preconditioner and step length are ours.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from scipy.linalg.lapack import dpotrf, dpotrs

from dsgd.collectives import Team
from dsgd.kernels.jit import inlined, leaf_kernel
from dsgd.linear_model.newton import conjugate_gradients
from dsgd.svm.linear_solver.kernels import (
    DualTerms,
    RowArrays,
    add_rows,
    best_dual,
    column_of,
    line_derivatives,
    place_duals,
    score_rows,
)
from dsgd.svm.linear_solver.problem import (
    LinearProblem,
    LinearRows,
    LinearSolution,
    certify,
    conclude,
    relative_gap,
    spread,
)
from dsgd.types import FloatMatrix, FloatVector, IntVector

#: The preconditioner is a Cholesky factor up to this many columns, the diagonal above.
MAX_FACTOR_WIDTH = 3000
#: Rows in the sample of the preconditioner, per column.
_SAMPLE_PER_COLUMN = 4
#: Dense rows that the diagonal is made from.
_DIAGONAL_ROWS = 4096
#: How many times faster a matrix product does an operation than a pass over rows.
_BLAS_ADVANTAGE = 6.0
#: Entries that a pass reads in the time that sending one number to a peer takes (at 1 Gbit/s).
_ENTRIES_PER_NUMBER = 30.0
#: Conjugate gradient iterations that the first step is expected to take.
_FIRST_GUESS = 5
_MAX_CG = 200
#: Products that repay a copy of the rows.
_FEW_CG = 3
#: A step ends where the derivative along it has fallen to this share: the next one has another direction anyway.
_STEP_ACCURACY = 1e-3
#: The residual of a step falls by this factor at least.
_LOOSEST = 0.1
#: Up to this share of all entries, those of the interior rows are copied next to each other where many products with
#: them are expected: on a quarter of the rows of 60 entries a product then takes a third of the time.
_PACKED_SHARE = 0.5
#: The smoothed problem is solved until half its squared gradient is this share of the gap.
_INNER_SHARE = 0.1
#: Factor of the ridge from one centre to the next.
_RIDGE_DECAY = 0.2

#: Up to so many entries and columns all steps of a process are compiled calls, of one thread: with more columns a
#: matrix product takes less time than the loops there, with more entries several threads.
SMALL_ENTRIES, SMALL_WIDTH = 1 << 25, 64
#: Steps of such a call, and entries that it reads, after which rounding is taken off and an interrupt is seen.
_SLICE_STEPS, _SLICE_ENTRIES = 50, 1 << 27
#: Rows that its matrix is added up from at a time.
_BLOCK = 64


@dataclass
class _State:
    """A point, and everything that follows from it."""

    weights: FloatVector
    scores: FloatVector
    beta: FloatVector
    combined: FloatVector  # the sum of beta_i x_i
    interior: IntVector
    n_interior: int


def solve_newton(
    problem: LinearProblem,
    *,
    tol: float,
    max_iter: int,
    team: Team,
    start: LinearSolution | None = None,
) -> LinearSolution:
    """Solve by Newton's method."""
    rows, n_rows = problem.rows, problem.rows.n_rows
    if team.n_ranks == 1 and is_small(rows):
        found = _solve_small(problem, tol, max_iter, team, start)
        if found is not None:
            return found
    weights = np.zeros(rows.width) if start is None else start.weights.copy()
    scores = rows.scores(weights, team) if weights.any() else np.zeros(n_rows)
    state = _State(weights, scores, np.zeros(n_rows), np.zeros(rows.width), np.empty(n_rows, np.int64), 0)
    is_smooth = bool(team.totals(float(problem.is_smooth))[0])  # a rank without rows cannot tell
    smoothed = problem if is_smooth else replace(problem, ridge=_first_ridge(problem, scores, team))
    centre = np.zeros(n_rows) if is_smooth or start is None else start.duals
    best, best_beta, best_primal, best_dual = weights.copy(), state.beta.copy(), np.inf, -np.inf
    preconditioner = _Preconditioner()
    n_iter = 0
    while True:
        _place(smoothed, centre, state, team)
        primal, dual, _ = certify(
            problem, state.weights, state.beta, team, combined=state.combined, scores=state.scores
        )
        if primal < best_primal:
            best, best_primal = state.weights.copy(), primal
        if dual > best_dual:
            best_beta, best_dual = state.beta.copy(), dual
        if relative_gap(best_primal, best_dual) <= tol or n_iter >= max_iter:
            break
        gradient = state.weights - state.combined
        error = 0.0 if is_smooth else 0.5 * float(team.agree(np.array([gradient @ gradient]))[0])
        if not is_smooth and error <= _INNER_SHARE * max(best_primal - best_dual, 0.0):
            centre, smoothed = state.beta.copy(), replace(smoothed, ridge=smoothed.ridge * _RIDGE_DECAY)
            preconditioner.forget()
            _place(smoothed, centre, state, team)
            gradient = state.weights - state.combined
        n_iter += 1
        members = state.interior[: state.n_interior]
        active, factors = rows.take(members), 1.0 / smoothed.ridge[members]
        preconditioner.prepare(active, factors, team)
        if preconditioner.is_weak and active.n_entries <= _PACKED_SHARE * rows.n_entries:
            active = active.packed(team)
        forcing = min(_LOOSEST, np.sqrt(relative_gap(best_primal, best_dual)))
        multiply = partial(_multiply, active, factors, team)
        direction, n_cg = conjugate_gradients(
            multiply, partial(preconditioner.apply, team=team), -gradient, forcing * forcing, _MAX_CG
        )
        preconditioner.judge(n_cg)
        along = rows.scores(direction, team)
        step = _exact_step(smoothed, centre, state, direction, along, team)
        state.weights += step * direction
        state.scores += step * along
    return conclude(problem, best, best_beta, team, tol, n_iter, "newton")


def _first_ridge(problem: LinearProblem, scores: FloatVector, team: Team) -> FloatVector:
    """Return the ridge of a loss with a kink that its smoothing begins with."""
    distance, n_targets = team.totals(float(np.sum(np.abs(problem.targets - scores))), problem.rows.n_rows)
    limit = np.maximum(problem.high, -problem.low)
    return np.asarray((distance / max(n_targets, 1.0) or 1.0) / np.where(limit > 0.0, limit, 1.0))


def is_small(rows: LinearRows) -> bool:
    """Return whether all steps on the rows are compiled calls."""
    return rows.n_entries <= SMALL_ENTRIES and rows.width <= SMALL_WIDTH


def _solve_small(
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
    ridge[:] = problem.ridge if is_smooth else _first_ridge(problem, scores, team)
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
        if not is_smooth and not has_moved and error <= _INNER_SHARE * gap:
            for i in range(beta.shape[0]):
                centre[i], ridge[i] = beta[i], _RIDGE_DECAY * ridge[i]
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
            if abs(slope) <= _STEP_ACCURACY * first or curvature == 0.0:
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


def _place(smoothed: LinearProblem, centre: FloatVector, state: _State, team: Team) -> None:
    """Bring the dual variables, their combination and the interior rows up to date with the scores."""
    change = np.empty(smoothed.rows.n_rows)
    _, state.n_interior = place_duals(state.scores, smoothed.terms, centre, state.beta, change, state.interior)
    state.combined += team.add_up(smoothed.rows.combine(change, team))


class _Preconditioner:
    """An approximate inverse of ``I + sum of factor_i x_i x_i'``: the diagonal, or a sample's factor if it pays."""

    def __init__(self) -> None:
        self._factor: Any = None  # rank 0 alone has it
        self._has_factor = False
        self._diagonal: FloatVector = np.empty(0)
        self._expected = float(_FIRST_GUESS)
        self._chosen: tuple[int, int, IntVector] = (0, 0, np.empty(0, np.int64))

    @property
    def is_weak(self) -> bool:
        """Whether a step is expected to take several iterations, as it does with the diagonal."""
        return self._expected > _FEW_CG

    def prepare(self, active: LinearRows, factors: FloatVector, team: Team) -> None:
        """Fit the matrix of a step."""
        n_active, n_entries = team.totals(active.n_rows, active.n_entries)
        width, n_ranks = active.width, team.n_ranks
        # So many rows that their matrix costs as much as a product with all of them, but enough for a useful one.
        affordable = int(_BLAS_ADVANTAGE * 2.0 * n_entries / width**2)
        n_sample = min(int(n_active), max(_SAMPLE_PER_COLUMN * width, affordable))
        cost = (n_sample * width**2 / n_ranks + width**3 / 3) / _BLAS_ADVANTAGE
        saved = 4.0 * n_entries / n_ranks
        if n_ranks > 1:
            cost += _ENTRIES_PER_NUMBER * width**2 / 2
            saved += _ENTRIES_PER_NUMBER * width
        if n_active and width <= MAX_FACTOR_WIDTH and cost <= self._expected * saved:
            n_here = -int(-n_sample * active.n_rows // n_active)
            if n_here < active.n_rows:
                chosen = self._spread(active.n_rows, n_here)
                active, factors = active.take(chosen), factors[chosen] * (active.n_rows / max(n_here, 1))
            matrix = active.gram(factors, team)
            if team.n_ranks > 1:  # its lower triangle travels, and alone is right afterwards
                lower = np.tri(width, dtype=np.bool_)
                matrix[lower] = team.add_up(matrix[lower])
            matrix.ravel()[:: width + 1] += 1.0
            if team.leads:
                # LAPACK itself: what scipy does around it takes longer than a small factor.
                factor, failed = dpotrf(matrix, lower=True, clean=False, overwrite_a=True)
                # So badly scaled that rounding makes it indefinite, it has no factor; the diagonal always works.
                self._factor = self._factor if failed else factor
            self._has_factor = bool(team.agree(np.array([float(self._factor is not None)]))[0])
        if self._has_factor:
            self._expected = 0.0
        else:
            # Every dense row says something about every column: some of them are enough.
            n_here = active.n_rows if active.indices is not None else min(active.n_rows, _DIAGONAL_ROWS)
            chosen = self._spread(active.n_rows, n_here)
            share = active.n_rows / max(n_here, 1)
            self._diagonal = 1.0 + team.add_up(active.take(chosen).column_squares(factors[chosen] * share, team))

    def _spread(self, n: int, n_chosen: int) -> IntVector:
        """Return what `spread` does, once for steps in a row that have as many rows."""
        if self._chosen[:2] != (n, n_chosen):
            self._chosen = (n, n_chosen, spread(n, n_chosen))
        return self._chosen[2]

    def apply(self, vector: FloatVector, team: Team) -> tuple[FloatVector, float, float]:
        """Return the product with the inverse, and twice the inner product of that with the vector."""
        if not self._has_factor:
            scaled = vector / self._diagonal
            size = float(team.agree(np.array([vector @ scaled]))[0])
            return scaled, size, size
        message = np.empty(vector.shape[0] + 1)
        if team.leads:
            message[:-1] = dpotrs(self._factor, vector, lower=True)[0]
            message[-1] = vector @ message[:-1]
        team.agree(message)
        return message[:-1], float(message[-1]), float(message[-1])

    def judge(self, n_iter: int) -> None:
        """Record the iterations of a step: with an old factor they show how many a new one would save."""
        self._expected = float(n_iter)

    def forget(self) -> None:
        """Drop the factor: the matrix is another one now."""
        self._factor, self._has_factor = None, False
        self._expected = max(self._expected, float(_FIRST_GUESS))


def _multiply(
    active: LinearRows, factors: FloatVector, team: Team, direction: FloatVector, residual: FloatVector
) -> tuple[FloatVector, float]:
    """Return ``(I + sum of factor_i x_i x_i')`` times a direction and, equal on all ranks, its part along that."""
    message = np.zeros(direction.shape[0] + 1)
    message[:-1] = active.hessian_product(factors, direction, team)
    if team.leads:
        message[:-1] += direction
    message[-1] = message[:-1] @ direction
    team.add_up(message)
    return message[:-1], float(message[-1])


def _exact_step(
    smoothed: LinearProblem,
    centre: FloatVector,
    state: _State,
    direction: FloatVector,
    along: FloatVector,
    team: Team,
) -> float:
    """Return the step to near the minimum along a direction: Newton on the derivative, kept inside a bracket."""
    linear, square = float(state.weights @ direction), float(direction @ direction)

    def derivatives(step: float) -> tuple[float, float]:
        slope, curvature = line_derivatives(step, state.scores, along, smoothed.terms, centre)
        if team.leads:
            slope, curvature = slope + linear + step * square, curvature + square
        slope, curvature = team.totals(slope, curvature)
        return slope, curvature

    low, high, step = 0.0, np.inf, 1.0
    first = abs(derivatives(0.0)[0])
    for _ in range(60):
        slope, curvature = derivatives(step)
        if abs(slope) <= _STEP_ACCURACY * first:
            break
        if curvature == 0.0:
            break  # the square of the direction has underflown: no step along it changes anything
        low, high = (step, high) if slope < 0.0 else (low, step)
        guess = step - slope / curvature
        if not low < guess < high:
            guess = 0.5 * (low + high) if np.isfinite(high) else 2.0 * step
        if guess == step:
            break
        step = guess
    return step
