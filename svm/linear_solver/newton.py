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

Rows of few columns in one process have all their steps in compiled calls (`dsgd.svm.linear_solver.small`).

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
from dsgd.linear_model.newton import conjugate_gradients
from dsgd.svm.linear_solver.kernels import line_derivatives, place_duals
from dsgd.svm.linear_solver.problem import (
    LinearProblem,
    LinearRows,
    LinearSolution,
    certify,
    conclude,
    relative_gap,
    spread,
)
from dsgd.svm.linear_solver.small import INNER_SHARE, RIDGE_DECAY, STEP_ACCURACY, first_ridge, is_small, solve_small
from dsgd.types import FloatVector, IntVector

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
#: The residual of a step falls by this factor at least.
_LOOSEST = 0.1
#: Up to this share of all entries, those of the interior rows are copied next to each other where many products with
#: them are expected: on a quarter of the rows of 60 entries a product then takes a third of the time.
_PACKED_SHARE = 0.5


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
    problem: LinearProblem, *, tol: float, max_iter: int, team: Team, start: LinearSolution | None = None
) -> LinearSolution:
    """Solve by Newton's method."""
    rows, n_rows = problem.rows, problem.rows.n_rows
    if team.n_ranks == 1 and is_small(rows):
        found = solve_small(problem, tol, max_iter, team, start)
        if found is not None:
            return found
    weights = np.zeros(rows.width) if start is None else start.weights.copy()
    scores = rows.scores(weights, team) if weights.any() else np.zeros(n_rows)
    state = _State(weights, scores, np.zeros(n_rows), np.zeros(rows.width), np.empty(n_rows, np.int64), 0)
    is_smooth = bool(team.totals(float(problem.is_smooth))[0])  # a rank without rows cannot tell
    smoothed = problem if is_smooth else replace(problem, ridge=first_ridge(problem, scores, team))
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
        if not is_smooth and error <= INNER_SHARE * max(best_primal - best_dual, 0.0):
            centre, smoothed = state.beta.copy(), replace(smoothed, ridge=smoothed.ridge * RIDGE_DECAY)
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
    smoothed: LinearProblem, centre: FloatVector, state: _State, direction: FloatVector, along: FloatVector, team: Team
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
        if abs(slope) <= STEP_ACCURACY * first:
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
