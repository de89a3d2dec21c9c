r"""Multinomial logistic regression with a squared penalty: Newton's method with conjugate gradients.

Problem: with scores :math:`F = X W^\top + b` of K classes and probabilities P = softmax(F),

.. math:: P(W, b) = \tfrac12 l_2 \|W\|^2 - \sum_i c_i \log P_{i y_i}, \qquad
          D(Q) = -\sum_i c_i \sum_k Q_{ik} \log Q_{ik} - \frac{1}{2 l_2} \| X^\top \Theta \|^2

with :math:`\Theta = c\,(Y - Q)` for any probabilities Q whose weighted sums by class are those of Y (that is for the
intercepts; without them for any). A step solves the Newton system by conjugate gradients with the diagonal as
preconditioner, and takes the longest of the steps 1, 1/2, 1/4, ... that lowers P. Q is P, mixed with as little of a
constant row as gives it the sums of Y.

Cost: two passes over X for K columns a step of conjugate gradients.

Rows may be divided among ranks, which then take the same steps. With p columns they add up K (p + 1) numbers of eight
bytes for the gradient of a step, K p for its certificate, K (2 p + 2) in 2 K + 1 messages for the preconditioner, and
K (p + 1) + 1 for every step of conjugate gradients, before which rank 0 sends two; at the end it sends the change, of
K (p + 1). The other messages of a step, four or more, have 2 K numbers at most.

Source: Boehning 1992 (the Hessian); Fenchel's duality.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import log_softmax, xlogy

from dsgd.collectives import Team
from dsgd.linear_model.columns import Columns
from dsgd.linear_model.problem import Solution
from dsgd.types import FloatMatrix, FloatVector

_MOST_CG_STEPS = 300
_MOST_HALVINGS = 30


@dataclass(frozen=True)
class Multinomial:
    """A multinomial model to fit."""

    columns: Columns
    hot: FloatMatrix
    costs: FloatVector
    l2: float

    @property
    def team(self) -> Team:
        """The ranks among which the rows are divided."""
        return self.columns.team

    def primal(self, scores: FloatMatrix, weights: FloatMatrix) -> float:
        """Return P, given scores with intercepts, shape (n_rows, n_classes), and W, shape (n_classes, n_features)."""
        losses = -(log_softmax(scores, axis=1) * self.hot).sum(axis=1)
        penalty = 0.5 * self.l2 * float((weights * weights).sum()) if self.team.leads else 0.0
        return self.team.totals(float(self.costs @ losses) + penalty)[0]

    def scores(self, weights: FloatMatrix) -> FloatMatrix:
        """Return X W', shape (n_rows, n_classes)."""
        table = self.columns.table
        return np.asarray(table @ weights.T if self.columns.is_sparse else table.T @ weights.T)

    def products(self, duals: FloatMatrix) -> FloatMatrix:
        """Return Theta' X of the rows that are here, shape (n_classes, n_features)."""
        table = self.columns.table
        return np.asarray(table.T @ duals if self.columns.is_sparse else table @ duals).T

    def derivatives(self, duals: FloatMatrix) -> FloatMatrix:
        """Return `products`, and in the last column the sums of Theta, shape (n_classes, n_features + 1)."""
        sums = duals.sum(axis=0) if self.columns.has_intercept else np.zeros(duals.shape[1])
        return np.column_stack([self.products(duals), sums])

    def add_up(self, matrix: FloatMatrix) -> FloatMatrix:
        """Return the sum of the matrices of ranks."""
        return self.team.add_up(np.ravel(matrix)).reshape(matrix.shape)

    def balanced(self, probabilities: FloatMatrix) -> FloatMatrix:
        """Return probabilities whose weighted sums by class are those of Y, if there are intercepts."""
        if not self.columns.has_intercept:
            return probabilities
        sums, wanted = self.add_up(np.stack([self.costs @ probabilities, self.costs @ self.hot]))
        mixed = float(np.max(1.0 - wanted / sums, initial=0.0))
        if mixed <= 0.0:
            return probabilities
        constant = np.maximum(wanted - (1.0 - mixed) * sums, 0.0)
        if not constant.any():  # the sums differ by rounding
            return probabilities
        balanced: FloatMatrix = (1.0 - mixed) * probabilities + mixed * (constant / constant.sum())
        return balanced

    def dual(self, probabilities: FloatMatrix) -> float:
        """Return D at balanced probabilities."""
        products = self.add_up(self.products(self.costs[:, None] * (self.hot - probabilities)))
        entropies = -xlogy(probabilities, probabilities).sum(axis=1)
        squares = 0.5 * float((products * products).sum()) / self.l2 if self.team.leads else 0.0
        return self.team.totals(float(self.costs @ entropies) - squares)[0]


def solve_multinomial(
    problem: Multinomial, weights: FloatMatrix, intercepts: FloatVector, tol: float, max_iter: int
) -> Solution:
    """Minimise P."""
    best: Solution | None = None
    scores, first, n_iter = problem.scores(weights) + intercepts, 0.0, 0
    while True:
        probabilities = np.exp(log_softmax(scores, axis=1))
        primal = problem.primal(scores, weights)
        dual = problem.dual(problem.balanced(probabilities))
        problem.team.report(primal, dual)
        gap = max(primal - dual, 0.0)
        if best is None or gap <= best.gap:
            best = Solution(weights, intercepts, gap, n_iter)
        if gap <= tol or n_iter == max_iter:
            break
        duals = problem.costs[:, None] * (problem.hot - probabilities)
        downhill = problem.add_up(problem.derivatives(duals))
        downhill[:, :-1] -= problem.l2 * weights
        length = float(np.linalg.norm(downhill))
        first = first or length
        change = _direction(problem, probabilities, downhill, min(0.1, (length / first) ** 0.5))
        change = problem.team.agree(change.ravel()).reshape(change.shape)
        n_iter += 1
        moved = problem.scores(change[:, :-1]) + change[:, -1]
        step = 1.0
        for _ in range(_MOST_HALVINGS):
            if problem.primal(scores + step * moved, weights + step * change[:, :-1]) <= primal:
                break
            step *= 0.5
        else:  # P is minimal to rounding
            break
        weights, intercepts = weights + step * change[:, :-1], intercepts + step * change[:, -1]
        scores = scores + step * moved
    return Solution(best.weights, best.intercept, best.gap, n_iter)


def _direction(problem: Multinomial, probabilities: FloatMatrix, downhill: FloatMatrix, share: float) -> FloatMatrix:
    """Return the Newton direction, intercepts in the last column, up to a residual that is a share of the gradient."""
    costs, team = problem.costs, problem.team
    spreads = costs[:, None] * probabilities * (1.0 - probabilities)
    squares = [problem.columns.squares(np.ascontiguousarray(spreads[:, k])) for k in range(spreads.shape[1])]
    diagonal = np.column_stack([np.array(squares) + problem.l2, np.maximum(team.add_up(spreads.sum(axis=0)), 1e-12)])
    residual = downhill.copy()
    solution, goal = np.zeros_like(residual), share * float(np.linalg.norm(residual))
    direction, before = np.zeros_like(residual), 1.0
    for _ in range(_MOST_CG_STEPS):
        scaled = residual / diagonal
        # Products of vectors may differ between ranks in the last bit: those of rank 0 count.
        is_near = float(np.linalg.norm(residual)) <= goal
        product, ends = team.agree(np.array([float((residual * scaled).sum()), float(is_near)])).tolist()
        if ends:
            break
        direction = scaled + product / before * direction
        moved = problem.scores(direction[:, :-1]) + direction[:, -1]
        curved = costs[:, None] * probabilities * (moved - (probabilities * moved).sum(axis=1, keepdims=True))
        image, bent = problem.derivatives(curved), float((moved * curved).sum())
        if team.leads:
            image[:, :-1] += problem.l2 * direction[:, :-1]
            bent += problem.l2 * float((direction[:, :-1] ** 2).sum())
        sums = team.add_up(np.append(image, bent))
        image, bent = sums[:-1].reshape(image.shape), float(sums[-1])
        if bent <= 0.0:  # equal intercepts for all classes change nothing
            break
        solution += product / bent * direction
        residual -= product / bent * image
        before = product
    return solution
