r"""Safe screening for linear SVMs: dual variables that the final certificate proves.

With w the weights, v the combination of rows by the dual variables, and G the duality gap, the optimum is within √(G −
¼ ‖w − v‖²) of ½ (w + v). This is the ball of `dsgd.svm.certify.screening`, which only needs P to be 1-strongly convex
in w and the dual to contain −½ ‖v‖²; it makes no assumption about the loss. So the score of row x is known up to that
radius times ‖x‖, and so is its slack, target less score. If the slack is certain to be on one side of the kink of the
loss, the variable is at the end of its interval (without an end, nothing follows), or zero, at every optimum.

An intercept that is not penalised is not part of w. At its optimal values the sum of the dual variables of all slacks
is zero. That sum falls with the intercept, so these values are between its zeros for the smallest and for the largest
slacks. Cost: two passes over the rows and one of norms.

Source: Ndiaye, Fercoq, Gramfort, Salmon, "Gap Safe screening rules", JMLR 2017; departures as in
`dsgd.svm.certify.screening`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dsgd.collectives import Team
from dsgd.svm.certify.screening import radius_of
from dsgd.svm.linear_solver.problem import LinearProblem, LinearSolution, balance
from dsgd.types import FloatVector

_HALVINGS = 60


def count_proven(problem: LinearProblem, solution: LinearSolution, team: Team) -> int:
    """Return how many dual variables a solution proves; see `prove_linear`."""
    return int(team.totals(float(np.isfinite(prove_linear(problem, solution, team)).sum()))[0])


def prove_linear(problem: LinearProblem, solution: LinearSolution, team: Team) -> FloatVector:
    """Return the dual variables that are proven at every optimum, NaN where nothing is, shape (n_rows,)."""
    rows, is_free = problem.rows, not problem.penalizes_intercept
    duals = balance(solution.duals, team) if is_free else solution.duals
    weights, combined = solution.weights.copy(), team.add_up(rows.combine(duals, team))
    squares = rows.norms(team)
    if is_free:
        weights[-1] = combined[-1] = 0.0
        squares = squares - rows.bias**2
    # What rounding may take from a difference of two sums over the rows.
    noise = (
        (team.totals(float(rows.n_rows))[0] + rows.width)
        * np.finfo(np.float64).eps
        * (abs(solution.primal) + abs(solution.dual))
    )
    difference = float(np.linalg.norm(weights - combined))
    radius = radius_of(max(solution.primal - solution.dual, 0.0) + noise, difference)
    reach = radius * np.sqrt(np.maximum(squares, 0.0))
    slack = problem.targets - rows.scores(0.5 * (weights + combined), team)
    reach = reach + 1e-12 * (np.abs(slack) + np.abs(problem.targets))
    least, largest = slack - reach, slack + reach
    if is_free:
        low, high = _intercepts(problem, least, largest)
        least, largest = least - high, largest - low
    return _settled(problem, least, largest)


def _settled(problem: LinearProblem, least: FloatVector, largest: FloatVector) -> FloatVector:
    """Return the variables of losses that are linear between the least and the largest slack."""
    epsilon, is_flat = problem.epsilon, problem.ridge == 0.0
    out = np.full(least.shape, np.nan)
    over, under = least > epsilon, largest < -epsilon
    out[over & (is_flat | (problem.high == 0.0))] = 1.0
    out[under & (is_flat | (problem.low == 0.0))] = -1.0
    inside = (least > -epsilon) & (largest < epsilon)
    out[inside] = 0.0
    return np.where(out > 0, problem.high, np.where(out < 0, problem.low, out))


def _duals(problem: LinearProblem, slack: FloatVector) -> float:
    """Return the sum of the dual variables that belong to slacks; their supremum where a loss has a kink."""
    excess = np.sign(slack) * np.maximum(np.abs(slack) - problem.epsilon, 0.0)
    steep = np.where(problem.ridge > 0.0, excess / np.where(problem.ridge > 0.0, problem.ridge, 1.0), np.inf)
    ends = np.where(excess > 0.0, problem.high, np.where(excess < 0.0, problem.low, 0.0))
    return float(np.where(problem.ridge > 0.0, np.clip(steep, problem.low, problem.high), ends).sum())


def _intercepts(problem: LinearProblem, least: FloatVector, largest: FloatVector) -> tuple[float, float]:
    """Return an interval of intercepts that holds every optimal one."""
    reach = 1.0 + problem.epsilon + float(max(np.abs(least).max(initial=0.0), np.abs(largest).max(initial=0.0)))
    small = np.maximum(problem.high, -problem.low)
    margin = 1e-9 * float(small[np.isfinite(small)].sum())
    # The sum falls from above zero to below: keep the ends where its sign is certain.
    low = _bisect(lambda b: _duals(problem, least - b) > margin, -reach, reach)[0]
    high = _bisect(lambda b: _duals(problem, largest - b) >= -margin, -reach, reach)[1]
    return low - 1e-9 * reach, high + 1e-9 * reach


def _bisect(is_left: Callable[[float], bool], low: float, high: float) -> tuple[float, float]:
    """Return a short interval around the place where `is_left` turns false."""
    if not is_left(low):
        return -np.inf, low
    if is_left(high):
        return high, np.inf
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if is_left(middle) else (low, middle)
    return low, high
