r"""An unpenalised intercept, by the method of multipliers around the other solvers.

Problem: `dsgd.svm.linear_solver.problem` with the weight of the constant column left out of the norm; its dual has the
further constraint that the variables sum to zero. Round k solves a penalised problem whose penalty is centred at the
last intercept,

.. math:: \min_{w, \delta}\ \tfrac12 \|w\|^2 + \tfrac12 \delta^2
          + \sum_i C_i\, \ell\big(y_i,\ x_i \cdot w + s\,(v + \delta)\big), \qquad v \leftarrow v + \delta,

which is the problem with a constant column of s and the targets ``y_i - s v``: any solver for it will do, started where
the last round ended. At its solution the dual variables sum to ``delta / s``, so the rounds look for the zero of a
decreasing function of v: by secants, kept inside the bracket that the signs of delta give.

The certificate is that of the problem without the penalty, over all rows. A round costs what its solver costs; after
the first two it starts next to its solution.

Source: Rockafellar, Math. Oper. Res. 1976 (the proximal method); the secant is ours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from dsgd.collectives import Team
from dsgd.svm.linear_solver.problem import LinearProblem, LinearSolution, balance, certify, relative_gap
from dsgd.types import FloatVector

#: The constant column, in units of the root mean square length of the rows.
_REACH = {"dual_cd": 3.0, "newton": 30.0}
#: A round is solved until its own gap is this share of the gap of the whole, or of the tolerance.
_SHARE = 0.2
_MOST_ROUNDS = 100

#: Solves a penalised problem: problem, solver, tolerance, most iterations, start.
Solve = Callable[[LinearProblem, str, float, int, LinearSolution | None], LinearSolution]


def solve_free_intercept(
    problem: LinearProblem, solver: str, solve: Solve, *, tol: float, max_iter: int, team: Team
) -> LinearSolution:
    """Solve a problem whose intercept is not penalised.

    - returned: the best weights met, that of the constant column last, and dual variables that sum to zero.
    """
    trivial = _without_loss(problem, team)
    if trivial is not None:
        return trivial
    rows = problem.rows
    # Rows of constants alone have length zero, and any column will do.
    length = float(np.sqrt(np.mean(rows.norms(team) - rows.bias**2))) or 1.0
    scale = _REACH["newton" if solver == "newton" or (solver == "auto" and problem.is_smooth) else "dual_cd"] * length
    wide = replace(rows, bias=scale)
    best: FloatVector = np.zeros(rows.width)
    best_duals: FloatVector = np.zeros(rows.n_rows)
    primal, dual = np.inf, 0.0
    path = _Path()
    last: LinearSolution | None = None
    goal, before, n_iter, names = max(tol, 0.1), np.inf, 0, list[str]()
    for _ in range(_MOST_ROUNDS):
        centred = replace(problem, rows=wide, targets=problem.targets - scale * path.centre, penalizes_intercept=True)
        last = solve(centred, solver, goal, max_iter - n_iter, last)
        n_iter += last.n_iter
        names += [name for name in last.solver.split(", ") if name not in names]
        if solver == "auto":
            solver = last.solver.split(", ")[-1]  # a change over is for good
        weights = last.weights.copy()
        weights[-1] = (path.centre + last.weights[-1]) * scale / rows.bias
        new_primal, new_dual, _ = certify(problem, weights, last.duals, team)
        if new_primal < primal:
            best, primal = weights, new_primal
        if new_dual > dual:
            best_duals, dual = balance(last.duals, team), new_dual
        gap = relative_gap(primal, dual)
        if gap <= tol or n_iter >= max_iter:
            break
        # A round that changes little was solved too loosely to tell where to go.
        goal = min(goal if gap < 0.5 * before else max(0.2 * goal, 1e-15), _SHARE * max(tol, min(gap, 1.0)))
        before = gap
        last.weights[-1] = path.move(float(last.weights[-1]))
    return LinearSolution(best, best_duals, primal, dual, n_iter, relative_gap(primal, dual) <= tol, ", ".join(names))


class _Path:
    """The centres of the penalty and the weights found there: a decreasing function whose zero is looked for."""

    def __init__(self) -> None:
        self.centre = 0.0
        self._seen: list[tuple[float, float]] = []

    def move(self, found: float) -> float:
        """Record the weight found at the centre and move it; return the weight that does not change the intercept."""
        self._seen.append((self.centre, found))
        low = max((v for v, weight in self._seen if weight > 0.0), default=-np.inf)
        high = min((v for v, weight in self._seen if weight < 0.0), default=np.inf)
        plain = self.centre + found
        new = plain
        if len(self._seen) > 1:
            (v, weight), (other, other_weight) = self._seen[-1], self._seen[-2]
            slope = (weight - other_weight) / (v - other) if v != other else 0.0
            if slope < 0.0:
                new = v - weight / slope
        if not low < new < high:
            # Weights of loosely solved rounds sometimes have wrong signs; then only the plain step is taken.
            new = plain
            self._seen = self._seen[-1:]
        self.centre = new
        return plain - new


def _without_loss(problem: LinearProblem, team: Team) -> LinearSolution | None:
    """Return the solution of weight zero if some intercept alone leaves no loss, as for targets that are all equal."""
    rows = problem.rows
    costs = np.flatnonzero(problem.high > problem.low)
    weights: FloatVector = np.zeros(rows.width)
    if costs.size:
        targets = problem.targets[costs]
        weights[-1] = 0.5 * (float(targets.max()) + float(targets.min())) / rows.bias
    duals = np.zeros(rows.n_rows)
    primal, dual, _ = certify(problem, weights, duals, team)
    return LinearSolution(weights, duals, primal, dual, 0, True, "constant") if primal == 0.0 else None
