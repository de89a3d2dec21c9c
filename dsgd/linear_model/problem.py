r"""The problem of a generalised linear model, its certificate, and what a solver returns.

.. math:: P(w, b) = \sum_i c_i \varphi(y_i, x_i \cdot w + b) + l_1 \|w\|_1 + \tfrac12 l_2 \|w\|^2 .

For dual variables that sum to zero, with :math:`v = X^\top\theta - l_2 w`,

.. math:: D = \sum_i (\text{dual term})_i(\kappa\theta_i) - \tfrac12 \kappa^2 l_2 \|w\|^2
          \quad\text{where}\quad \kappa |v_j| \le l_1 \text{ for all } j

is a lower bound of the minimum: the squared norm is a squared loss of rows :math:`\sqrt{l_2} e_j`, whose dual variables
are :math:`-\sqrt{l_2}\,w_j`. Without :math:`l_1` it is the sum at :math:`\kappa = 1` less
:math:`\|X^\top\theta\|^2 / (2 l_2)`.

Screening: D is concave with the modulus 1 / L of a loss whose second derivative is at most L, so that the optimal
:math:`|v_j|` lies within :math:`\sqrt{2 (P - D)}\,\|x_j\|` of that of any dual point, in the norm that `norms` says.
Where this is below :math:`l_1`, the weight is zero at every optimum.

Source: Fenchel's duality; Ndiaye, Fercoq, Gramfort and Salmon, JMLR 2017 (gap safe screening).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dsgd.linear_model.columns import Columns
from dsgd.linear_model.losses import AbstractLoss
from dsgd.types import FloatVector

_MOST_HALVINGS = 30


@dataclass(frozen=True)
class Problem:
    """A generalised linear model to fit."""

    columns: Columns
    loss: AbstractLoss
    l1: float
    l2: float

    def penalty(self, weights: FloatVector) -> float:
        """Return the penalty of weights."""
        return self.l1 * float(np.abs(weights).sum()) + 0.5 * self.l2 * float(weights @ weights)

    def primal(self, scores: FloatVector, weights: FloatVector) -> float:
        """Return P, given the scores with the intercept."""
        team = self.columns.team
        penalty = self.penalty(weights) if team.leads else 0.0
        return team.totals(self.loss.value(scores) + penalty)[0]

    def intercept(self, scores: FloatVector, start: float) -> float:
        """Return the best intercept, or 0.0 in a model without one."""
        return self.loss.intercept(scores, start, self.columns.team) if self.columns.has_intercept else 0.0

    def norms(self) -> FloatVector:
        """Return the norms of the columns that screening uses, shape (n_features,)."""
        norms: FloatVector = np.sqrt(self.loss.smoothness * self.columns.squares(self.loss.costs) + self.l2)
        return norms


@dataclass(frozen=True)
class Certificate:
    """The objective and its lower bound at weights."""

    primal: float
    dual: float
    products: FloatVector
    scale: float

    @property
    def gap(self) -> float:
        """P - D, not below zero; no number if one of them is none."""
        return max(self.primal - self.dual, 0.0)


@dataclass(frozen=True)
class Solution:
    """What a solver returns."""

    weights: FloatVector
    intercept: float | FloatVector
    gap: float
    n_iter: int
    n_screened: int = 0


def certify(problem: Problem, weights: FloatVector, scores: FloatVector) -> Certificate:
    """Return the certificate of weights, over all rows and columns, and report it.

    Ranks add up the products, one number for each column, and two or four other numbers.
    """
    loss, l1, l2, team = problem.loss, problem.l1, problem.l2, problem.columns.team
    duals = loss.duals(loss.mean(scores))
    if problem.columns.has_intercept:
        duals = loss.balanced(duals, team)
    products = problem.columns.products(duals)
    if l1 == 0.0:
        scale, squares = 1.0, float(products @ products) / l2
    else:
        steepest = float(np.abs(products - l2 * weights).max(initial=0.0))
        scale = min(1.0, l1 / steepest) if steepest > 0.0 else 1.0
        squares = scale**2 * l2 * float(weights @ weights)
    value, bound = loss.value(scores), loss.dual_value(scale * duals)
    if team.leads:
        value, bound = value + problem.penalty(weights), bound - 0.5 * squares
    primal, dual = team.totals(value, bound)
    team.report(primal, dual)
    return Certificate(primal, dual, products, scale)


def longest_step(
    problem: Problem,
    weights: FloatVector,
    change: FloatVector,
    scores: FloatVector,
    intercept: float,
    before: float,
) -> tuple[FloatVector, FloatVector, float] | None:
    """Return weights, scores and intercept after the longest of the steps 1, 1/2, ... that does not raise P, if any."""
    if not change.any():
        return None
    moved, step = problem.columns.scores(change), 1.0
    for _ in range(_MOST_HALVINGS):
        new, new_scores = weights + step * change, scores + step * moved
        new_intercept = problem.intercept(new_scores, intercept)
        if problem.primal(new_scores + new_intercept, new) <= before:
            return new, new_scores, new_intercept
        step *= 0.5
    return None
