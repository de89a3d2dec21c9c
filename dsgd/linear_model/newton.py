r"""Models with a squared penalty alone: Newton's method, with a Cholesky factor or conjugate gradients.

Problem: that of `dsgd.linear_model.problem` with :math:`l_1 = 0` and :math:`l_2 > 0`. A step solves

.. math:: (X^\top D X + l_2 I)\,\delta = X^\top\theta - l_2 w

with the curvatures D of the rows and columns about their means, which eliminates the intercept: by a Cholesky factor
of this matrix if there are few columns; of :math:`l_2 I + D^{1/2} X X^\top D^{1/2}` if there are few rows; else by
conjugate gradients with the diagonal as preconditioner, to a residual that falls with the gradient. Then it takes the
longest of the steps 1, 1/2, 1/4, ... that does not raise P. A squared loss needs one step.

Cost: ``n p**2`` operations a step for a factor, or two passes over X for each step of conjugate gradients.

Source: Lin, Weng and Keerthi, JMLR 2008 (trust region Newton methods for logistic regression); Dembo, Eisenstat and
Steihaug 1982 (the residual to go to).
"""

from __future__ import annotations

import numpy as np

from dsgd.linear_model.cholesky import inverse_of
from dsgd.linear_model.columns import Columns
from dsgd.linear_model.problem import Problem, Solution, certify, longest_step
from dsgd.types import FloatVector

#: The widest matrix that is factored.
_MOST_FACTORED = 1500
_MOST_CG_STEPS = 500


def solve_l2(problem: Problem, weights: FloatVector, tol: float, max_iter: int) -> Solution:
    """Minimise P."""
    loss, columns = problem.loss, problem.columns
    scores = columns.scores(weights)
    intercept = problem.intercept(scores, 0.0)
    best: Solution | None = None
    first, n_iter = 0.0, 0
    while True:
        found = certify(problem, weights, scores + intercept)
        if best is None or found.gap <= best.gap:
            best = Solution(weights, intercept, found.gap, n_iter)
        if found.gap <= tol or n_iter == max_iter:
            break
        downhill = found.products - problem.l2 * weights
        length = float(np.linalg.norm(downhill))
        first = first or length
        # What is left of the gap falls with the square of the residual; a squared loss is solved in one step.
        share = 0.3 * (tol / found.gap) ** 0.5
        if not loss.is_quadratic:
            share = max(share, min(0.1, (length / first) ** 0.5))
        change = _newton_direction(columns, loss.curvature(loss.mean(scores + intercept)), problem.l2, downhill, share)
        n_iter += 1
        taken = longest_step(problem, weights, change, scores, intercept, found.primal)
        if taken is None:  # P is minimal to rounding
            break
        weights, scores, intercept = taken
    return Solution(best.weights, best.intercept, best.gap, n_iter)


def _newton_direction(
    columns: Columns, factors: FloatVector, l2: float, downhill: FloatVector, share: float
) -> FloatVector:
    """Return the solution of the Newton system."""
    n, p = columns.shape
    chosen = np.arange(p)
    if p <= _MOST_FACTORED:
        hessian = columns.gram(chosen, factors)
        hessian[np.diag_indices(p)] += l2
        return inverse_of(hessian)(downhill)
    means = columns.means(chosen, factors)
    if n <= _MOST_FACTORED and not columns.is_sparse:
        # (l2 I + A'A)^-1 = (I - A' (l2 I + A A')^-1 A) / l2
        rows, factor = columns.table, float(factors[0])
        if not (factors == factor).all():  # else columns are centred by them already
            rows, factor = (rows - means[:, None]) * np.sqrt(factors), 1.0
        inner = factor * (rows.T @ rows)
        inner[np.diag_indices(n)] += l2
        solved = factor * inverse_of(inner)(rows.T @ downhill)
        return np.asarray((downhill - rows @ solved) / l2)
    return _conjugate_gradients(columns, factors, means, l2, downhill, share)


def _conjugate_gradients(
    columns: Columns, factors: FloatVector, means: FloatVector, l2: float, downhill: FloatVector, share: float
) -> FloatVector:
    """Return the solution up to a residual that is a share of the right-hand side."""
    diagonal = columns.squares(factors) + l2
    solution, residual = np.zeros_like(downhill), downhill.copy()
    scaled = residual / diagonal
    direction = scaled
    product = float(residual @ scaled)
    goal = share * float(np.linalg.norm(downhill))
    for _ in range(_MOST_CG_STEPS):
        if float(np.linalg.norm(residual)) <= goal:
            break
        moved = columns.scores(direction) - float(means @ direction)
        curved = columns.products(factors * moved) + l2 * direction
        step = product / float(direction @ curved)
        solution += step * direction
        residual -= step * curved
        scaled = residual / diagonal
        product, before = float(residual @ scaled), product
        direction = scaled + (product / before) * direction
    return solution
