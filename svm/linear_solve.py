"""Which solver a linear problem gets, by what it would cost.

A pass of coordinate descent reads the active rows twice. A Newton step reads all rows once and the rows with curvature
twice per iteration of conjugate gradients, of which its preconditioner leaves a few.

- A squared loss goes to Newton's method: three to ten steps, at any scale of features and any C that we met, against
  tens or hundreds of passes, because nearly every row stays active in coordinate descent.
- Hinge and epsilon-insensitive losses start with coordinate descent, whose elimination leaves only the rows at the
  margin after a few passes. On features of different scales, or at large C, that takes thousands of passes, which
  nobody can tell beforehand; so the rate at which the gap closes is watched, and when it promises more than `PATIENCE`
  further passes, and one more for every ten columns, Newton's method goes on from there.
"""

from __future__ import annotations

from dataclasses import replace

from dsgd.svm.cocoa import solve_cocoa
from dsgd.svm.dual_cd import solve_dual_cd
from dsgd.svm.linear_intercept import solve_free_intercept
from dsgd.svm.linear_problem import LinearProblem, LinearSolution
from dsgd.svm.linear_rows import Team
from dsgd.svm.newton import solve_newton

__all__ = ["COLUMNS_PER_PASS", "PATIENCE", "SOLVERS", "solve_linear"]

#: What `solver=` may be.
SOLVERS = ("auto", "dual_cd", "newton", "cocoa")
#: Passes that coordinate descent may have ahead, and columns per further one: with them Newton steps grow dearer.
PATIENCE = 30.0
COLUMNS_PER_PASS = 10.0


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
    """Solve one output of a linear SVM.

    Parameters
    ----------
    problem : LinearProblem
        The problem.
    solver : {"auto", "dual_cd", "newton", "cocoa"}
        The method; the module says what "auto" does.
    tol : float
        Relative duality gap to reach.
    max_iter : int
        Most passes of coordinate descent, and most Newton steps.
    team : Team
        Shares passes over rows.
    seed : int
        Seed of the order of visits.
    start : LinearSolution, optional
        Where to begin, with dual variables in their intervals; at zero if not given.

    Returns
    -------
    LinearSolution
        Weights, dual variables and the two values that certify them.
    """

    def solve(
        penalised: LinearProblem, method: str, goal: float, most: int, origin: LinearSolution | None
    ) -> LinearSolution:
        return _solve_penalised(penalised, method, tol=goal, max_iter=most, team=team, seed=seed, start=origin)

    if problem.penalizes_intercept:
        return solve(problem, solver, tol, max_iter, start)
    return solve_free_intercept(problem, solver, solve, tol=tol, max_iter=max_iter, team=team)


def _solve_penalised(
    problem: LinearProblem,
    solver: str,
    *,
    tol: float,
    max_iter: int,
    team: Team,
    seed: int,
    start: LinearSolution | None,
) -> LinearSolution:
    """Solve a problem whose intercept is penalised; see `solve_linear`."""
    if solver == "newton" or (solver == "auto" and problem.is_smooth):
        return solve_newton(problem, tol=tol, max_iter=max_iter, team=team, start=start)
    if solver == "cocoa":
        return solve_cocoa(problem, tol=tol, max_iter=max_iter, team=team, seed=seed, start=start)
    duals = None if start is None else start.duals
    if solver == "dual_cd":
        return solve_dual_cd(problem, tol=tol, max_iter=max_iter, team=team, seed=seed, start=duals)
    patience = PATIENCE + problem.rows.width / COLUMNS_PER_PASS
    first = solve_dual_cd(problem, tol=tol, max_iter=max_iter, team=team, seed=seed, start=duals, patience=patience)
    if first.converged or first.n_iter >= max_iter:
        return first
    second = solve_newton(problem, tol=tol, max_iter=max_iter, team=team, start=first)
    return replace(second, n_iter=first.n_iter + second.n_iter, solver="dual_cd, newton")
