"""The choice of a solver for a linear problem, by predicted cost.

A pass of coordinate descent reads the active rows twice. A Newton step reads all rows once and the rows with curvature
twice per iteration of conjugate gradients, of which its preconditioner leaves a few.

- A squared loss on more rows than columns goes to Newton's method: three to ten steps, at any scale of features and any
  C that we met, against tens or hundreds of passes, because nearly every row stays active in coordinate descent. With
  many rows per column it begins at the solution for some of the rows, found in the same way: then one or two steps over
  all rows are left.
- A squared loss on fewer rows than columns starts with coordinate descent: Newton's method from zero takes a hundred
  steps to find the rows inside the margin of a problem that is nearly separable, and twenty from where a hundred
  passes lead. It continues with Newton's method if the rate at which the gap closes predicts more than
  `SMOOTH_PATIENCE` further passes.
- Hinge and epsilon-insensitive losses start with coordinate descent, whose elimination leaves only the rows at the
  margin after a few passes. On features of different scales, or at large C, that takes thousands of passes, which
  cannot be known in advance; so the rate is watched here too, and if it predicts more than `PATIENCE` further passes,
  plus one for every ten columns, Newton's method continues from there.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from dsgd.collectives import Team
from dsgd.svm.linear_solver.cocoa import solve_cocoa
from dsgd.svm.linear_solver.dual_cd import solve_dual_cd
from dsgd.svm.linear_solver.intercept import solve_free_intercept
from dsgd.svm.linear_solver.newton import solve_newton
from dsgd.svm.linear_solver.problem import LinearProblem, LinearSolution
from dsgd.svm.linear_solver.rows import spread

#: What `solver=` may be.
SOLVERS = ("auto", "dual_cd", "newton", "cocoa")
#: Passes that coordinate descent may have ahead, and columns per further one: with them Newton steps grow dearer.
PATIENCE = 30.0
COLUMNS_PER_PASS = 10.0
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
    """Solve one output of a linear SVM."""
    solve = partial(_solve_penalised, team=team, seed=seed)
    if problem.penalizes_intercept:
        return solve(problem, solver, tol, max_iter, start)
    return solve_free_intercept(problem, solver, solve, tol=tol, max_iter=max_iter, team=team)


def _solve_penalised(
    problem: LinearProblem,
    solver: str,
    tol: float,
    max_iter: int,
    start: LinearSolution | None,
    *,
    team: Team,
    seed: int,
) -> LinearSolution:
    """Solve a problem whose intercept is penalised; see `solve_linear`."""
    rows = problem.rows
    limits: dict[str, Any] = {"tol": tol, "max_iter": max_iter, "team": team}
    if solver == "newton" or (solver == "auto" and problem.is_smooth and rows.n_rows >= rows.width):
        return solve_newton(problem, **limits, start=start or _from_sample(problem, **limits))
    if solver == "cocoa":
        return solve_cocoa(problem, **limits, seed=seed, start=start)
    descend = partial(solve_dual_cd, problem, **limits, seed=seed, start=None if start is None else start.duals)
    if solver == "dual_cd":
        return descend()
    if problem.is_smooth:
        first = descend(patience=SMOOTH_PATIENCE, earliest=SMOOTH_EARLIEST)
    else:
        first = descend(patience=PATIENCE + rows.width / COLUMNS_PER_PASS)
    if first.converged or first.n_iter >= max_iter:
        return first
    second = solve_newton(problem, **limits, start=first)
    return replace(second, n_iter=first.n_iter + second.n_iter, solver="dual_cd, newton")


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
