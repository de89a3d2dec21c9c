r"""The choice of a solver for a linear problem, and intercepts and penalties that need another one.

**An unpenalised intercept**, by the method of multipliers around the other solvers. The problem is
`dsgd.svm.linear_solver.problem` with the weight of the constant column left out of the norm; its dual has the further
constraint that the variables sum to zero. Round k solves a penalised problem whose penalty is centred at the last
intercept,

.. math:: \min_{w, \delta}\ \tfrac12 \|w\|^2 + \tfrac12 \delta^2
          + \sum_i C_i\, \ell\big(y_i,\ x_i \cdot w + s\,(v + \delta)\big), \qquad v \leftarrow v + \delta,

which is the problem with a constant column of s and the targets ``y_i - s v``: any solver for it will do, started where
the last round ended. At its solution the dual variables sum to ``delta / s``, so the rounds look for the zero of a
decreasing function of v: by secants, kept inside the bracket that the signs of delta give.

The certificate is that of the problem without the penalty, over all rows. A round costs what its solver costs; after
the first two it starts next to its solution.

Source: Rockafellar, Math. Oper. Res. 1976 (the proximal method); the secant is ours.

**The choice**, by predicted cost, is the table of docs/linear-svm.rst. A pass of coordinate descent reads the active
rows twice. A Newton step reads all rows once, and those with curvature twice per iteration of conjugate gradients.

- Of few columns a step is so short in compiled code that twenty to fifty take less than ten passes.
- A squared loss on more rows than columns keeps nearly every row active, so that coordinate descent takes up to
  hundreds of passes; Newton's method takes three to ten steps, at any scale of features and any C that we met.
- On fewer rows than columns Newton's method from zero takes a hundred steps to find the rows inside the margin, and
  twenty from where a hundred passes lead.
- Of a loss with a kink elimination leaves only the rows at the margin after a few passes; scales of features and large
  C can make that thousands of passes, so the rate of the gap is watched (`PATIENCE`, `SMOOTH_PATIENCE`).
- Of some hundred rows a Newton step costs more in calls from Python than a hundred passes.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp

from dsgd.collectives import Team
from dsgd.linear_model.columns import Columns, make_columns
from dsgd.linear_model.newton import solve_l1 as solve_by_working_sets
from dsgd.linear_model.problem import Problem, SquaredHingeLoss, shrunk
from dsgd.linear_model.problem import certify as certify_model
from dsgd.svm.linear_solver.descent import FEW_ENTRIES, solve_cocoa, solve_dual_cd
from dsgd.svm.linear_solver.newton import solve_newton
from dsgd.svm.linear_solver.problem import LinearProblem, LinearRows, LinearSolution, certify, relative_gap, spread
from dsgd.svm.linear_solver.small import is_small
from dsgd.types import FloatVector

#: The constant column, in units of the root mean square length of the rows.
_REACH = {"dual_cd": 3.0, "newton": 30.0}

#: A round is solved until its own gap is this share of the gap of the whole, or of the tolerance.
_SHARE = 0.2
_MOST_ROUNDS = 100


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


#: What `solver=` may be.
SOLVERS = ("auto", "dual_cd", "newton", "cocoa")

#: Passes that coordinate descent may have ahead, and columns per further one: with them Newton steps grow dearer.
PATIENCE = 30.0
COLUMNS_PER_PASS = 10.0

#: Reads of entries in the time that Newton's method needs beside those of its own, in calls from Python: of few rows
#: there may be so many more ahead.
READS_AHEAD = 2**18

#: The same for a squared loss on more columns than rows, and the passes after which the rate is judged there: for long
#: the dual objective says nothing, and Newton's method finds it hard to begin early.
SMOOTH_PATIENCE = 200.0
SMOOTH_EARLIEST = 100.0

#: Newton's method begins where it ends on this share of the rows, or on this many per column if that is more.
SAMPLE_SHARE = 8
ROWS_PER_COLUMN = 10
SAMPLE_ACCURACY = 0.3

#: Below so many entries it begins at zero.
LEAST_ENTRIES = 1_000_000


def solve_linear(
    problem: LinearProblem,
    solver: str,
    *,
    tol: float,
    max_iter: int,
    team: Team,
    seed: int = 0,
    start: LinearSolution | None = None,
) -> LinearSolution:
    """Solve one output of a linear SVM; with a free intercept, from no start, to balanced dual variables."""
    limits: dict[str, Any] = {"tol": tol, "max_iter": max_iter, "team": team}
    if problem.penalizes_intercept:
        return _solve_penalised(problem, solver, start, seed, limits)
    rows = problem.rows
    best: FloatVector = np.zeros(rows.width)
    best_duals: FloatVector = np.zeros(rows.n_rows)
    costs = np.flatnonzero(problem.high > problem.low)
    if costs.size:
        targets = problem.targets[costs]
        best[-1] = 0.5 * (float(targets.max()) + float(targets.min())) / rows.bias
    primal, dual, _ = certify(problem, best, best_duals, team)
    if primal == 0.0:  # this intercept alone leaves no loss, as for targets that are all equal
        return LinearSolution(best, best_duals, primal, dual, 0, True, "constant")
    # Rows of constants alone have length zero, and any column will do.
    length = float(np.sqrt(np.mean(rows.norms(team) - rows.bias**2))) or 1.0
    by_newton = solver == "newton" or (solver == "auto" and (problem.is_smooth or is_small(rows)))
    scale = _REACH["newton" if by_newton else "dual_cd"] * length
    wide = replace(rows, bias=scale)
    primal, dual = np.inf, 0.0
    path = _Path()
    last: LinearSolution | None = None
    goal, before, n_iter, names = max(tol, 0.1), np.inf, 0, list[str]()
    for _ in range(_MOST_ROUNDS):
        centred = replace(problem, rows=wide, targets=problem.targets - scale * path.centre, penalizes_intercept=True)
        left = {**limits, "tol": goal, "max_iter": max_iter - n_iter}
        last = _solve_penalised(centred, solver, last, seed, left)
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
            best_duals, dual = shrunk(last.duals, team), new_dual
        gap = relative_gap(primal, dual)
        if gap <= tol or n_iter >= max_iter:
            break
        # A round that changes little was solved too loosely to tell where to go.
        goal = min(goal if gap < 0.5 * before else max(0.2 * goal, 1e-15), _SHARE * max(tol, min(gap, 1.0)))
        before = gap
        last.weights[-1] = path.move(float(last.weights[-1]))
    return LinearSolution(best, best_duals, primal, dual, n_iter, relative_gap(primal, dual) <= tol, ", ".join(names))


def make_l1_columns(rows: LinearRows, *, penalizes_intercept: bool) -> Columns:
    """Return the columns of rows: the constant is one of them, or with an intercept that is not penalised none."""
    n, d = rows.n_rows, rows.n_features
    bias = rows.bias if penalizes_intercept else 0.0
    if rows.indices is None:
        X: Any = np.empty((n, d + (bias != 0.0)), rows.values.dtype)
        X[:, :d], X[:, d:] = rows.values.reshape(-1, d)[rows.first // max(d, 1)] if d else 0.0, bias
    else:
        packed = rows.packed(Team())
        starts = np.append(packed.first, packed.last[-1:]).astype(np.int64)
        X = sp.csr_array((packed.values, packed.indices, starts), (n, d)).tocsc()
        if bias:  # by hand: scipy's `hstack` takes as long as half of a fit
            values, numbers = np.append(X.data, np.full(n, bias)), np.arange(n, dtype=X.indices.dtype)
            ends = np.append(X.indptr.astype(np.int64), X.nnz + n)
            X = sp.csc_array((values, np.append(X.indices, numbers), ends), (n, d + 1))
    return make_columns(X, np.ones(n), rows.bias != bias, Team())


def solve_l1(problem: LinearProblem, columns: Columns, *, tol: float, max_iter: int) -> LinearSolution:
    """Solve a problem of the squared hinge with an L1 penalty; dual variables as in `dsgd.linear_model.problem`."""
    costs = np.where(problem.high > problem.low, 0.5 / problem.ridge, 0.0)
    posed = Problem(columns, SquaredHingeLoss(problem.targets, costs), 1.0, 0.0)
    found = solve_by_working_sets(posed, np.zeros(columns.shape[1]), tol, max_iter, is_relative=True)
    last = certify_model(posed, found.weights, columns.scores(found.weights) + found.intercept)
    weights, rows = found.weights, problem.rows
    if weights.shape[0] < rows.width:
        constant = (found.intercept - columns.centres @ weights) / rows.bias if columns.has_intercept else 0.0
        weights = np.append(weights, constant)
    converged = relative_gap(last.primal, last.dual) <= max(tol, 1e-14)
    duals = last.scale * last.duals
    return LinearSolution(weights, duals, last.primal, last.dual, found.n_iter, converged, "l1_newton")


def _solve_penalised(
    problem: LinearProblem, solver: str, start: LinearSolution | None, seed: int, limits: dict[str, Any]
) -> LinearSolution:
    """Solve a problem whose intercept is penalised; see `solve_linear`."""
    rows = problem.rows
    is_easy = problem.is_smooth and rows.n_rows >= rows.width
    if solver == "newton" or (solver == "auto" and (is_easy or is_small(rows))):
        return solve_newton(problem, **limits, start=start or _from_sample(problem, **limits))
    if solver == "cocoa":
        return solve_cocoa(problem, **limits, seed=seed, start=start)
    descend = partial(solve_dual_cd, problem, **limits, seed=seed, start=None if start is None else start.duals)
    if solver == "dual_cd":
        return descend()
    if problem.is_smooth:
        first = descend(patience=SMOOTH_PATIENCE, earliest=SMOOTH_EARLIEST)
    else:
        first = descend(
            patience=PATIENCE + rows.width / COLUMNS_PER_PASS + READS_AHEAD / max(rows.n_entries, FEW_ENTRIES)
        )
    if first.converged or first.n_iter >= limits["max_iter"]:
        return first
    second = solve_newton(problem, **limits, start=first)
    # On columns of very unlike scales Newton's method may end further off than it began.
    found = second if second.gap <= first.gap else first
    return replace(found, n_iter=first.n_iter + second.n_iter, solver="dual_cd, newton")


def _from_sample(problem: LinearProblem, *, tol: float, max_iter: int, team: Team) -> LinearSolution | None:
    """Return a solution for some of the rows, at costs that make up for the others; None if it would help little."""
    rows = problem.rows
    n_chosen = max(rows.n_rows // SAMPLE_SHARE, ROWS_PER_COLUMN * rows.width)
    if not problem.is_smooth or 2 * n_chosen > rows.n_rows or rows.n_entries < LEAST_ENTRIES:
        return None
    chosen = spread(rows.n_rows, n_chosen)
    share = rows.n_rows / n_chosen
    sample = replace(problem.take(chosen), ridge=problem.ridge[chosen] / share)
    start = _from_sample(sample, tol=tol, max_iter=max_iter, team=team)
    # The objective differs from that of all rows by about columns / rows of itself.
    goal = max(tol, SAMPLE_ACCURACY * rows.width / n_chosen)
    return solve_newton(sample, tol=goal, max_iter=max_iter, team=team, start=start)
