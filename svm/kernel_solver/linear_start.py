r"""Starting a linear kernel from the solution of a linear solver.

Problem: with k(x, z) = x'z the dual of `dsgd.svm.kernel_solver.block` is that of a linear machine of the hinge or the
epsilon-insensitive loss whose intercept is not penalised (`dsgd.svm.linear_solver.problem`). A step on two variables
costs n kernel values; a visit of coordinate descent one row, and a Newton step one pass over the rows. Where rows are
many more than columns, or differ in scale, or C is large, that is ten to thousands of times less work.

Method: the linear solver runs to a small duality gap. Its dual variables are in their intervals; the error of their sum
is taken from the free ones. Then u = K(yα) = X(X'yα) is computed over all samples in float64, and the kernel solver
continues from there, mostly without a step, to its own criterion and its own proof. On few rows, or on too many columns
for them, the kernel solver begins, and the linear one follows if that does not end soon. Of two starts the one with the
lower dual objective is taken, so nothing is lost if the linear solver makes little progress.

Source: the solvers are those of `dsgd.svm.linear_solver.solve`; the combination is ours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from dsgd.collectives import Team
from dsgd.svm.kernel_solver.problem import Counts, Dual, Solution
from dsgd.svm.kernel_solver.smo import extremes
from dsgd.svm.kernels.threads import Pool
from dsgd.svm.linear_solver.problem import LinearProblem, LinearSolution
from dsgd.svm.linear_solver.rows import LinearRows
from dsgd.svm.linear_solver.solve import solve_linear
from dsgd.types import FloatMatrix, FloatVector

#: From so many rows on the linear solver begins, if they are so many per column.
_MANY, _PER_COLUMN = 512, 20
#: Steps per sample that the kernel solver has where it begins.
FIRST_STEPS = 50
#: Relative duality gaps to reach, in units of the tolerance, and passes and Newton steps at most. With the first the
#: criterion of the kernel solver mostly holds, which looks at the worst sample.
_GOALS = (1e-4, 1e-8)
_MOST_PASSES = 300
#: A variable closer to a bound than this share of it is at the bound.
_SNAP = 1e-7
#: Balancing shrinks variables by no more than this, or it was more than rounding of a solution.
_LEAST_SHRINKING = 0.9
_REPAIRS = 20


def has_linear_start(dual: Dual) -> bool:
    """Return whether a dual is that of a linear machine: one sum, that is zero, and a start at zero."""
    return not dual.by_sign and dual.u is None and not dual.alpha.any()


def weights_begin(n: int, d: int) -> bool:
    """Return whether the linear solver begins on n rows of d columns."""
    return n >= _MANY and n >= _PER_COLUMN * d


def solve_from_weights(
    dual: Dual,
    X: Any,
    run: Callable[[Dual, int], Solution],
    *,
    tol: float,
    pool: Pool,
    may_begin: bool = True,
) -> Solution:
    """Solve the dual of a linear kernel.

    - returned: that of the last run; its steps are those of all runs, passes and Newton steps included.
    """
    n, found = dual.y.shape[1], None
    if not (may_begin and weights_begin(n, X.shape[1])):
        found = run(dual, FIRST_STEPS * dual.y.size)
        if found.converged:
            return found
    start, n_iter = _begin(dual, X, tol, pool)
    if found is not None and found.objective <= _objective(start):
        start = replace(dual, alpha=found.alpha, u=found.u)
    solution = run(start, -1)
    before = Counts(n_iter)
    if found is not None:
        # Kernel values and hits are counted by the matrix, in all runs.
        before += replace(found.counts, n_evaluations=0, n_hits=0)
    return replace(solution, counts=before + solution.counts)


def _begin(dual: Dual, X: Any, tol: float, pool: Pool) -> tuple[Dual, int]:
    """Return the dual with what the linear solver has found as its start, and its passes and Newton steps."""
    problem, team = _problem(dual, X), Team(pool.n_threads, listener=lambda primal, dual: pool.check())
    best, n_iter = dual, 0
    try:
        for goal in _GOALS:
            found = solve_linear(problem, "auto", tol=goal * tol, max_iter=_MOST_PASSES, team=team)
            n_iter += found.n_iter
            start = _start(dual, problem, found, team)
            if best is dual or _objective(start) < _objective(best):
                best = start
            if _gap(start) < 0.9 * tol or not found.converged:
                break
    finally:
        team.close()
    return best, n_iter


def _problem(dual: Dual, X: Any) -> LinearProblem:
    """Return the same problem as that of a linear machine."""
    values, indices, n_columns = X, None, X.shape[1]
    if sp.issparse(X):
        present, places = np.unique(X.indices, return_inverse=True)  # wide rows have few columns of many
        values, indices, ends = X.data, places.astype(np.uint32), X.indptr.astype(np.uint64)
        n_columns = len(present)
    else:
        ends = np.arange(X.shape[0] + 1, dtype=np.uint64) * np.uint64(n_columns)
    rows = LinearRows(np.ascontiguousarray(values).ravel(), indices, ends[:-1], ends[1:], n_columns, 1.0)
    ridge = np.zeros(rows.n_rows)
    if len(dual.y) == 1:
        y, upper = dual.y[0], dual.upper[0]
        low, high = np.where(y > 0, 0.0, -upper), np.where(y > 0, upper, 0.0)
        return LinearProblem(rows, -y * dual.p[0], low, high, ridge, 0.0, penalizes_intercept=False)
    targets, epsilon = 0.5 * (dual.p[1] - dual.p[0]), 0.5 * float(dual.p[0, 0] + dual.p[1, 0])
    return LinearProblem(rows, targets, -dual.upper[1], dual.upper[0], ridge, epsilon, penalizes_intercept=False)


def _start(dual: Dual, problem: LinearProblem, found: LinearSolution, team: Team) -> Dual:
    """Return the dual with feasible variables next to those of a linear machine, and u for them."""
    beta = _unbalanced(found.duals, problem)
    alpha: FloatMatrix = np.clip(dual.y * beta, 0.0, dual.upper)
    alpha[alpha < _SNAP * dual.upper] = 0.0
    alpha = np.where(alpha > (1.0 - _SNAP) * dual.upper, dual.upper, alpha)
    alpha = _repaired(dual, alpha)
    weights = problem.rows.combine((dual.y * alpha).sum(axis=0), team)
    weights[-1] = 0.0  # that of the constant column is no part of the kernel
    return replace(dual, alpha=alpha, u=problem.rows.scores(weights, team))


def _unbalanced(duals: FloatVector, problem: LinearProblem) -> FloatVector:
    """Return the variables before those of one sign were shrunk so that all sum to zero: most were at their bounds."""
    out = duals.copy()
    for side, bounds in ((duals > 0.0, problem.high), (duals < 0.0, problem.low)):
        largest = float((duals[side] / bounds[side]).max(initial=0.0))
        if _LEAST_SHRINKING < largest < 1.0:
            out[side] /= largest
    return out


def _repaired(dual: Dual, alpha: FloatMatrix) -> FloatMatrix:
    """Return variables whose sum yα is zero: free ones make room first, each by its share of what it has."""
    is_free = (alpha > 0.0) & (alpha < dual.upper)
    for _ in range(_REPAIRS):
        excess = float((dual.y * alpha).sum())
        if abs(excess) <= 1e-15 * float(alpha.sum()):
            break
        room = np.where(dual.y * excess > 0.0, alpha, dual.upper - alpha)
        free = np.where(is_free, room, 0.0)
        room = free if float(free.sum()) >= abs(excess) else room
        share = min(1.0, abs(excess) / float(room.sum()))
        alpha = np.clip(alpha - np.sign(excess) * share * dual.y * room, 0.0, dual.upper)
    return alpha


def _gap(start: Dual) -> float:
    """Return the largest violation of a start over all samples."""
    group, ends = np.zeros(start.y.shape, dtype=np.int64), np.empty((2, 1))
    return float(extremes(start.u, start.y * start.p, start.y, start.upper, start.alpha, group, ends[0], ends[1]))


def _objective(start: Dual) -> float:
    beta = (start.y * start.alpha).sum(axis=0)
    return (0.5 * float(beta @ start.u) if start.u is not None else 0.0) + float((start.p * start.alpha).sum())
