r"""The primal and dual objectives of a linear SVM, and the gap that certifies a solution.

Weights ``w`` include the weight of the constant column, so the intercept is penalised, as in LIBLINEAR:

.. math:: P(w) = \tfrac12 \|w\|^2 + \sum_i C_i\, \ell(y_i, x_i \cdot w)

Each of the four losses is the largest value of a concave function of one dual variable b in an interval,

.. math:: C_i\, \ell(y_i, f) = \max_{l_i \le b \le h_i} b\,(y_i - f) - \epsilon |b| - \tfrac12 \rho_i b^2,

==============================  =======  ============================  =============
loss                            epsilon  interval                      ridge rho_i
==============================  =======  ============================  =============
hinge, y = 1 or -1              0        [0, C_i] or [-C_i, 0]         0
squared_hinge                   0        [0, inf) or (-inf, 0]         1 / (2 C_i)
epsilon_insensitive             epsilon  [-C_i, C_i]                   0
squared_epsilon_insensitive     epsilon  (-inf, inf)                   1 / (2 C_i)
==============================  =======  ============================  =============

(For y = 1 or -1 the margin y f is below one exactly where y (y - f) is above zero.) So there is one dual problem,

.. math:: D(b) = \sum_i \left(y_i b_i - \epsilon |b_i| - \tfrac12 \rho_i b_i^2\right)
                 - \tfrac12 \Big\| \sum_i b_i x_i \Big\|^2,

one coordinate descent and one Newton method for all of them. For any w and any b in the intervals
``D(b) <= min P <= P(w)``: ``P(w) - D(b)`` bounds the error of w, whatever heuristic found them.

Without a penalty on the intercept (``penalizes_intercept=False``) P leaves the last weight out of the norm, and D holds
for dual variables that sum to zero. Any b becomes so by shrinking those of the sign that has the larger sum:
every interval contains zero, so they stay in theirs.

Source: Hsieh, Chang, Lin, Keerthi and Sundararajan, ICML 2008; Ho and Lin, JMLR 2012.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dsgd.collectives import Team
from dsgd.linear_model.problem import shrunk
from dsgd.svm.linear_solver.kernels import DualTerms, measure
from dsgd.svm.linear_solver.rows import LinearRows
from dsgd.types import AnyArray, FloatVector, IntVector

#: The losses of classification and of regression.
LOSSES = {
    "classification": ("hinge", "squared_hinge"),
    "regression": ("epsilon_insensitive", "squared_epsilon_insensitive"),
}


@dataclass(frozen=True)
class LinearProblem:
    """One output of a linear SVM; the module has the formulas."""

    rows: LinearRows
    targets: FloatVector
    low: FloatVector
    high: FloatVector
    ridge: FloatVector
    epsilon: float
    penalizes_intercept: bool = True

    @property
    def is_smooth(self) -> bool:
        """Whether the loss has a continuous derivative."""
        return bool(self.ridge.shape[0]) and float(self.ridge[0]) > 0.0

    @cached_property
    def terms(self) -> DualTerms:
        """The dual terms as kernels take them."""
        return self.targets, self.low, self.high, self.ridge, self.epsilon

    def take(self, chosen: IntVector) -> LinearProblem:
        """Return the problem on some of the rows; their entries are shared."""
        targets, low, high, ridge = self.targets[chosen], self.low[chosen], self.high[chosen], self.ridge[chosen]
        return replace(self, rows=self.rows.take(chosen), targets=targets, low=low, high=high, ridge=ridge)


@dataclass(frozen=True)
class LinearSolution:
    """What a solver returns."""

    weights: FloatVector
    duals: FloatVector
    primal: float
    dual: float
    n_iter: int
    converged: bool
    solver: str
    n_proven: int = 0

    @property
    def gap(self) -> float:
        """The relative duality gap, (primal - dual) / primal; 0 if both are zero."""
        return relative_gap(self.primal, self.dual)


def relative_gap(primal: float, dual: float) -> float:
    """Return (primal - dual) / primal, not below zero."""
    return max(0.0, primal - dual) / primal if primal > 0.0 else 0.0


def make_problem(
    loss: str,
    rows: LinearRows,
    targets: FloatVector,
    costs: FloatVector,
    epsilon: float = 0.0,
    penalizes_intercept: bool = True,
) -> LinearProblem:
    """Return the problem of a loss."""
    is_squared = loss.startswith("squared")
    has_cost = costs > 0.0  # a class of weight zero costs nothing: its variables stay at zero
    limit = np.where(has_cost, np.inf, 0.0) if is_squared else costs
    ridge = 0.5 / np.where(has_cost, costs, 1.0) if is_squared else np.zeros(targets.shape[0])
    penalizes = penalizes_intercept or rows.bias == 0.0
    if loss in LOSSES["classification"]:
        zero = np.zeros(targets.shape[0])
        low, high = np.where(targets > 0.0, zero, -limit), np.where(targets > 0.0, limit, zero)
        return LinearProblem(rows, targets, low, high, ridge, 0.0, penalizes)
    return LinearProblem(rows, targets, -limit, limit, ridge, float(epsilon), penalizes)


def certify(
    problem: LinearProblem,
    weights: FloatVector,
    duals: FloatVector,
    team: Team,
    *,
    combined: FloatVector | None = None,
    scores: FloatVector | None = None,
    threshold: float = np.inf,
    active: AnyArray | None = None,
) -> tuple[float, float, int]:
    """Return P(weights), D(duals), and the number of rows that a solver should keep active.

    Where the rows are divided among ranks, weights are those of all ranks, dual variables and `active` of this one.

    - `duals`, shape (n_rows,): any dual variables in their intervals; balanced first if the intercept is not
      penalised.
    """
    if scores is None:
        scores = problem.rows.scores(weights, team)
    free = 0 if problem.penalizes_intercept else 1  # weights at the end that the norm leaves out
    if free:
        duals, combined = shrunk(duals, team), None
    if combined is None:
        combined = team.add_up(problem.rows.combine(duals, team))
    if active is None:
        active = np.empty(problem.rows.n_rows, np.uint32)
    loss, terms, kept = measure(scores, problem.terms, duals, threshold, active)
    if team.leads:
        weights, combined = weights[: weights.shape[0] - free], combined[: combined.shape[0] - free]
        loss, terms = 0.5 * float(weights @ weights) + loss, terms - 0.5 * float(combined @ combined)
    primal, dual = team.totals(loss, terms)
    team.report(primal, dual)
    return primal, dual, int(kept)


def conclude(
    problem: LinearProblem, weights: FloatVector, duals: FloatVector, team: Team, tol: float, n_iter: int, solver: str
) -> LinearSolution:
    """Return the solution of weights and dual variables, with its certificate.

    - `duals`, shape (n_rows,): the last dual variables, of this rank. Their sum of rows is computed again, without
      accumulated rounding.
    """
    exact = team.add_up(problem.rows.combine(duals, team))
    primal, dual, _ = certify(problem, weights, duals, team, combined=exact)
    converged = relative_gap(primal, dual) <= max(tol, 1e-14)
    return LinearSolution(weights, duals, primal, dual, n_iter, converged, solver)
