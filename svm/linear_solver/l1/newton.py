r"""The linear SVM with an L1 penalty and the squared hinge: a proximal Newton method on working sets of columns.

Problem: the loss of `dsgd.svm.linear_solver.problem` with the sum of absolute weights in place of half their squares,

.. math:: P(w) = \sum_j \lambda_j |w_j| + \sum_i C_i\, \ell(y_i, x_i \cdot w), \qquad
          D(b) = \sum_i \left(y_i b_i - \tfrac12 \rho_i b_i^2\right)
          \quad\text{for}\quad \Big|\sum_i b_i x_{ij}\Big| \le \lambda_j,

where every :math:`\lambda_j` is one, but zero for an intercept that is not penalised. A round

1. computes the gradient of the loss over all rows and columns, and from it the certificate: the dual variables that
   belong to the scores, shrunk until they satisfy the constraint of every column;
2. chooses the working set: the columns whose weight is not zero and those that violate optimality most;
3. minimises over them the second-order model of the loss (rows inside the margin have curvature ``1 / rho_i``) plus the
   penalty, by coordinate descent with elimination of weights that stay at zero. The curvature is a matrix made by BLAS
   where that is cheaper than passes over the columns;
4. takes the longest of the steps 1, 1/2, 1/4, ... that lowers P enough.

So a round reads all rows twice and a few columns some dozens of times, and the solver returns when
``(P - D) / P <= tol`` and on nothing else.

Source: Yuan, Ho and Lin, JMLR 2012 (the proximal Newton method); Massias, Gramfort and Salmon, ICML 2018 (working sets
and the dual point). The choice of the model's form is ours.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from dsgd.collectives import Team
from dsgd.kernels.order import GOLDEN
from dsgd.svm.linear_solver.kernels import place_duals
from dsgd.svm.linear_solver.l1.columns import LinearColumns, gram_pass, model_pass
from dsgd.svm.linear_solver.problem import LinearProblem, LinearSolution, balance, relative_gap
from dsgd.types import FloatMatrix, FloatVector, IntVector

#: Up to this many columns the working set is all of them; above, it begins with this many violators.
_FEW_COLUMNS = 200
#: The model is minimised until the largest violation is this share of what it was.
_INNER_SHARE = 0.1
_MOST_PASSES = 60
_MOST_GRAM_ROUNDS = 20
_GRAM_PASSES = 30
#: How many times faster a matrix product does an operation than a pass over columns, and the passes a model takes.
_BLAS_ADVANTAGE = 20.0
_EXPECTED_PASSES = 15.0
#: The widest matrix that is made.
_MOST_GRAM_COLUMNS = 1000
#: A step must lower P by this share of what the model promises.
_SUFFICIENT = 0.01
#: Near the optimum P falls by less than it is rounded by: a step that raises it by this share at most is taken, for a
#: shorter one chosen by rounding would not close the gap.
_ROUNDING = 1e-14


@dataclass
class _Point:
    """The dual variables that belong to scores, and what follows from them."""

    loss: float
    beta: FloatVector
    interior: IntVector


def solve_l1(
    problem: LinearProblem,
    columns: LinearColumns,
    *,
    tol: float,
    max_iter: int,
    team: Team,
    seed: int = 0,
) -> LinearSolution:
    """Solve a problem of squared hinge with an L1 penalty."""
    rows = problem.rows
    penalties = np.ones(rows.width)
    if not problem.penalizes_intercept:
        penalties[-1] = 0.0
    weights = np.zeros(rows.width)
    scores: FloatVector = np.zeros(rows.n_rows)
    point = _place(problem, scores)
    best, best_primal, best_dual = weights.copy(), np.inf, 0.0
    best_duals: FloatVector = np.zeros(rows.n_rows)
    n_iter = 0
    while True:
        combined = rows.combine(point.beta, team)
        primal = float(penalties @ np.abs(weights)) + point.loss
        if primal < best_primal:
            best, best_primal = weights.copy(), primal
        duals, dual = _feasible(problem, point.beta, combined, team)
        if dual > best_dual:
            best_duals, best_dual = duals, dual
        # Weights of zero are returned only where they are the optimum: just above the C of `sklearn.svm.l1_min_c` they
        # would be within any usual tolerance of it.
        is_empty = n_iter == 0 and bool((np.abs(combined) > penalties * (1 + 1e-12)).any())
        if n_iter >= max_iter or (relative_gap(best_primal, best_dual) <= tol and not is_empty):
            break
        n_iter += 1
        chosen = _working_set(weights, combined, penalties)
        model = _Model(problem, columns, chosen, point, combined[chosen], penalties[chosen], weights[chosen])
        change = np.zeros(rows.width)
        change[chosen], along = model.minimise(np.uint64((seed + n_iter * int(GOLDEN)) % 2**64))
        if along is None:
            along = _scores(problem, columns, change, team)
        promise = float(penalties @ (np.abs(weights + change) - np.abs(weights)) - combined @ change)
        step, moved = 1.0, point
        while step > 1e-12:
            moved = _place(problem, scores + step * along)
            size = float(penalties @ np.abs(weights + step * change))
            if size + moved.loss <= primal + _SUFFICIENT * step * promise + _ROUNDING * primal:
                break
            step *= 0.5
        else:
            break  # as low as rounding lets it be
        weights += step * change
        scores += step * along
        if n_iter % 20 == 0:  # free of what rounding has added up
            scores = _scores(problem, columns, weights, team)
        point = _place(problem, scores)
    loss = _place(problem, rows.scores(best, team)).loss
    primal = float(penalties @ np.abs(best)) + loss
    dual = _dual(problem, best_duals)
    converged = relative_gap(primal, dual) <= max(tol, 1e-14)
    return LinearSolution(best, best_duals, primal, dual, n_iter, converged, "l1_newton")


def _place(problem: LinearProblem, scores: FloatVector) -> _Point:
    n_rows = problem.rows.n_rows
    beta, interior = np.zeros(n_rows), np.empty(n_rows, np.int64)
    centre, change = np.zeros(n_rows), np.empty(n_rows)
    loss, n_interior = place_duals(scores, problem.terms, centre, beta, change, interior)
    return _Point(float(loss), beta, interior[:n_interior])


def _dual(problem: LinearProblem, duals: FloatVector) -> float:
    return float(problem.targets @ duals) - 0.5 * float(problem.ridge @ (duals * duals))


def _feasible(
    problem: LinearProblem, beta: FloatVector, combined: FloatVector, team: Team
) -> tuple[FloatVector, float]:
    """Return the best multiple of `beta` that every column's constraint allows, and its dual objective."""
    if not problem.penalizes_intercept:
        beta = balance(beta, team)
        combined = problem.rows.combine(beta, team)[:-1]
    largest = float(np.abs(combined).max(initial=0.0))
    gain, square = float(problem.targets @ beta), float(problem.ridge @ (beta * beta))
    factor = min(1.0 / largest if largest > 0.0 else np.inf, gain / square if square > 0.0 else 0.0)
    duals = beta * max(factor, 0.0)
    return duals, _dual(problem, duals)


def _working_set(weights: FloatVector, combined: FloatVector, penalties: FloatVector) -> IntVector:
    """Return the columns to work on, ascending."""
    if weights.shape[0] <= _FEW_COLUMNS:
        return np.arange(weights.shape[0])
    inside = np.flatnonzero((weights != 0.0) | (penalties == 0.0))
    violation = np.abs(combined) - penalties
    violation[inside] = 0.0
    outside = np.flatnonzero(violation > 0.0)
    most = max(_FEW_COLUMNS, inside.shape[0])
    if outside.shape[0] > most:
        outside = outside[np.argpartition(-violation[outside], most)[:most]]
    return np.sort(np.concatenate([inside, outside]))


def _scores(problem: LinearProblem, columns: LinearColumns, weights: FloatVector, team: Team) -> FloatVector:
    """Return the scores of all rows, by columns if that reads less."""
    read = float(columns.sizes()[weights != 0.0].sum())
    if 2.0 * read < problem.rows.n_entries:
        return columns.combine(weights)
    return problem.rows.scores(weights, team)


class _Model:
    """The second-order model of the loss over some columns, plus the penalty."""

    def __init__(
        self,
        problem: LinearProblem,
        columns: LinearColumns,
        chosen: IntVector,
        point: _Point,
        combined: FloatVector,
        penalties: FloatVector,
        weights: FloatVector,
    ) -> None:
        self._columns, self._chosen, self._members = columns, chosen, point.interior
        self._factors = 1.0 / problem.ridge[point.interior]
        self._gradients, self._penalties, self._weights = -combined, penalties, weights

    def minimise(self, key: np.uint64) -> tuple[FloatVector, FloatVector | None]:
        """Return the change of the weights, and that of the scores if it is known."""
        width, n_active = self._chosen.shape[0], self._members.shape[0]
        entries = float(self._columns.sizes()[self._chosen].sum())
        goal = _INNER_SHARE * self._violation()
        cost = n_active * width**2 / _BLAS_ADVANTAGE
        if cost <= 2.0 * _EXPECTED_PASSES * entries and width <= _MOST_GRAM_COLUMNS:
            return self._by_gram(goal), None
        return self._by_columns(goal, key)

    def _violation(self) -> float:
        sign, size = np.sign(self._weights), np.abs(self._gradients)
        held = np.abs(self._gradients + sign * self._penalties)
        return float(np.where(sign == 0.0, np.maximum(size - self._penalties, 0.0), held).max(initial=0.0))

    def _by_gram(self, goal: float) -> FloatVector:
        gram = self._columns.gram(self._chosen, self._members, self._factors)
        # A column without active rows has no curvature of its own: some, to divide by.
        gram[np.diag_indices_from(gram)] += 1e-12 * max(1.0, float(gram.diagonal().max(initial=0.0)))
        points, slopes = self._weights.copy(), self._gradients.copy()
        for _ in range(_MOST_GRAM_ROUNDS):
            if gram_pass(gram, slopes, self._penalties, points, np.uint64(_GRAM_PASSES), goal) <= goal:
                break
            self._jump(gram, slopes, points)
        return points - self._weights

    def _jump(self, gram: FloatMatrix, slopes: FloatVector, points: FloatVector) -> None:
        """Go to the minimum over the weights that are not zero, or until the first of them becomes zero."""
        free = np.flatnonzero((points != 0.0) | (self._penalties == 0.0))
        matrix = gram[np.ix_(free, free)]
        matrix[np.diag_indices_from(matrix)] *= 1.0 + 1e-10
        target = -slopes[free] - self._penalties[free] * np.sign(points[free])
        try:
            change = cho_solve(cho_factor(matrix, overwrite_a=True, check_finite=False), target, check_finite=False)
        except LinAlgError:
            return  # more columns than rows with curvature; coordinate descent continues alone
        with np.errstate(divide="ignore", invalid="ignore"):
            until = np.where(change * points[free] < 0.0, -points[free] / change, np.inf)
        until[self._penalties[free] == 0.0] = np.inf
        step = min(1.0, float(until.min(initial=1.0)))
        slopes += step * (gram[:, free] @ change)
        points[free[until <= step]] = 0.0
        rest = until > step
        points[free[rest]] += step * change[rest]

    def _by_columns(self, goal: float, key: np.uint64) -> tuple[FloatVector, FloatVector]:
        columns, width = self._columns, self._chosen.shape[0]
        pairs = np.zeros(2 * columns.n_rows)
        pairs[2 * self._members + 1] = self._factors
        curvatures = columns.squares(self._chosen, pairs[1::2].copy())
        curvatures += 1e-12 * max(1.0, float(curvatures.max(initial=0.0)))
        points, order = self._weights.copy(), np.arange(width, dtype=np.uint32)
        n_order, threshold = width, np.inf
        for number in range(_MOST_PASSES):
            n_left, worst = model_pass(
                columns.arrays,
                self._chosen,
                order,
                np.uint64(n_order),
                threshold,
                self._gradients,
                curvatures,
                self._penalties,
                points,
                pairs,
                np.uint64((int(key) + number) % 2**64),
            )
            was_full = n_order == width
            n_order, threshold = int(n_left), float(worst)
            if worst <= goal:
                if was_full:
                    break
                n_order, threshold = width, np.inf
        return points - self._weights, pairs[0::2].copy()
